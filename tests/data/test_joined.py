"""Rows of several sets as one set."""

from __future__ import annotations

import pytest
import torch

from purge.data.accept import as_samples
from purge.data.images import Images
from purge.data.joined import joined
from tests.nets import blobs

CPU = torch.device("cpu")


class Read(torch.utils.data.Dataset):
    """A dataset that is read item by item."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i], int(self.y[i])


@pytest.mark.parametrize("form", ["tensors", "read", "mixed"])
def test_rows_of_several_sets_are_one_set(form, monkeypatch):
    raw = [blobs(20, seed=0), blobs(9, seed=1), blobs(14, seed=2)]
    sets = [as_samples(pair, CPU, "data") for pair in raw]
    if form != "tensors":
        monkeypatch.setattr("purge.data.backends.RESIDENT_BYTES", 10)
        lazy = [as_samples(Read(*pair), CPU, "data") for pair in raw]
        sets = lazy if form == "read" else [lazy[0], sets[1], lazy[2]]
    rows = [torch.tensor([3, 1, 19]), torch.arange(9), torch.tensor([13, 0])]
    x, y = (torch.cat([pair[k][at] for pair, at in zip(raw, rows, strict=True)]) for k in (0, 1))
    whole = joined(list(zip(sets, rows, strict=True)), CPU)
    assert len(whole) == 14
    assert torch.equal(whole.labels, y)
    index = torch.tensor([13, 0, 5, 5, 2, 12])
    assert torch.equal(whole.take(index)[0], x[index])
    orders = [index, torch.tensor([4]), torch.tensor([0, 13])]
    for (a, b), order in zip(whole.stream(orders), orders, strict=True):
        assert torch.equal(a, x[order])
        assert torch.equal(b, y[order])
    (a, _), (b, _) = whole.stream(torch.tensor([[1, 13], [4, 3]]))
    assert torch.equal(torch.cat([a, b]), x[[1, 13, 4, 3]])


def test_images_stay_images_if_they_are_prepared_alike(digits):
    sets = [digits.retain, digits.test]
    rows = [torch.tensor([5, 2]), torch.tensor([0, 100, 7])]
    whole = joined(list(zip(sets, rows, strict=True)), CPU)
    assert isinstance(whole, Images)
    x = torch.cat([s.take(at)[0] for s, at in zip(sets, rows, strict=True)])
    assert torch.equal(whole.take(torch.arange(5))[0], x)
    brighter = Images(digits.test.pixels, digits.test.labels, mean=(0.1,), std=(0.5,))
    other = joined([(digits.retain, rows[0]), (brighter, rows[1])], CPU)
    assert not isinstance(other, Images)
    assert torch.equal(other.take(torch.tensor([3]))[0], brighter.take(torch.tensor([100]))[0])
