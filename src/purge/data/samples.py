"""Samples: the one shape of data inside purge.

Whatever the caller brings is converted once, at the door, by :mod:`purge.data.accept`. Inside there are
labels that are known up front, and batches fetched by an index tensor. Where the inputs lie is the business
of a backend: tensors, images as bytes, or items of a dataset that are read when a batch needs them
(:mod:`purge.data.backends`). Subsets are views of the same backend.
"""

from __future__ import annotations

import copy
import math
import uuid
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from purge.data import inputs
from purge.data.identity import Look, look_at
from purge.data.inputs import Inputs
from purge.data.prefetch import Order

if TYPE_CHECKING:
    from purge.data.augmented import Drawn
    from purge.data.backends import Backend
    from purge.data.images import Images

# What callers may bring: also DataFrames, DataLoaders and datasets of Hugging Face, which are no Dataset.
Data: TypeAlias = "Samples | Images | tuple[Any, Any] | Dataset[Any] | DataLoader[Any] | Any"
GivenLabels: TypeAlias = "Tensor | NDArray[Any] | Sequence[int]"  # and labels alone
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples of one set: inputs, labels, and their row numbers in the set."""

    x: Inputs
    y: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)


def joined(*batches: Batch) -> Inputs:
    """The inputs of several batches, one after the other; empty batches are skipped."""
    return inputs.join([batch.x for batch in batches if len(batch)])


@dataclass(frozen=True, eq=False)
class Origin:
    """What numbers of rows count: data by its name, or an object of the caller while that lives."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    place: weakref.ref[Any] | None = None
    size: int | None = None  # rows in it, where that is known

    @classmethod
    def of(cls, data: Any, size: int | None = None) -> Origin:
        """An object of the caller; one that takes no weak reference (a dict, a list) is known by no other."""
        try:
            return cls("", weakref.ref(data), size)
        except TypeError:
            return cls(size=size)

    @property
    def data(self) -> Any:
        """The object, if it still lives."""
        return None if self.place is None else self.place()

    def same(self, other: Origin) -> bool:
        """Do both count the rows of the same data?"""
        mine = self.data
        return self is other or (self.name == other.name != "") or (mine is not None and mine is other.data)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the object is another one."""
        return Origin, (self.name or uuid.uuid4().hex, None, self.size)


class Samples:
    """Inputs with a label each, and what is known about them.

    ``len(samples)`` is their number. Samples that were made of a pair or a table unpack into it,
    ``x, y = samples``; those of a dataset give out its items, ``samples[i]``.

    Attributes:
        labels: the number of each one's class, (N,) on the CPU.
        owners: the user's own id of each sample; empty: unknown.
        names: of all classes, where the data tells them.
        paths: of all images of the source, by their ids; empty where they have none.
        ids: a number of each sample, (N,): its row in what it comes from, ``origin``.
    """

    paths: tuple[str, ...] = ()

    def __init__(
        self, backend: Backend, labels: Tensor, *, rows: Tensor | None = None, ids: Tensor | None = None,
        origin: Origin | None = None, owners: Sequence[str] = (), names: Sequence[str] = (),
        worded: bool = False, columns: Sequence[Any] = (), paired: bool = False, cut: bool = False,
    ) -> None:  # fmt: skip
        self.backend, self.rows, self.labels = backend, rows, labels
        self.ids = torch.arange(len(labels)) if ids is None else ids
        self.origin = origin or Origin()
        self.owners, self.names = tuple(owners), tuple(names)
        self.worded = worded  # the labels were names, and may be numbered in another order
        self.columns = tuple(columns)  # of a table, which sets may have in another order
        self.paired = paired  # unpacks into inputs and labels
        self.cut = cut  # a part of something, whose row numbers mean something to the caller
        self.cached = ""  # where in the user's cache they are kept too
        self.change: Drawn | None = None  # at random, whenever they are read
        self._memory: dict[str, Backend] = {}  # the items once they were read, for all copies with these rows
        self._host: Self | None = None  # what was brought to the device
        self._y = labels.to(backend.device)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> Any:
        if self.paired:
            return (self.kept().backend.raw(self.kept().places), self.labels)[i]
        x, y = self.take(torch.tensor([range(len(self))[i]]))
        return inputs.apply(lambda t: t[0], x), int(y)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(2 if self.paired else len(self)))

    def __repr__(self) -> str:
        people = len(set(self.owners))
        whose = f" of {people} id{'s' * (people > 1)}" if people else ""
        each = f", each {inputs.describe(few(self, 1))}" if len(self) and not self.streamed else ""
        return f"Samples({len(self)}{whose}{each})"

    def __copy__(self) -> Self:
        """All of it, also what a pickle leaves out."""
        there = object.__new__(type(self))
        there.__dict__.update(self.__dict__)
        return there

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: nothing that was only made to be faster."""
        return {**self.__dict__, "_memory": {}, "_host": None}

    # -- what they are ---------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where batches are delivered."""
        return self.backend.device

    @property
    def streamed(self) -> bool:
        """Is the data read anew in every pass, because it is too large to keep?"""
        return self.backend.streamed

    @property
    def steady(self) -> bool:
        """Are the samples the same whenever they are read?"""
        return self.change is None and not self.backend.moving

    @property
    def pixel_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of stored images; None for data of any other kind."""
        return self.backend.pixel_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample (of the first tensor of one) as a model takes it."""
        return tuple(inputs.leaves(few(self, 1))[0].shape[1:])

    @property
    def source(self) -> str:
        """The name of the data that they come from; empty if it has none."""
        return self.origin.name

    @property
    def mean(self) -> tuple[float, ...]:
        """Of each column of a table, or channel of images, before they were scaled; else empty."""
        return self.backend.mean

    @property
    def std(self) -> tuple[float, ...]:
        """The spread of each, likewise."""
        return self.backend.std

    @property
    def bytes(self) -> int:
        """How many bytes they take as they are stored."""
        return self.backend.bytes(len(self))

    @property
    def places(self) -> Tensor:
        """The rows of the backend that these are, (N,)."""
        return torch.arange(len(self)) if self.rows is None else self.rows

    def look(self) -> Look | None:
        """What they are: finite or not, a digest of each, sketches of images; None if items keep changing.

        Every row of a backend is read for it at most once, whatever parts of it are looked at.
        """
        if self._host is not None:
            return self._host.look()
        there = self.kept()
        return look_at(there.backend, there.places, self.labels) if self.steady else None

    # -- reading ---------------------------------------------------------------------------------

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """The samples at some rows.

        Args:
            index: which rows.

        Returns:
            Inputs and labels, on the device where batches are delivered.
        """
        if self.change:
            return next(iter(self.stream([index])))
        return self.backend.take(self._at(index)), self._y[index.to(self.device)]

    def stream(self, order: Order, own: Sequence[slice] = ()) -> Iterator[tuple[Inputs, Tensor]]:
        """Batches one after the other; copies between devices are made ahead.

        Args:
            order: the rows of each batch.
            own: the part of each batch that is wanted; an image is changed as if all of it were.

        Returns:
            An iterator over inputs and labels.
        """
        if self.change:
            return self.change.stream(self.replaced(change=None), order, own)
        return self.moved(cut(order, own))

    def moved(self, order: Order, moves: Order | None = None) -> Iterator[tuple[Inputs, Tensor]]:
        """Batches one after the other, with their images moved.

        Args:
            order: the rows of each batch.
            moves: how the images of each batch are moved, as ``draw_moves`` gives it; by default not at all.

        Returns:
            An iterator over inputs and labels.
        """
        rows = order if self.rows is None else (self._at(index) for index in order)
        each = iter(self.backend.stream(rows, moves))
        return ((x, self._y[index.to(self.device)]) for index, x in zip(order, each, strict=True))

    def _at(self, index: Tensor) -> Tensor:
        return index if self.rows is None else self.rows[index.to(self.rows.device)]

    # -- views and copies ------------------------------------------------------------------------

    def select(self, index: Tensor) -> Self:
        """Some samples as samples of their own, which share what they are made of.

        Args:
            index: which rows, or a mask.

        Returns:
            Those samples.
        """
        index = index.cpu()
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        part = copy.copy(self.kept() if self._memory else self)
        rows = index if part.rows is None else part.rows[index.to(part.rows.device)]
        part.rows = rows.to(part.backend.home)  # no batch waits for a copy of its row numbers
        part.labels, part.ids, part.cut, part._memory = self.labels[index], self.ids[index], True, {}
        part.owners = tuple(self.owners[i] for i in index.tolist()) if self.owners else ()
        part._host = None if self._host is None else self._host.select(index)
        part._y = part.labels.to(self.device)
        return part

    def replaced(self, **changes: Any) -> Self:
        """The same samples with other attributes.

        Args:
            **changes: attributes and their values; with a ``backend`` also ``rows``, None for all of it.

        Returns:
            A copy that shares the data.
        """
        there = copy.copy(self)
        there.__dict__.update(changes)
        if "backend" in changes:
            there._memory, there._host = {}, None
        if "backend" in changes or "labels" in changes:
            there._y = there.labels.to(there.device)
        return there

    def kept(self) -> Self:
        """The same samples in memory, if items are read for them that can be kept; each is read once."""
        if not self._memory:
            self._memory["kept"] = self.backend.kept(self.rows)
        backend = self._memory["kept"]
        return self if backend is self.backend else self.replaced(backend=backend, rows=None)

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Self:
        """The same samples delivered to a device.

        They move there if they take only a share of its free memory; otherwise they stay in host memory and
        are copied batch by batch, ahead of use.

        Args:
            device: where batches are delivered.
            dtype: the type of the floats that images, and tables of NumPy or pandas, are given out as.

        Returns:
            A copy.
        """
        device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        here = self.kept()
        plain, rows = here.backend.delivered(here.rows, here.device, dtype)
        host = here.replaced(backend=plain, rows=rows)
        backend, rows = plain.delivered(rows, device, dtype)
        return host.replaced(backend=backend, rows=rows).replaced(_host=host)


def cut(order: Order, own: Sequence[slice]) -> Order:
    """A part of each batch."""
    return [one[part] for one, part in zip(order, own, strict=True)] if own else order


def relabelled(samples: Samples, labels: Tensor) -> Samples:
    """The same inputs with other labels: a set of its own, of which nobody knows that it was another."""
    own = {"ids": torch.arange(len(samples)), "origin": Origin(), "cut": False}
    return samples.replaced(labels=labels, **own)


def few(samples: Samples, most: int = 2) -> Inputs:
    """The inputs of the first samples, to look at what a model makes of them."""
    return samples.take(torch.arange(min(most, len(samples))))[0]


def value_range(samples: Samples, method: str) -> tuple[Tensor, Tensor]:
    """The least and greatest value, of each channel for images (1, C, 1, 1), otherwise of all."""
    lows, highs = [], []
    for batch, _ in batches(samples, 512):
        x = inputs.continuous(batch, method)
        over = [d for d in range(x.ndim) if x.ndim != 4 or d != 1]
        lows.append(x.amin(over, keepdim=True))
        highs.append(x.amax(over, keepdim=True))
    return torch.cat(lows).amin(0, keepdim=True), torch.cat(highs).amax(0, keepdim=True)


def batches(samples: Samples, size: int, index: Tensor | None = None) -> Iterator[tuple[Inputs, Tensor]]:
    """The samples (those at ``index``) once, in order, in almost equal batches of at most ``size``."""
    order = torch.arange(len(samples)) if index is None else index
    return samples.stream(order.tensor_split(math.ceil(len(order) / size)))
