"""One unlearning and one audit, followed: how often each row is read, data converted and the model asked.

The numbers stand in CONTRIBUTING.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import purge
from purge.data import accept, identity
from purge.data.backends import ITEMS, READS
from tests.nets import blobs, small_mlp

X, Y = blobs(300)
CLEAN = {"progress": False, "check": False}


class Counted(Dataset[Any]):
    """Counts how often each item is read."""

    def __init__(self, x: Tensor, y: Tensor, listed: bool) -> None:
        self.x, self.y, self.reads = x, y.tolist(), Counter[int]()
        if listed:
            self.targets = self.y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.reads[i] += 1
        return self.x[i], self.y[i]

    def once(self) -> bool:
        """Was each row read once, but for those that tell whether items differ when they are read again?"""
        more = {i: n - 1 for i, n in self.reads.items() if n > 1}
        return len(self.reads) == len(self) and len(more) <= ITEMS + 1 and sum(more.values()) <= READS + 20


class Asked(nn.Module):
    """Counts how often it is called, and remembers how often that was before the first step."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.net = small_mlp()

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return self.net(x)


class Started(purge.callbacks.Callback):
    """Notes how often the model was called before the run began."""

    def on_start(self, info: Any) -> None:
        self.calls, self.hashed = Asked.calls, list(HASHED)


HASHED: list[int] = []  # rows of each batch that was hashed


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each adapter was called."""
    found = Counter[str]()

    def counted(adapt: accept.Adapter) -> accept.Adapter:
        def called(data: Any, form: Any, what: str) -> Any:
            found[adapt.__name__] += 1
            return adapt(data, form, what)

        return called

    digests = identity.digests
    HASHED.clear()
    Asked.calls = 0
    monkeypatch.setattr(accept, "ADAPTERS", [(fits, counted(adapt)) for fits, adapt in accept.ADAPTERS])
    monkeypatch.setattr(
        identity, "digests", lambda x, y, pads=(): HASHED.append(len(y)) or digests(x, y, pads)
    )
    return found


@pytest.mark.parametrize("listed", [True, False], ids=["labels listed", "labels in the items"])
def test_an_unlearning_reads_each_row_once_and_its_audit_none(listed: bool, counts: Counter[str]) -> None:
    """Sets of a dataset each, as users give them: nothing is cut with purge.split."""
    sets = [Counted(X[at], Y[at], listed) for at in (Y == 0, Y > 0)] + [Counted(*blobs(90, seed=1), listed)]
    forget, retain, test = sets
    started = Started()
    result = purge.unlearn(
        Asked(), forget, retain, test=test, steps=4, callbacks=started, progress=False, check=False
    )
    assert counts == {"_from_items": 3}
    assert all(data.once() for data in sets)
    assert sum(started.hashed) == sum(map(len, sets))
    assert (
        started.calls <= 4
    )  # its shape, twice whether a gradient reaches the weights, its work (once a process)
    before = [data.reads.copy() for data in sets]
    purge.audit(result, forget, retain, test, metrics="quick", progress=False, check=False)
    assert [data.reads for data in sets] == before
    assert counts == {"_from_items": 3}
    assert sum(HASHED) == sum(map(len, sets))


def test_parts_of_one_set_share_what_was_read(counts: Counter[str]) -> None:
    """What purge.split cut is converted by it, and read by the run that comes first."""
    data = Counted(X, Y, listed=True)
    forget, retain = purge.split(data, classes=[0])
    assert not data.reads
    results = [purge.unlearn(Asked(), forget, retain, steps=2, **CLEAN) for _ in range(2)]
    purge.audit(results[0], forget, retain, None, metrics="quick", **CLEAN)
    assert data.once()
    assert counts["_from_items"] == 1
    assert sum(HASHED) == len(data)


def test_names_that_are_numbered_anew_cost_no_reading(counts: Counter[str]) -> None:
    """Sorted by themselves, the names of forget are 0; among all they are 2."""
    sets = [Counted(X[at], Y[at], listed=True) for at in (Y == 2, Y < 2)]
    for data in sets:
        data.targets = [["ant", "bee", "cat"][label] for label in data.y]
    result = purge.unlearn(small_mlp(), *sets, steps=2, **CLEAN)
    assert result.info["forget_classes"] == [2]
    before = [data.reads.copy() for data in sets]
    purge.audit(result, *sets, None, metrics="quick", **CLEAN)
    assert all(data.once() for data in sets)
    assert [data.reads for data in sets] == before


def test_tensors_are_not_copied() -> None:
    forget, retain = purge.split(TensorDataset(X, Y), classes=[0])
    assert forget.backend is retain.backend
    assert forget.backend.x.data_ptr() == X.data_ptr()
    assert forget.to("cpu").backend.x.data_ptr() == X.data_ptr()
    assert torch.equal(retain.take(torch.tensor([2]))[0][0], X[(Y > 0).nonzero()[2, 0]])
