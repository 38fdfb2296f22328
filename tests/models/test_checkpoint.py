"""Reading and writing weights: what survives a round trip, and which files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from purge.core.errors import FileError
from purge.models.checkpoint import digest, load_weights, save_weights
from purge.models.small_resnet import SmallResNet
from tests.data.image_files import Payload


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_survive_a_round_trip(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w.{suffix}"
    torch.manual_seed(0)
    model, other = SmallResNet(), SmallResNet()
    assert digest(model) != digest(other)
    if suffix == "pt":
        torch.save(model.state_dict(), path)
    else:
        save_weights(model, path)
    load_weights(other, path)
    assert digest(model) == digest(other)


def test_tied_weights_are_stored_under_both_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    save_weights(model, tmp_path / "w.safetensors")
    plain = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    load_weights(plain, tmp_path / "w.safetensors")
    assert torch.equal(plain[1].weight, model[0].weight)


def test_the_digest_depends_on_names_values_and_buffers() -> None:
    torch.manual_seed(0)
    model = SmallResNet()
    first = digest(model)
    assert digest(model.eval()) == first
    model.bn1.running_mean[0] += 1
    changed = digest(model)
    assert changed != first
    model.bn1.running_mean[0] -= 1
    assert digest(model) == first
    renamed = nn.ModuleDict({"a": nn.Linear(2, 2)}), nn.ModuleDict({"b": nn.Linear(2, 2)})
    renamed[1].b.load_state_dict(renamed[0].a.state_dict())
    assert digest(renamed[0]) != digest(renamed[1])


def refused(path: Path) -> str:
    model = nn.Linear(2, 2)
    before = digest(model)
    with pytest.raises(FileError) as error:
        load_weights(model, path)
    assert digest(model) == before, "a refused file must not change the model"
    assert path.name in str(error.value)
    return str(error.value)


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for state, counted in (
        ({"weight": torch.zeros(2, 2)}, "1 missing, 0 unexpected, 0 of another shape; missing: bias)"),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(2), "more": torch.zeros(1)},
         "0 missing, 1 unexpected, 1 of another shape; unexpected: more; "
         "another shape: weight (3, 2) instead of (2, 2))"),
    ):  # fmt: skip
        save_file(state, path)
        assert counted in refused(path)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    torch.save({"weight": Payload(tmp_path / "ran")}, tmp_path / "w.pt")
    assert "it was not run" in refused(tmp_path / "w.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_damaged_checkpoints_are_reported(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w.{suffix}"
    assert "no such file" in refused(path)
    if suffix == "pt":
        torch.save(nn.Linear(2, 2).state_dict(), path)
    else:
        save_weights(nn.Linear(2, 2), path)
    whole = path.read_bytes()
    for content in (b"", whole[:-20], whole[: len(whole) // 2], b"text"):
        path.write_bytes(content)
        assert "damaged" in refused(path)


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    for content in ([torch.zeros(2)], {"epoch": 3}, {"weight": 1}, {}, {"model": {"weight": 1}}):
        torch.save(content, tmp_path / "w.pt")
        assert "a dict of tensors by name" in refused(tmp_path / "w.pt")


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
    assert digest(one) != digest(other)
    save_weights(one, tmp_path / "w.safetensors")
    load_weights(other, tmp_path / "w.safetensors")
    assert digest(one) == digest(other)
    assert other.seen == 2
