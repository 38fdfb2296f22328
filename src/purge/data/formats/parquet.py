"""Images in Parquet, laid out as Hugging Face does: a column of images and a column of labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from purge.core.errors import DataError, FileError
from purge.data.formats.source import HELD_OUT, Encoded, Read, Source, whole_labels

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")


def find(path: Path) -> Source | None:
    """The source that ``path`` is, if it is a Parquet file or a folder of them."""
    shards = _shards(path)
    files = [file for found in shards.values() for file in found]
    return Source(path.name, files, lambda: _read(shards)) if files else None


def _shards(path: Path) -> dict[str, list[Path]]:
    """The files of each part: ``train-*`` and ``test-*``, or all of them together."""
    if path.is_file():
        return {"all": [path]} if path.suffix == ".parquet" else {}
    found = sorted(path.glob("*.parquet")) or sorted(path.glob("data/*.parquet"))
    train = [f for f in found if f.name.startswith("train")]
    for name in HELD_OUT:
        if train and (test := [f for f in found if f.name.startswith(name)]):
            return {"train": train, "test": test}
    return {"all": train or found}


def _read(shards: dict[str, list[Path]]) -> Read:
    parts = {part: [_Shard(path) for path in files] for part, files in shards.items()}
    first = next(shard for found in parts.values() for shard in found)
    return {part: _encoded(found) for part, found in parts.items()}, first.class_names()


def _encoded(shards: list[_Shard]) -> Encoded:
    labels = [label for shard in shards for label in shard.labels()]
    paths = [path for shard in shards for path in shard.paths()]
    if not all(paths) or not len(paths) == len(labels) == len(set(paths)):
        paths = [f"{shard.path.name} row {i}" for shard in shards for i in range(shard.rows)]
    return Encoded(labels, paths, lambda: (image for shard in shards for image in shard.images()))


class _Shard:
    """One Parquet file, opened again for each pass."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():  # a pipe would be waited for
            raise FileError(f"a file at {path}", "something else", "remove it, or put the Parquet file there")
        with self._opened() as file:
            self.schema, self.rows = file.schema_arrow, file.metadata.num_rows
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
                for row in batch.column(0).to_pylist():
                    found = row.get("bytes") if isinstance(row, dict) else row
                    yield found if isinstance(found, bytes) else b""

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
