"""Encoded images to pixels: any mode and size that Pillow reads, in threads, in order."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from purge.core.errors import DataError
from purge.core.progress import progress_line
from purge.data.formats.source import Array, Decoded, Encoded, Parts

GREY = {"1", "L", "LA", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"}  # Pillow's modes without colour
TINY = 64 * 64  # pixels; decoding so few is mostly Python code, where a second thread only gets in the way
NATIVE = 256  # images of equal size are stored unchanged up to this side
DEFAULT_SIZE = 224  # all others are resized to this, unless another size is asked for
CHUNK = 64  # images that a thread decodes at a time


class Form(NamedTuple):
    """How pixels are stored."""

    channels: int
    height: int
    width: int


def form_of(parts: Parts, size: int | None, progress: bool) -> tuple[Form, bool]:
    """The form in which to store all images, and whether that is the form they already have."""
    seen: set[Form | None] = set()
    with progress_line("read image headers", sum(len(p.labels) for p in parts.values()), progress) as on:
        for part in parts.values():
            if isinstance(part, Decoded):
                seen.add(Form(*channels_first(part.pixels).shape[1:]))
                continue
            on_disk = isinstance(next(part.items(), None), Path)  # opening files is mostly waiting
            for forms in _in_parallel(header, part.items(), os.cpu_count() or 1 if on_disk else 1):
                seen.update(forms)
                on(len(forms), "")
    return form_from(seen, size)


def form_from(seen: Collection[Form | None], size: int | None) -> tuple[Form, bool]:
    """The form in which to store images of these forms (None: one that cannot be read)."""
    channels = max((f.channels for f in seen if f), default=1)
    sides = {(f.height, f.width) for f in seen if f}
    if len(sides) == 1 and max(next(iter(sides))) <= NATIVE:
        return Form(channels, *sides.pop()), True
    side = size or DEFAULT_SIZE
    return Form(channels, side, side), False


def threads(form: Form, *, native: bool) -> int:
    """The fastest number of threads; on CIFAR-10 a second thread made decoding 50% slower."""
    return 1 if native and form.height * form.width <= TINY else os.cpu_count() or 1


def write(
    part: Encoded | Decoded,
    form: Form,
    path: Path,
    counts: NDArray[np.int64],
    on: Callable[[int], None],
    workers: int,
) -> dict[str, list[Any]]:
    """Write the pixels of a part to a file; add their values to ``counts``, and list bad images."""
    good: list[int] = []
    with path.open("wb") as file:
        at = 0
        for pixels in _pixels(part, form, workers):
            whole = [x for x in pixels if x is not None]
            good += [at + i for i, x in enumerate(pixels) if x is not None]
            at += len(pixels)
            for x in whole:
                file.write(x.tobytes())
            for c in range(form.channels) if whole else ():
                counts[c] += np.bincount(np.stack([x[c] for x in whole]).ravel(), minlength=256)
            on(len(pixels))
    if at != len(part.labels):
        raise DataError(f"{len(part.labels)} images, one per label", str(at), "check the files")
    paths = part.paths if isinstance(part, Encoded) else []
    bad = sorted(set(range(at)) - set(good))
    return {
        "labels": [part.labels[i] for i in good],
        "paths": [paths[i] for i in good] if paths else [],
        "bad": [paths[i] if paths else str(i) for i in bad],
    }


def _pixels(part: Encoded | Decoded, form: Form, workers: int) -> Iterator[Sequence[Array | None]]:
    """The pixels of a part in chunks, in order; None for an image that cannot be read."""
    if isinstance(part, Encoded):
        yield from _in_parallel(lambda item: decode(item, form), part.items(), workers)
        return
    pixels = channels_first(part.pixels)
    for at in range(0, len(pixels), CHUNK):
        chunk = [np.broadcast_to(x, (form.channels, *x.shape[1:])) for x in pixels[at : at + CHUNK]]
        if chunk[0].shape != form:  # the parts differ in size
            encoded = (Image.fromarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0)) for x in chunk)
            chunk = [_fitted(image, form) for image in encoded]
        yield chunk


def _in_parallel(work: Callable[[Any], Any], items: Iterable[Any], workers: int) -> Iterator[list[Any]]:
    """``work(item)`` for every item, in chunks and in order; threads work a few chunks ahead."""
    items = iter(items)
    chunks = iter(lambda: list(islice(items, CHUNK)), [])
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[list[Any]]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(lambda part: [work(item) for item in part], chunk))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def header(item: bytes | Path) -> Form | None:
    """Size and channels from the header of an image file; None if it cannot be read."""
    try:
        with _opened(item) as image:
            w, h = image.size
            if image.getexif().get(0x0112, 1) >= 5:  # a photograph stored on its side
                w, h = h, w
            return Form(1 if _is_grey(image) else 3, h, w)
    except Exception:  # Pillow raises many kinds of errors on a damaged file
        return None


def _opened(item: bytes | Path) -> Image.Image:
    if isinstance(item, Path) and not item.is_file():  # a pipe would be waited for
        raise OSError
    return Image.open(io.BytesIO(item) if isinstance(item, bytes) else item)


def _is_grey(image: Image.Image) -> bool:
    """Whether an image has no colour, judged by its mode or its palette."""
    if image.mode != "P":
        return image.mode in GREY
    colours = np.reshape(image.getpalette() or [], (-1, 3))
    return bool((colours == colours[:, :1]).all())


def decode(item: bytes | Path, form: Form) -> Array | None:
    """The pixels of an image in the given form; None if it cannot be read."""
    try:
        with _opened(item) as image:
            upright = ImageOps.exif_transpose(image)
            return _fitted(eight_bit(upright), form)
    except Exception:  # see header
        return None


def eight_bit(image: Image.Image) -> Image.Image:
    """An image of any mode as L or RGB; transparent pixels become white, 16 bits are scaled to 8."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    if image.mode == "F":
        values = np.asarray(image)
        scaled = values * (255 if values.max() <= 1 else 1)
        return Image.fromarray(scaled.clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        whole = image.convert("RGBA")
        white = Image.new("RGBA", whole.size, "white")
        return Image.alpha_composite(white, whole).convert("L" if image.mode == "LA" else "RGB")
    return image.convert("L" if image.mode in GREY else "RGB")


def _fitted(image: Image.Image, form: Form) -> Array:
    """An 8-bit image as pixels of the given form: the shorter side resized, the centre cropped."""
    image = image.convert("L" if form.channels == 1 else "RGB")
    if image.size != (form.width, form.height):
        image = ImageOps.fit(image, (form.width, form.height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if form.channels == 1 else pixels.transpose(2, 0, 1)


def channels_first(pixels: Array) -> Array:
    """(N, H, W), (N, H, W, C) or (N, C, H, W) as (N, C, H, W)."""
    if pixels.ndim == 3:
        return pixels[:, None]
    return pixels if pixels.shape[1] in (1, 3) else pixels.transpose(0, 3, 1, 2)
