"""Images in ``.tar`` shards, laid out as WebDataset does: ``KEY.jpg`` beside ``KEY.cls`` or ``KEY.json``.

A shard is gone through once. Where each image lies in it, and its label, are kept in the user's cache, so
that any image can be read later by one seek.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from purge.core.errors import DataError, FileError, brief
from purge.core.files import atomically, file_errors
from purge.data.cache import cache_folder
from purge.data.formats.folder import SUFFIXES
from purge.data.formats.source import Encoded, Read, Source, shards_of, whole_labels

LABELS = (".cls", ".json")  # where the label of an image may be, best first
KEYS = ("label", "cls", "class", "target")  # of a JSON file
MOST_OF_A_LABEL = 1 << 16  # bytes of a file with a label; a longer one has none
COLUMNS = ("name", "offset", "size", "label")  # of an index
LAYOUT = 1  # of an index; with another number, shards are gone through again


class Index(NamedTuple):
    """The images of a shard: their names, where each begins, how many bytes it has, and its label."""

    names: list[str]
    offsets: list[int]
    sizes: list[int]
    labels: list[int]


def find(path: Path) -> Source | None:
    """The source that ``path`` is, if it is a ``.tar`` file, a folder of them or a pattern, ``*.tar``."""
    shards = shards_of(path, ".tar")
    files = [file for found in shards.values() for file in found]
    return Source(path.name, files, lambda: _read(shards)) if files else None


def _read(shards: dict[str, list[Path]]) -> Read:
    return {part: _encoded(files) for part, files in shards.items()}, ()


def _encoded(files: list[Path]) -> Encoded:
    found = [(path, index_of(path)) for path in files]
    ends = list(accumulate(len(index.labels) for _, index in found))

    def item(i: int) -> bytes:
        path, index = found[at := bisect_right(ends, i)]
        row = i - (ends[at - 1] if at else 0)
        try:
            with path.open("rb") as file:
                file.seek(index.offsets[row])
                return file.read(index.sizes[row])
        except OSError:
            return b""  # whoever decodes it will say so

    def items() -> Iterator[bytes]:
        return (item(i) for i in range(ends[-1]))

    labels = [label for _, index in found for label in index.labels]
    paths = [f"{path.name}/{name}" for path, index in found for name in index.names]
    return Encoded(labels, paths, items, item)


def index_of(path: Path) -> Index:
    """Where the images of a shard are: from the cache, or by going through it once."""
    if not path.is_file():  # a pipe would be waited for
        raise FileError(f"a file at {path}", "something else", "remove it, or put the .tar file there")
    stat = path.stat()
    known = json.dumps([LAYOUT, str(path.absolute()), stat.st_size, stat.st_mtime_ns])
    at = cache_folder() / "index" / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.parquet"
    if (kept := _kept(at, stat.st_size)) is not None:
        return kept
    index = _indexed(path)
    columns = dict(zip(COLUMNS, index, strict=True))
    table = pa.table(columns, metadata={"shard": path.name})
    with file_errors(at):
        at.parent.mkdir(parents=True, exist_ok=True)
        atomically(at, lambda p: pq.write_table(table, p))
    return index


def _kept(at: Path, longest: int) -> Index | None:
    """An index out of the cache, if it is whole."""
    try:
        table = pq.read_table(at)
        found = Index(*(table[name].to_pylist() for name in COLUMNS))
        ends = [offset + size for offset, size in zip(found.offsets, found.sizes, strict=True)]
        return found if found.names and min(found.offsets) >= 0 and max(ends) <= longest else None
    except (OSError, pa.ArrowException, KeyError, TypeError):
        return None


def _indexed(path: Path) -> Index:
    """Go through a shard: headers and labels are read, images are skipped."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, dict[str, Any]] = {}
    try:
        with tarfile.open(path, "r:") as file:
            while (member := file.next()) is not None:
                file.members.clear()  # type: ignore[attr-defined]  # it would keep every header
                key, ending = _parted(member.name)
                if not member.isreg() or member.sparse is not None:
                    continue
                if ending in SUFFIXES:
                    if key in images:
                        two = f"{images[key][0]} and {member.name}"
                        raise DataError(f"one image for each key in {path.name}", two, "rename one of them")
                    images[key] = member.name, member.offset_data, member.size
                elif ending in LABELS and member.size <= MOST_OF_A_LABEL:
                    content = file.extractfile(member)
                    labels.setdefault(key, {})[ending] = b"" if content is None else content.read()
    except DataError:
        raise
    except (tarfile.TarError, OSError, EOFError, ValueError):  # the last one: a header without numbers
        fix = "write it again, without compression"
        raise FileError(f"a plain .tar file in {path}", "a damaged or compressed one", fix) from None
    if missing := [name for key, (name, *_) in images.items() if key not in labels] or not images:
        got = f"none for {missing[0]}" if isinstance(missing, list) else "no images"
        fix = "put KEY.cls (the number of the class) or KEY.json (with a label) beside each KEY.jpg"
        raise DataError(f"a label for each image in {path.name}", got, fix)
    found = [_label(labels[key], name, path) for key, (name, *_) in images.items()]
    names, offsets, sizes = (list(column) for column in zip(*images.values(), strict=True))
    return Index(names, offsets, sizes, whole_labels(found, path))


def _parted(name: str) -> tuple[str, str]:
    """The key of a file, which ends at the first dot of its name, and the last ending."""
    folder, slash, last = name.rpartition("/")
    key, *endings = last.split(".")
    return f"{folder}{slash}{key}", f".{endings[-1].lower()}" if endings and key else ""


def _label(found: dict[str, Any], name: str, path: Path) -> int:
    ending = next(e for e in LABELS if e in found)
    try:
        text = found[ending].decode()
        if ending == ".json":
            content = json.loads(text)
            value = next((content[key] for key in KEYS if key in content), None)
        else:
            value = int(text.strip()) if len(text) <= 20 else None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    except (ValueError, TypeError, RecursionError):
        value = text if ending == ".cls" else found[ending][:40]
    fix = f"number the classes 0 … K-1, in KEY.cls or as {KEYS[0]!r} in KEY.json"
    raise DataError(f"a whole number as label of {name} in {path.name}", brief(value), fix)
