"""Images that are too many to keep: decoded where they lie, whenever a batch needs them.

In all else they are like those in memory: a :class:`Shelf` takes the place of the tensor of pixels in
:class:`purge.Images`, so that a run on them gives the same weights. What cannot be known without reading
every image is taken from ``SAMPLE`` of them: their size, and the mean and spread of their channels.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError
from purge.data.decode import PixelForm, decode, form_from, header, histogram, mean_and_std, threads
from purge.data.formats.source import Array, Encoded, Source

SAMPLE = 1024  # images that stand for all of them
LARGE = 8 << 30  # bytes of files from which on images are streamed unless the caller says otherwise


class Shelf:
    """What a tensor of pixels is to Images: indexed by rows, each decoded when it is asked for."""

    device, decodes = torch.device("cpu"), True

    def __init__(self, part: Encoded, form: PixelForm, workers: int) -> None:
        self.part, self._form, self._workers = part, form, workers
        self.shape, self.reads = (len(part.labels), *form), 0  # reads: images that were decoded so far

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """The pixels (n, C, H, W) of some rows, each decoded once, in the order in which they lie."""
        wanted = torch.arange(self.shape[0])[rows] if isinstance(rows, slice) else rows
        once, place = wanted.unique(return_inverse=True)
        self.reads += len(once)
        pixels = np.empty((len(once), *self.shape[1:]), np.uint8)

        def fill(at: int, row: int) -> None:
            pixels[at] = self._pixels(row)

        with ThreadPoolExecutor(self._workers) as pool:
            each = pool.map if self._workers > 1 else map
            deque(each(fill, range(len(once)), once.tolist()), maxlen=0)
        return torch.from_numpy(pixels)[place]

    def _pixels(self, row: int) -> Array:
        pixels = decode(self.part.item(row), self._form)
        if pixels is None:
            got, fix = f"{self.part.paths[row]}, which cannot be read", "repair or remove it"
            raise DataError("images that can be decoded", got, fix)
        return pixels


def is_large(source: Source) -> bool:
    """Are its files too large to decode them all?"""
    total = 0
    for path in source.files:
        try:
            total += path.stat().st_size
        except OSError:  # a broken link: whoever reads it will say so
            continue
    return total > LARGE


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


def fingerprint(source: Source, part: Encoded, names: Sequence[str], which: str) -> str:
    """Tells the images of a part from others by labels, names and sizes of files, not by pixels."""
    h = hashlib.sha256(np.asarray(part.labels, "<i8").tobytes())
    h.update(json.dumps([list(names), [p.stat().st_size for p in source.files if p.is_file()]]).encode())
    h.update("\n".join(part.paths).encode(errors="backslashreplace"))
    return f"{h.hexdigest()[:32]}-{which}"
