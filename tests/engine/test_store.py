"""The store of trained models: found whole or made once, whoever asks first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from purge.core.errors import FileError
from purge.data.accept import as_samples
from purge.data.images import Images
from purge.engine import store
from purge.engine.store import cpu_copies, data_digest, digest_of, found_or_made, write_tensors
from tests.nets import blobs, small_mlp


class Shelf:
    """A file that is sound if it has the right content, and a count of how often it was made."""

    def __init__(self, path: Path) -> None:
        self.path, self.made = path, 0

    def find(self) -> str | None:
        return "model" if self.path.is_file() and self.path.read_text() == "whole" else None

    def make(self) -> None:
        self.made += 1
        self.path.write_text("whole")

    def ask(self) -> str:
        return found_or_made(self.path, self.find, self.make, fix="choose another folder")


def test_a_model_is_made_once_and_again_if_it_is_damaged(tmp_path):
    shelf = Shelf(tmp_path / "new" / "model")
    assert [shelf.ask(), shelf.ask()] == ["model", "model"]
    assert shelf.made == 1
    shelf.path.write_text("who")
    assert shelf.ask() == "model"
    assert shelf.made == 2


def test_of_two_processes_one_makes_it_and_the_other_waits(tmp_path):
    shelf = Shelf(tmp_path / "model")
    (tmp_path / ".locks").mkdir()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(tmp_path / ".locks" / "model"):
            waiting = pool.submit(shelf.ask)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            shelf.path.write_text("whole")
        assert waiting.result(timeout=30) == "model"
    assert shelf.made == 0


def test_an_interrupted_model_is_made_by_the_next_who_asks(tmp_path):
    shelf = Shelf(tmp_path / "model")

    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found_or_made(shelf.path, shelf.find, killed, fix="")
    assert shelf.ask() == "model"


def test_what_cannot_be_written_is_reported_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"Expected to be able to write .*file.* Fix: choose another folder"):
        Shelf(tmp_path / "file" / "model").ask()
    shelf = Shelf(tmp_path / "model")
    shelf.make = lambda: shelf.path.write_text("half")
    with pytest.raises(FileError, match="a damaged one"):
        shelf.ask()

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "save_file", full)
    with pytest.raises(FileError, match=r"got No space left on device\. Fix: free some space"):
        write_tensors(tmp_path / "weights", {"a": torch.zeros(1)}, fix="free some space")
    assert not list(tmp_path.glob("*weights*"))


def test_copies_share_no_memory_with_tied_weights(tmp_path):
    model = small_mlp()
    state = model.state_dict() | {"tied": model[0].weight.T}
    held = cpu_copies(state)
    write_tensors(tmp_path / "weights", held, fix="")
    assert all(t.is_contiguous() for t in held.values())
    model[0].weight.data.zero_()
    assert held["tied"].abs().sum() > 0


def test_digests_depend_on_every_fact_and_on_no_address():
    assert digest_of(object()) == digest_of(object())
    assert len({digest_of(), digest_of(1), digest_of("1"), digest_of([1, 2]), digest_of(1, 2)}) == 5


def test_digests_of_data_see_labels_inputs_and_ids():
    x, y = blobs()
    other, label = x.clone(), y.clone()
    other[50, 0] += 1e-3
    label[50] = (label[50] + 1) % 3
    cpu = torch.device("cpu")
    plain, moved, relabelled = (as_samples(pair, cpu, "data") for pair in ((x, y), (other, y), (x, label)))
    assert data_digest(plain) == data_digest(as_samples((x.clone(), y.clone()), cpu, "data"))
    assert len({data_digest(s) for s in (plain, moved, relabelled)}) == 3
    assert data_digest(plain, 0) == data_digest(moved, 0) != data_digest(relabelled, 0)
    pixels = torch.arange(48, dtype=torch.uint8).view(3, 1, 4, 4)
    images = [
        Images(pixels, torch.arange(3), ids=torch.arange(3) + k, mean=(m,)) for k in (0, 1) for m in (0, 1)
    ]
    assert len({data_digest(s) for s in images}) == 4
