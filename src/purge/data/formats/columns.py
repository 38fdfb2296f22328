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
FORMS = {
    **dict.fromkeys(SEPARATED, "UTF-8 text of CSV"),
    **dict.fromkeys(LINES, "UTF-8 text with a JSON object of the same keys in each line"),
    ".parquet": "Parquet",
}
LARGEST_CELL = 1 << 26  # bytes
MOST_SHOWN = 20  # columns in a message


class TableFile(NamedTuple):
    """The columns of a file, and a digest of its bytes."""

    path: Path
    columns: dict[str, pa.Array]
    digest: str

    def texts(self, name: str, option: str) -> list[str]:
        """A column as text without spaces around it, in which no cell may be empty; ``option`` names it."""
        if name not in self.columns:
            what = f"a column of {self.path.name} as {option}"
            raise DataError(what, brief(name), did_you_mean(name, [*self.columns][:MOST_SHOWN]))
        cells = []
        for value in self.columns[name].to_pylist():
            if isinstance(value, float):  # whole numbers become floats where a table has gaps
                value = int(value) if value.is_integer() else None if math.isnan(value) else value
            cells.append("" if value is None else str(value).strip())
        if empty := [i for i, cell in enumerate(cells, 1) if not cell]:
            got, fix = f"{len(empty)} without (first: row {empty[0]})", "fill it in, or remove these rows"
            raise DataError(f"something in every row of {name!r} in {self.path.name}", got, fix)
        return cells

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column as numbers; empty cells, text and infinity are refused."""
        if name not in self.columns:
            what = f"a column {brief(name)} in {self.path.name} too"
            raise DataError(what, "none", "write the same columns to both files")
        column = self.columns[name]
        try:
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            plain = pc.utf8_trim_whitespace(column) if is_text else column
            values: NDArray[np.float64] = pc.cast(plain, pa.float64()).to_numpy(zero_copy_only=False)
            if not column.null_count and np.isfinite(values).all():
                return values
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
        got = f"a column of {column.type}"
        for i, cell in enumerate(column.to_pylist(), 1):
            try:
                good = math.isfinite(float(cell))
            except (TypeError, ValueError, OverflowError):
                good = False
            if not good:
                got = f"{brief(cell)} in row {i}"
                break
        fix = "fill in what is missing, write words as numbers, or name the column as --text, --label or --id"
        raise DataError(f"finite numbers in {name!r} of {self.path.name}", got, fix)


def is_table(path: Path) -> bool:
    """Does the name end like that of a table, and is it not the name of a folder?"""
    return path.suffix.lower() in FORMS and not path.is_dir()


def read_table(path: Path) -> TableFile:
    """Read a file by its ending; a CSV file must have a line of names."""
    if not path.is_file():
        raise FileError(f"a table at {path}", "no such file", "check the path")
    ending = path.suffix.lower()
    try:
        content = path.read_bytes()
        if ending == ".parquet":
            table = pq.read_table(pa.BufferReader(content), use_threads=False)
            table.validate(full=True)  # text in it may be none
            names, columns = table.column_names, [column.combine_chunks() for column in table.columns]
            columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in columns]
        elif b"\0" in content:
            raise ValueError("NUL bytes (UTF-16?)")
        elif ending in LINES:
            names, columns = _lines(content.decode("utf-8-sig"))
        else:  # all cells as text, so that an id of 007 stays one; every line has as many as the first
            text, comma = content.decode("utf-8-sig"), SEPARATED[ending]
            names, columns = next(csv.reader(io.StringIO(text, newline=""), delimiter=comma), []), []
            if names:
                types = dict.fromkeys(names, pa.string())
                table = arrow_csv.read_csv(
                    pa.BufferReader(text.encode()),
                    arrow_csv.ReadOptions(block_size=LARGEST_CELL, use_threads=False),
                    arrow_csv.ParseOptions(delimiter=comma, newlines_in_values=True),
                    arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=False),
                )
                names = [name.strip() for name in names]
                columns = [column.combine_chunks() for column in table.columns]
    except (pa.ArrowException, OSError, ValueError, RecursionError, csv.Error) as error:
        got = (str(error).splitlines() or ["?"])[0].rstrip(".")[:200]
        raise FileError(f"{FORMS[ending]} in {path.name}", got, "write the file again") from None
    if not columns or not len(columns[0]):
        raise DataError(f"rows in {path.name}", "none", "name a file with a row for each sample")
    if odd := [name for name in names if not name or names.count(name) > 1]:
        got = f"{brief(odd[0])} {names.count(odd[0])} times"
        fix = "rename or remove the others (pandas: to_csv(…, index=False))"
        raise DataError(f"a name of its own for each column of {path.name}", got, fix)
    return TableFile(path, dict(zip(names, columns, strict=True)), hashlib.sha256(content).hexdigest())


def _lines(text: str) -> tuple[list[str], list[pa.Array]]:
    """An object in each line, with the keys of the first."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            more = row.keys() - (rows or [row])[0].keys()
        except (ValueError, RecursionError, AttributeError):
            raise ValueError(f"another thing in line {number}") from None
        if more:
            raise ValueError(f"a key {brief(min(more))} in line {number}")
        rows.append(row)
    names, columns = [*rows[0]] if rows else [], []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns.append(pa.array(values))
        except (pa.ArrowException, OverflowError, TypeError, UnicodeError):
            # of several kinds, or half a character
            texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
            columns.append(pa.array([v and v.encode(errors="replace").decode() for v in texts]))
    return names, columns
