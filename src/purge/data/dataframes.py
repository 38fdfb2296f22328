"""DataFrames of pandas, which is not imported for it: columns of numbers, of labels and of names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from purge.core.errors import DataError, brief, did_you_mean
from purge.data.items import ADAPT, LABEL_KEYS, as_list


def is_frame(data: Any) -> bool:
    """Is it a DataFrame?"""
    return hasattr(data, "iloc") and hasattr(data, "columns")


def frame_values(frame: Any, what: str) -> Any:
    """The columns as numbers in 32 bits, (N, columns); True is 1."""
    kinds = [getattr(dtype, "kind", "O") for dtype in frame.dtypes]
    odd = [i for i, kind in enumerate(kinds) if kind not in "biuf"]
    if odd or not kinds:
        names = [frame.columns[i] for i in odd]
        got = f"{frame.dtypes.iloc[odd[0]]} in {brief(names[0])}" if odd else "no columns of inputs"
        encode = f"pd.get_dummies(df, columns={names[:3]!r})"
        fix = f"encode it, {encode}, drop it, name it in id_of=, or pass {ADAPT}"
        raise DataError(f"numbers in the columns of {what}", got, fix)
    return frame.to_numpy(dtype=np.float32, na_value=math.nan, copy=True)


def label_column(frame: Any, label: str | None, what: str) -> str:
    """The column of the labels: what was named, or the one that has a usual name."""
    columns = list(frame.columns)
    fitting = [name for name in columns if (name in LABEL_KEYS if label is None else name == label)]
    if len(fitting) == 1:
        return str(fitting[0])
    got = f"{brief(label)} {len(fitting)} times"
    fix = "rename the others" if fitting else did_you_mean(str(label), map(str, columns[:20]))
    if label is None:
        got = f"columns {brief(columns)}"
        fix = f'pass label="…", the column of the label, or {ADAPT}'
    raise DataError(f"one column of {what} as the label", got, fix)


# -- names of rows --------------------------------------------------------------------------------


def row_names(data: Any) -> Any:
    """The index of a DataFrame, or of one or a Series in a pair; None for data whose rows have no names."""
    parts = data if isinstance(data, (tuple, list)) and len(data) == 2 else (data,)
    return next((part.index for part in parts if hasattr(part, "iloc")), None)


def counts_rows(index: Any) -> bool:
    """Is the name of each row its position, 0 … n−1 in this order?"""
    values = index.to_numpy()
    return values.dtype.kind in "iufO" and bool(np.array_equal(values, np.arange(len(values))))


def rows_named(index: Any, wanted: Any) -> NDArray[np.bool_]:
    """Which rows have one of these names, (N,) bool; each must be there, and several rows may share one."""
    one = isinstance(wanted, tuple) and index.nlevels > 1 and not all(isinstance(n, tuple) for n in wanted)
    names = [wanted] if one else as_list(wanted)
    truths = [name for name in names if isinstance(name, (bool, np.bool_))]
    if not names or (truths and index.dtype.kind != "b"):  # True would be found as the row 1
        got = brief(truths[0]) if truths else "none"
        fix = "pass index=frame.index[…], say, or truth values as mask="
        raise DataError("names of rows as index", got, fix)
    try:
        at = np.asarray(index.get_indexer_for(names))
    except Exception:  # pandas raises many kinds of errors on names that cannot be in such an index
        at = np.full(len(names), -1)
    if missing := int((at < 0).sum()):
        got = f"{missing} of {len(names)} that are not there"
        fix = "name rows as the index of the DataFrame does, or count them with indices="
        raise DataError("names of rows that are in the data as index", got, fix)
    rows = np.zeros(len(index), dtype=np.bool_)
    rows[at] = True
    return rows
