"""Labels as people write them, as numbers 0 … K-1: whole numbers, booleans, one-hot rows, names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, brief
from purge.data import inputs
from purge.data.images import as_labels
from purge.data.items import LABEL_KEYS, native


def as_numbers(y: Any, n: int, what: str) -> Tensor:
    """Labels (N,) int64 on the CPU: of whole numbers, booleans or one-hot rows (N, K).

    >>> as_numbers(torch.tensor([[0, 1, 0], [1, 0, 0]]), 2, "x").tolist()
    [1, 0]
    """
    if isinstance(y, (list, tuple)):
        y = _stacked(y, what)
    y = native(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if isinstance(y, (Tensor, np.ndarray)) and len(y.shape) == 2 and y.shape[0] == n:
        if y.shape[1] > 1:
            return _of_one_hot(y, what)
        y = y.reshape(n) if n else y  # a column
    if isinstance(y, np.ndarray) and y.dtype == bool:
        y = torch.as_tensor(y)
    if isinstance(y, Tensor) and y.dtype == torch.bool and not inputs.unusable(y):
        y = y.long()
    return as_labels(y, n, what)


def _stacked(y: Sequence[Any], what: str) -> Any:
    """The labels of single items as one tensor."""
    try:
        if all(type(one) is int for one in y):  # as most are, and this is faster
            return torch.tensor(y, dtype=torch.long)
        return torch.stack([torch.as_tensor(native(one)) for one in y])
    except (TypeError, ValueError, RuntimeError, OverflowError):
        kinds = ", ".join(sorted({type(one).__name__ for one in y})[:3])
        raise DataError(f"labels of one kind in {what}", kinds, "number the classes 0 … K-1") from None


def _of_one_hot(y: Tensor | np.ndarray[Any, Any], what: str) -> Tensor:
    try:
        rows = torch.as_tensor(y)
    except (TypeError, ValueError):
        rows = torch.empty(0, 0)
    plain = rows.numel() and not inputs.unusable(rows) and not rows.is_complex()
    if not plain or not bool((((rows == 0) | (rows == 1)).all(1) & (rows.double().sum(1) == 1)).all()):
        fix = "pass class indices (argmax of each row), or rows with a single 1"
        raise DataError(f"one class per sample in {what}, one-hot", f"other rows of {y.shape[1]}", fix)
    return rows.detach().to(torch.uint8).argmax(1).cpu()


def words_of(y: Any, what: str) -> list[str] | None:
    """The labels as text if they are names of classes, None if they are numbers."""
    if isinstance(y, Tensor) or (isinstance(y, np.ndarray) and y.dtype.kind not in "OUST"):
        return None
    values = y.tolist() if hasattr(y, "tolist") else list(y)
    if not any(isinstance(value, str) for value in values[:1000]):
        return None
    for row, value in enumerate(values):
        if not isinstance(value, str) or not value.strip():
            got = f"{brief(value)} as label of sample {row}"
            raise DataError(f"a name of its class for every sample of {what}", got, "fill it in or drop it")
    return values


def names_of(data: Any, label: str | None = None) -> tuple[str, ...]:
    """The names of the classes in their order, where data tells them."""
    if hasattr(data, "iloc"):  # a DataFrame, whose attributes are columns
        return ()
    found = getattr(data, "names", None) or getattr(data, "classes", None)
    features = getattr(data, "features", None)
    if not found and isinstance(features, Mapping):
        keys = (label,) if label else LABEL_KEYS
        found = next((getattr(features[key], "names", None) for key in keys if key in features), None)
    if found is None or isinstance(found, str) or not isinstance(found, Iterable):
        return ()
    names = tuple(found)
    return names if all(isinstance(name, str) for name in names) else ()


def common_order(words: Mapping[str, list[str]], orders: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """One order of class names for all sets: the first of ``orders`` that has them all, else sorted."""
    there = set().union(*map(set, words.values()))
    for order in orders:
        if there <= set(order):
            return tuple(order)
    return tuple(sorted(there))


def numbers_of_words(words: Sequence[str], order: Sequence[str]) -> Tensor:
    """The place of each name in the order.

    >>> numbers_of_words(["dog", "cat", "dog"], ("cat", "dog")).tolist()
    [1, 0, 1]
    """
    place = {name: i for i, name in enumerate(order)}
    return torch.tensor([place[word] for word in words], dtype=torch.long)
