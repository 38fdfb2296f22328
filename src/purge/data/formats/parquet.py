"""Images in Parquet, laid out as Hugging Face does: a column of images and a column of labels."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from purge.core.errors import DataError, FileError
from purge.data.formats.source import Encoded, Read, Source, shards_of, whole_labels

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")


def find(path: Path) -> Source | None:
    """The source that ``path`` is, if it is a Parquet file or a folder of them."""
    shards = shards_of(path, ".parquet")
    files = [file for found in shards.values() for file in found]
    return Source(path.name, files, lambda: _read(shards)) if files else None


def _read(shards: dict[str, list[Path]]) -> Read:
    parts = {part: [_Shard(path) for path in files] for part, files in shards.items()}
    first = next(shard for found in parts.values() for shard in found)
    return {part: _encoded(found) for part, found in parts.items()}, first.class_names()


def _encoded(shards: list[_Shard]) -> Encoded:
    labels = [label for shard in shards for label in shard.labels()]
    paths = [path for shard in shards for path in shard.paths()]
    if not all(paths) or not len(paths) == len(labels) == len(set(paths)):
        paths = [f"{shard.path.name} row {i}" for shard in shards for i in range(shard.rows)]
    ends = list(accumulate(shard.rows for shard in shards))

    def item(i: int) -> bytes:
        at = bisect_right(ends, i)
        return shards[at].one(i - (ends[at - 1] if at else 0))

    return Encoded(labels, paths, lambda: (image for shard in shards for image in shard.images()), item)


def _bytes(cell: Any) -> bytes:
    found = cell.get("bytes") if isinstance(cell, dict) else cell
    return found if isinstance(found, bytes) else b""


class _Shard:
    """One Parquet file, opened again for each pass."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():  # a pipe would be waited for
            raise FileError(f"a file at {path}", "something else", "remove it, or put the Parquet file there")
        with self._opened() as file:
            self.schema, self.rows = file.schema_arrow, file.metadata.num_rows
            groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        self._ends, self._lock = list(accumulate(groups)), Lock()
        image = next((c for c in IMAGE_COLUMNS if c in self.schema.names), None)
        label = next((c for c in LABEL_COLUMNS if c in self.schema.names), None)
        if image is None or label is None:
            raise DataError(
                f"columns 'image' and 'label' in {path.name}",
                ", ".join(map(repr, self.schema.names)) or "none",
                "rename the columns",
            )
        if twice := [c for c in (image, label) if self.schema.names.count(c) > 1]:
            raise DataError(
                f"one column {twice[0]!r} in {path.name}", "several", "rename or remove the others"
            )
        self.image, self.label = image, label

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self.path) as file:
                yield file
        except (pa.ArrowException, OSError):
            raise FileError(f"Parquet in {self.path}", "a damaged file", "write it again") from None

    def labels(self) -> list[int]:
        with self._opened() as file:
            return whole_labels(file.read([self.label])[self.label].to_pylist(), self.path)

    def paths(self) -> list[str]:
        """The file name of each image; empty if the column holds plain bytes."""
        kind = self.schema.field(self.image).type
        if not pa.types.is_struct(kind) or kind.get_field_index("path") < 0:
            return []
        with self._opened() as file:
            rows = file.read([f"{self.image}.path"])[self.image].to_pylist()
        found = [row["path"] if row else "" for row in rows]
        return [path if isinstance(path, str) else "" for path in found]

    def images(self) -> Iterator[bytes]:
        with self._opened() as file:
            for batch in file.iter_batches(1024, columns=[self.image]):
                yield from map(_bytes, batch.column(0).to_pylist())

    def one(self, row: int) -> bytes:
        """One image; the row group that it is in is read and kept for the next ones."""
        group = bisect_right(self._ends, row)
        with self._lock:  # several threads decode what one of them reads
            rows = _row_group(self, group)
        return _bytes(rows[row - (self._ends[group - 1] if group else 0)].as_py())

    def row_group(self, group: int) -> pa.ChunkedArray:
        """The images of a row group."""
        with self._opened() as file:
            return file.read_row_group(group, columns=[self.image])[self.image]

    def class_names(self) -> tuple[str, ...]:
        """Class names in the file's metadata: under our own key, or in Hugging Face's features."""
        metadata = self.schema.metadata or {}
        try:
            if b"classes" in metadata:
                return tuple(map(str, json.loads(metadata[b"classes"])))
            features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
            return tuple(map(str, features[self.label]["names"]))
        except (ValueError, KeyError, TypeError):
            return ()


@lru_cache(maxsize=4)
def _row_group(shard: _Shard, group: int) -> pa.ChunkedArray:
    return shard.row_group(group)
