"""Whose each sample is: the user's own ids, such as customer numbers or e-mail addresses, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, brief, did_you_mean

SHOWN = 3  # ids that a message may name: they are personal data

IdOf: TypeAlias = "str | int | Sequence[Any] | Any | None"  # a column or key, a position, or the ids


def rows_of_ids(owners: Sequence[str], wanted: Any) -> Tensor:
    """Which samples belong to the wanted ids, (N,) bool; every one of them must be there.

    Ids are compared as text, so that 17 and "17" are the same. Several samples may have one id.

    >>> rows_of_ids(("c-17", "c-4", "c-17"), ["c-17"]).tolist()
    [True, False, True]
    """
    ids = set(as_text(as_list(wanted), "ids="))
    if not ids or "" in ids:
        got = "an empty one" if ids else "none"
        raise DataError("ids of samples to forget", got, 'pass ids=["c-17"], say')
    if not owners:
        fix = "name the column, key or position of the id in id_of=, or pass one id per sample"
        raise DataError("data that says whose each sample is", "no ids", fix)
    if absent := sorted(ids - set(owners)):
        more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
        got = ", ".join(map(brief, absent[:SHOWN])) + more
        raise DataError("ids that are in the data", got, "check the ids, and which column id_of= names")
    return torch.tensor([owner in ids for owner in owners], dtype=torch.bool)


def as_list(one_or_several: Any) -> list[Any]:
    """A value, or the values of an array, a tensor, a series or any other collection."""
    values = one_or_several.tolist() if hasattr(one_or_several, "tolist") else one_or_several
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return [values]
    return [v.item() if isinstance(v, (Tensor, np.integer)) and v.ndim == 0 else v for v in values]


def owners_in_columns(data: Any, name: Any) -> tuple[str, ...] | None:
    """The owner of each row of a DataFrame or of a dataset of Hugging Face; None for any other data."""
    columns = getattr(data, "columns" if hasattr(data, "iloc") else "column_names", None)
    if columns is None:
        return None
    if name not in (names := list(columns)):
        fix = did_you_mean(str(name), map(str, names[:20]))
        raise DataError("a column of the data as id_of", brief(name), fix)
    return as_text(list(data[name]), "the ids")


def as_text(values: Iterable[Any], what: str) -> tuple[str, ...]:
    """Ids as text; one that is missing (None, NaN) is empty, for a sample that is nobody's.

    >>> as_text([17, "c-4", 3.0, None], "the ids")
    ('17', 'c-4', '3', '')
    """
    return tuple(_text(value, what) for value in values)


def _text(value: Any, what: str) -> str:
    if isinstance(value, (Tensor, np.generic, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, float) and value.is_integer():  # a column of numbers with some missing
        value = int(value)
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return ""
    broken = isinstance(value, float) and value == value
    if broken or isinstance(value, (bool, bytes, Tensor, np.ndarray, list, tuple, dict, set)):
        raise DataError(f"text or whole numbers as {what}", brief(value), "use one id per sample")
    return "" if value != value else str(value)
