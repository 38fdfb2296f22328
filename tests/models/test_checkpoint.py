"""Checkpoints: weights are found wherever they lie, refused by name, and written back as they came."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import purge
from purge.core.errors import FileError
from purge.models.checkpoint import digest, load_weights, save_weights
from purge.models.export import words
from tests.data.image_files import Payload


class Net(nn.Module):
    """Names of two levels, a buffer, and a layer that is wrapped in some checkpoints."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def state(seed: int = 1, prefix: str = "") -> dict[str, Tensor]:
    return {prefix + name: t.clone() for name, t in Net(seed).state_dict().items()}


def momentum() -> dict[str, Any]:
    """The state of an optimiser after a step."""
    group = {"lr": 0.1, "momentum": 0.9, "params": [0, 1]}
    return {"state": {i: {"momentum_buffer": torch.ones(3)} for i in (0, 1)}, "param_groups": [group]}


def lightning(prefix: str = "model.") -> dict[str, Any]:
    """What Lightning 2 writes, key by key."""
    more = {"loss.weight": torch.ones(3)} if prefix else {}
    return {
        "epoch": 3, "global_step": 40, "pytorch-lightning_version": "2.5.0",
        "state_dict": {**state(1, prefix), **more},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.3)}},
        "optimizer_states": [momentum()], "lr_schedulers": [],
        "hparams_name": "kwargs", "hyper_parameters": {"lr": 0.1, "args": argparse.Namespace(width=5)},
    }  # fmt: skip


FORMS: dict[str, Any] = {
    "plain": lambda: state(),
    "of DataParallel": lambda: state(1, "module."),
    "compiled": lambda: state(1, "_orig_mod."),
    "a compiled layer": lambda: {k.replace("body.", "body._orig_mod."): t for k, t in state().items()},
    "all of them": lambda: {"state_dict": state(1, "model.module._orig_mod.")},
    "a name of one's own": lambda: {"model": state(1, "classifier.")},
    "model and optimiser": lambda: {"model_state_dict": state(), "optimizer": momentum(), "epoch": 3},
    "with a namespace": lambda: {"model": state(), "args": argparse.Namespace(lr=0.1, path=Path("x"))},
    "with an average": lambda: {"model_ema": state(2), "model": state()},
    "deep": lambda: {"payload": {"net": {"weights": state()}}},
    "lightning": lightning,
    "lightning without a prefix": lambda: lightning(""),
}


def leaves(content: Any, way: str = "") -> dict[str, Any]:
    """Everything in nested dicts, by its way."""
    if not isinstance(content, dict):
        return {way: content}
    return {k: v for key, value in content.items() for k, v in leaves(value, f"{way}/{key}").items()}


@pytest.mark.parametrize("form", FORMS)
def test_weights_are_found_and_go_back_as_they_came_without_what_may_remember(
    form: str, tmp_path: Path
) -> None:
    old, new, model = tmp_path / "old.ckpt", tmp_path / "new.ckpt", Net()
    torch.save(FORMS[form](), old)
    load_weights(model, old)
    assert digest(model) == digest(Net(1))
    left = purge.export(Net(7), new, like=old)
    load_weights(model, new)
    assert digest(model) == digest(Net(7))
    before = leaves(FORMS[form]())
    after = leaves(torch.load(new, weights_only=True))
    assert after.keys() <= before.keys()
    kept = {way for way, value in before.items() if isinstance(value, (int, float, str))}
    assert kept - {"/hyper_parameters/lr"} <= after.keys()  # beside an object that is not loaded
    assert sum(isinstance(value, Tensor) for value in after.values()) == len(model.state_dict())
    for name in ("optimizer", "model_ema", "args", "optimizer_states", "callbacks", "hyper_parameters"):
        assert (name in left) == any(way.split("/")[1] == name for way in before), name
    assert ("loss.weight" in left) == (form == "lightning")
    assert bool(words(left, new)) == bool(left)


def test_number_types_and_metadata_are_kept(tmp_path: Path) -> None:
    half = {name: t.half() if t.is_floating_point() else t for name, t in state(1, "module.").items()}
    save_file(half, tmp_path / "old.safetensors", metadata={"format": "pt", "run": "7"})
    assert purge.export(Net(2), tmp_path / "new.safetensors", like=tmp_path / "old.safetensors") == []
    with safe_open(tmp_path / "new.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "run": "7"}
    found = load_file(tmp_path / "new.safetensors")
    assert {name: t.dtype for name, t in found.items()} == {name: t.dtype for name, t in half.items()}
    torch.testing.assert_close(found["module.head.bias"], Net(2).head.bias.detach().half())


# -- shards ---------------------------------------------------------------------------------------


def sharded(folder: Path, index: dict[str, str] | str = "") -> Path:
    """A folder as save_pretrained shards it; ``index``: other files of weights, or the whole text."""
    whole = state()
    files = {name: f"model-0000{1 + (i > 3)}-of-00002.safetensors" for i, name in enumerate(whole)}
    folder.mkdir(exist_ok=True)
    for file in set(files.values()):
        save_file({n: t for n, t in whole.items() if files[n] == file}, folder / file)
    if not isinstance(index, str) or not index:
        index = json.dumps({"metadata": {"total_size": 0}, "weight_map": files | (index or {})})
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "config.json").write_text("{}")
    (folder / "optimizer.pt").write_bytes(b"secret")
    return folder


def test_shards_are_read_and_written_as_one_file(tmp_path: Path) -> None:
    model = Net()
    load_weights(model, sharded(tmp_path / "old"))
    assert digest(model) == digest(Net(1))
    left = purge.export(Net(3), tmp_path / "new", like=tmp_path / "old")
    assert left == ["optimizer.pt"]
    assert {p.name for p in (tmp_path / "new").iterdir()} == {"config.json", "model.safetensors"}
    load_weights(model, tmp_path / "new")
    assert digest(model) == digest(Net(3))


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"head.bias": "../outside.safetensors"}, "a plain name"),
        ({"head.bias": "/etc/passwd"}, "a plain name"),
        ({"head.bias": "absent.safetensors"}, "no such file"),
        ({"more": "model-00001-of-00002.safetensors"}, "more elsewhere"),
        ({"head.bias": "model-00001-of-00002.safetensors"}, "head.bias elsewhere"),
        *((text, "") for text in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "{}")),
    ],
)
def test_an_index_that_leads_astray_or_is_damaged_is_refused(
    index: dict[str, str] | str, said: str, tmp_path: Path
) -> None:
    save_file(state(), tmp_path / "outside.safetensors")
    assert said in refused(sharded(tmp_path / "odd", index))


# -- refusals -------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    model = Net()
    before = digest(model)
    with pytest.raises(FileError) as error:
        load_weights(model, path)
    assert digest(model) == before, "a refused file must not change the model"
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def test_what_does_not_fit_is_told_with_five_names(tmp_path: Path) -> None:
    odd = {f"extra.{i}": torch.zeros(1) for i in range(7)}
    fitting = {k: t for k, t in state().items() if not k.startswith("head")}
    torch.save({"model": {**fitting, "head.weight": torch.zeros(9, 5), **odd}}, tmp_path / "w.pt")
    said = refused(tmp_path / "w.pt")
    assert "1 missing, 7 unexpected, 1 of another shape" in said
    assert "missing: head.bias;" in said
    assert "unexpected: extra.0, extra.1, extra.2, extra.3, extra.4 …;" in said
    assert "head.weight (9, 5) instead of (3, 5)" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        *((c, "a dict of tensors by name") for c in ([torch.zeros(2)], {"epoch": 3}, {"weight": 1}, {})),
        ({"model": {"weight": 1}}, "a dict of tensors by name"),
        ({"student": state(1), "teacher": state(2)}, "student and teacher"),
        ({**state(1, "student."), **state(2, "teacher.")}, "student and teacher"),
    ],
)
def test_weights_that_are_not_there_or_twice_are_not_guessed(content: Any, said: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    assert said in refused(tmp_path / "w.pt")


class Executes:
    """Makes a folder if it is unpickled, by a function that torch does not single out."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return exec, (f"import os; os.mkdir({str(self.mark)!r})",)


@pytest.mark.parametrize("kind", [Payload, Executes])
@pytest.mark.parametrize("deep", [False, True])
def test_code_is_not_run_wherever_it_is(kind: Any, deep: bool, tmp_path: Path) -> None:
    """Among the weights, the file is refused; beside them, the object is not made."""
    path, bad = tmp_path / "w.pt", kind(tmp_path / "ran")
    among = {**state(), "head.bias": bad}
    torch.save({"state_dict": among} if deep else among, path)
    assert "it was not run" in refused(path)
    torch.save({"state_dict": state(), "hook": bad}, path)
    if kind is Payload:  # torch reads no file that names a function of the system
        assert "it was not run" in refused(path)
    else:
        load_weights(model := Net(), path)
        assert digest(model) == digest(Net(1))
        assert purge.export(model, tmp_path / "new.pt", like=path) == ["hook"]
    assert not (tmp_path / "ran").exists()


def test_exports_that_cannot_be_are_refused_at_once(tmp_path: Path) -> None:
    old, there = tmp_path / "old.pt", tmp_path / "there.pt"
    torch.save(state(), old)
    there.write_bytes(b"mine")
    for path, like, said in (
        (old, old, "the checkpoint that the model came from"),
        (tmp_path / "new.safetensors", old, "a file of .pt"),
        (tmp_path / "new", old, "a file of .pt .* got new"),
        (tmp_path / "none" / "new.pt", old, "a folder at"),
        (there, old, "no file yet"),
    ):
        with pytest.raises(FileError, match=said):
            purge.export(Net(), path, like=like)
    assert there.read_bytes() == b"mine"
    purge.export(Net(4), there, like=old, force=True)
    load_weights(model := Net(), there)
    assert digest(model) == digest(Net(4))


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_plain_weights_survive_a_round_trip_and_damage_is_reported(suffix: str, tmp_path: Path) -> None:
    path, model = tmp_path / f"w.{suffix}", Net(5)
    assert "no such file" in refused(path)
    assert purge.export(model, path) == []
    other = Net()
    load_weights(other, path)
    assert digest(other) == digest(model) != digest(Net())
    whole = path.read_bytes()
    for content in (b"", whole[:-20], whole[: len(whole) // 2], b"text"):
        path.write_bytes(content)
        assert "damaged" in refused(path)


def test_tied_weights_are_stored_under_both_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_weights(model, tmp_path / "w.safetensors")
    plain = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    load_weights(plain, tmp_path / "w.safetensors")
    assert torch.equal(plain[1].weight, model[0].weight)


def test_the_digest_depends_on_names_values_and_buffers() -> None:
    model = Net()
    first = digest(model)
    assert digest(model.eval()) == first
    model.body[1].running_mean[0] += 1
    assert digest(model) != first
    layer = nn.Linear(2, 2)
    assert digest(nn.ModuleDict({"a": layer})) != digest(nn.ModuleDict({"b": layer}))


class Counting(nn.Linear):
    """Has extra state that is not a tensor."""

    def __init__(self, seen: int) -> None:
        super().__init__(2, 2)
        self.seen = seen

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def test_extra_state_that_is_not_a_tensor_is_left_alone(tmp_path: Path) -> None:
    one, other = Counting(1), Counting(2)
    save_weights(one, tmp_path / "w.safetensors")
    load_weights(other, tmp_path / "w.safetensors")
    assert digest(one) == digest(other)
    assert other.seen == 2


def test_a_folder_of_save_pretrained_goes_there_and_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    torch.manual_seed(0)
    model, other = (transformers.BertForSequenceClassification(config) for _ in range(2))
    for shard in ("1GB", "1KB"):
        old, new = tmp_path / f"old-{shard}", tmp_path / f"new-{shard}"
        model.save_pretrained(old, max_shard_size=shard)
        assert (old / "model.safetensors.index.json").exists() == (shard == "1KB")
        load_weights(other, old)
        assert digest(other) == digest(model)
        with torch.no_grad():
            other.classifier.bias += 1
        purge.export(other, new, like=old)
        with caplog.at_level(logging.ERROR):
            again = transformers.BertForSequenceClassification.from_pretrained(new)
        assert digest(again) == digest(other)
