"""Images on a device: one tensor of bytes, made into floats batch by batch, moved and flipped there."""

from __future__ import annotations

import copy
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from purge.core.errors import DataError, brief, first_line
from purge.data import inputs
from purge.data.backends import Backend
from purge.data.classes import as_labels
from purge.data.formats.source import class_names
from purge.data.identity import Seen
from purge.data.prefetch import Order, copied_ahead, fits
from purge.data.samples import Origin, Samples


class Pixels(Backend):
    """Images as bytes, and how batches of them are prepared for a model."""

    pixel_shape: tuple[int, int, int]

    def __init__(
        self, store: Any, mean: tuple[float, ...], std: tuple[float, ...], size: int | None,
        channels: int | None, transform: Callable[[Tensor], Tensor] | None,
    ) -> None:  # fmt: skip
        self.store = store  # a tensor (N, C, H, W), or what decodes the rows that it is asked for
        self.streamed = not isinstance(store, Tensor)
        self.mean, self.std, self.size, self.channels = mean, std, size, channels or store.shape[1]
        self.home, self.pixel_shape = store.device, tuple(store.shape[1:])
        self.transform, self.seen, self.dtype = transform, Seen(), torch.float32
        self._deliver_to(store.device)
        h, w = (size, size) if size else store.shape[2:]
        self.shape: tuple[int, ...] = (self.channels, h, w)
        if transform is None:
            return
        pixels = store[:2]  # it is tried on two of them
        try:
            once, again = self._prepared(pixels), self._prepared(pixels)
            got = f"a batch of shape {tuple(once.shape)} for {len(pixels)} images"
            if once.ndim == 4 and len(once) == len(pixels):
                got = "" if torch.equal(once, again) else "random ones"
        except (Exception, SystemExit) as error:  # whatever the user's own code may raise
            got = first_line(error)
        if got:
            what = "the same float images (B, C, H, W) from the transform each time"
            raise DataError(what, got, "return an image for each, and leave what is random to augment")
        self.shape = tuple(once.shape[1:])

    def __len__(self) -> int:
        return int(self.store.shape[0])

    @property
    def resident(self) -> bool:
        """Are the pixels where the batches are wanted?"""
        return not self.streamed and self.store.device == self.device

    def delivered(
        self, rows: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> tuple[Pixels, Tensor | None]:
        """The pixels on the device if they fit, given out as floats of the model's type."""
        there = copy.copy(self)
        there.dtype = dtype
        if not self.streamed and device != self.store.device:
            size = self.bytes(len(self) if rows is None else len(rows))
            if fits(size, device, "images"):
                there.store, there.seen, rows = self._copied_to(rows, device), Seen(), None
                there.home = device
        there._deliver_to(device)
        return there, rows

    def _deliver_to(self, device: torch.device) -> None:
        self.device = device
        self._mean, self._std = (
            torch.tensor(c, device=device).view(1, -1, 1, 1) for c in (self.mean, self.std)
        )

    def _copied_to(self, rows: Tensor | None, device: torch.device) -> Tensor:
        """The pixels on another device, moved in parts: the store may be a file mapped into memory."""
        n = len(self) if rows is None else len(rows)
        copies = torch.empty(n, *self.pixel_shape, dtype=torch.uint8, device=device)
        part = max(1, (64 << 20) // math.prod(self.pixel_shape))
        for at in range(0, n, part):
            some = slice(at, at + part) if rows is None else rows[at : at + part]
            copies[at : at + part] = self.store[some].to(device)
        return copies

    def bytes(self, rows: int) -> int:
        """How many bytes the pixels of so many images take."""
        return rows * math.prod(self.pixel_shape)

    def raw(self, rows: Tensor) -> Tensor:
        """The stored pixels of some rows."""
        return cast("Tensor", self.store[rows.to(self.store.device)])

    def take(self, rows: Tensor, moves: Tensor | None = None) -> Tensor:
        """Images prepared for a model; ``moves``: how each is moved, as ``draw_moves`` gives it."""
        if self.resident and moves is not None:
            return self._prepared(moved(self.store, rows, moves))
        return self._from_host(self.raw(rows).to(self.device), moves)

    def stream(self, order: Iterable[Tensor], moves: Order | None = None) -> Iterator[Tensor]:
        """Batches of images, read ahead where they are not on the device."""
        if self.resident or self.device.type != "cuda":
            if moves is None:
                return map(self.take, order)
            return (self.take(rows, move) for rows, move in zip(order, moves, strict=True))
        order = list(order)
        each = [None] * len(order) if moves is None else moves
        copies = copied_ahead(self.raw, order, self.device)
        return (self._from_host(x, move) for x, move in zip(copies, each, strict=True))

    def _from_host(self, pixels: Tensor, moves: Tensor | None) -> Tensor:
        if moves is not None:
            pixels = moved(pixels, torch.arange(len(pixels)), moves)
        return self._prepared(pixels)

    def _prepared(self, pixels: Tensor) -> Tensor:
        x = (pixels / 255 - self._mean) / self._std
        if self.size is not None:
            x = resized(x, self.size)
        x = x.expand(-1, self.channels, -1, -1).to(self.dtype)
        return x if self.transform is None else self.transform(x).to(self.dtype)

    def alike(self) -> tuple[Any, ...]:
        """What two sets of images must have in common to be one."""
        return self.mean, self.std, self.size, self.channels, self.dtype, self.pixel_shape, self.transform


class Images(Samples):
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
        transform: a function from a batch of scaled images to a batch, applied last; it must not draw random
            numbers.

    Example:
        >>> data = Images(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]), size=16)
        >>> x, y = data.take(torch.tensor([0, 3]))
        >>> x.shape, y.tolist()
        (torch.Size([2, 1, 16, 16]), [0, 1])
    """

    backend: Pixels

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
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        odd = inputs.unusable(pixels)
        if isinstance(pixels, Tensor):
            odd = odd or f"{tuple(pixels.shape)} of {pixels.dtype}"
            odd = "" if odd.endswith(" of torch.uint8") and pixels.ndim == 4 else odd
        elif not getattr(pixels, "decodes", False):  # as a Shelf does: see decode.py
            odd = type(pixels).__name__
        if odd:
            raise DataError("pixels as a uint8 tensor (N, C, H, W)", odd, "convert the images to uint8")
        n, own = pixels.shape[:2]
        numbers = isinstance(ids, Tensor) and not inputs.unusable(ids) and ids.dtype == torch.int64
        if ids is not None and not (numbers and ids.shape == (n,)):
            got = f"{tuple(ids.shape)} of {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
            raise DataError(f"one id of 64 bits per image, shape ({n},)", got, "leave ids out")
        if size is not None and not (isinstance(size, int) and 1 <= size <= 4096):
            raise DataError("a size from 1 to 4096 pixels", repr(size), "pass size=32, say")
        if channels not in (None, own) and not channels > own == 1:
            fix = "only grey images can be repeated to more channels"
            raise DataError(f"{own} channels, as the images have", str(channels), fix)
        mean, std = per_channel(mean, "mean", own), per_channel(std, "std", own)
        super().__init__(
            Pixels(pixels, mean, std, size, channels, transform),
            as_labels(labels, n, "the images"),
            ids=ids,
            origin=Origin(source or uuid.uuid4().hex),
            names=class_names(names, "the images"),
            cut=True,
        )
        self.paths = tuple(paths)  # by id; empty where the images had no names of their own

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        place = f"on {self.device}" if self.backend.resident else f"in host memory for {self.device}"
        return f"Images({len(self)} × {shape} {place})"

    @property
    def pixels(self) -> Tensor:
        """The stored pixels (N, C, H, W), uint8, before any resizing."""
        whole = self.rows is None and not self.streamed
        return self.backend.store if whole else self.backend.raw(self.places)

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of what :meth:`take` gives."""
        return self.backend.shape

    @property
    def size(self) -> int | None:
        """Side of the square images that a model sees; None: the pixels' own."""
        return self.backend.size

    @property
    def channels(self) -> int:
        """Of the images that a model sees."""
        return self.backend.channels


def per_channel(values: Any, what: str, n: int | None = None, of: str = "channel") -> tuple[float, ...]:
    """The ``mean`` or ``std`` of each channel, or one for all; n: how many channels there are, if known."""
    try:
        constants = tuple(map(float, values))
    except (TypeError, ValueError):
        constants = ()
    lowest = 0.0 if what == "std" else -math.inf
    right = all(lowest < c < math.inf for c in constants)
    if not constants or not right or (n is not None and len(constants) not in (1, n)):
        count, above = "" if n is None else f" ({n})", ", above 0" if what == "std" else ""
        fix = f"pass {what} with a number for each, or with one for all"
        raise DataError(f"one finite {what} per {of}{count}{above}", brief(values), fix)
    return constants


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
