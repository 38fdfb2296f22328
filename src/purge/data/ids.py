"""Whose each sample is: the user's own ids, such as customer numbers or e-mail addresses, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from purge.core.errors import DataError, brief, did_you_mean

SHOWN = 3  # ids that a message may name: they are personal data
COLUMNS_SHOWN = 20

IdOf: TypeAlias = (
    "str | int | Sequence[Any] | Any | None"  # a column or key, a position, or the ids themselves
)


def rows_of_ids(owners: Sequence[str], wanted: Any) -> Tensor:
    """Which samples belong to the wanted ids, (N,) bool; every one of them must be there.

    Ids are compared as text, so that 17 and "17" are the same. Several samples may have one id.

    >>> rows_of_ids(("c-17", "c-4", "c-17"), ["c-17"]).tolist()
    [True, False, True]
    """
    ids = _wanted(wanted)
    if not owners:
        raise DataError(
            "data that says whose each sample is",
            "no ids",
            "name the column, key or position of the id in id_of=, or pass one id per sample",
        )
    if absent := sorted(ids - set(owners)):
        more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
        got = ", ".join(map(brief, absent[:SHOWN])) + more
        raise DataError("ids that are in the data", got, "check the ids, and which column id_of= names")
    return torch.tensor([owner in ids for owner in owners], dtype=torch.bool)


def _wanted(wanted: Any) -> set[str]:
    """An id, or several of them in a list, array, series or tensor, as text."""
    single = isinstance(wanted, (str, bytes)) or not isinstance(wanted, Iterable)
    if isinstance(wanted, Tensor) and wanted.ndim == 0:
        single = True
    found = as_text([wanted] if single else list(wanted), "ids=")
    if not found or "" in found:
        got = "an empty one" if found else "none"
        raise DataError("ids of samples to forget", got, 'pass ids=["c-17"], say')
    return set(found)


def owners_listed(ids: Any, n: int) -> tuple[str, ...]:
    """The owner of each of ``n`` samples, where the owners themselves were given."""
    found = as_text(list(ids), "id_of=")
    if len(found) != n:
        raise DataError(f"one id per sample in id_of, {n}", str(len(found)), "pass them in the same order")
    return found


def owners_in_columns(data: Any, name: Any) -> tuple[str, ...] | None:
    """The owner of each row of a DataFrame or of a dataset of Hugging Face; None for any other data."""
    columns = getattr(data, "columns", None) if hasattr(data, "iloc") else None
    if columns is None and hasattr(data, "features"):
        columns = getattr(data, "column_names", None)
    if columns is None:
        return None
    names = list(columns)
    if name not in names:
        near = did_you_mean(name, map(str, names[:COLUMNS_SHOWN])) if isinstance(name, str) else ""
        raise DataError("a column of the data as id_of", brief(name), near or "name a column")
    return as_text(list(data[name]), "the ids")


def owners_in_table(table: TensorDataset, id_of: Any) -> tuple[str, ...]:
    """The owner of each row, which one of the tensors says: by default the third.

    >>> owners_in_table(TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([7, 9])), None)
    ('7', '9')
    """
    at = 2 if id_of is None else id_of
    if isinstance(at, str) or not -len(table.tensors) <= at < len(table.tensors):
        if id_of is None:
            return ()
        raise no_owners(id_of, f"a position of {len(table.tensors)} tensors")
    return as_text(table.tensors[at].tolist(), "the ids")


def no_owners(id_of: Any, what: str) -> DataError:
    """Why the owners are not where the caller said."""
    return DataError(f"{what} as id_of", brief(id_of), "or use adapt= to return (inputs, label, id)")


def as_text(values: Iterable[Any], what: str) -> tuple[str, ...]:
    """Ids as text; one that is missing (None, NaN) is empty, for a sample that is nobody's.

    >>> as_text([17, "c-4", 3.0, None], "the ids")
    ('17', 'c-4', '3', '')
    """
    return tuple(_text(value, what) for value in values)


def _text(value: Any, what: str) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (Tensor, np.generic, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:  # of pandas; NaN
        return ""
    if isinstance(value, float) and value.is_integer():  # a column of numbers with some missing
        return str(int(value))
    if isinstance(value, (bool, float, bytes, Tensor, np.ndarray, list, tuple, dict, set)):
        raise DataError(f"text or whole numbers as {what}", brief(value), "use one id per sample")
    return str(value)
