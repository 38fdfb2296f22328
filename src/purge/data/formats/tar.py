"""Images in ``.tar`` shards, laid out as WebDataset does: ``KEY.jpg`` beside ``KEY.cls`` or ``KEY.json``.

A shard is gone through once. Where each image lies in it, and its label, are kept in the user's cache, so
that any image can be read later by one seek.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from purge.core.errors import DataError, FileError, brief
from purge.core.files import atomically, file_errors
from purge.core.store import Store, digest_of
from purge.data.cache import cache_folder
from purge.data.formats.image_folder import SUFFIXES
from purge.data.formats.source import Encoded, Shard, Source, sharded, whole_labels

LABELS = (".cls", ".json")  # where the label of an image may be, best first
KEYS = ("label", "cls", "class", "target")  # of a JSON file
MOST_OF_A_LABEL = 1 << 16  # bytes of a file with a label; a longer one has none
LAYOUT = 2  # of an index; with another number, shards are gone through again


class Index(NamedTuple):
    """The images of a shard: their names, where each begins, how many bytes it has, and its label."""

    name: list[str]
    offset: list[int]
    size: list[int]
    label: list[int]


def find(path: Path) -> Source | None:
    """The source that ``path`` is, if it is a ``.tar`` file, a folder of them or a pattern, ``*.tar``."""
    return sharded(path, ".tar", _read)


def _read(path: Path) -> Shard:
    index = index_of(path)

    def item(row: int) -> bytes:
        try:
            with path.open("rb") as file:
                file.seek(index.offset[row])
                return file.read(index.size[row])
        except OSError:
            return b""  # whoever decodes it will say so

    return Encoded(index.label, [f"{path.name}/{name}" for name in index.name], item), ()


def index_of(path: Path) -> Index:
    """Where the images of a shard are: from the cache, or by going through it once."""
    if not path.is_file():  # a pipe would be waited for
        raise FileError(f"a file at {path}", "something else", "remove it, or put the .tar file there")
    stat = path.stat()
    key = f"{digest_of(LAYOUT, str(path.absolute()), stat.st_size, stat.st_mtime_ns)}.parquet"

    def kept(at: Path) -> Index | None:
        try:
            table = pq.read_table(at)
            return Index(*(table[name].to_pylist() for name in Index._fields))
        except (OSError, pa.ArrowException, KeyError):
            return None

    def make(at: Path) -> None:
        table = pa.table(_indexed(path)._asdict(), metadata={"shard": path.name})
        with file_errors(at):
            atomically(at, lambda to: pq.write_table(table, to))

    return Store(cache_folder() / "index", "set PURGE_CACHE to a folder with enough space").get(
        key, kept, make
    )


def _indexed(path: Path) -> Index:
    """Go through a shard: headers and labels are read, images are skipped."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, dict[str, bytes]] = {}
    twice = ""
    try:
        with tarfile.open(path, "r:") as file:
            while (member := file.next()) is not None:
                file.members.clear()  # type: ignore[attr-defined]  # it would keep every header
                folder, slash, last = member.name.rpartition("/")
                name, *endings = last.split(".")  # a key ends at the first dot
                if not (member.isreg() and member.sparse is None and name and endings):
                    continue
                key, ending = f"{folder}{slash}{name}", f".{endings[-1].lower()}"
                if ending in SUFFIXES:
                    twice = f"{images[key][0]} and {member.name}" if key in images else twice
                    images[key] = member.name, member.offset_data, member.size
                elif ending in LABELS and member.size <= MOST_OF_A_LABEL:
                    content = file.extractfile(member)
                    labels.setdefault(key, {})[ending] = content.read() if content else b""
    except (tarfile.TarError, OSError, EOFError, ValueError):  # the last one: a header without numbers
        fix = "write it again, without compression"
        raise FileError(f"a plain .tar file in {path}", "a damaged or compressed one", fix) from None
    if twice:
        raise DataError(f"one image for each key in {path.name}", twice, "rename one of them")
    missing = next((f"none for {name}" for key, (name, *_) in images.items() if key not in labels), "")
    if missing or not images:
        fix = "put KEY.cls (the number of the class) or KEY.json (with a label) beside each KEY.jpg"
        raise DataError(f"a label for each image in {path.name}", missing or "no images", fix)
    numbers = [_label(labels[key], name, path) for key, (name, *_) in images.items()]
    names, offsets, sizes = (list(column) for column in zip(*images.values(), strict=True))
    return Index(names, offsets, sizes, whole_labels(numbers, path))


def _label(contents: dict[str, bytes], name: str, path: Path) -> int:
    ending = next(e for e in LABELS if e in contents)
    value: Any = contents[ending].decode(errors="replace")
    try:
        known = {"cls": int(value)} if ending == ".cls" else json.loads(value)
        value = next((known[key] for key in KEYS if key in known), None)
    except (ValueError, TypeError, RecursionError):
        pass
    if type(value) is not int:
        fix = f"number the classes 0 … K-1, in KEY.cls or as {KEYS[0]!r} in KEY.json"
        raise DataError(f"a whole number as label of {name} in {path.name}", brief(value), fix)
    return value
