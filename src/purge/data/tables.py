"""DataFrames of pandas, which is not imported for it: columns of numbers, of labels and of names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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


# -- names of rows --------------------------------------------------------------------------------


def row_names(data: Any) -> Any:
    """The index of a DataFrame, or of one or a Series in a pair; None for data whose rows have no names."""
    parts = data if isinstance(data, (tuple, list)) and len(data) == 2 else (data,)
    return next((part.index for part in parts if hasattr(part, "iloc")), None)


def is_index(given: Any) -> bool:
    """Is it an Index of pandas, whose values are names of rows?"""
    return hasattr(given, "get_indexer_for")


def counts_rows(index: Any) -> bool:
    """Is the name of each row its position, 0 … n−1 in this order?"""
    values = index.to_numpy()
    return values.dtype.kind in "iufO" and bool(np.array_equal(values, np.arange(len(values))))


def rows_named(index: Any, wanted: Any) -> NDArray[np.bool_]:
    """Which rows have one of these names, (N,) bool; each must be there, and several rows may share one."""
    names = _names(index, wanted)
    truths = [name for name in names if isinstance(name, (bool, np.bool_))]
    if truths and index.dtype.kind != "b":  # True would be found as the row 1
        raise DataError("names of rows as index", brief(truths[0]), "pass truth values as mask=")
    if not names:
        raise DataError("names of rows as index", "none", "pass index=frame.index[…], say")
    try:
        at = np.asarray(index.get_indexer_for(names))
    except Exception:  # pandas raises many kinds of errors on names that cannot be in such an index
        fix = "name rows as the index of the DataFrame does"
        raise DataError("names of rows as index", brief(names[0]), fix) from None
    if missing := int((at < 0).sum()):
        got = f"{missing} of {len(names)} that are not there"
        fix = "name rows as the index of the DataFrame does, or count them with indices="
        raise DataError("names of rows that are in the data as index", got, fix)
    found = np.zeros(len(index), dtype=np.bool_)
    found[at] = True
    return found


def _names(index: Any, wanted: Any) -> list[Any]:
    """One name or several, as a list; a name of several levels is a tuple."""
    if isinstance(wanted, (Tensor, np.ndarray, np.generic)) or hasattr(wanted, "to_list"):
        found = wanted.tolist()
        return found if isinstance(found, list) else [found]
    one = isinstance(wanted, tuple) and index.nlevels > 1 and not all(isinstance(n, tuple) for n in wanted)
    several = isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes))
    return list(wanted) if several and not one else [wanted]
