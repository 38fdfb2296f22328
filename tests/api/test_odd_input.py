"""Odd tensors, lengths, indices, numbers and records: each is refused in one sentence, and at once."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import purge
from purge.core.errors import DataError, FileError, MethodError, ModelError, PurgeError
from tests.nets import blobs, small_mlp
from tests.refusals import assert_sentence, tree

HUGE = 10**5000  # which Python refuses to write
Case = Callable[[SimpleNamespace], Any]


class Sized(Dataset):
    """A dataset whose length, or whose items from some number on, are not what they should be."""

    def __init__(self, length: Any, item: Callable[[int], Any] | None = None) -> None:
        self.length, self.item = length, item

    def __len__(self) -> int:
        if isinstance(self.length, BaseException):
            raise self.length
        return self.length

    def __getitem__(self, i: int) -> Any:
        x, y = blobs()
        return self.item(i) if self.item else (x[i], int(y[i]))


def late(value: Any) -> Callable[[int], Any]:
    """Items that are good up to number 20; then ``value`` is raised, or is the label."""
    x, y = blobs()

    def item(i: int) -> Any:
        if i >= 20 and isinstance(value, BaseException):
            raise value
        return x[i], int(y[i]) if i < 20 else value

    return item


def with_weight(change: Callable[[Tensor], Tensor]) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3))
    model.register_buffer("odd", change(model[0].weight.detach().clone()))
    return model


ODD: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "sparse": ("sparse", Tensor.to_sparse),
    "sparse rows": ("sparse", Tensor.to_sparse_csr),
    "meta": ("on meta", lambda t: t.to("meta")),
    "nested": ("nested", lambda t: torch.nested.nested_tensor(list(t))),
    "jagged": ("nested", lambda t: torch.nested.nested_tensor(list(t), layout=torch.jagged)),
    "quantized": ("quantized", lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8)),
    "float8": ("8-bit floats", lambda t: t.float().to(torch.float8_e4m3fn)),
}


def train(t: SimpleNamespace, **changes: Any) -> Any:
    good = {"model": t.model, "dataset": (t.x, t.y), "epochs": 1, "progress": False}
    return purge.train(**{**good, **changes})


def unlearn(t: SimpleNamespace, **changes: Any) -> Any:
    good = {"model": t.model, "forget": t.forget, "retain": t.retain, "progress": False}
    return purge.unlearn(**{**good, **changes})


def images(**changes: Any) -> purge.Images:
    good = {"pixels": torch.zeros(4, 1, 2, 2, dtype=torch.uint8), "labels": torch.arange(4)}
    return purge.Images(**{**good, **changes})


def items_of(t: SimpleNamespace, change: Callable[[Tensor], Tensor]) -> Dataset:
    return Sized(8, lambda i: (change(t.x[i : i + 1]), 0))


DATASETS: dict[str, tuple[str, Case]] = {
    "a table of tensors on meta": ("meta", lambda t: TensorDataset(t.x.to("meta"), t.y)),
    "a label of 2^40": ("got 10995", lambda t: (t.x, t.y + 2**40)),
    "a label of 2^64 - 1": ("got -1", lambda t: (t.x, np.full(len(t.x), 2**64 - 1, np.uint64))),
    "a late label of 2^40": (str(2**40), lambda t: Sized(40, late(2**40))),
    "a late label of 0.5": ("the dataset", lambda t: Sized(40, late(0.5))),
    "a length that raises": ("no length", lambda t: Sized(RuntimeError("no length"))),
    "a length that exits": ("SystemExit", lambda t: Sized(SystemExit(0))),
    "a length that raises, under a subset": ("no length", lambda t: Subset(
        Sized(TypeError("no length")), [0, 1])),
    "a length of 10^12": (str(10**12), lambda t: Sized(10**12)),
    "a length that is too long": ("IndexError", lambda t: Sized(1000)),
    "an item that is late missing": ("late", lambda t: Sized(40, late(IndexError("late")))),
    "an item that exits": ("SystemExit", lambda t: Sized(40, late(SystemExit(3)))),
    **{f"a subset by {name}": ("whole numbers as indices", lambda t, at=at: Subset(
        TensorDataset(t.x, t.y), at)) for name, at in {
            "words": ["a", "b"], "a mask": np.ones(96, bool), "fractions": [0.5, 1.5], "10^6": [0, 10**6],
            "lists": [[1], [2, 3]]}.items()},
}  # fmt: skip
CASES: dict[str, tuple[type[PurgeError], str, Case]] = {
    **{f"inputs {name}": (DataError, words, lambda t, c=change: train(t, dataset=(c(t.x), t.y)))
       for name, (words, change) in ODD.items()},
    **{f"items {name}": (DataError, words, lambda t, c=change: train(t, dataset=items_of(t, c)))
       for name, (words, change) in ODD.items()},
    **{f"labels {name}": (DataError, words, lambda t, c=change: unlearn(t, retain=(t.x, c(t.y))))
       for name, (words, change) in ODD.items() if name not in ("sparse rows", "nested", "jagged")},
    **{f"weights {name}": (ModelError, words, lambda t, c=change: train(t, model=with_weight(c)))
       for name, (words, change) in ODD.items() if name != "meta"},
    "weights on meta": (ModelError, "meta", lambda t: train(t, model=with_weight(lambda w: w.to("meta")))),
    "pixels sparse": (DataError, "sparse", lambda t: images(
        pixels=torch.zeros(4, 1, 2, 2, dtype=torch.uint8).to_sparse())),
    **{name: (DataError, words, lambda t, make=make: train(t, dataset=make(t)))
       for name, (words, make) in DATASETS.items()},
    "a subset of a subset by words": (DataError, "whole numbers as indices", lambda t: purge.split(
        Subset(Subset(TensorDataset(t.x, t.y), [5, 6, 7]), ["x"]), classes=0)),
    "an empty subset": (DataError, "classes that are in the data (none)", lambda t: purge.split(
        Subset(TensorDataset(t.x, t.y), []), classes=0)),
    # numbers
    "10^26 epochs": (MethodError, "epochs", lambda t: train(t, epochs=10**26)),
    "a batch of 10^18": (MethodError, "batch_size", lambda t: train(t, batch_size=10**18)),
    "10^26 steps": (MethodError, "steps", lambda t: unlearn(t, steps=10**26)),
    "4 billion steps": (MethodError, "samples in all steps", lambda t: unlearn(t, steps=2**32 - 1)),
    "a seed of 5,000 digits": (PurgeError, "seed", lambda t: train(t, seed=HUGE)),
    "an index of 5,000 digits": (DataError, "indices", lambda t: purge.split((t.x, t.y), indices=[HUGE])),
    "more shards than samples": (MethodError, "100000", lambda t: purge.train_sharded(
        small_mlp(), (t.x, t.y), shards=100_000, epochs=1, progress=False)),
    # where to write
    "out with NUL": (FileError, "a folder as out", lambda t: train(t, out="a\0b")),
    "out of 5,000 characters": (FileError, "name too long", lambda t: train(t, out=t.tmp / ("x" * 5000))),
    # images
    "names are a number": (DataError, "names", lambda t: images(names=3)),
    "an empty name": (DataError, "got ''", lambda t: images(names=["", "b", "c", "d"])),
    "a name of 10,000 characters": (DataError, "1 to 300", lambda t: images(names=["x" * 10_000] * 4)),
    "a mean of NaN": (DataError, "one finite mean per channel", lambda t: images(mean=[float("nan")])),
    "ids are floats": (DataError, "one id of 64 bits", lambda t: images(ids=torch.rand(4))),
    # a request
    "a request as a dict": (DataError, "got dict", lambda t: unlearn(t, request={"id": "DSR-17"})),
    "an endless id": (DataError, "1000 characters", lambda t: purge.DeletionRequest(id="x" * 100_000)),
    "an id of NaN": (DataError, "nan", lambda t: purge.DeletionRequest(id=float("nan"))),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # torch warns that sparse and nested tensors are new
@pytest.mark.parametrize("name", CASES)
def test_odd_input_is_refused(given: SimpleNamespace, name: str) -> None:
    (error, words, call), before = CASES[name], tree(given.tmp)
    with pytest.raises(PurgeError) as caught:
        call(given)
    assert isinstance(caught.value, error)
    message = str(caught.value)
    assert_sentence(message, message[:0])
    assert words.lower() in message.lower()
    assert len(message) < 1500
    assert tree(given.tmp) == before


def test_unusual_subsets_and_labels_work(given: SimpleNamespace) -> None:
    whole = TensorDataset(given.x, given.y)
    for indices in ([0, 0, 1, 1, 40, 80], [-1, -2, 0, 40], torch.tensor([0, 40, 80]), range(20)):
        assert train(given, dataset=Subset(whole, indices)).info["samples"] == len(indices)
    nested = Subset(Subset(Subset(whole, range(60)), range(50)), [-1, 0, 0])
    assert train(given, dataset=nested).info["samples"] == 3
    for dtype in (torch.uint8, torch.uint16, torch.int16):
        assert train(given, dataset=(given.x, given.y.to(dtype))).steps > 0


def test_numbers_as_class_names_are_text() -> None:
    assert images(names=[3, np.int64(2), "1", "cat"]).names == ("3", "2", "1", "cat")


# -- record= --------------------------------------------------------------------------------------

RING: dict[str, Any] = {}
RING["ring"] = RING
RECORDS: dict[str, Any] = {
    "a set": {"k": {1, 2}}, "NaN": {"k": float("nan")}, "bytes": {"k": b"x"}, "5,000 digits": {"k": HUGE},
    "a date": {"k": datetime.date(2026, 1, 1)}, "an object": {"k": object()}, "a ring": RING,
    "a tensor": {"k": torch.ones(3)}, "a pair as a key": {"k": {(1, 2): 3}}, "a list": [1],
    "a number as a key": {1: 2}, "force": {"force": True}, "self": {"self": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_cannot_be_written_is_refused_before_training(
    given: SimpleNamespace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purge.training.fit", lambda *_, **__: pytest.fail("it was trained"))
    before = tree(given.tmp)
    for door in (purge.train, lambda *a, **k: purge.train_sharded(*a, shards=2, **k)):
        with pytest.raises(PurgeError) as caught:
            door(
                small_mlp(), (given.x, given.y), epochs=1, progress=False, out=given.tmp / "o",
                record=RECORDS[name],
            )  # fmt: skip
        assert_sentence(str(caught.value), "")
    assert tree(given.tmp) == before


def test_numbers_of_numpy_and_torch_may_be_recorded(given: SimpleNamespace) -> None:
    record = {"a": np.int64(3), "b": torch.tensor(0.5), "c": Path("x"), "d": "\ud800"}
    train(given, out=given.tmp / "o", record=record)
    assert (given.tmp / "o" / "run.json").is_file()
