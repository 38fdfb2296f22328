"""What the user's data is, before any of it is decoded: which classes it has, and how many samples of each.

Nothing here needs torch, so that a question about data is answered at once.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from purge.core.errors import DataError, did_you_mean
from purge.data.catalog import DATASETS
from purge.data.formats import folder, npz, parquet, tar
from purge.data.formats.source import Decoded, Encoded, Source
from purge.data.formats.tables import is_table, read_table, texts

FORMATS = (npz.find, parquet.find, tar.find, folder.find)  # of users' own data: who knows it reads it
SHOWN = 12  # classes that are named one by one


class Look(NamedTuple):
    """What was found: the training data, or all of it where a part will be held out."""

    kind: str  # images or rows
    classes: dict[str, int | None]  # by name; how many samples, where that is known
    total: int | None
    side: int | None = None  # pixels of the shorter side of the first image

    def __str__(self) -> str:
        n = len(self.classes)
        some = "" if self.total is None else f"{self.total:,} "
        if not self.classes:
            return f"{some}{self.kind}; which classes they have is told once they are downloaded"
        shown = [(" ".join(c.split()), k) for c, k in [*self.classes.items()][:SHOWN]]
        names = [c if k is None else f"{c} ({k:,})" for c, k in shown]
        more = f" and {n - SHOWN} more" if n > SHOWN else ""
        return f"{some}{self.kind} in {n} classes: {', '.join(names)}{more}"


def is_pattern(path: Path) -> bool:
    """Is it no path but a pattern, as ``DIR/train-*.tar``, of files that are there?"""
    return "*" in path.name and any(path.parent.glob(path.name))


def own_source(path: Path) -> Source:
    """The reader of a folder, a file or several files of images."""
    if not path.exists() and not is_pattern(path):
        fix = did_you_mean(str(path), DATASETS, "purge list datasets")
        raise DataError("the name of a data set, or a path", repr(str(path)), fix)
    path = path.absolute()  # "." has no name
    for find in FORMATS:
        if source := find(path):
            return source
    raise DataError(
        f"images in {path}: DIR/train/<class>/* and DIR/test/<class>/*, DIR/<class>/*, Parquet, .tar or .npz",
        "a folder without them" if path.is_dir() else "another kind of file",
        "put the images of each class into a folder of its own",
    )


def has_columns(data: str) -> bool:
    """Is it a table, whose classes are in a column that must be named?"""
    path = Path(data)
    return data not in DATASETS and is_table(path) and path.suffix.lower() != ".parquet"


def look(data: str, label: str | None = None) -> Look:
    """What a data set by name, a folder or a file holds; ``label``: of a table, the column of the classes."""
    if label is not None or has_columns(data):
        return _table(Path(data), label)
    if (entry := DATASETS.get(data)) is not None:
        if entry.layouts:  # its files may have to be downloaded first
            return Look("images", dict.fromkeys(entry.names), None, entry.size)
        parts, names = entry.read([])
        names = entry.names or names
    else:
        source = own_source(Path(data))
        parts, names = source.read()
        names = names or source.names
    part = parts["train"] if "train" in parts else parts["all"]
    counts = Counter(part.labels)
    called = {c: names[c] if c < len(names) else str(c) for c in range(max(len(names), max(counts) + 1))}
    return Look("images", {name: counts[c] for c, name in called.items()}, len(part.labels), _side(part))


def _table(path: Path, label: str | None) -> Look:
    table = read_table(path)
    if label is None:
        fix = f"pass --label with one of {', '.join([*table.columns][:20])}"
        raise DataError(f"the column of the classes in {path.name}", "no --label", fix)
    counts = Counter(text for text in texts(table.column(label, "--label")) if text is not None)
    return Look("rows", dict(sorted(counts.items())), counts.total())


def _side(part: Encoded | Decoded) -> int | None:
    """The shorter side of the first image in pixels; None if it cannot be read, which loading will tell."""
    if isinstance(part, Decoded):
        return int(min(sorted(part.pixels.shape[1:])[-2:]))
    from io import BytesIO

    from PIL import Image

    with suppress(Exception):
        first = next(part.items())
        with Image.open(BytesIO(first) if isinstance(first, bytes) else first) as image:
            return min(image.size)
    return None
