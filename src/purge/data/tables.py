"""DataFrames of pandas, which is not imported for it: columns of numbers, of labels and of names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from purge.core.errors import DataError, brief, did_you_mean
from purge.data.items import ADAPT, LABEL_KEYS

SHOWN = 12  # columns that a message names


def is_frame(data: Any) -> bool:
    """Is it a DataFrame?"""
    return hasattr(data, "iloc") and hasattr(data, "columns")


def frame_values(frame: Any, what: str) -> Any:
    """The columns as numbers in 32 bits, (N, columns); True is 1."""
    kinds = [getattr(dtype, "kind", "O") for dtype in frame.dtypes]
    if not kinds:
        raise DataError(f"columns of inputs in {what}", "none", "leave some beside label and id")
    odd = [i for i, kind in enumerate(kinds) if kind not in "biuf"]
    if odd:
        names = [frame.columns[i] for i in odd]
        got = f"{frame.dtypes.iloc[odd[0]]} in {brief(names[0])}"
        encode = f"pd.get_dummies(df, columns={names[:3]!r})"
        fix = f"encode it, {encode}, drop it, name it in id_of=, or pass {ADAPT}"
        raise DataError(f"numbers in the columns of {what}", got, fix)
    return frame.to_numpy(dtype=np.float32, na_value=math.nan, copy=True)


def label_column(frame: Any, label: str | None, what: str) -> str:
    """The column of the labels: what was named, or the one that has a usual name."""
    columns = list(frame.columns)
    if label is None:
        usual = [name for name in columns if name in LABEL_KEYS]
        if len(usual) != 1:
            fix = f'pass label="…", the column of the label, or {ADAPT}'
            raise DataError(f"one column of {what} as the label", _listing(columns), fix)
        return str(usual[0])
    if label not in columns:
        fix = did_you_mean(label, map(str, columns[:20]))
        raise DataError(f"a column of {what} as label", brief(label), fix)
    if (times := columns.count(label)) > 1:
        raise DataError(f"one column {label!r} in {what}", str(times), "rename the others")
    return label


def _listing(columns: Sequence[Any]) -> str:
    more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
    return f"columns {', '.join(map(str, columns[:SHOWN]))}{more}"


def label_values(y: Any, what: str) -> Any:
    """Labels as an array of numbers, or as a list of whatever they are."""
    if is_frame(y):
        if len(y.columns) != 1:
            got = f"a DataFrame of {len(y.columns)} columns"
            raise DataError(f"one column of labels in {what}", got, 'pass df["label"]')
        y = y.iloc[:, 0]
    if not hasattr(y, "iloc"):
        return y
    plain = isinstance(y.dtype, np.dtype) and y.dtype.kind in "biuf"
    return y.to_numpy(copy=True) if plain else list(y)


def categories(y: Any) -> tuple[str, ...]:
    """The names of a categorical column, in its own order; empty for others."""
    found = getattr(getattr(y, "cat", None), "categories", None)
    names = () if found is None else tuple(found)
    return names if all(isinstance(name, str) for name in names) else ()
