"""Data of any accepted form, in one shape.

Whatever the caller brings (a map-style dataset, a pair of tensors, :class:`Images`; all other forms become
one of these in :mod:`purge.data.accept`) becomes a
:class:`Samples`: labels known up front, batches fetched by an index tensor on the device. Where the
data lives is chosen here: on the device if it fits, in host memory and copied ahead of use if not,
and read anew in every pass by a ``DataLoader`` if it is too large to keep at all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from purge.core.errors import DataError, brief, first_line
from purge.core.plugins import processes_without_current_folder
from purge.data import inputs
from purge.data.classes import as_numbers, numbers_of_words, words_of
from purge.data.images import Images
from purge.data.inputs import Inputs
from purge.data.items import LABEL_KEYS, as_tensors, input_and_label, native
from purge.data.pair import Pair
from purge.data.prefetch import DEVICE_FRACTION, Order, copied_ahead, fits, say_once

RESIDENT_BYTES = 2 << 30  # a plain dataset up to this size is read once and kept as tensors
MOST_SAMPLES = 1 << 31  # an index of them takes 16 GB
ITEMS, READS = 16, 160  # items that are read again to see whether they differ, and how often in all

# What callers may bring: also DataFrames, DataLoaders and datasets of Hugging Face, which are no Dataset.
Data: TypeAlias = "Images | tuple[Any, Any] | Dataset[Any] | DataLoader[Any] | Any"
GivenLabels: TypeAlias = "Tensor | NDArray[Any] | Sequence[int]"  # and labels alone


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


class Samples(Protocol):
    """The one shape of data inside purge."""

    labels: Tensor  # (N,) int64, on the CPU

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """The samples at ``index`` as a batch ``(x, y)`` on the device of the run."""
        ...

    def stream(self, order: Order) -> Iterator[tuple[Inputs, Tensor]]:
        """The batches at each index tensor of ``order``; copies between devices are made ahead."""
        ...


class Tensors:
    """Inputs and labels as tensors: on the device if they fit, else copied ahead of use."""

    def __init__(self, x: Inputs, labels: Tensor, device: torch.device, pads: Sequence[Any] = ()) -> None:
        self.labels, self.pads = labels, tuple(pads)  # pads: what fills up short rows, see ragged.py
        self._device = device
        size, here = inputs.size(x), all(t.device == device for t in inputs.leaves(x))
        self._resident = here or fits(size, device)
        self._x = inputs.to(x, device) if self._resident else inputs.apply(Tensor.detach, x)
        self._y = labels.to(device)
        if not self._resident:
            say_once(
                f"The inputs ({size / 1e9:.1f} GB) do not fit into {DEVICE_FRACTION:.0%} of the free "
                f"memory of {device}: they stay in host memory and are copied ahead of use."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """The rows at ``index``."""
        x = inputs.apply(lambda t: t[index.to(t.device)], self._x)
        return inputs.to(x, self._device), self._y[index.to(self._device)]

    def stream(self, order: Order) -> Iterator[tuple[Inputs, Tensor]]:
        """The rows at each index tensor of ``order``."""
        if self._resident:
            yield from map(self.take, order)
            return
        copies = copied_ahead(lambda index: inputs.take(self._x, index), order, self._device)
        for index, x in zip(order, copies, strict=True):
            yield x, self._y[index.to(self._device)]


class Lazy:
    """A map-style dataset too large to keep: a DataLoader reads its items in every pass."""

    streamed = True

    def __init__(
        self, dataset: Dataset[Any], labels: Tensor, device: torch.device, *, moving: bool = False
    ) -> None:
        self.labels, self.moving = labels, moving  # moving: items differ whenever they are read
        self.dataset, self.device = dataset, device

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """The items at ``index``, collated."""
        return self._moved(_collated([self.dataset[i] for i in index.tolist()])[0], index)

    def stream(self, order: Order) -> Iterator[tuple[Inputs, Tensor]]:
        """The items at each index tensor of ``order``, read ahead by worker processes for a GPU."""
        for_gpu = self.device.type == "cuda"
        loader = DataLoader(
            self.dataset,
            batch_sampler=[index.tolist() for index in order],
            collate_fn=_collated,
            num_workers=min(8, os.cpu_count() or 1) if for_gpu else 0,
            pin_memory=for_gpu,
        )
        with processes_without_current_folder():  # where they are started anew, not forked
            batches = iter(loader)
        for index, (x, _) in zip(order, batches, strict=True):
            yield self._moved(x, index)

    def _moved(self, x: Inputs, index: Tensor) -> tuple[Inputs, Tensor]:
        return inputs.to(x, self.device), self.labels[index.cpu()].to(self.device)


class Part:
    """Some rows of other samples."""

    def __init__(self, whole: Samples, rows: Tensor) -> None:
        self.labels, self.moving = whole.labels[rows], getattr(whole, "moving", False)
        self.streamed = streamed(whole)
        self.whole, self.rows = whole, rows

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """The samples at ``index`` of these rows."""
        return self.whole.take(self.rows.to(index.device)[index])

    def stream(self, order: Order) -> Iterator[tuple[Inputs, Tensor]]:
        """The samples at each index tensor of ``order``."""
        return self.whole.stream([self.rows.to(index.device)[index] for index in order])


def streamed(samples: Samples) -> bool:
    """Is the data read anew in every pass, because it is too large to keep?"""
    return getattr(samples, "streamed", False)


def part_of(samples: Samples, rows: Tensor) -> Samples:
    """The samples at ``rows`` as samples of their own."""
    return samples.select(rows) if isinstance(samples, Images) else Part(samples, rows)


def few(samples: Samples, most: int = 2) -> Inputs:
    """The inputs of the first samples, to look at what a model makes of them."""
    return samples.take(torch.arange(min(most, len(samples))))[0]


def value_range(samples: Samples, method: str) -> tuple[Tensor, Tensor]:
    """The least and greatest value, of each channel for images (1, C, 1, 1), otherwise of all."""
    lows, highs = [], []
    for given, _ in batches(samples, 512):
        x = inputs.continuous(given, method)
        over = [d for d in range(x.ndim) if x.ndim != 4 or d != 1]
        lows.append(x.amin(over, keepdim=True))
        highs.append(x.amax(over, keepdim=True))
    return torch.cat(lows).amin(0, keepdim=True), torch.cat(highs).amax(0, keepdim=True)


def as_samples(data: Data, device: torch.device, what: str, dtype: torch.dtype = torch.float32) -> Samples:
    """Bring any accepted form of data into the one shape; ``what`` names it in messages.

    Images, and tables that were NumPy arrays or DataFrames, are given out as floats of ``dtype``; tensors
    and datasets stay what they are.
    """
    data = _ready(data, what)
    if isinstance(data, Images):
        return data.to(device, dtype)
    if isinstance(data, (tuple, list)):
        x, y = pair_of(data, what)
        if data.cast if isinstance(data, Pair) else _of_numpy(data[0]):
            x = inputs.apply(lambda t: t.to(dtype) if t.is_floating_point() else t, x)
        pads = data.pads if isinstance(data, Pair) else ()
        return Tensors(x, as_numbers(y, len(y), what), device, pads)
    length(data, what)
    return _from_dataset(data, device, what)


def labels_of(data: Data, what: str) -> Tensor:
    """The labels of any accepted form of data; items are read only if nothing lists them."""
    data = _ready(data, what)
    if isinstance(data, Images):
        return data.labels
    if not isinstance(data, (tuple, list)):
        n = length(data, what)
        base, index = unwrap(data)
        if n and (listed := _known_labels(base, index)) is not None:
            return as_numbers(listed, n, what)
    return as_samples(data, torch.device("cpu"), what).labels


def _ready(data: Data, what: str) -> Any:
    """Data in one of the three forms; others are read."""
    from purge.data import accept  # it builds on this module

    return accept.accepted({what: data})[what] if accept.needs_opening(data) else data


def _of_numpy(x: Any) -> bool:
    return all(isinstance(part, np.ndarray) for part in inputs.leaves(x))


def no_stream(data: Any, what: str) -> DataError:
    """Why a stream cannot be used: the samples to forget are looked up by number, again and again."""
    return DataError(
        f"{what} as a dataset whose items can be looked up by number",
        f"a stream ({type(data).__name__})",
        "use a map-style dataset (with __len__ and __getitem__), or list(stream) if it fits into memory",
    )


def length(data: Any, what: str = "the dataset") -> int:
    """How many samples there are, or a DataError if the data cannot say."""
    if isinstance(data, (tuple, list)):
        return len(data[1]) if len(data) == 2 and hasattr(data[1], "iloc") else len(pair_of(data, what)[1])
    if isinstance(data, DataLoader):
        return length(data.dataset, what)
    if isinstance(data, IterableDataset):
        raise no_stream(data, what)
    map_style = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not map_style or isinstance(data, (Mapping, str, Tensor, np.ndarray)):
        raise DataError(
            f"{what} as a dataset with a length and items, a pair of tensors, a DataFrame or purge.Images",
            type(data).__name__,
            "use a map-style dataset (with __len__ and __getitem__)",
        )
    try:
        n = len(data)
    except (Exception, SystemExit) as error:  # whatever the dataset's own code may raise
        fix = "make __len__ return the number of items"
        raise DataError(f"a length of {what}", first_line(error), fix) from error
    if n > MOST_SAMPLES:
        raise DataError(f"at most {MOST_SAMPLES} samples in {what}", str(n), "check its __len__")
    return n


def batches(samples: Samples, size: int, index: Tensor | None = None) -> Iterator[tuple[Inputs, Tensor]]:
    """Go once through the samples (those at ``index``), in order, without shuffling."""
    yield from samples.stream(in_batches(samples, size, index))


def in_batches(samples: Samples, size: int, index: Tensor | None = None) -> Sequence[Tensor]:
    """The rows of each batch of one pass, at most ``size`` of them and almost equally many."""
    order = torch.arange(len(samples)) if index is None else index
    return order.tensor_split(math.ceil(len(order) / size))


def pair_of(data: Sequence[Any], what: str) -> tuple[Inputs, Any]:
    """Inputs and labels that were given as a pair: arrays become tensors."""
    if len(data) != 2 or not isinstance(data[1], (Tensor, np.ndarray)) or not are_arrays(data[0]):
        kinds = ", ".join(type(part).__name__ for part in data[:4])
        raise DataError(f"{what} as a pair of tensors (x, y)", f"({kinds})", "pass (inputs, labels)")
    try:
        x, y = inputs.apply(lambda t: torch.as_tensor(native(t)), data[0]), native(data[1])
    except TypeError:
        kinds = ", ".join({str(part.dtype) for part in inputs.leaves(data[0])})
        raise DataError(
            f"numbers as inputs in {what}", f"an array of {kinds}", "convert them to floats"
        ) from None
    if odd := inputs.unusable((x, y)):
        raise DataError(f"plain tensors in {what}", odd, "convert it to a dense tensor with values")
    shapes = [tuple(t.shape) for t in (*inputs.leaves(x), y)]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise DataError(
            f"as many inputs as labels in {what}",
            " and ".join(map(str, shapes)),
            "pass tensors with the same first dimension",
        )
    return x, y


def are_arrays(x: Any) -> bool:
    """Is it a tensor or an array, or a dict or tuple of them?"""
    if isinstance(x, (dict, tuple)):
        return bool(x) and all(isinstance(part, (Tensor, np.ndarray)) for part in inputs.leaves(x))
    return isinstance(x, (Tensor, np.ndarray))


def _from_dataset(dataset: Dataset[Any], device: torch.device, what: str) -> Samples:
    n = length(dataset, what)
    if n == 0:
        return Tensors(torch.empty(0), torch.empty(0, dtype=torch.long), device)
    base, index = unwrap(dataset)
    if isinstance(base, TensorDataset) and (len(base.tensors) == 2 or is_table(base)):
        untouched, tensors = base is dataset, base.tensors[:2]  # if so, nothing need be copied
        if odd := inputs.unusable(tensors):
            raise DataError(f"plain tensors in {what}", odd, "convert it to a dense tensor with values")
        x, y = tensors if untouched else (inputs.take(t, index) for t in tensors)
        return Tensors(x, as_numbers(y, n, what), device)
    size, moving = n * inputs.size(item_of(dataset, what)), differ_when_read_again(dataset, what)
    if moving:
        say_once("Items of the data differ when read again (random transforms?): every pass reads them anew.")
    keep = size <= RESIDENT_BYTES and not moving
    labels = None if keep else _known_labels(base, index)
    if labels is not None:
        return _lazy(dataset, as_numbers(labels, n, what), device, size, moving)
    if size > RESIDENT_BYTES:
        say_once(f"Nothing lists the labels of {what} (no .targets or .labels): all items are read for them.")
    xs, ys = [], list[Any]()
    numbers = torch.Generator()  # not the caller's
    try:
        for x, y in DataLoader(dataset, batch_size=256, collate_fn=_collated, generator=numbers):
            ys += y
            if keep:
                xs.append(x)
        whole = inputs.join(xs) if keep else None
    except DataError:
        raise
    except (Exception, SystemExit) as error:  # whatever the dataset's own code may raise
        raise DataError(
            f"items (x, y) of one shape in {what}",
            first_line(error),
            "return an input of one size and its label each time, or pass a DataLoader whose collate_fn pads",
        ) from error
    words = words_of(ys, what)
    labels = as_numbers(ys, n, what) if words is None else numbers_of_words(words, sorted(set(words)))
    return _lazy(dataset, labels, device, size, moving) if whole is None else Tensors(whole, labels, device)


def is_table(dataset: Any) -> bool:
    """Is it a TensorDataset that gives out its rows as they are: inputs, labels and perhaps more?"""
    plain = isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__
    return plain and len(dataset.tensors) >= 2


def _collated(items: Sequence[Any]) -> tuple[Inputs, list[Any]]:
    """The inputs of some items as one batch, and their labels as they came."""
    pairs = [input_and_label(item) for item in items]
    xs = [as_tensors(x, "the data") for x, _ in pairs]
    return inputs.apply(lambda *ts: torch.stack(ts), *xs), [y for _, y in pairs]


def differ_when_read_again(dataset: Any, what: str) -> bool:
    """Does a dataset draw random numbers for its items? Reads some of them again and again.

    A transform that is applied with p = 0.1 is missed with a probability of 0.9^READS, below 1e-7.
    """
    items = min(ITEMS, len(dataset))
    for i in range(items):
        at = i * len(dataset) // items
        first = inputs.leaves(item_of(dataset, what, at))
        for _ in range(math.ceil(READS / items)):
            again = inputs.leaves(item_of(dataset, what, at))
            if any(a.shape == b.shape and not _same(a, b) for a, b in zip(first, again, strict=False)):
                return True
    return False


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal in every number; NaN equals NaN."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _lazy(dataset: Dataset[Any], labels: Tensor, device: torch.device, size: int, moving: bool) -> Lazy:
    if size > RESIDENT_BYTES:
        say_once(
            f"The inputs ({size / 1e9:.1f} GB) are too large to keep: a DataLoader reads them in every pass."
        )
    return Lazy(dataset, labels, device, moving=moving)


def _known_labels(dataset: Any, index: Tensor) -> Tensor | None:
    """Labels that a dataset lists, as those of torchvision do, so that not every item must be read.

    What is called ``labels`` is believed if it agrees with some items.
    """
    listed = getattr(dataset, "targets", None)
    if listed is None and _are_labels(named := getattr(dataset, "labels", None), dataset):
        listed = named
    columns = getattr(dataset, "column_names", None) if hasattr(dataset, "features") else None
    if listed is None and isinstance(columns, list):  # Hugging Face
        listed = next((list(dataset[key]) for key in LABEL_KEYS if key in columns), None)
    if listed is None or getattr(dataset, "target_transform", None) is not None:
        return None
    try:
        return torch.as_tensor(listed)[index]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return None


def _are_labels(listed: Any, dataset: Any) -> bool:
    """Is it a list of whole numbers, one per item and those that a few items have?"""
    try:
        found, n = torch.as_tensor(listed), len(dataset)
        rows = [i * n // ITEMS for i in range(ITEMS)]
        return found.shape == (n,) and all(int(input_and_label(dataset[i])[1]) == found[i] for i in rows)
    except Exception:  # whatever it is, and whatever the dataset's own code may raise
        return False


def item_of(dataset: Any, what: str, i: int = 0) -> Inputs:
    """The inputs of one item, if it is an input and a label."""
    try:
        x, y = input_and_label(dataset[i], what)
    except DataError:
        raise
    except (Exception, SystemExit) as error:  # whatever the dataset's own code may raise
        raise DataError(
            f"an input and its label as item {i} of {what}",
            first_line(error),
            f"make dataset[{i}] return (x, y)",
        ) from error
    x = as_tensors(x, what)
    if odd := inputs.unusable((x, y)):
        raise DataError(f"plain tensors from {what}", odd, "return a dense tensor with values")
    if not isinstance(y, (int, np.integer, np.bool_, str, Tensor, np.ndarray, list)):
        fix = (
            "return int labels, names of classes or one-hot rows, or pass adapt=lambda item: (inputs, label)"
        )
        raise DataError(f"whole numbers as labels in {what}", type(y).__name__, fix)
    return x


def unwrap(dataset: Any) -> tuple[Any, Tensor]:
    """The dataset under any nesting of Subset, and the indices into it."""
    index = torch.arange(length(dataset))
    while isinstance(dataset, Subset):
        index = _indices(dataset)[index]
        n = length(dataset.dataset)
        if bool(((index < -n) | (index >= n)).any()):
            strange = int(index[(index < -n) | (index >= n)][0])
            raise DataError(f"indices of a Subset below {n}", str(strange), "check its indices")
        index = torch.where(index < 0, index + n, index)
        dataset = dataset.dataset
    return dataset, index


def _indices(subset: Subset[Any]) -> Tensor:
    """The indices of a Subset, which may be anything that its caller took for indices."""
    try:
        found = torch.as_tensor(list(subset.indices) or np.empty(0, np.int64))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = torch.empty(0)
    if (
        found.ndim != 1
        or found.dtype.is_floating_point
        or found.dtype.is_complex
        or found.dtype == torch.bool
    ):
        fix = "pass positions in the dataset, Subset(dataset, [0, 1])"
        raise DataError("whole numbers as indices of a Subset", brief(list(subset.indices)[:5]), fix)
    return found.long()
