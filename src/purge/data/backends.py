"""Where samples lie: as tensors, or as items of a dataset. Images are in :mod:`purge.data.images`."""

from __future__ import annotations

import copy
import math
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from purge.core.errors import DataError, PurgeError, first_line
from purge.core.plugins import processes_without_current_folder
from purge.data import inputs
from purge.data.identity import Seen
from purge.data.inputs import Inputs, Shapes, shapes_of, stretched
from purge.data.items import ADAPT, Form, Item, collated
from purge.data.prefetch import Order, copied_ahead, fits, say_once

RESIDENT_BYTES = 2 << 30  # items up to this size are read once and kept as tensors
ITEMS, READS = 16, 160  # items that are read again to see whether they differ, and how often in all
CPU = torch.device("cpu")
CHUNK = 256  # items that are read at a time


class Backend(ABC):
    """Where inputs lie, and how rows of them are read. A backend knows no labels."""

    device = CPU  # where batches are delivered
    home = CPU  # where rows are looked up
    streamed = False  # too large to keep: read anew in every pass
    moving = False  # items differ whenever they are read, because the dataset draws random numbers
    pixel_shape: tuple[int, int, int] | None = None  # of images as they are stored
    mean: tuple[float, ...] = ()  # how the columns of a table, or the channels of images, are scaled
    std: tuple[float, ...] = ()
    dataset: Any = None  # whose items are read, where they are
    shapes: Shapes = ()  # of each tensor, where rows are padded to one length
    pads: tuple[Any, ...] = ()  # what fills short rows of each up and on which side, None if nothing does
    seen: Seen  # what look() has found out about the rows

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def bytes(self, rows: int) -> int:
        """How many bytes so many stored rows take."""

    @abstractmethod
    def raw(self, rows: Tensor) -> Inputs:
        """Rows as they are stored: what they are known by."""

    @abstractmethod
    def stream(self, order: Iterable[Tensor], moves: Order | None = None) -> Iterator[Inputs]:
        """Batches of rows one after the other, read ahead where that helps."""

    @abstractmethod
    def delivered(
        self, rows: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> tuple[Backend, Tensor | None]:
        """A backend that delivers to the device, and the same rows of it; None: all of them."""

    def take(self, rows: Tensor, moves: Tensor | None = None) -> Inputs:
        """Rows as a model takes them, on the device; images may be moved."""
        return inputs.to(self.raw(rows), self.device)

    def kept(self, rows: Tensor | None) -> Backend:
        """The same rows in memory if that is where they belong, and otherwise this backend."""
        return self

    def padded_to(self, shapes: Shapes, pads: Sequence[Any], what: str) -> Self:
        """Rows that were padded, padded to other shapes."""
        there = copy.copy(self)
        there.shapes, there.pads = shapes, tuple(pads)
        return there


class Tensors(Backend):
    """Inputs as tensors: on the device if they fit, else copied ahead of use.

    ``cast``: floats take the type of the model, as those of NumPy do. ``mean`` and ``std``: how the columns
    of a table were scaled.
    """

    def __init__(
        self, x: Inputs, *, pads: Sequence[Any] = (), cast: bool = False, mean: Sequence[float] = (),
        std: Sequence[float] = (), device: torch.device = CPU,
    ) -> None:  # fmt: skip
        self.x, self.device, self.pads, self.cast = inputs.apply(Tensor.detach, x), device, tuple(pads), cast
        self.mean, self.std = tuple(mean), tuple(std)
        self.home, self.shapes = inputs.leaves(self.x)[0].device, shapes_of(self.x)
        self.seen = Seen()
        self._as: dict[torch.dtype, Tensors] = {}  # the same as floats of another type

    def __len__(self) -> int:
        return len(inputs.leaves(self.x)[0])

    def bytes(self, rows: int) -> int:
        """How many bytes so many rows take."""
        return rows * inputs.size(self.x) // max(1, len(self))

    def raw(self, rows: Tensor) -> Inputs:
        """The rows where they are."""
        return inputs.apply(lambda t: t[rows.to(t.device)], self.x)

    @property
    def _resident(self) -> bool:
        return all(t.device == self.device for t in inputs.leaves(self.x))

    def stream(self, order: Iterable[Tensor], moves: Order | None = None) -> Iterator[Inputs]:
        """The rows of each batch, copied ahead if they are not on the device."""
        return map(self.take, order) if self._resident else copied_ahead(self.raw, list(order), self.device)

    def delivered(
        self, rows: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensors, Tensor | None]:
        """Tensors on the device if they fit, in the type of the model."""
        there = self
        if self.cast and any(t.is_floating_point() and t.dtype != dtype for t in inputs.leaves(self.x)):
            if dtype not in self._as:
                there = self._as[dtype] = copy.copy(self)
                there.x = inputs.apply(lambda t: t.to(dtype) if t.is_floating_point() else t, self.x)
                there.seen, there._as = Seen(), {}
            there = self._as[dtype]
        there = copy.copy(there)
        there.device = device
        size = there.bytes(len(there) if rows is None else len(rows))
        if not there._resident and fits(size, device, "inputs"):
            x = there.x if rows is None else there.raw(rows)
            there.x, there.home, there.seen, there._as = inputs.to(x, device), device, Seen(), {}
            return there, None
        return there, rows

    def padded_to(self, shapes: Shapes, pads: Sequence[Any], what: str) -> Self:
        """The rows padded once and for all."""
        there = super().padded_to(shapes, pads, what)
        there.x, there._as = stretched(self.x, shapes, pads, what), {}
        return there


class Items(Backend):
    """Items of a map-style dataset, read when a batch needs them.

    ``collate``: the caller's function, which pads items of unequal length to ``shapes`` with ``pads``.
    """

    streamed = True  # what could be kept has become tensors

    def __init__(
        self, dataset: Any, n: int, form: Form, collate: Callable[[Any], Any] | None, what: str
    ) -> None:
        self.dataset, self.form, self.collate, self.what = dataset, form, collate, what
        self._n, self.seen = n, Seen()
        self._facts: dict[str, Any] = {}  # found out once for all copies: size of an item, do they differ?

    def __len__(self) -> int:
        return self._n

    @property
    def moving(self) -> bool:  # type: ignore[override]  # it takes reading to know
        """Does the dataset draw random numbers for its items? Reads some of them again and again.

        A transform that is applied with p = 0.1 is missed with a probability of 0.9^READS, below 1e-7.
        """
        if "moving" not in self._facts:
            before, arrays = random.getstate(), np.random.get_state()
            try:
                with torch.random.fork_rng([]):
                    n = min(ITEMS, len(self))
                    self._facts["moving"] = any(self._differs(i * len(self) // n) for i in range(n))
            finally:
                random.setstate(before)
                np.random.set_state(arrays)
            if self._facts["moving"]:
                say_once(
                    "Items of the data differ when read again (random transforms?): every pass reads "
                    "them anew."
                )
        return bool(self._facts["moving"])

    def _differs(self, i: int) -> bool:
        """Does an item differ when it is read again? NaN does not differ from NaN."""
        read = partial(self.guarded, partial(self.raw, torch.tensor([i])))
        first = inputs.leaves(read())
        for _ in range(math.ceil(READS / min(ITEMS, len(self)))):
            for a, b in zip(first, inputs.leaves(read()), strict=False):
                if a.shape == b.shape and bool(((a != b) & ((a == a) | (b == b))).any()):
                    return True
        return False

    def bytes(self, rows: int) -> int:
        """How many bytes so many items take, if all take as much as the first one."""
        if "size" not in self._facts:
            self._facts["size"] = inputs.size(self.guarded(partial(self.raw, torch.tensor([0]))))
        return rows * int(self._facts["size"])

    def keeps(self, rows: int) -> bool:
        """Can so many items be read once and kept?"""
        size = self.bytes(rows)
        if size > RESIDENT_BYTES:
            say_once(
                f"The inputs ({size / 1e9:.1f} GB) are too large to keep: a DataLoader reads them in every "
                "pass."
            )
        return size <= RESIDENT_BYTES and not self.moving

    def read(self, items: Sequence[Any]) -> Item:
        """Some items as a batch: inputs, labels and owners."""
        batch = collated(items, self.form, self.collate, self.what)
        return batch._replace(x=stretched(batch.x, self.shapes, self.pads, self.what))

    def chunks(self, rows: Sequence[int] | None = None) -> Iterator[Item]:
        """All items (those at ``rows``) in order, a batch at a time; each is read once."""
        dataset = self.dataset if rows is None else Subset(self.dataset, rows)
        # A generator of its own: a loader would draw from the caller's.
        batches = iter(DataLoader(dataset, CHUNK, collate_fn=list, generator=torch.Generator()))
        while (items := self.guarded(lambda: next(batches, None))) is not None:
            yield self.guarded(partial(self.read, items))

    def guarded(self, call: Callable[[], Any]) -> Any:
        """What a call returns; what the caller's own code raises in it is told in a line."""
        try:
            return call()
        except PurgeError:
            raise
        except (Exception, SystemExit) as error:  # whatever the caller's own code may raise
            by = "adapt or the dataset" if self.form.adapt is not None else "the dataset or its collate_fn"
            got, fix = first_line(error), f"correct {by}, or pass {ADAPT}"
            what = f"inputs and a label from each item of {self.what}"
            raise DataError(what, got, fix) from error

    def kept(self, rows: Tensor | None) -> Backend:
        """The items in memory, if they can be kept."""
        n = len(self) if rows is None else len(rows)
        if n == 0 or not self.keeps(n):
            return self
        xs = [batch.x for batch in self.chunks(None if rows is None else rows.tolist())]
        return Tensors(self.guarded(lambda: inputs.join(xs)), pads=self.pads, device=self.device)

    def with_dataset(self, change: Callable[[Any], Any]) -> Items:
        """The same items of a changed dataset, which is the same one for all parts of the data."""
        if "changed" not in self._facts:
            there, dataset = copy.copy(self), change(self.dataset)
            if dataset is not self.dataset:
                there.dataset, there.seen, there._facts = dataset, Seen(), {}
            self._facts["changed"] = there
        changed: Items = copy.copy(self._facts["changed"])
        changed.device = self.device
        return changed

    def delivered(
        self, rows: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> tuple[Items, Tensor | None]:
        """The same items, brought to another device batch by batch."""
        there = copy.copy(self)
        there.device = device
        return there, rows

    def raw(self, rows: Tensor) -> Inputs:
        """The items at some rows, on the CPU."""
        return self._inputs_of([self.dataset[i] for i in rows.tolist()])

    def _inputs_of(self, items: Sequence[Any]) -> Inputs:
        return self.read(items).x

    def stream(self, order: Iterable[Tensor], moves: Order | None = None) -> Iterator[Inputs]:
        """The items of each batch, read ahead by worker processes for a GPU."""
        for_gpu = self.device.type == "cuda"
        loader = DataLoader(
            self.dataset,
            batch_sampler=[index.tolist() for index in order],
            collate_fn=self._inputs_of,
            num_workers=min(8, os.cpu_count() or 1) if for_gpu else 0,
            pin_memory=for_gpu,
        )
        with processes_without_current_folder():  # where they are started anew, not forked
            batches = iter(loader)
        return (inputs.to(x, self.device) for x in batches)
