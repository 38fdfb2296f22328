"""The user's cache, and the decoded images in it: each source is decoded once and mapped into memory then.

Decoded images are in a folder named by a digest of the source's files. A folder holds one
``<part>.bin`` of uint8 pixels per part, and ``facts.json``, which is written last.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import logging
import math
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purge.core.errors import DataError, FileError
from purge.core.files import LOCK, below, read_json, write_json
from purge.core.folders import private_folder
from purge.core.progress import progress_line
from purge.data.decode import DEFAULT_SIZE, form_of, threads, write
from purge.data.formats.source import Parts, Source, class_names

logger = logging.getLogger("purge")

LAYOUT = 2  # of the folders; with another number, all images are decoded again
NO_CACHE = "PURGE_NO_CACHE"  # a variable; while a private folder is in use, it is the path of that
Kind = Literal["decoded", "index", "shadows", "models", "data"]
KINDS: dict[Kind, str] = {
    "decoded": "decoded images",
    "index": "where images are in .tar files",
    "shadows": "models that audits have trained",
    "models": "copies of models that a bench has at a URL",
    "data": "downloaded data sets",
}


# -- the folder -------------------------------------------------------------------------------


def user_folder() -> Path:
    """``$PURGE_CACHE``, or ``purge`` in the user's cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PURGE_CACHE") or Path(user) / "purge")


def cache_folder() -> Path:
    """The folder for copies: the user's, or with ``$PURGE_NO_CACHE`` a private one that is not kept."""
    if not _private():
        return user_folder()
    given = Path(os.environ[NO_CACHE])
    return given if given.is_absolute() else _until_exit()


@contextmanager
def no_cache() -> Iterator[None]:
    """Within the block a private folder takes the place of the cache, also for processes that are started."""
    before = os.environ.get(NO_CACHE)
    with tempfile.TemporaryDirectory(prefix="purge-", ignore_cleanup_errors=True) as folder:
        os.environ[NO_CACHE] = folder
        try:
            yield
        finally:
            os.environ.pop(NO_CACHE)
            os.environ |= {} if before is None else {NO_CACHE: before}


def _private() -> bool:
    return os.environ.get(NO_CACHE, "") not in ("", "0")


@functools.cache
def _until_exit() -> Path:
    block = no_cache()
    block.__enter__()
    atexit.register(block.__exit__, None, None, None)
    return Path(os.environ[NO_CACHE])


def name_in_cache(folder: Path) -> str:
    """The path of a folder within the user's cache; empty if it is elsewhere and not kept there."""
    inside = not _private() and folder.is_relative_to(user_folder())
    return folder.relative_to(user_folder()).as_posix() if inside else ""


def places_of(*kept: Any) -> list[str]:
    """Where in the user's cache there are copies of these images, and these shadow models."""
    return sorted({found for one in kept if (found := getattr(one, "cached", ""))})


# -- what is in it ----------------------------------------------------------------------------


class Entry(NamedTuple):
    """Something that is kept."""

    kind: Kind
    about: str
    bytes: int
    age_seconds: float  # since something in it was last written
    path: str  # within the cache


def entries(kinds: Collection[Kind] = KINDS) -> list[Entry]:
    """What the user's cache holds, kind by kind, the largest first."""
    found = [_entry(kind, path) for kind in KINDS if kind in kinds for path in _within(kind)]
    return sorted(found, key=lambda entry: (list(KINDS).index(entry.kind), -entry.bytes))


def clear(kinds: Collection[Kind]) -> list[Entry]:
    """Remove what is kept of these kinds, and return it; other files in the folder are left alone."""
    found = entries(kinds)
    for entry in found:
        path = user_folder() / entry.path
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            got = error.strerror or str(error)
            raise FileError(f"to be able to remove {path}", got, "check its permissions") from None
    for kind in kinds:
        shutil.rmtree(user_folder() / kind / ".locks", ignore_errors=True)
    (user_folder() / LOCK).unlink(missing_ok=True)
    return found


def copies(*recorded: Sequence[str] | None) -> str:
    """In words, what is left of the copies that a run and its audit recorded."""
    names = sorted({name for part in recorded for name in part or ()})
    if all(part is None for part in recorded):
        return "not recorded"
    left = [name for name in names if below(user_folder(), *name.split("/")).exists()]
    if not left:
        return f"{', '.join(names)}, removed since" if names else "none"
    return f"{', '.join(left)} (purge cache clear removes them)"


def _within(kind: Kind) -> list[Path]:
    folder = user_folder() / kind
    return sorted(p for p in folder.iterdir() if p.name != ".locks") if folder.is_dir() else []


def _entry(kind: Kind, path: Path) -> Entry:
    files = [path, *([] if path.is_symlink() else path.rglob("*"))]
    stats = [file.lstat() for file in files]
    size = sum(s.st_size for s in stats if not stat.S_ISDIR(s.st_mode))
    about = path.name
    if kind == "shadows":
        about = f"{sum(file.suffix == '.safetensors' for file in files)} models"
    if kind == "decoded":
        about = str(_facts(path).get("source", "unfinished"))
    age = max(0.0, time.time() - max(s.st_mtime for s in stats))
    return Entry(kind, about, size, age, path.relative_to(user_folder()).as_posix())


# -- decoded images ---------------------------------------------------------------------------


def decoded(source: Source, *, size: int | None, progress: bool) -> tuple[Path, dict[str, Any]]:
    """The folder with the decoded images of a source, and its facts; decodes them if it is missing."""
    at, digest = cache_folder() / "decoded", _digest(source)
    for folder in (at / f"{digest}-native", at / f"{digest}-{size or DEFAULT_SIZE}"):
        if facts := _facts(folder):
            if _intact(folder, facts):
                return folder, facts
            logger.warning(
                "The images in %s are not those that were decoded: they are decoded again.", folder
            )
    parts, names = source.read()
    names = names_in(source, parts, names)
    check_parts(source.name, parts, names)
    try:
        with private_folder(at, ".making-") as private:
            making = private / "decoded"
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
            to = below(folder, name, ending=".bin")
            written = write(part, form, to, counts, lambda n: on(n, ""), workers)
            made[name] = {**written, "content": _content(to, written["labels"], names)}
    if not all(part["labels"] for part in made.values()):
        raise DataError(f"images that can be read in {source}", "none", "check the files")
    mean, std = mean_and_std(counts)
    facts = {"source": source, "form": form, "names": names, "mean": mean, "std": std, "parts": made}
    write_json(folder / "facts.json", {**facts, "digest": _digest_of_facts(facts)})
    return native, facts


def _rename(made: Path, final: Path) -> None:
    """Move a finished folder to its place, unless another process was faster; replace a damaged one."""
    if final.exists() and not ((facts := _facts(final)) and _intact(final, facts)):
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
            found = path.stat()
            known = [found.st_size, found.st_mtime_ns]
        except OSError:  # a broken link: decoding will report it
            known = []
        h.update(json.dumps([str(path.absolute()), *known]).encode())
    return h.hexdigest()[:32]


def _content(pixels: Path, labels: list[int], names: Sequence[str] | None) -> str:
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
            size = below(folder, name, ending=".bin").stat().st_size
            if size != len(part["labels"]) * math.prod(facts["form"]):
                return {}
    except (FileError, OSError, KeyError, TypeError, AttributeError):
        return {}
    return facts


def _intact(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether pixels, labels and all else are what was decoded; files are read once in a process."""
    files = [folder / "facts.json", *(folder / f"{name}.bin" for name in facts["parts"])]
    try:
        stamps = [(s.st_ino, s.st_size, s.st_mtime_ns) for s in (file.stat() for file in files)]
        if _found_intact.get(folder.absolute()) == stamps:
            return True
        same = facts.get("digest") in (None, _digest_of_facts(facts)) and all(  # older entries have no digest
            part.get("content") == _content(folder / f"{name}.bin", part["labels"], facts.get("names"))
            for name, part in facts["parts"].items()
        )
    except OSError:
        return False
    if same:
        _found_intact[folder.absolute()] = stamps
    return same


_found_intact: dict[Path, list[tuple[int, int, int]]] = {}  # the folders, with their files at that time


def _digest_of_facts(facts: dict[str, Any]) -> str:
    rest = {key: value for key, value in facts.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:32]


def names_in(source: Source, parts: Parts, names: tuple[str, ...]) -> tuple[str, ...]:
    """The class names of a source; if there are none, 0, 1, … up to the highest label."""
    numbers = range(max(max(p.labels, default=0) for p in parts.values()) + 1)
    return class_names(names or source.names or tuple(map(str, numbers)), source.name)


def check_parts(source: str, parts: Parts, names: tuple[str, ...]) -> None:
    """Every part has images, and labels that have a name."""
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


def mean_and_std(counts: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in units of 255, from a histogram of its values."""
    values, n = np.arange(256) / 255, counts.sum(1)
    mean = counts @ values / n
    std = np.sqrt(np.maximum(counts @ values**2 / n - mean**2, 0))
    return mean.round(4).tolist(), np.maximum(std.round(4), 1e-3).tolist()
