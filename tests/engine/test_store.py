"""Tensors in files, and digests of data."""

from __future__ import annotations

import pytest
import torch

from purge.core.errors import FileError
from purge.data.accept import as_samples
from purge.data.images import Images
from purge.engine.resume import data_digest
from purge.models import checkpoint as store
from purge.models.checkpoint import cpu_copies, write_tensors
from tests.nets import blobs, small_mlp


def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(tmp_path, monkeypatch):
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
