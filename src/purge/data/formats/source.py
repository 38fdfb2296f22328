"""What a reader of image files returns: the parts of a data set and, if the files have them, class names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from purge.core.errors import DataError

TRAIN = ("train", "training")  # accepted names of the training part, in any case
HELD_OUT = ("test", "testing", "val", "valid", "validation")  # and of the test part, best first

Array = NDArray[np.uint8]


class Encoded(NamedTuple):
    """Images as files that have yet to be decoded."""

    labels: list[int]
    paths: list[str]  # how messages and deletion requests refer to each image
    items: Callable[[], Iterator[bytes | Path]]  # iterates over all of them, in order


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


def whole_labels(labels: list[Any], path: Path) -> list[int]:
    """The labels of a file, which must be whole numbers."""
    wrong = [v for v in labels if isinstance(v, bool) or not isinstance(v, int)]
    if wrong or not labels:
        got = repr(wrong[0]) if wrong else "none"
        raise DataError(f"whole numbers as labels in {path.name}", got, "number the classes 0 … K-1")
    return labels
