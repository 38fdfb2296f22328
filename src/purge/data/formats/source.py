"""What a reader of image files returns: the parts of a data set and, if the files have them, class names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purge.core.errors import DataError, brief

TRAIN = ("train", "training")  # accepted names of the training part, in any case
HELD_OUT = ("test", "testing", "val", "valid", "validation")  # and of the test part, best first

MOST_CLASSES = 1 << 20  # a label beyond this is an id or an accident, and every class takes memory
LONGEST_NAME = 300  # characters of a class's name; a folder's is shorter

Array = NDArray[np.uint8]


class Encoded(NamedTuple):
    """Images as files that have yet to be decoded."""

    labels: list[int]
    paths: list[str]  # how messages and deletion requests refer to each image
    item: Callable[[int], bytes | Path]  # a single one

    def items(self) -> Iterator[bytes | Path]:
        """All of them, in order."""
        return map(self.item, range(len(self.labels)))


class Decoded(NamedTuple):
    """Images as pixels, (N, H, W), (N, H, W, C) or (N, C, H, W)."""

    labels: list[int]
    pixels: Array


Parts = dict[str, Encoded | Decoded]  # "train" and "test", or "all" if there is no split
Read = tuple[Parts, tuple[str, ...]]  # the parts, and the class names; empty if the files have none


class Source(NamedTuple):
    """Where images come from. Nothing is read unless the decoded images are missing from the cache."""

    name: str
    files: list[Path]  # a change of any of them means decoding again
    read: Callable[[], Read]
    names: tuple[str, ...] = ()  # class names, used if the files have none

    def checked(self) -> Read:
        """The parts, each with images and with labels that have a name, and the names of all classes."""
        parts, names = self.read()
        highest = max(max(part.labels, default=0) for part in parts.values())
        names = class_names(names or self.names or tuple(map(str, range(highest + 1))), self.name)
        for which, part in parts.items():
            if not part.labels:
                raise DataError(f"images in the {which} part of {self.name}", "none", "add some")
            if isinstance(part, Decoded) and len(part.pixels) != len(part.labels):
                what = f"{len(part.labels)} images, one per label, in {self.name}"
                raise DataError(what, str(len(part.pixels)), "check the files")
            if outside := [y for y in (min(part.labels), max(part.labels)) if not 0 <= y < len(names)]:
                fix = "number the classes 0 … K-1, or correct the list of class names"
                raise DataError(f"labels from 0 to {len(names) - 1} in {self.name}", str(outside[0]), fix)
        if len(names) < 2:
            raise DataError(f"at least 2 classes in {self.name}", str(len(names)), "add another class")
        return parts, names


Shard = tuple[Encoded, tuple[str, ...]]  # the images of one file of several, and the class names in it


def sharded(path: Path, ending: str, read: Callable[[Path], Shard]) -> Source | None:
    """The source that a file, a folder of files or a pattern is, each file read by ``read``.

    Its parts are the files ``train-*`` and ``test-*``, or all together.
    """
    files = _files_at(path, ending)
    if not files:
        return None
    train = [f for f in files if f.name.startswith("train")]
    tests = ([f for f in files if f.name.startswith(name)] for name in HELD_OUT)
    test = next(filter(None, tests), []) if train else []
    parts = {"train": train, "test": test} if test else {"all": train or files}

    def read_all() -> Read:
        found = {which: [read(shard) for shard in shards] for which, shards in parts.items()}
        encoded = {which: _joined([one for one, _ in found[which]], parts[which]) for which in parts}
        return {**encoded}, next(iter(found.values()))[0][1]

    return Source(path.name, [file for shards in parts.values() for file in shards], read_all)


def _files_at(path: Path, ending: str) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ending else []
    if "*" in path.name and not path.exists():
        return sorted(f for f in path.parent.glob(path.name) if f.suffix == ending)
    return sorted(path.glob(f"*{ending}")) or sorted(path.glob(f"data/*{ending}"))


def _joined(parts: list[Encoded], files: list[Path]) -> Encoded:
    """The images of several files, named by their rows if their own names are missing or not unique."""
    labels = [label for part in parts for label in part.labels]
    paths = [path for part in parts for path in part.paths]
    if not all(paths) or len(set(paths)) != len(labels):
        rows = [range(len(part.labels)) for part in parts]
        paths = [f"{file.name} row {i}" for file, own in zip(files, rows, strict=True) for i in own]
    ends = list(accumulate(len(part.labels) for part in parts))

    def item(i: int) -> bytes | Path:
        at = bisect_right(ends, i)
        return parts[at].item(i - (ends[at - 1] if at else 0))

    return Encoded(labels, paths, item)


def whole_labels(labels: list[Any], path: Path) -> list[int]:
    """The labels of a file, which must be whole numbers."""
    wrong = [v for v in labels if isinstance(v, bool) or not isinstance(v, int)]
    if wrong or not labels:
        got = repr(wrong[0]) if wrong else "none"
        raise DataError(f"whole numbers as labels in {path.name}", got, "number the classes 0 … K-1")
    if max(labels) >= MOST_CLASSES:
        fix = "number the classes 0 … K-1"
        raise DataError(f"labels from 0 to {MOST_CLASSES - 1} in {path.name}", brief(max(labels)), fix)
    return labels


def class_names(names: Sequence[Any], what: str) -> tuple[str, ...]:
    """The names of classes, which must be text; whole numbers are taken as text. Two may be the same."""
    for name in names if isinstance(names, Iterable) else [None]:
        word = str(name) if isinstance(name, (str, int, np.integer)) and not isinstance(name, bool) else ""
        if not word.strip() or len(word) > LONGEST_NAME or len(word.splitlines()) > 1:
            expected = f"names of 1 to {LONGEST_NAME} characters in one line for classes in {what}"
            raise DataError(expected, brief(name), "give every class a name, or leave all of them out")
    return tuple(map(str, names))


def held_out(labels: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows for training and for testing: a fifth of each class, drawn by the seed, is held out."""
    order = np.random.default_rng(seed).permutation(len(labels))
    by_class = [order[labels[order] == c] for c in np.unique(labels)]
    test = np.sort(np.concatenate([rows[: round(0.2 * len(rows))] for rows in by_class]))
    if not len(test):
        raise DataError("at least 3 samples of some class", "fewer", "add some, or a test set")
    return np.setdiff1d(np.arange(len(labels)), test), test
