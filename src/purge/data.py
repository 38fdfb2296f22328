"""Data of any accepted form, in one shape.

Whatever the caller brings (a map-style dataset, a pair of tensors, :class:`Images`) becomes a
:class:`Samples`: labels known up front, batches fetched by an index tensor on the device.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from purge.errors import DataError, expected

RESIDENT_BYTES = 2 << 30  # a plain dataset up to this size is read once and kept as tensors

Data: TypeAlias = "Images | tuple[Tensor, Tensor] | Dataset[Any]"  # what callers may bring


class Samples(Protocol):
    """The one shape of data inside purge."""

    labels: Tensor  # (N,) int64, on the CPU

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The samples at ``index`` as a batch ``(x, y)`` on the device of the run."""
        ...


class Images:
    """Images as one uint8 tensor (N, C, H, W) with labels, held on a device.

    Pixels become floats in batches: ``(x / 255 - mean) / std`` per channel.

    >>> data = Images(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    >>> x, y = data.take(torch.tensor([0, 3]))
    >>> x.shape, y.tolist()
    (torch.Size([2, 1, 8, 8]), [0, 1])
    """

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        names: Sequence[str] = (),
        ids: Tensor | None = None,
        source: str = "",
    ) -> None:
        if not (isinstance(pixels, Tensor) and pixels.ndim == 4 and pixels.dtype == torch.uint8):
            got = (
                f"{tuple(pixels.shape)} of {pixels.dtype}"
                if isinstance(pixels, Tensor)
                else type(pixels).__name__
            )
            raise DataError(
                expected("pixels as a uint8 tensor (N, C, H, W)", got, "convert the images to uint8")
            )
        for what, constants in (("mean", mean), ("std", std)):
            if not isinstance(constants, (tuple, list)) or len(constants) not in (1, pixels.shape[1]):
                raise DataError(
                    expected(
                        f"one {what} per channel ({pixels.shape[1]})",
                        repr(constants),
                        f"pass {what} with {pixels.shape[1]} numbers",
                    )
                )
        if not all(s > 0 for s in std):
            raise DataError(expected("a std above 0", repr(std), "pass the spread of the pixels"))
        if ids is not None and ids.shape != (len(pixels),):
            raise DataError(
                expected(f"one id per image, shape ({len(pixels)},)", str(tuple(ids.shape)), "leave ids out")
            )
        self.pixels = pixels
        self.labels = as_labels(labels, len(pixels), "the images")
        self.mean, self.std = tuple(mean), tuple(std)
        self._y = self.labels.to(pixels.device)
        self._mean, self._std = (
            torch.tensor(c, device=pixels.device).view(1, -1, 1, 1) for c in (self.mean, self.std)
        )
        self.names = tuple(names)
        self.ids = torch.arange(len(pixels)) if ids is None else ids
        self.source = source or uuid.uuid4().hex  # images of one source are told apart by their ids
        self.dtype = torch.float32

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x, y = self.take(torch.tensor([range(len(self))[i]]))
        return x[0], int(y)

    def __repr__(self) -> str:
        n, *shape = self.pixels.shape
        return f"Images({n} × {'×'.join(map(str, shape))} on {self.pixels.device})"

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The images at ``index``, normalised, and their labels, on the device of the pixels."""
        index = index.to(self.pixels.device)
        x = (self.pixels[index] / 255 - self._mean) / self._std
        return x.to(self.dtype), self._y[index]

    def select(self, index: Tensor) -> Images:
        """The images at ``index`` as Images of their own; ids and source are kept."""
        return Images(
            self.pixels[index.to(self.pixels.device)],
            self.labels[index.cpu()],
            mean=self.mean,
            std=self.std,
            names=self.names,
            ids=self.ids[index.cpu()],
            source=self.source,
        )

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Images:
        """The same images on another device, given out as floats of ``dtype``."""
        moved = Images(
            self.pixels.to(device),
            self.labels,
            mean=self.mean,
            std=self.std,
            names=self.names,
            ids=self.ids,
            source=self.source,
        )
        moved.dtype = dtype
        return moved


class Tensors:
    """Inputs and labels as tensors, moved to the device once."""

    def __init__(self, x: Tensor, labels: Tensor, device: torch.device) -> None:
        self.labels = labels
        self._device = device
        fits = device.type != "cuda" or x.nbytes < 0.5 * torch.cuda.mem_get_info(device)[0]
        self._x = x.to(device) if fits else x.pin_memory()
        self._y = labels.to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at ``index``."""
        x = self._x[index.to(self._x.device)].to(self._device, non_blocking=True)
        return x, self._y[index.to(self._device)]


class Lazy:
    """A map-style dataset too large to keep: its items are read batch by batch."""

    def __init__(self, dataset: Dataset[Any], labels: Tensor, device: torch.device) -> None:
        self.labels = labels
        self._dataset, self._device = dataset, device

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The items at ``index``, collated."""
        x, y = default_collate([self._dataset[i] for i in index.tolist()])
        return x.to(self._device), torch.as_tensor(y).to(self._device)


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


def length(data: Any, what: str = "the dataset") -> int:
    """How many samples there are, or a DataError if the data cannot say."""
    if isinstance(data, (tuple, list)):
        return len(_pair(data, what)[0])
    map_style = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not map_style or isinstance(data, (Mapping, IterableDataset, str, Tensor, np.ndarray)):
        raise DataError(
            expected(
                f"{what} as a dataset with a length and items, a pair of tensors or purge.Images",
                type(data).__name__,
                "use a map-style dataset (with __len__ and __getitem__)",
            )
        )
    return len(data)


def as_labels(y: Any, n: int, what: str) -> Tensor:
    """Labels as an int64 tensor (N,) on the CPU, or a DataError that says what they are."""
    try:
        y = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            expected(f"whole numbers as labels in {what}", type(y).__name__, "number the classes 0 … K-1")
        ) from None
    if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
        raise DataError(
            expected(f"whole numbers as labels in {what}", str(y.dtype), "convert them with y.long()")
        )
    if y.shape != (n,):
        raise DataError(
            expected(
                f"one label per sample in {what}, shape ({n},)",
                str(tuple(y.shape)),
                "pass class indices, not one-hot rows",
            )
        )
    if n and int(y.min()) < 0:
        raise DataError(
            expected(f"labels from 0 up in {what}", str(int(y.min())), "number the classes 0 … K-1")
        )
    labels: Tensor = y.detach().long().cpu()
    return labels


def batches(samples: Samples, size: int, index: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Go once through the samples (those at ``index``), in order, without shuffling."""
    order = torch.arange(len(samples)) if index is None else index
    for part in order.tensor_split(math.ceil(len(order) / size)):  # parts of almost equal size
        yield samples.take(part)


def _pair(data: Sequence[Any], what: str) -> tuple[Tensor, Any]:
    if len(data) != 2 or not all(isinstance(part, (Tensor, np.ndarray)) for part in data):
        kinds = ", ".join(type(part).__name__ for part in data[:4])
        raise DataError(
            expected(f"{what} as a pair of tensors (x, y)", f"({kinds})", "pass (inputs, labels)")
        )
    try:
        x, y = torch.as_tensor(data[0]), data[1]
    except TypeError:
        raise DataError(
            expected(f"numbers as inputs in {what}", f"an array of {data[0].dtype}", "convert them to floats")
        ) from None
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            expected(
                f"as many inputs as labels in {what}",
                f"{tuple(x.shape)} and {tuple(y.shape)}",
                "pass tensors with the same first dimension",
            )
        )
    return x, y


def _from_dataset(dataset: Dataset[Any], device: torch.device, what: str) -> Samples:
    n = len(dataset)  # type: ignore[arg-type]
    if n == 0:
        return Tensors(torch.empty(0), torch.empty(0, dtype=torch.long), device)
    base, index = unwrap(dataset)
    if isinstance(base, TensorDataset) and len(base.tensors) == 2:
        x, y = base.tensors[0][index], base.tensors[1][index]
        return Tensors(x, as_labels(y, n, what), device)
    first = _item(dataset, what)
    loader = DataLoader(dataset, batch_size=256, generator=torch.Generator())  # not the caller's
    keep = first.nbytes * n <= RESIDENT_BYTES
    xs, ys = [], []
    try:
        for x, y in loader:
            ys.append(torch.as_tensor(y))
            if keep:
                xs.append(torch.as_tensor(x))
        inputs = torch.cat(xs) if keep else None
    except (RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            expected(
                f"items (x, y) of one shape in {what}",
                f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}".rstrip("."),
                "bring all inputs to one size and return an input and its label each time",
            )
        ) from error
    labels = as_labels(torch.cat(ys), n, what)
    return Lazy(dataset, labels, device) if inputs is None else Tensors(inputs, labels, device)


def _item(dataset: Any, what: str) -> Tensor:
    item = dataset[0]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise DataError(
            expected(f"items (x, y) from {what}", type(item).__name__, "return an input and its label")
        )
    if not isinstance(item[0], (Tensor, np.ndarray)):
        raise DataError(
            expected(
                f"tensors as inputs from {what}",
                type(item[0]).__name__,
                "add a transform such as torchvision.transforms.ToTensor()",
            )
        )
    if not isinstance(item[1], (int, np.integer, Tensor)) or isinstance(item[1], bool):
        raise DataError(
            expected(f"whole numbers as labels in {what}", type(item[1]).__name__, "return int labels")
        )
    return torch.as_tensor(item[0])


def unwrap(dataset: Any) -> tuple[Any, Tensor]:
    """The dataset under any nesting of Subset, and the indices into it."""
    index = torch.arange(len(dataset))
    while isinstance(dataset, Subset):
        index = torch.as_tensor(list(dataset.indices), dtype=torch.long)[index]
        index %= length(dataset.dataset)
        dataset = dataset.dataset
    return dataset, index
