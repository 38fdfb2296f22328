"""Images on a device: one tensor of bytes, made into floats batch by batch, moved and flipped there."""

from __future__ import annotations

import copy
import math
import numbers
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from purge.core.errors import DataError, brief, first_line
from purge.data import inputs
from purge.data.formats.source import MOST_CLASSES, class_names
from purge.data.prefetch import DEVICE_FRACTION, Order, copied_ahead, fits, say_once


class Images:
    """Images as one uint8 tensor (N, C, H, W) with labels, held on a device.

    Pixels become floats in batches, on the device: ``(x / 255 - mean) / std`` per channel, then
    resized to ``size`` (shorter side to ``size``, centre cut out) and, for grey images in a model
    for colour, repeated to ``channels``. Then ``transform`` is applied to the batch. Parts made by
    :meth:`select` share the pixels.

    Args:
        pixels: the images, uint8 (N, C, H, W).
        labels: the class of each, (N,).
        mean: of each channel, for pixels from 0 to 1, or one for all.
        std: the spread of each channel, likewise.
        size: side of the square images that a model sees; by default the pixels' own.
        channels: of the images that a model sees; by default the pixels' own.
        names: of all classes.
        ids: a number for each image, by which images of one source are told apart; by default its row.
        paths: of all images of the source, by their ids.
        source: a name that images of the same origin share; by default one of its own.
        device_fraction: share of the free memory of a device that the pixels may take up.
        transform: a function from a batch of scaled images to a batch, applied last; it must not draw random
            numbers.

    Example:
        >>> data = Images(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]), size=16)
        >>> x, y = data.take(torch.tensor([0, 3]))
        >>> x.shape, y.tolist()
        (torch.Size([2, 1, 16, 16]), [0, 1])
    """

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        size: int | None = None,
        channels: int | None = None,
        names: Sequence[str] = (),
        ids: Tensor | None = None,
        paths: Sequence[str] = (),
        source: str = "",
        device_fraction: float = DEVICE_FRACTION,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        _check_images(pixels, mean, std, size, channels, ids)
        self._store = pixels
        self._rows: Tensor | None = None  # the rows of the store that are ours; None: all
        self.labels = as_labels(labels, len(pixels), "the images")
        self.mean, self.std = tuple(mean), tuple(std)
        self.size, self.channels = size, channels or pixels.shape[1]
        self.names = class_names(names, "the images")
        self.ids = torch.arange(len(pixels)) if ids is None else ids
        self.paths = tuple(paths)  # by id; empty where the images had no names of their own
        self.source = source or uuid.uuid4().hex  # images of one source are told apart by their ids
        self.subjects: tuple[str, ...] = ()  # the user's own id of each image; empty: unknown
        self.cached = ""  # where in the user's cache they are kept too
        self.device_fraction = device_fraction
        self.dtype = torch.float32
        self.transform = transform
        self._deliver_to(pixels.device)
        self._shape = None if transform is None else self._transformed_shape()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x, y = self.take(torch.tensor([range(len(self))[i]]))
        return x[0], int(y)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        place = f"on {self.device}" if self.resident else f"in host memory for {self.device}"
        return f"Images({len(self)} × {shape} {place})"

    @property
    def pixels(self) -> Tensor:
        """The stored pixels (N, C, H, W), uint8, before any resizing."""
        return self._store if self._rows is None else self._store[self._rows]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of what :meth:`take` gives."""
        if self._shape is not None:
            return self._shape
        h, w = (self.size, self.size) if self.size else self._store.shape[2:]
        return self.channels, h, w

    @property
    def pixel_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the stored pixels."""
        c, h, w = self._store.shape[1:]
        return c, h, w

    @property
    def device(self) -> torch.device:
        """Where batches are delivered."""
        return self._y.device

    @property
    def resident(self) -> bool:
        """Are the pixels where the batches are wanted?"""
        return self._store.device == self.device

    def take(self, index: Tensor, moves: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The images at some rows, prepared for a model.

        Args:
            index: which rows.
            moves: how each image is moved, as ``draw_moves`` gives it; by default not at all.

        Returns:
            The images (B, C, H, W) and their labels (B,).
        """
        index = index.to(self.device)
        if self.resident:
            rows = index if self._rows is None else self._rows[index]
            pixels = self._store[rows] if moves is None else moved(self._store, rows, moves)
        else:
            pixels = self._on_host(index.cpu()).to(self.device)
            pixels = pixels if moves is None else moved(pixels, torch.arange(len(index)), moves)
        return self._prepared(pixels), self._y[index]

    def stream(self, order: Order, moves: Order | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of images one after the other, read ahead where they are not on the device.

        Args:
            order: the rows of each batch.
            moves: how the images of each batch are moved; by default not at all.

        Returns:
            An iterator over images and labels.
        """
        each = [None] * len(order) if moves is None else moves
        if self.resident:
            yield from (self.take(index, move) for index, move in zip(order, each, strict=True))
            return
        for index, move, pixels in zip(order, each, self._copies(order), strict=True):
            if move is not None:
                pixels = moved(pixels, torch.arange(len(index)), move)
            yield self._prepared(pixels), self._y[index.to(self.device)]

    def select(self, index: Tensor) -> Images:
        """Some images as Images of their own; pixels are shared, ids and source kept.

        Args:
            index: which rows, or a mask.

        Returns:
            Those images.
        """
        part, index = copy.copy(self), index.cpu()
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index  # a mask
        rows = index.to(self._store.device)
        part._rows = rows if self._rows is None else self._rows[rows]
        part.labels, part.ids = self.labels[index], self.ids[index]
        part.subjects = tuple(self.subjects[i] for i in index.tolist()) if self.subjects else ()
        part._deliver_to(self.device)
        return part

    def with_subjects(self, subjects: Sequence[str]) -> Images:
        """The same images, which know the user's own id of each.

        Args:
            subjects: an id for each image, in their order.

        Returns:
            A copy that shares the pixels.
        """
        if len(subjects) != len(self):
            raise DataError(
                f"one id per image ({len(self)})", str(len(subjects)), "pass them in the same order"
            )
        there = copy.copy(self)
        there.subjects = tuple(subjects)
        return there

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Images:
        """The same images delivered to another device.

        The pixels move there if they take at most ``device_fraction`` of its free memory;
        otherwise they stay in host memory and are copied batch by batch, ahead of use.

        Args:
            device: where batches are delivered.
            dtype: as floats of this type.

        Returns:
            A copy.
        """
        given, device = self, torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        there = copy.copy(given)
        there.dtype = dtype
        if device != given._store.device and fits(given._bytes, device, given.device_fraction):
            there._store, there._rows = given._copied_to(device), None
        elif device != given._store.device:
            say_once(
                f"The images ({given._bytes / 1e9:.1f} GB) do not fit into {given.device_fraction:.0%} of "
                f"the free memory of {device}: they stay in host memory and are copied ahead of use."
            )
        there._deliver_to(device)
        return there

    @property
    def _bytes(self) -> int:
        return len(self) * math.prod(self._store.shape[1:])

    def _deliver_to(self, device: torch.device) -> None:
        self._y = self.labels.to(device)
        self._mean, self._std = (
            torch.tensor(c, device=device).view(1, -1, 1, 1) for c in (self.mean, self.std)
        )

    def _copied_to(self, device: torch.device) -> Tensor:
        """The pixels on another device, moved in parts: the store may be a file mapped into memory."""
        found = torch.empty(len(self), *self._store.shape[1:], dtype=torch.uint8, device=device)
        part = max(1, (64 << 20) // math.prod(self._store.shape[1:]))
        for at in range(0, len(self), part):
            rows = slice(at, at + part) if self._rows is None else self._rows[at : at + part]
            found[at : at + part] = self._store[rows].to(device)
        return found

    def _copies(self, order: Order) -> Iterator[Tensor]:
        """The pixels of each batch on the device, copied ahead of use."""
        return copied_ahead(self._on_host, order, self.device)

    def _on_host(self, index: Tensor) -> Tensor:
        return self._store[index if self._rows is None else self._rows[index]]

    def _prepared(self, pixels: Tensor) -> Tensor:
        x = (pixels / 255 - self._mean) / self._std
        if self.size is not None:
            x = resized(x, self.size)
        x = x.expand(-1, self.channels, -1, -1).to(self.dtype)
        return x if self.transform is None else self.transform(x).to(self.dtype)

    def _transformed_shape(self) -> tuple[int, int, int]:
        """The shape of images behind the transform, which is tried on two of them."""
        pixels = self._store[:2]
        try:
            once, again = self._prepared(pixels), self._prepared(pixels)
        except (Exception, SystemExit) as error:  # whatever the user's own code may raise
            fix = "let it take and return a float tensor (B, C, H, W)"
            raise DataError("a transform of a batch of images", first_line(error), fix) from error
        if once.ndim != 4 or len(once) != len(pixels):
            got = f"{tuple(once.shape)} for {len(pixels)} images"
            raise DataError("a batch (B, C, H, W) from the transform", got, "return an image for each")
        if not torch.equal(once, again):
            got, fix = "random ones", "leave what is random to augment"
            raise DataError("the same images from the transform each time", got, fix)
        c, h, w = once.shape[1:]
        return c, h, w


def _check_images(
    pixels: Any, mean: Any, std: Any, size: int | None, channels: int | None, ids: Tensor | None
) -> None:
    odd = inputs.unusable(pixels)
    if odd or not (isinstance(pixels, Tensor) and pixels.ndim == 4 and pixels.dtype == torch.uint8):
        tensor = isinstance(pixels, Tensor) and not odd
        got = f"{tuple(pixels.shape)} of {pixels.dtype}" if tensor else odd or type(pixels).__name__
        raise DataError("pixels as a uint8 tensor (N, C, H, W)", got, "convert the images to uint8")
    for what, constants in (("mean", mean), ("std", std)):
        if not isinstance(constants, (tuple, list)) or len(constants) not in (1, pixels.shape[1]):
            raise DataError(
                f"one {what} per channel ({pixels.shape[1]})",
                brief(constants),
                f"pass {what} with {pixels.shape[1]} numbers",
            )
        if not all(isinstance(c, numbers.Real) and math.isfinite(c) for c in constants):
            raise DataError(f"finite numbers as {what}", brief(constants), f"pass {what}=(0.5,), say")
    if not all(s > 0 for s in std):
        raise DataError("a std above 0", repr(std), "pass the spread of the pixels")
    whole = isinstance(ids, Tensor) and not inputs.unusable(ids) and ids.dtype == torch.int64
    if ids is not None and (not whole or ids.shape != (len(pixels),)):
        got = f"{tuple(ids.shape)} of {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise DataError(f"one id of 64 bits per image, shape ({len(pixels)},)", got, "leave ids out")
    if size is not None and not (isinstance(size, int) and 1 <= size <= 4096):
        raise DataError("a size from 1 to 4096 pixels", repr(size), "pass size=32, say")
    if channels not in (None, pixels.shape[1]) and not (pixels.shape[1] == 1 and channels > 1):
        raise DataError(
            f"{pixels.shape[1]} channels, as the images have",
            str(channels),
            "only grey images can be repeated to more channels",
        )


def resized(x: Tensor, size: int) -> Tensor:
    """Float images (B, C, H, W) with the shorter side brought to ``size`` and the centre cut out."""
    h, w = x.shape[2:]
    scale = size / min(h, w)
    wanted = max(size, round(h * scale)), max(size, round(w * scale))
    if wanted != (h, w) and scale > 1 and x.is_cuda:
        x = enlarged(x, wanted)
    elif wanted != (h, w):
        x = F.interpolate(x, wanted, mode="bilinear", antialias=scale < 1)
    top, left = (wanted[0] - size) // 2, (wanted[1] - size) // 2
    return x[:, :, top : top + size, left : left + size]


def enlarged(x: Tensor, wanted: tuple[int, int]) -> Tensor:
    """As interpolate does, by two products of matrices: a GPU's kernel for it has too few threads."""
    down, right = (_weights(*each, x.device) for each in zip(x.shape[2:], wanted, strict=True))
    with torch.autocast(x.device.type, enabled=False):
        return down @ (x @ right.T)


@lru_cache(maxsize=8)
def _weights(n: int, wanted: int, device: torch.device) -> Tensor:
    """How each of ``wanted`` rows of pixels is made of ``n``: (wanted, n)."""
    one_by_one = torch.eye(n)[None, None]
    return F.interpolate(one_by_one, (wanted, n), mode="bilinear")[0, 0].to(device)


def draw_moves(n: int, *, pad: int, flip: bool, generator: torch.Generator, turn: bool = False) -> Tensor:
    """Random moves of ``n`` images, (n, 3): down and right by −pad … pad, and 1 to flip sideways.

    With ``turn`` (n, 5): also 1 to flip upside down and 1 to swap height and width, so that each of the
    eight ways in which a square can lie is equally likely. Drawn on the CPU, so that a seed means the
    same moves on every device.
    """
    shift = torch.randint(-pad, pad + 1, (n, 2), generator=generator)
    flips = torch.randint(0, 2 if flip else 1, (n, 1), generator=generator)
    turns = torch.randint(0, 2, (n, 2 if turn else 0), generator=generator)
    return torch.cat([shift, flips, turns], 1)


def moved(pixels: Tensor, rows: Tensor, moves: Tensor) -> Tensor:
    """The images of (N, C, H, W) at ``rows``, moved; what comes in at an edge is mirrored there.

    Padding, cropping, flipping and turning are one gather, at the size that the pixels are stored in.
    """
    h, w = pixels.shape[2:]
    down, right, flip, *turns = moves.to(pixels.device)[:, :, None].unbind(1)  # each (B, 1)
    y, x = (torch.arange(n, device=pixels.device) for n in (h, w))
    x = torch.where(flip.bool(), w - 1 - x, x) + right
    y = (torch.where(turns[0].bool(), h - 1 - y, y) if turns else y) + down
    y, x = ((n - 1) - ((n - 1) - i % max(1, 2 * (n - 1))).abs() for i, n in ((y, h), (x, w)))
    rows, y, x = rows.to(pixels.device)[:, None, None], y[:, :, None], x[:, None, :]
    if turns:
        swap = turns[1].bool()[:, :, None]
        y, x = (torch.where(swap, i.mT, i) for i in (y.expand(-1, h, w), x.expand(-1, h, w)))
    return pixels[rows, :, y, x].permute(0, 3, 1, 2)  # (B, C, H, W)


def draw_colours(n: int, channels: int, strength: float, generator: torch.Generator) -> Tensor:
    """A random gain, 1 ± strength at most, and shift, ± strength, of each channel: (n, channels, 2)."""
    drawn = strength * (2 * torch.rand(n, channels, 2, generator=generator) - 1)
    return drawn + torch.tensor([1.0, 0.0])


def recoloured(x: Tensor, colours: Tensor) -> Tensor:
    """Prepared images (B, C, H, W): each channel stretched about its own mean by a gain, then shifted.

    A shift of 1 is one standard deviation of the data, as the images have been normalised.
    """
    gain, shift = colours.to(x.dtype)[..., None, None].unbind(2)  # each (B, C, 1, 1)
    mean = x.mean((2, 3), keepdim=True)
    return mean + (x - mean) * gain + shift


def as_labels(y: Any, n: int, what: str) -> Tensor:
    """Labels as an int64 tensor (N,) on the CPU, or a DataError that says what they are."""
    try:
        y = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise DataError(
            f"whole numbers as labels in {what}", type(y).__name__, "number the classes 0 … K-1"
        ) from None
    if odd := inputs.unusable(y):
        raise DataError(f"whole numbers as labels in {what}", odd, "pass a plain tensor of whole numbers")
    if y.dtype.is_floating_point or y.dtype.is_complex or y.dtype == torch.bool:
        raise DataError(f"whole numbers as labels in {what}", str(y.dtype), "convert them with y.long()")
    if y.shape != (n,):
        raise DataError(
            f"one label per sample in {what}, shape ({n},)",
            str(tuple(y.shape)),
            "pass class indices, not one-hot rows",
        )
    labels: Tensor = y.detach().long().cpu()
    if n and not 0 <= int(labels.min()) <= int(labels.max()) < MOST_CLASSES:
        low, high = int(labels.min()), int(labels.max())
        want = "labels from 0 up" if low < 0 else f"labels below {MOST_CLASSES}"
        raise DataError(f"{want} in {what}", str(low if low < 0 else high), "number the classes 0 … K-1")
    return labels
