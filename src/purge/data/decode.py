"""Encoded images to pixels: of any mode and size that Pillow reads, kept in the cache or decoded on demand.

An entry of the cache has a ``<part>.bin`` of uint8 pixels for each part, and ``facts.json``, written last.
Images that are too many to keep are decoded where they lie, whenever a batch needs them: a :class:`Shelf`
takes the place of the tensor of pixels in :class:`purge.Images`, so that a run on them gives the same
weights. What cannot be known without reading every image is then taken from ``SAMPLE`` of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from purge.core.errors import DataError, FileError
from purge.core.files import below, file_errors, read_json, write_json
from purge.core.progress import progress_line
from purge.core.store import Store, digest_of
from purge.data.cache import cache_folder
from purge.data.formats.source import Array, Decoded, Encoded, Parts, Source

LAYOUT = 3  # of the entries; with another number, all images are decoded again
GREY = {"1", "L", "LA", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"}  # Pillow's modes without colour
TINY = 64 * 64  # pixels; decoding so few is mostly Python code, where a second thread only gets in the way
NATIVE = 256  # images of equal size are stored unchanged up to this side
DEFAULT_SIZE = 224  # all others are resized to this, unless another size is asked for
CHUNK = 64  # images that a thread decodes at a time
SAMPLE = 1024  # images that stand for all of them where they are not kept
LARGE = 8 << 30  # bytes of files from which on images are not kept unless the caller says otherwise


class PixelForm(NamedTuple):
    """How pixels are stored."""

    channels: int
    height: int
    width: int


# -- what is kept -------------------------------------------------------------------------------


def decoded(source: Source, *, size: int | None, progress: bool) -> tuple[Path, dict[str, Any]]:
    """The folder with the decoded images of a source, and its facts; decodes them if it is missing."""
    store = Store(cache_folder() / "decoded", "set PURGE_CACHE to a folder with enough space")
    files = [(str(path.absolute()), *_stamp(path)) for path in source.files]
    digest = digest_of(LAYOUT, source.name, source.names, files)
    keys = f"{digest}-native", f"{digest}-{size or DEFAULT_SIZE}"
    for key in keys:
        if facts := _facts(store.path(key)):
            return store.path(key), facts
    parts, names = source.checked()
    seen: set[PixelForm | None] = set()
    with progress_line("read image headers", sum(len(p.labels) for p in parts.values()), progress) as on:
        for part in parts.values():
            if isinstance(part, Decoded):
                seen.add(PixelForm(*channels_first(part.pixels).shape[1:]))
                continue
            on_disk = isinstance(part.item(0), Path)  # opening files is mostly waiting
            for forms in _in_parallel(header, part.items(), os.cpu_count() or 1 if on_disk else 1):
                seen.update(forms)
                on(len(forms), "")
    form, native = form_from(seen, size)

    def make(folder: Path) -> None:
        if folder.exists():
            logging.getLogger("purge").warning(
                "The images in %s are not those that were decoded: they are decoded again.", folder
            )
            shutil.rmtree(folder)
        folder.mkdir()
        try:
            facts = _written(folder, source.name, parts, form, threads(form, native=native), names, progress)
            write_json(folder / "facts.json", {**facts, "digest": digest_of(facts)})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    key = keys[0] if native else keys[1]
    with file_errors(store.root):
        return store.path(key), store.get(key, _facts, make)


def _stamp(path: Path) -> tuple[int, ...]:
    """Size and time of a file; nothing for a broken link, which decoding will report."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns


def _facts(folder: Path) -> dict[str, Any] | None:
    """What facts.json says, if it and the pixels are what was written; files are read once in a process."""
    try:
        facts = read_json(folder / "facts.json")
        written = facts.pop("digest")
        files = {name: below(folder, name, ending=".bin") for name in facts["parts"]}
        stamps = [_stamp(file) for file in (folder / "facts.json", *files.values())]
        if _intact.get(folder.absolute()) != stamps:
            parts = [(facts["parts"][name], file) for name, file in files.items()]
            if written != digest_of(facts) or any(
                part["content"] != _content(file, part["labels"], facts["names"]) for part, file in parts
            ):
                return None
            _intact[folder.absolute()] = stamps
    except (FileError, OSError, KeyError, TypeError):
        return None
    return facts


_intact: dict[Path, list[tuple[int, ...]]] = {}  # what was read, as it was at that time


def _content(pixels: Path, labels: list[int], names: Sequence[str]) -> str:
    """A digest of decoded images and labels, which does not depend on where or when they were made."""
    with pixels.open("rb") as file:
        h = hashlib.file_digest(file, "sha256")
    h.update(json.dumps([labels, names]).encode())
    return h.hexdigest()[:32]


def _written(
    folder: Path, source: str, parts: Parts, form: PixelForm, workers: int, names: Sequence[str],
    progress: bool,
) -> dict[str, Any]:  # fmt: skip
    """Write the pixels of all parts; returns the facts about them."""
    made: dict[str, Any] = {}
    counts = np.zeros((form.channels, 256), dtype=np.int64)
    total = sum(len(p.labels) for p in parts.values())
    with progress_line(f"decode {source}", total, progress) as on:
        for name, part in parts.items():
            path, at = below(folder, name, ending=".bin"), 0
            good: list[int] = []
            bad: list[int] = []
            with path.open("wb") as file:
                for chunk in _pixels(part, form, workers):
                    for i, x in enumerate(chunk, at):
                        (bad if x is None else good).append(i)
                    whole = np.array([x for x in chunk if x is not None], np.uint8).reshape(-1, *form)
                    file.write(whole.tobytes())
                    counts += histogram(whole)
                    at += len(chunk)
                    on(len(chunk), "")
            paths = part.paths if isinstance(part, Encoded) else []
            labels = [part.labels[i] for i in good]
            made[name] = {
                "labels": labels,
                "paths": [paths[i] for i in good] if paths else [],
                "bad": [paths[i] if paths else str(i) for i in bad],
                "content": _content(path, labels, names),
            }
    if not all(part["labels"] for part in made.values()):
        raise DataError(f"images that can be read in {source}", "none", "check the files")
    mean, std = mean_and_std(counts)
    return {"source": source, "form": form, "names": names, "mean": mean, "std": std, "parts": made}


def histogram(pixels: Array) -> NDArray[np.int64]:
    """How often each value occurs in each channel of (N, C, H, W): (C, 256)."""
    return np.stack([np.bincount(x.ravel(), minlength=256) for x in pixels.swapaxes(0, 1)])


def mean_and_std(counts: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in units of 255, from a histogram of its values."""
    values, n = np.arange(256) / 255, counts.sum(1)
    mean = counts @ values / n
    std = np.sqrt(np.maximum(counts @ values**2 / n - mean**2, 0))
    return mean.round(4).tolist(), np.maximum(std.round(4), 1e-3).tolist()


# -- what is not kept ---------------------------------------------------------------------------


class Shelf:
    """What a tensor of pixels is to Images: indexed by rows, each decoded when it is asked for."""

    device, decodes = torch.device("cpu"), True

    def __init__(self, part: Encoded, form: PixelForm, workers: int) -> None:
        self.part, self._form, self._workers = part, form, workers
        self.shape = (len(part.labels), *form)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """The pixels (n, C, H, W) of some rows, each decoded once, in the order in which they lie."""
        wanted = torch.arange(self.shape[0])[rows] if isinstance(rows, slice) else rows
        once, place = wanted.unique(return_inverse=True)
        pixels = np.empty((len(once), *self.shape[1:]), np.uint8)

        def fill(at: int, row: int) -> None:
            decoded = decode(self.part.item(row), self._form)
            if decoded is None:
                got, fix = f"{self.part.paths[row]}, which cannot be read", "repair or remove it"
                raise DataError("images that can be decoded", got, fix)
            pixels[at] = decoded

        with ThreadPoolExecutor(self._workers) as pool:
            each = pool.map if self._workers > 1 else map
            deque(each(fill, range(len(once)), once.tolist()), maxlen=0)
        return torch.from_numpy(pixels)[place]


def is_large(source: Source) -> bool:
    """Are its files too large to keep all images?"""
    return sum(sum(_stamp(path)[:1]) for path in source.files) > LARGE


def on_shelves(
    source: Source, size: int | None, measure: bool
) -> tuple[dict[str, Shelf], tuple[str, ...], tuple[list[float], list[float]]]:
    """The parts of a source, its class names and, if they are to be measured, mean and std."""
    parts, names = source.checked()
    encoded = {name: part for name, part in parts.items() if isinstance(part, Encoded)}
    if encoded.keys() != parts.keys():
        fix = "leave out --stream (stream=True), or store them as files in folders, in Parquet or in .tar"
        raise DataError("images that can be read one by one to stream them", f"those of {source.name}", fix)
    first = encoded.get("train") or encoded["all"]
    n = len(first.labels)
    some = torch.arange(n) if n <= SAMPLE else torch.linspace(0, n - 1, SAMPLE).long()
    form, native = form_from({header(first.item(i)) for i in some.tolist()}, size)
    shelves = {name: Shelf(part, form, threads(form, native=native)) for name, part in encoded.items()}
    counts = np.zeros((form.channels, 256), dtype=np.int64)
    for rows in some.split(128) if measure else ():
        counts += histogram((shelves.get("train") or shelves["all"])[rows].numpy())
    return shelves, names, mean_and_std(counts) if measure else ([0.0], [1.0])


# -- how it is decoded --------------------------------------------------------------------------


def form_from(seen: Collection[PixelForm | None], size: int | None) -> tuple[PixelForm, bool]:
    """The form in which to store images of these forms (None: one that cannot be read)."""
    channels = max((f.channels for f in seen if f), default=1)
    sides = {(f.height, f.width) for f in seen if f}
    if len(sides) == 1 and max(next(iter(sides))) <= NATIVE:
        return PixelForm(channels, *sides.pop()), True
    side = size or DEFAULT_SIZE
    return PixelForm(channels, side, side), False


def threads(form: PixelForm, *, native: bool) -> int:
    """The fastest number of threads; on CIFAR-10 a second thread made decoding 50% slower."""
    return 1 if native and form.height * form.width <= TINY else os.cpu_count() or 1


def _pixels(part: Encoded | Decoded, form: PixelForm, workers: int) -> Iterator[Sequence[Array | None]]:
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


def header(item: bytes | Path) -> PixelForm | None:
    """Size and channels from the header of an image file; None if it cannot be read."""
    try:
        with _opened(item) as image:
            w, h = image.size
            if image.getexif().get(0x0112, 1) >= 5:  # a photograph stored on its side
                w, h = h, w
            grey = image.mode in GREY
            if image.mode == "P":  # its palette tells
                colours = np.reshape(image.getpalette() or [], (-1, 3))
                grey = bool((colours == colours[:, :1]).all())
            return PixelForm(1 if grey else 3, h, w)
    except Exception:  # Pillow raises many kinds of errors on a damaged file
        return None


def _opened(item: bytes | Path) -> Image.Image:
    if isinstance(item, Path) and not item.is_file():  # a pipe would be waited for
        raise OSError
    return Image.open(io.BytesIO(item) if isinstance(item, bytes) else item)


def decode(item: bytes | Path, form: PixelForm) -> Array | None:
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


def _fitted(image: Image.Image, form: PixelForm) -> Array:
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
