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
from purge.data.formats.source import Encoded, Shard, Source, sharded, whole_labels

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")


def find(path: Path) -> Source | None:
    """The source that ``path`` is, if it is a Parquet file, a folder of them or a pattern."""
    return sharded(path, ".parquet", _read)


def _read(path: Path) -> Shard:
    shard = _Shard(path)
    return Encoded(shard.labels, shard.paths, shard.item), shard.names


class _Shard:
    """One file: its labels, the names of its images and classes; images are read when they are needed."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():  # a pipe would be waited for
            raise FileError(f"a file at {path}", "something else", "remove it, or put the Parquet file there")
        self.path, self._lock = path, Lock()
        with self.opened() as file:
            schema, groups = file.schema_arrow, range(file.metadata.num_row_groups)
            self._ends = list(accumulate(file.metadata.row_group(i).num_rows for i in groups))
            self.image = next((c for c in IMAGE_COLUMNS if c in schema.names), "image")
            label = next((c for c in LABEL_COLUMNS if c in schema.names), "label")
            if schema.names.count(self.image) != 1 or schema.names.count(label) != 1:
                what = f"one column {self.image!r} and one column {label!r} in {path.name}"
                got = ", ".join(map(repr, schema.names)) or "none"
                raise DataError(what, got, "rename or remove columns")
            self.labels = whole_labels(file.read([label])[label].to_pylist(), path)
            kind, self.paths = schema.field(self.image).type, [""] * len(self.labels)
            if pa.types.is_struct(kind) and kind.get_field_index("path") >= 0:
                cells = file.read([f"{self.image}.path"])[self.image].to_pylist()
                paths = [cell["path"] if cell else "" for cell in cells]
                self.paths = [path if isinstance(path, str) else "" for path in paths]
        metadata = schema.metadata or {}
        try:  # under our own key, or in Hugging Face's features
            if b"classes" in metadata:
                names = json.loads(metadata[b"classes"])
            else:
                names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
            self.names = tuple(map(str, names))
        except (ValueError, KeyError, TypeError):
            self.names = ()

    @contextmanager
    def opened(self) -> Iterator[pq.ParquetFile]:
        """The file; what goes wrong while it is read is told in a line."""
        try:
            with pq.ParquetFile(self.path) as file:
                yield file
        except (pa.ArrowException, OSError):
            raise FileError(f"Parquet in {self.path}", "a damaged file", "write it again") from None

    def item(self, row: int) -> bytes:
        """One image; the row group that it is in is read and kept for the next ones."""
        group = bisect_right(self._ends, row)
        with self._lock:  # several threads decode what one of them reads
            images = _row_group(self, group)
        cell: Any = images[row - (self._ends[group - 1] if group else 0)].as_py()
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        return content if isinstance(content, bytes) else b""


@lru_cache(maxsize=4)
def _row_group(shard: _Shard, group: int) -> pa.ChunkedArray:
    with shard.opened() as file:
        return file.read_row_group(group, columns=[shard.image])[shard.image]
