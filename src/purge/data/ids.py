"""Whose each sample is: the user's own ids, such as customer numbers or e-mail addresses, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from purge.core.errors import DataError, brief, did_you_mean, first_line

SHOWN = 3  # ids that a message may name: they are personal data
COLUMNS_SHOWN = 20

IdOf: TypeAlias = (
    "str | int | Sequence[Any] | Any | None"  # a column or key, a position, or the ids themselves
)


def rows_of_ids(subjects: Sequence[str], wanted: Any) -> Tensor:
    """Which samples belong to the wanted ids, (N,) bool; every one of them must be there.

    Ids are compared as text, so that 17 and "17" are the same. Several samples may have one id.

    >>> rows_of_ids(("c-17", "c-4", "c-17"), ["c-17"]).tolist()
    [True, False, True]
    """
    asked = _asked(wanted)
    if not subjects:
        raise DataError(
            "data that says whose each sample is",
            "no ids",
            "name the column, key or position of the id in id_of=, or pass one id per sample",
        )
    if absent := sorted(asked - set(subjects)):
        more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
        got = ", ".join(map(brief, absent[:SHOWN])) + more
        raise DataError("ids that are in the data", got, "check the ids, and which column id_of= names")
    return torch.tensor([subject in asked for subject in subjects], dtype=torch.bool)


def _asked(wanted: Any) -> set[str]:
    """An id, or several of them in a list, array, series or tensor, as text."""
    single = isinstance(wanted, (str, bytes)) or not isinstance(wanted, Iterable)
    if isinstance(wanted, Tensor) and wanted.ndim == 0:
        single = True
    found = as_text([wanted] if single else list(wanted), "ids=")
    if not found or "" in found:
        got = "an empty one" if found else "none"
        raise DataError("ids of samples to forget", got, 'pass ids=["c-17"], say')
    return set(found)


def subjects_of(data: Any, id_of: IdOf = None) -> tuple[str, ...]:
    """The id of each sample as text, empty where nothing says whose they are.

    ``id_of``: a column of a DataFrame, a key of items that are dicts, a position in items that are tuples
    (by default the third), or the ids themselves, one per sample. Left out, data that carries ``subjects``
    knows them.

    >>> subjects_of(TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([7, 9])))
    ('7', '9')
    """
    if isinstance(data, DataLoader):
        listed = isinstance(data.dataset, (tuple, list)) and (id_of is None or isinstance(id_of, (str, int)))
        return _of_items(data.dataset, id_of) if listed else subjects_of(data.dataset, id_of)
    if id_of is not None and not isinstance(id_of, (str, int, np.integer)):
        return _listed(data, id_of)
    if id_of is None and (known := subjects_in(data)):
        return known
    if isinstance(data, Subset):
        whole = subjects_of(data.dataset, id_of)
        return tuple(whole[i] for i in data.indices) if whole else ()
    names = _columns(data)
    if names:
        return () if id_of is None else as_text(_column(data, id_of, names), "the ids")
    if isinstance(data, TensorDataset):
        at = 2 if id_of is None else id_of
        if isinstance(at, str) or not -len(data.tensors) <= at < len(data.tensors):
            return _unknown(id_of, f"a position of {len(data.tensors)} tensors")
        return as_text(data.tensors[at].tolist(), "the ids")
    if isinstance(data, (tuple, list)) or not hasattr(data, "__getitem__"):
        return _unknown(id_of, "the ids of a pair of arrays, one per sample,")
    return _of_items(data, id_of)


def subjects_in(data: Any) -> tuple[str, ...]:
    """The ids that data carries; empty if it carries none."""
    return tuple(getattr(data, "subjects", ()))


def _listed(data: Any, ids: Any) -> tuple[str, ...]:
    """Ids that were given themselves."""
    found = as_text(list(ids), "id_of=")
    n = len(data[1]) if isinstance(data, (tuple, list)) and len(data) == 2 else len(data)
    if len(found) != n:
        raise DataError(f"one id per sample in id_of, {n}", str(len(found)), "pass them in the same order")
    return found


def _columns(data: Any) -> list[str]:
    """The names of the columns of a DataFrame or of a dataset of Hugging Face."""
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return list(data.columns)
    return list(getattr(data, "column_names", None) or ()) if hasattr(data, "features") else []


def _column(data: Any, name: Any, names: list[str]) -> list[Any]:
    if name not in names:
        fix = (
            did_you_mean(name, map(str, names[:COLUMNS_SHOWN])) if isinstance(name, str) else "name a column"
        )
        raise DataError("a column of the data as id_of", brief(name), fix)
    return list(data[name])


def _of_items(data: Any, id_of: Any) -> tuple[str, ...]:
    """The ids in the items of a map-style dataset, which are read one by one."""
    found = []
    for i in range(len(data)):
        try:
            item = data[i]
        except (Exception, SystemExit) as error:  # whatever the dataset's own code may raise
            fix = f"make dataset[{i}] return an input, a label and an id"
            raise DataError(f"item {i} of the data", first_line(error), fix) from error
        if isinstance(item, Mapping):
            if id_of is None:
                return ()
            if id_of not in item:
                raise DataError(
                    "a key of the items as id_of", brief(id_of), did_you_mean(str(id_of), map(str, item))
                )
            found.append(item[id_of])
        elif isinstance(item, (tuple, list)) and not isinstance(id_of, str):
            at = 2 if id_of is None else id_of
            if not -len(item) <= at < len(item):
                return _unknown(id_of, f"a position in items of {len(item)}")
            found.append(item[at])
        else:
            return _unknown(id_of, f"another way to find the id in {type(item).__name__}")
    return as_text(found, "the ids")


def _unknown(id_of: Any, what: str) -> tuple[str, ...]:
    """No ids, if none were asked for."""
    if id_of is None:
        return ()
    raise DataError(f"{what} as id_of", brief(id_of), "or use adapt= to return (inputs, label, id)")


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
