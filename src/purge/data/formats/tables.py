"""Tables in CSV, JSON lines and Parquet: named columns, each as the file has it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from purge.core.errors import DataError, FileError, brief, did_you_mean

SEPARATED = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson")
ENDINGS = (*SEPARATED, *LINES, ".parquet")
LARGEST_CELL = 1 << 26  # bytes
MOST_SHOWN = 20  # columns in a message


class Table(NamedTuple):
    """The columns of a file, and a digest of its bytes."""

    path: Path
    columns: dict[str, pa.Array]
    digest: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def column(self, name: str, option: str) -> pa.Array:
        """A column by name; ``option`` is what named it."""
        if name not in self.columns:
            known = [*self.columns][:MOST_SHOWN]
            what = f"a column of {self.path.name} as {option}"
            raise DataError(what, brief(name), did_you_mean(name, known))
        return self.columns[name]


def is_table(path: Path) -> bool:
    """Does the name end like that of a table, and is it not the name of a folder?"""
    return path.suffix.lower() in ENDINGS and not path.is_dir()


def read_table(path: Path) -> Table:
    """Read a file by its ending; a CSV file must have a line of names."""
    if not path.is_file():
        raise FileError(f"a table at {path}", "no such file", "check the path")
    try:
        content = path.read_bytes()
    except OSError as error:
        got = error.strerror or str(error)
        raise FileError(f"a file that can be read, {path}", got, "check its permissions") from None
    ending = path.suffix.lower()
    if ending == ".parquet":
        columns = _parquet(content, path)
    else:
        columns = _lines(_text(content, path), path) if ending in LINES else _separated(content, path)
    if not columns or not len(next(iter(columns.values()))):
        raise DataError(f"rows in {path.name}", "none", "name a file with a row for each sample")
    return Table(path, columns, hashlib.sha256(content).hexdigest())


def texts(column: pa.Array) -> list[str | None]:
    """The cells as text without spaces around it; None for an empty one."""
    return [_as_text(value) for value in column.to_pylist()]


def _as_text(value: Any) -> str | None:
    if isinstance(value, float):  # whole numbers become floats where a table has gaps
        if math.isnan(value):
            return None
        value = int(value) if value.is_integer() else value
    return (str(value).strip() or None) if value is not None else None


def numbers(column: pa.Array, name: str, path: Path) -> NDArray[np.float64]:
    """The cells as numbers; empty ones, text and infinity are refused."""
    try:
        plain = pc.utf8_trim_whitespace(column) if _is_text(column) else column
        found: NDArray[np.float64] = pc.cast(plain, pa.float64()).to_numpy(zero_copy_only=False)
        if not column.null_count and np.isfinite(found).all():
            return found
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    cells = column.to_pylist()
    wrong = [i for i, cell in enumerate(cells) if not _is_number(cell)]
    empty = [i for i in wrong if cells[i] is None or str(cells[i]).strip().lower() in ("", "nan")]
    if empty:
        got = f"{len(empty)} without one (first: row {empty[0] + 1})"
        fix = "fill in what is missing, or remove these rows"
        raise DataError(f"a number in every row of {name!r} in {path.name}", got, fix)
    got = f"{brief(cells[wrong[0]])} in row {wrong[0] + 1}" if wrong else f"a column of {column.type}"
    fix = "encode it as numbers, take the column out, or name it with --text, --label or --id"
    raise DataError(f"finite numbers in {name!r} of {path.name}", got, fix)


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _is_number(cell: Any) -> bool:
    try:
        return math.isfinite(float(cell))
    except (TypeError, ValueError, OverflowError):
        return False


# -- files ----------------------------------------------------------------------------------------


def _text(content: bytes, path: Path) -> str:
    try:
        if b"\0" in content:
            raise ValueError
        return content.decode("utf-8-sig")
    except ValueError:
        got = "NUL bytes (UTF-16?)" if b"\0" in content else "other bytes"
        raise FileError(f"text in UTF-8 in {path.name}", got, "save it as UTF-8") from None


def _separated(content: bytes, path: Path) -> dict[str, pa.Array]:
    """All cells as text, so that an id of 007 stays one; every line has as many as the first."""
    comma = SEPARATED[path.suffix.lower()]
    text = _text(content, path)
    try:
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=comma), [])
    except csv.Error:
        raise FileError(
            f"a line of names in {path.name}", "a cell that does not end", "write it again"
        ) from None
    if not names:
        return {}
    plain = _names([name.strip() for name in names], path)
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(text.encode()),
            arrow_csv.ReadOptions(block_size=LARGEST_CELL, use_threads=False),
            arrow_csv.ParseOptions(delimiter=comma, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except (pa.ArrowException, OSError) as error:
        raise _not_read(path, "CSV", error) from None
    return dict(zip(plain, (column.combine_chunks() for column in table.columns), strict=True))


def _lines(text: str, path: Path) -> dict[str, pa.Array]:
    """An object in each line, with the keys of the first."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or (rows and row.keys() - rows[0].keys()):
            more = (
                f"a key {brief(min(row.keys() - rows[0].keys()))}"
                if isinstance(row, dict)
                else "another thing"
            )
            what = f"an object with the keys of the first in line {number} of {path.name}"
            raise FileError(what, more, "write an object with the same keys in each line")
        rows.append(row)
    names = _names([*rows[0]] if rows else [], path)
    return {name: _column([row.get(name) for row in rows]) for name in names}


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (
        pa.ArrowException,
        OverflowError,
        TypeError,
        UnicodeError,
    ):  # of several kinds, or half a character
        texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
        return pa.array([v and v.encode(errors="replace").decode() for v in texts])


def _parquet(content: bytes, path: Path) -> dict[str, pa.Array]:
    try:
        table = pq.read_table(pa.BufferReader(content), use_threads=False)
        table.validate(full=True)  # text in it may be none
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise _not_read(path, "Parquet", error) from None
    names = _names(table.column_names, path)
    columns = [column.combine_chunks() for column in table.columns]
    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
    return dict(zip(names, columns, strict=True))


def _names(names: list[str], path: Path) -> list[str]:
    """The names of the columns, each of which must be there once."""
    if twice := [name for name in names if names.count(name) > 1]:
        fix = "rename or remove the others"
        raise DataError(f"one column {brief(twice[0])} in {path.name}", f"{names.count(twice[0])}", fix)
    if "" in names:
        fix = "name it or remove it (pandas: to_csv(…, index=False))"
        raise DataError(f"a name for each column of {path.name}", "one without", fix)
    return names


def _not_read(path: Path, form: str, error: Exception) -> FileError:
    got = (str(error).splitlines() or ["?"])[0].rstrip(".")[:200]
    return FileError(f"{form} in {path.name}", got, "write the file again")
