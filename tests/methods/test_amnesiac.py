"""Amnesiac unlearning: the log of updates, what is taken back, the repair, and what is refused."""

from __future__ import annotations

import copy
import json
import logging
import shutil

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import purge
from purge.core.errors import DataError, FileError, MethodError, ModelError
from purge.core.settings import flat_fields
from purge.data.identity import identities
from purge.data.images import Images
from purge.data.samples import as_samples
from purge.data.split import split
from purge.engine.optimizer import Optim
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe, fit
from purge.methods import amnesiac
from purge.methods.amnesiac import Amnesiac, UpdateLog, take_back, updates_with
from purge.methods.registry import resolve_method
from purge.models.checkpoint import digest
from tests.nets import blobs, small_mlp

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=3, lr=0.05, batch_size=16)


def samples(data):
    return as_samples(data, CPU, "data")


def train(folder, data=None, model=None, *, only=None, recipe=RECIPE, seed=0, more=None):
    """A model trained with a log (or, beside it, with a recorder of our own)."""
    data, model = data or blobs(), copy.deepcopy(model or small_mlp())
    part = None if only is None else samples(only)
    log = more or UpdateLog(folder, model, samples(data), recipe, only=part)
    with seeded(seed, CPU):
        fit(model, samples(data), recipe, seed=seed, progress=False, title="train", updates=log)
    model.zero_grad(set_to_none=True)
    return model


def forget(model, gone, kept, log, **changes):
    given = {"method": Amnesiac(), "log": str(log), "progress": False, **changes}
    return purge.unlearn(model, gone, kept, **given)


class Snapshots:
    """Weights before and after each step, kept by the test itself."""

    def __init__(self):
        self.steps, self.first = [], None

    def before(self, model, step, index):
        self.now = step, index.tolist(), [p.detach().clone() for p in model.parameters()]
        self.first = self.first or self.now[2]

    def after(self, model):
        self.steps.append((*self.now, [p.detach().clone() for p in model.parameters()]))

    def finish(self, model):
        self.last = [p.detach().clone() for p in model.parameters()]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A folder with a full log, and its model."""
    folder = tmp_path_factory.mktemp("log") / "updates"
    return train(folder), folder


@pytest.fixture(scope="module")
def recorded():
    seen = Snapshots()
    train(None, more=seen)
    return seen


def weights(model):
    return [p.detach() for p in model.parameters()]


# -- what is taken back -----------------------------------------------------------------------


def test_the_whole_method_against_snapshots_in_double_precision(logged, recorded):
    """θ − Σ δ_b over the batches with a forgotten sample, then one step on all retained ones."""
    model, folder = logged
    x, y = blobs()
    rows = [3, 40, 77]
    gone, kept = split((x, y), indices=rows)
    expected = [w.double() for w in weights(model)]
    touched = 0
    for _, index, before, after in recorded.steps:
        if set(index) & set(rows):
            touched += 1
            expected = [
                e - (a.double() - b.double()) for e, a, b in zip(expected, after, before, strict=True)
            ]
    assert 3 <= touched < len(recorded.steps)

    plain = forget(model, gone, kept, folder, epochs=0).model
    for ours, theirs in zip(weights(plain), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-6)

    optim = Optim(lr=0.1, momentum=0.9, weight_decay=1e-2)
    repaired = forget(model, gone, kept, folder, epochs=1, batch_size=1000, norm="frozen", optim=optim)
    twin = copy.deepcopy(model).double().eval()
    for p, e in zip(twin.parameters(), expected, strict=True):
        p.data.copy_(e)
    loss = nn.functional.cross_entropy(twin(kept[0].double()), kept[1])
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    for ours, e, g in zip(weights(repaired.model), expected, gradients, strict=True):
        torch.testing.assert_close(ours.double(), e - 0.1 * (g + 1e-2 * e), rtol=0, atol=1e-5)


def test_one_logged_batch_is_taken_back_exactly(tmp_path):
    seen, recipe = Snapshots(), Recipe(epochs=1, lr=0.05, batch_size=16)
    train(None, more=seen, recipe=recipe)
    model = train(tmp_path / "log", recipe=recipe)
    _, index, before, after = seen.steps[2]  # each sample is in one batch of the only epoch
    gone, kept = split(blobs(), indices=index[:1])
    result = forget(model, gone, kept, tmp_path / "log", epochs=0)
    for ours, theta, a, b in zip(weights(result.model), seen.last, after, before, strict=True):
        assert torch.equal(ours, theta - (a - b))
    assert result.steps == 1
    assert [row["taken_back"] for row in result.history] == [None, 1]
    buffers = zip(result.model.buffers(), model.buffers(), strict=True)
    assert all(torch.equal(a, b) for a, b in buffers), "running statistics are not in the log"


def test_all_updates_taken_back_are_the_first_weights(logged, recorded):
    model, folder = logged
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == len(recorded.steps) == 3 * (96 // 16)
    twin = copy.deepcopy(model)
    take_back(twin, files[::-1])
    for ours, first, last in zip(weights(twin), recorded.first, recorded.last, strict=True):
        torch.testing.assert_close(ours, first, rtol=0, atol=1e-6)
        assert not torch.equal(first, last)
    # By the method: samples that are in every batch between them.
    rows = sorted({index[0] for _, index, _, _ in recorded.steps})
    result = forget(model, *split(blobs(), indices=rows), folder, epochs=0)
    assert result.history[-1]["taken_back"] == len(files)
    used = updates_with(str(folder), model, samples(split(blobs(), indices=rows)[0]))
    assert used == files[::-1], "the last one first, so that each subtraction undoes the latest rounding"
    for ours, first in zip(weights(result.model), recorded.first, strict=True):
        torch.testing.assert_close(ours, first, rtol=0, atol=1e-6)


def test_it_is_not_gradient_ascent(logged):
    """Labels of the forget set and gradients there play no part: only the log does."""
    model, folder = logged
    gone, kept = split(blobs(), indices=[0])
    calls = []
    handle = nn.modules.module.register_module_full_backward_hook(lambda *_: calls.append(1))
    try:
        forget(model, gone, kept, folder, epochs=0)
    finally:
        handle.remove()
    assert not calls


def test_logging_changes_nothing(logged):
    model, _ = logged
    twin = small_mlp()
    with seeded(0, CPU):
        fit(twin, samples(blobs()), RECIPE, seed=0, progress=False, title="train")
    assert digest(twin) == digest(model)
    assert digest(
        purge.train(small_mlp(), blobs(), epochs=3, lr=0.05, batch_size=16, progress=False).model
    ) == (digest(model))


def test_what_takes_no_gradient_is_neither_logged_nor_taken_back(tmp_path, logged):
    fixed = small_mlp()
    fixed[0].weight.requires_grad_(False)
    model = train(tmp_path / "log", model=fixed)
    assert "0.weight" not in load_file(tmp_path / "log" / "00000000.safetensors")
    result = forget(model, *split(blobs(), indices=[0]), tmp_path / "log")
    assert torch.equal(result.model[0].weight, fixed[0].weight)
    later = copy.deepcopy(logged[0])
    later[0].weight.requires_grad_(False)
    result = forget(later, *split(blobs(), indices=[0]), logged[1])
    assert torch.equal(result.model[0].weight, later[0].weight)
    assert not torch.equal(result.model[3].weight, later[3].weight)


# -- the log ----------------------------------------------------------------------------------


def test_the_log_of_some_samples_knows_all_steps(tmp_path, logged, recorded):
    rows = [3, 40]
    gone, kept = split(blobs(), indices=rows)
    model = train(tmp_path / "log", only=gone)
    assert digest(model) == digest(logged[0])
    table = pq.read_table(tmp_path / "log" / "steps.parquet").to_pydict()
    names = identities(samples(blobs()))
    assert table["step"] == list(range(len(recorded.steps)))
    assert table["ids"] == [names[index].tolist() for _, index, _, _ in recorded.steps]
    assert table["logged"] == [bool(set(index) & set(rows)) for _, index, _, _ in recorded.steps]
    files = {p.name for p in (tmp_path / "log").glob("*.safetensors")}
    assert files == {f"{i:08d}.safetensors" for i, there in enumerate(table["logged"]) if there}
    facts = json.loads((tmp_path / "log" / "log.json").read_text())
    assert facts == {"digest": digest(model), "steps": 18, "logged": len(files), "everything": False}
    one, other = (
        forget(model, gone, kept, at, epochs=0).model for at in (tmp_path / "log", logged[1])
    )  # fmt: skip
    assert digest(one) == digest(other)
    with pytest.raises(
        MethodError, match=r"updates that the forget set had a part in.*one without \d+ of them"
    ):
        forget(model, *split(blobs(), indices=[5]), tmp_path / "log")


def test_images_are_known_by_their_ids(tmp_path):
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, 1, 4, 4), generator=g, dtype=torch.uint8)
    data = Images(pixels, torch.arange(40) % 4, ids=1000 + torch.arange(40))
    torch.manual_seed(0)
    model = train(
        tmp_path / "log",
        data,
        nn.Sequential(nn.Flatten(), nn.Linear(16, 4)),
        recipe=Recipe(epochs=1, batch_size=8),
    )
    result = forget(model, *split(data, classes=[1]), tmp_path / "log", epochs=2, batch_size=16)
    assert result.steps == 1 + 2 * 2
    other = Images(pixels, torch.arange(40) % 4)
    with pytest.raises(DataError, match="3 of 3 that it does not know"):
        forget(model, *split(other, indices=[0, 1, 2]), tmp_path / "log")


def test_a_sample_that_was_never_drawn_has_nothing_to_take_back(tmp_path, recorded):
    x, y = blobs(20)
    recipe = Recipe(epochs=1, batch_size=16)  # the last four are left out
    model = train(tmp_path / "log", (x, y), recipe=recipe)
    seen = Snapshots()
    train(None, (x, y), recipe=recipe, more=seen)
    left = sorted(set(range(20)) - set(seen.steps[0][1]))
    result = forget(model, *split((x, y), indices=left), tmp_path / "log", epochs=0)
    assert result.history[-1]["taken_back"] == 0
    assert digest(result.model) == digest(model)


def test_the_size_is_said_at_the_door(tmp_path, monkeypatch, caplog):
    model, data = small_mlp(), samples(blobs())
    size = 4 * sum(p.numel() for p in model.parameters())
    full = UpdateLog(tmp_path / "a", model, data, RECIPE)
    assert full.expected_bytes(model, RECIPE) == size * 18
    few = UpdateLog(tmp_path / "b", model, data, RECIPE, only=samples(split(blobs(), indices=[1])[0]))
    assert few.expected_bytes(model, RECIPE) == round(size * 18 * (1 - (95 / 96) ** 16))
    assert not caplog.records
    monkeypatch.setattr(amnesiac, "LARGE", 100)
    with caplog.at_level(logging.WARNING, "purge"):
        UpdateLog(tmp_path / "c", model, data, RECIPE)
    assert "will take about 0.0 GB" in caplog.text
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(amnesiac.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(FileError, match=r"room for a log of about .* GB"):
        UpdateLog(tmp_path / "d", model, data, RECIPE)
    assert not (tmp_path / "d").exists()


def test_a_log_that_cannot_be_right_is_not_begun(tmp_path):
    model, data = small_mlp(), samples(blobs())
    with pytest.raises(MethodError, match="ema=0"):
        UpdateLog(tmp_path / "log", model, data, Recipe(ema=0.9))
    with pytest.raises(DataError, match="96 that are not in it"):
        UpdateLog(tmp_path / "log", model, data, RECIPE, only=samples(blobs(seed=5)))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").touch()
    with pytest.raises(FileError, match="empty folder"):
        UpdateLog(tmp_path / "full", model, data, RECIPE)
    log = UpdateLog(tmp_path / "late", model, data, RECIPE)
    log.before(model, 5, torch.arange(4))
    log.after(model)
    with pytest.raises(FileError, match="resumed"):
        log.finish(model)


def test_a_disk_that_is_full_is_one_sentence(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    log = UpdateLog(tmp_path / "log", small_mlp(), samples(blobs()), RECIPE)
    monkeypatch.setattr(amnesiac, "save_file", full)
    with pytest.raises(FileError, match="No space left"):
        train(None, more=log)


# -- refusals of the method -------------------------------------------------------------------


def test_no_log_and_an_unfinished_one_are_refused(logged, tmp_path):
    model, folder = logged
    gone, kept = split(blobs(), indices=[0])
    with pytest.raises(MethodError, match=r"log=….*purge train --log-updates DIR"):
        purge.unlearn(model, gone, kept, method=Amnesiac(), progress=False)
    with pytest.raises(FileError, match=r"nothing without log\.json"):
        forget(model, gone, kept, tmp_path / "nowhere")
    shutil.copytree(folder, tmp_path / "cut")
    (tmp_path / "cut" / "log.json").unlink()
    with pytest.raises(FileError, match=r"a folder without log\.json"):
        forget(model, gone, kept, tmp_path / "cut")


def test_the_log_of_another_model_is_refused(logged, tmp_path):
    model, folder = logged
    gone, kept = split(blobs(), indices=[0])
    for other in (small_mlp(), train(tmp_path / "other", seed=1)):
        with pytest.raises(ModelError, match="one with other weights"):
            forget(other, gone, kept, folder)
    edited = copy.deepcopy(model)
    edited[1].running_mean.add_(1)
    with pytest.raises(ModelError, match="one with other weights"):
        forget(edited, gone, kept, folder)


def test_samples_that_were_not_trained_on_are_refused(logged):
    model, folder = logged
    x, y = blobs()
    with pytest.raises(DataError, match="1 of 1 that it does not know"):
        forget(model, (x[:1] + 1, y[:1]), (x[1:], y[1:]), folder)


@pytest.mark.parametrize("what", ["missing", "short", "foreign", "index", "samples"])
def test_damaged_logs_are_refused_before_anything_is_done(logged, tmp_path, what):
    model, folder = logged
    copied = tmp_path / "log"
    shutil.copytree(folder, copied)
    gone, kept = split(blobs(), indices=[0])
    file = updates_with(str(copied), model, samples(gone))[0]
    if what == "missing":
        file.unlink()
    elif what == "short":
        file.write_bytes(file.read_bytes()[:-4])
    elif what == "foreign":
        save_file({"0.weight": torch.zeros(2)}, file)
    else:
        (copied / ("steps.parquet" if what == "index" else "samples.parquet")).write_bytes(b"no")
    with pytest.raises(FileError, match="missing or damaged"):
        forget(model, gone, kept, copied)


# -- settings, and what every method must do (tests/contract, for a model with a log) ---------

OTHER = {
    "epochs": 3, "batch_size": 7, "norm": "frozen", "lr": 3e-3, "momentum": 0.5, "weight_decay": 0.3,
    "optimizer": "adamw", "clip": 0.01,
}  # fmt: skip


@pytest.mark.parametrize("field", OTHER)
def test_every_setting_has_an_effect(field, logged):
    model, folder = logged
    gone, kept = split(blobs(), indices=[0])
    plain = forget(model, gone, kept, folder, batch_size=16)
    changed = forget(model, gone, kept, folder, **{"batch_size": 16, field: OTHER[field]})
    assert digest(plain.model) != digest(changed.model)


def facts(model):
    modules = list(model.modules())
    return (
        digest(model),
        [m.training for m in modules],
        [p.requires_grad for p in model.parameters()],
        [p.grad is None for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules],
        ["forward" in m.__dict__ for m in modules],
    )


def test_settings_survive_the_command_line():
    flat = {f.name: "none" if v is None else str(v) for f, v in flat_fields(Amnesiac())}
    assert resolve_method(Amnesiac(), flat) == Amnesiac()


def test_the_contract(logged, monkeypatch):
    model, folder = copy.deepcopy(logged[0]), logged[1]
    model.train()
    model[1].eval()
    before, state = facts(model), torch.random.get_rng_state()
    gone, kept = split(blobs(), classes=[0])
    runs = [forget(model, gone, kept, folder, batch_size=16, seed=s) for s in (0, 0, 1)]
    one, two, other = (digest(r.model) for r in runs)
    assert one == two != other
    assert facts(model) == before
    assert facts(runs[0].model)[1:] == before[1:]
    assert torch.equal(torch.random.get_rng_state(), state)
    ours = {t.data_ptr() for t in runs[0].model.state_dict().values()}
    assert not ours & {t.data_ptr() for t in model.state_dict().values()}

    def fails(*_args):
        raise RuntimeError("boom")

    monkeypatch.setattr(amnesiac, "forward", fails)
    with pytest.raises(RuntimeError, match="boom"):
        forget(model, gone, kept, folder)
    assert facts(model) == before


def test_a_class_is_in_every_batch_so_the_repair_trains_anew(logged, recorded):
    """What the docstring promises of class requests."""
    model, folder = logged
    gone, kept = split(blobs(), classes=[0])
    result = forget(model, gone, kept, folder, epochs=20, batch_size=16, lr=0.05)
    assert result.history[1]["taken_back"] == len(recorded.steps)
    report = purge.audit(result.model, gone, kept, blobs(seed=1), metrics=["fa_train", "ra"], progress=False)
    assert report["fa_train"].value <= 0.1
    assert report["ra"].value >= 0.95
