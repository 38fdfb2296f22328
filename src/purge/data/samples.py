"""Data of any accepted form, in one shape.

Whatever the caller brings (a map-style dataset, a pair of tensors, :class:`Images`) becomes a
:class:`Samples`: labels known up front, batches fetched by an index tensor on the device. Where the
data lives is chosen here: on the device if it fits, in host memory and copied ahead of use if not,
and read again and again by a ``DataLoader`` if it is too large to keep at all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from purge.core.errors import DataError
from purge.data.images import Images, as_labels
from purge.data.prefetch import DEVICE_FRACTION, Order, copied_ahead, fits, say_once

RESIDENT_BYTES = 2 << 30  # a plain dataset up to this size is read once and kept as tensors

INPUT_KEYS = ("pixel_values", "image", "x")  # where items that are dicts keep their input,
LABEL_KEYS = ("label", "labels", "y")  # and their label

Data: TypeAlias = "Images | tuple[Tensor, Tensor] | Dataset[Any]"  # what callers may bring


class Samples(Protocol):
    """The one shape of data inside purge."""

    labels: Tensor  # (N,) int64, on the CPU

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples at ``index`` as a batch ``(x, y)`` on the device of the run."""
        ...

    def stream(self, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches at each index tensor of ``order``; what must be copied is copied ahead."""
        ...


class Tensors:
    """Inputs and labels as tensors: on the device if they fit, else copied ahead of use."""

    def __init__(self, x: Tensor, labels: Tensor, device: torch.device) -> None:
        self.labels = labels
        self._device = device
        x = x.detach()  # what the caller may differentiate by is no matter of ours
        self._x = x.to(device) if x.device == device or fits(x.nbytes, device) else x
        self._y = labels.to(device)
        if not self._resident:
            say_once(
                f"The inputs ({x.nbytes / 1e9:.1f} GB) do not fit into {DEVICE_FRACTION:.0%} of the free "
                f"memory of {device}: they stay in host memory and are copied ahead of use."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def _resident(self) -> bool:
        return self._x.device == self._y.device

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at ``index``."""
        x = self._x[index.to(self._x.device)].to(self._device, non_blocking=True)
        return x, self._y[index.to(self._device)]

    def stream(self, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows at each index tensor of ``order``."""
        if self._resident:
            yield from map(self.take, order)
            return
        copies = copied_ahead(lambda index: self._x[index], order, self._y.device)
        for index, x in zip(order, copies, strict=True):
            yield x, self._y[index.to(self._y.device)]


class Lazy:
    """A map-style dataset too large to keep: a DataLoader reads its items in every pass."""

    def __init__(self, dataset: Dataset[Any], labels: Tensor, device: torch.device) -> None:
        self.labels = labels
        self._dataset, self._device = dataset, device

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The items at ``index``, collated."""
        x, y = input_and_label(default_collate([self._dataset[i] for i in index.tolist()]))
        return self._moved(x, y)

    def stream(self, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        """The items at each index tensor of ``order``, read ahead by worker processes for a GPU."""
        for_gpu = self._device.type == "cuda"
        loader = DataLoader(
            self._dataset,
            batch_sampler=[index.tolist() for index in order],
            num_workers=min(8, os.cpu_count() or 1) if for_gpu else 0,
            pin_memory=for_gpu,
        )
        for batch in loader:
            yield self._moved(*input_and_label(batch))

    def _moved(self, x: Tensor, y: Any) -> tuple[Tensor, Tensor]:
        labels = torch.as_tensor(y).to(self._device, torch.long)
        return x.detach().to(self._device, non_blocking=True), labels


class _Part:
    """Some rows of other samples."""

    def __init__(self, whole: Samples, rows: Tensor) -> None:
        self.labels = whole.labels[rows]
        self._whole, self._rows = whole, rows

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self._whole.take(self._rows.to(index.device)[index])

    def stream(self, order: Order) -> Iterator[tuple[Tensor, Tensor]]:
        return self._whole.stream([self._rows.to(index.device)[index] for index in order])


def part_of(samples: Samples, rows: Tensor) -> Samples:
    """The samples at ``rows`` as samples of their own."""
    return samples.select(rows) if isinstance(samples, Images) else _Part(samples, rows)


def input_and_label(item: Any, what: str = "the dataset") -> tuple[Any, Any]:
    """The input and the label in an item (or a batch) of a dataset: a pair, or a dict of both."""
    if isinstance(item, Mapping):
        found = [next((item[k] for k in keys if k in item), None) for keys in (INPUT_KEYS, LABEL_KEYS)]
        if all(part is not None for part in found):
            return found[0], found[1]
    elif isinstance(item, (tuple, list)) and len(item) == 2:
        return item[0], item[1]
    got = f"a dict of {', '.join(map(repr, item))}" if isinstance(item, Mapping) else type(item).__name__
    raise DataError(
        f"items (x, y), or dicts with 'pixel_values' and 'label', in {what}",
        got,
        "return an input and its label",
    )


def as_samples(data: Data, device: torch.device, what: str, dtype: torch.dtype = torch.float32) -> Samples:
    """Bring any accepted form of data into the one shape; ``what`` names it in messages.

    Images are given out as floats of ``dtype``; tensors and datasets stay what they are.
    """
    if isinstance(data, Images):
        return data.to(device, dtype)
    if isinstance(data, (tuple, list)):
        x, y = _pair(data, what)
        return Tensors(x, as_labels(y, len(x), what), device)
    length(data, what)
    return _from_dataset(data, device, what)


def labels_of(data: Data, what: str) -> Tensor:
    """The labels of any accepted form of data; items are read only if nothing lists them."""
    if isinstance(data, Images):
        return data.labels
    if not isinstance(data, (tuple, list)):
        n = length(data, what)
        base, index = unwrap(data)
        if n and (listed := _known_labels(base, index)) is not None:
            return as_labels(listed, n, what)
    return as_samples(data, torch.device("cpu"), what).labels


def length(data: Any, what: str = "the dataset") -> int:
    """How many samples there are, or a DataError if the data cannot say."""
    if isinstance(data, (tuple, list)):
        return len(_pair(data, what)[0])
    map_style = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not map_style or isinstance(data, (Mapping, IterableDataset, str, Tensor, np.ndarray)):
        raise DataError(
            f"{what} as a dataset with a length and items, a pair of tensors or purge.Images",
            type(data).__name__,
            "use a map-style dataset (with __len__ and __getitem__)",
        )
    return len(data)


def batches(samples: Samples, size: int, index: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Go once through the samples (those at ``index``), in order, without shuffling."""
    order = torch.arange(len(samples)) if index is None else index
    yield from samples.stream(order.tensor_split(math.ceil(len(order) / size)))  # of almost equal size


def _pair(data: Sequence[Any], what: str) -> tuple[Tensor, Any]:
    if len(data) != 2 or not all(isinstance(part, (Tensor, np.ndarray)) for part in data):
        kinds = ", ".join(type(part).__name__ for part in data[:4])
        raise DataError(f"{what} as a pair of tensors (x, y)", f"({kinds})", "pass (inputs, labels)")
    try:
        x, y = torch.as_tensor(_native(data[0])), _native(data[1])
    except TypeError:
        raise DataError(
            f"numbers as inputs in {what}", f"an array of {data[0].dtype}", "convert them to floats"
        ) from None
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"as many inputs as labels in {what}",
            f"{tuple(x.shape)} and {tuple(y.shape)}",
            "pass tensors with the same first dimension",
        )
    return x, y


def _native(part: Any) -> Any:
    """An array as torch takes it: its rows one after the other, and bytes in the order of this machine."""
    if not isinstance(part, np.ndarray):
        return part
    return np.ascontiguousarray(part, part.dtype.newbyteorder("="))


def _from_dataset(dataset: Dataset[Any], device: torch.device, what: str) -> Samples:
    n = len(dataset)  # type: ignore[arg-type]
    if n == 0:
        return Tensors(torch.empty(0), torch.empty(0, dtype=torch.long), device)
    base, index = unwrap(dataset)
    if isinstance(base, TensorDataset) and len(base.tensors) == 2:
        untouched = base is dataset  # then nothing need be copied
        x, y = base.tensors if untouched else (t[index] for t in base.tensors)
        return Tensors(x, as_labels(y, n, what), device)
    first = _item(dataset, what)
    moving = _differ_when_read_again(dataset, what)
    if moving:
        say_once("Items of the data differ when read again (random transforms?): every pass reads them anew.")
    keep = first.nbytes * n <= RESIDENT_BYTES and not moving
    labels = None if keep else _known_labels(base, index)
    if labels is not None:
        return _lazy(dataset, as_labels(labels, n, what), device, first.nbytes * n)
    loader = DataLoader(dataset, batch_size=256, generator=torch.Generator())  # not the caller's
    xs, ys = [], []
    try:
        for batch in loader:
            x, y = input_and_label(batch, what)
            ys.append(torch.as_tensor(y))
            if keep:
                xs.append(torch.as_tensor(x))
        inputs = torch.cat(xs) if keep else None
    except DataError:
        raise
    except Exception as error:  # whatever the dataset's own code may raise
        raise DataError(
            f"items (x, y) of one shape in {what}",
            f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}".rstrip("."),
            "bring all inputs to one size and return an input and its label each time",
        ) from error
    labels = as_labels(torch.cat(ys), n, what)
    if inputs is None:
        return _lazy(dataset, labels, device, first.nbytes * n)
    return Tensors(inputs, labels, device)


def _differ_when_read_again(dataset: Any, what: str) -> bool:
    """Does a dataset draw random numbers for its items? A few of them are read twice to see."""
    few = range(min(8, len(dataset)))
    twice = [[_item(dataset, what, i) for i in few] for _ in range(2)]
    return any(a.shape == b.shape and not torch.equal(a, b) for a, b in zip(*twice, strict=True))


def _lazy(dataset: Dataset[Any], labels: Tensor, device: torch.device, size: int) -> Lazy:
    if size > RESIDENT_BYTES:
        say_once(
            f"The inputs ({size / 1e9:.1f} GB) are too large to keep: a DataLoader reads them in every pass."
        )
    return Lazy(dataset, labels, device)


def _known_labels(dataset: Any, index: Tensor) -> Tensor | None:
    """Labels that a dataset lists, as those of torchvision do, so that not every item must be read."""
    listed = getattr(dataset, "targets", None)
    if listed is None or getattr(dataset, "target_transform", None) is not None:
        return None
    try:
        return torch.as_tensor(listed)[index]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return None


def _item(dataset: Any, what: str, i: int = 0) -> Tensor:
    try:
        x, y = input_and_label(dataset[i], what)
    except DataError:
        raise
    except Exception as error:  # whatever the dataset's own code may raise
        got = f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}".rstrip(".")
        raise DataError(f"an input and its label as item {i} of {what}", got, "mend it") from error
    if not isinstance(x, (Tensor, np.ndarray)):
        raise DataError(
            f"tensors as inputs from {what}",
            type(x).__name__,
            "add a transform such as torchvision.transforms.ToTensor()",
        )
    if not isinstance(y, (int, np.integer, Tensor)) or isinstance(y, bool):
        raise DataError(f"whole numbers as labels in {what}", type(y).__name__, "return int labels")
    return torch.as_tensor(x)


def unwrap(dataset: Any) -> tuple[Any, Tensor]:
    """The dataset under any nesting of Subset, and the indices into it."""
    index = torch.arange(len(dataset))
    while isinstance(dataset, Subset):
        index = torch.as_tensor(list(dataset.indices), dtype=torch.long)[index]
        n = length(dataset.dataset)
        if bool(((index < -n) | (index >= n)).any()):
            strange = int(index[(index < -n) | (index >= n)][0])
            raise DataError(f"indices of a Subset below {n}", str(strange), "check its indices")
        index = torch.where(index < 0, index + n, index)
        dataset = dataset.dataset
    return dataset, index
