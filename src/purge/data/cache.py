"""Decoded images, kept on disk: each source is decoded once and mapped into memory afterwards.

They are in the user's cache, in a folder named by a digest of the source's files. A folder holds one
``<part>.bin`` of uint8 pixels per part, and ``facts.json``, which is written last.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from purge.core.errors import DataError, FileError
from purge.core.files import read_json, write_json
from purge.core.progress import progress_line
from purge.data.decode import DEFAULT_SIZE, form_of, threads, write
from purge.data.formats.source import Parts, Source

LAYOUT = 2  # of the folders; with another number, all images are decoded again


def cache_folder() -> Path:
    """``$PURGE_CACHE``, or ``purge`` in the user's cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PURGE_CACHE") or Path(user) / "purge")


def decoded(source: Source, *, size: int | None, progress: bool) -> tuple[Path, dict[str, Any]]:
    """The folder with the decoded images of a source, and its facts; decodes them if it is missing."""
    at, digest = cache_folder() / "decoded", _digest(source)
    for folder in (at / f"{digest}-native", at / f"{digest}-{size or DEFAULT_SIZE}"):
        if facts := _facts(folder):
            return folder, facts
    parts, names = source.read()
    names = names or source.names or _numbers(parts)
    _check_parts(source.name, parts, names)
    try:
        at.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=at, prefix=".making-") as private:
            making = Path(private) / "decoded"
            making.mkdir()  # the umask decides who may read it
            native, facts = _decode_into(making, source.name, parts, names, size, progress)
            folder = at / f"{digest}-{'native' if native else size or DEFAULT_SIZE}"
            _rename(making, folder)
    except OSError as error:
        got = error.strerror or str(error)
        raise FileError(
            f"a cache that can be written, {at}", got, "set PURGE_CACHE to a folder with enough space"
        ) from None
    return folder, facts


def _decode_into(
    folder: Path, source: str, parts: Parts, names: tuple[str, ...], size: int | None, progress: bool
) -> tuple[bool, dict[str, Any]]:
    """Decode all parts; returns whether the images kept their own size, and the facts."""
    form, native = form_of(parts, size, progress)
    workers = threads(form, native=native)
    made, counts = {}, np.zeros((form.channels, 256), dtype=np.int64)
    total = sum(len(p.labels) for p in parts.values())
    with progress_line(f"decode {source}", total, progress) as on:
        for name, part in parts.items():
            to = folder / f"{name}.bin"
            written = write(part, form, to, counts, lambda n: on(n, ""), workers)
            made[name] = {**written, "content": _content(to, written["labels"], names)}
    if not all(part["labels"] for part in made.values()):
        raise DataError(f"images that can be read in {source}", "none", "check the files")
    mean, std = _mean_and_std(counts)
    facts = {"source": source, "form": form, "names": names, "mean": mean, "std": std, "parts": made}
    write_json(folder / "facts.json", facts)
    return native, facts


def _rename(made: Path, final: Path) -> None:
    """Move a finished folder to its place, unless another process was faster; replace a damaged one."""
    if final.exists() and not _facts(final):
        shutil.rmtree(final)
    try:
        made.rename(final)
    except OSError:
        if not _facts(final):
            raise


def _digest(source: Source) -> str:
    """A digest of the source's name and class names, and of the path, size and time of each file."""
    h = hashlib.sha256(json.dumps([LAYOUT, source.name, *source.names]).encode())
    for path in source.files:
        try:
            stat = path.stat()
            known = [stat.st_size, stat.st_mtime_ns]
        except OSError:  # a broken link: decoding will report it
            known = []
        h.update(json.dumps([str(path.absolute()), *known]).encode())
    return h.hexdigest()[:32]


def _content(pixels: Path, labels: list[int], names: tuple[str, ...]) -> str:
    """A digest of decoded images and labels, which does not depend on where or when they were made."""
    with pixels.open("rb") as file:
        h = hashlib.file_digest(file, "sha256")
    h.update(json.dumps([labels, names]).encode())
    return h.hexdigest()[:32]


def _facts(folder: Path) -> dict[str, Any]:
    """What facts.json says, if every file it describes is complete; otherwise nothing."""
    try:
        facts = read_json(folder / "facts.json")
        for name, part in facts["parts"].items():
            if (folder / f"{name}.bin").stat().st_size != len(part["labels"]) * math.prod(facts["form"]):
                return {}
    except (FileError, OSError, KeyError, TypeError, AttributeError):
        return {}
    return facts


def _numbers(parts: Parts) -> tuple[str, ...]:
    """Class names if there are none: 0, 1, … up to the highest label."""
    return tuple(map(str, range(max(max(p.labels, default=0) for p in parts.values()) + 1)))


def _check_parts(source: str, parts: Parts, names: tuple[str, ...]) -> None:
    for name, part in parts.items():
        if not part.labels:
            raise DataError(f"images in the {name} part of {source}", "none", "add some")
        if not 0 <= min(part.labels) <= max(part.labels) < len(names):
            outside = min(part.labels) if min(part.labels) < 0 else max(part.labels)
            raise DataError(
                f"labels from 0 to {len(names) - 1} in {source}",
                str(outside),
                "number the classes 0 … K-1, or correct the list of class names",
            )
    if len(names) < 2:
        raise DataError(f"at least 2 classes in {source}", str(len(names)), "add another class")


def _mean_and_std(counts: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in units of 255, from a histogram of its values."""
    values, n = np.arange(256) / 255, counts.sum(1)
    mean = counts @ values / n
    std = np.sqrt(np.maximum(counts @ values**2 / n - mean**2, 0))
    return mean.round(4).tolist(), np.maximum(std.round(4), 1e-3).tolist()
