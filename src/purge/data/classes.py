"""Labels as people write them, as numbers 0 … K-1: whole numbers, booleans, one-hot rows, names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, brief
from purge.data import inputs
from purge.data.dataframes import is_frame
from purge.data.images import as_labels
from purge.data.items import LABEL_KEYS, native


def numbered(y: Any, n: int, what: str, names: Sequence[str] = ()) -> tuple[Tensor, tuple[str, ...], bool]:
    """Labels (N,) int64 on the CPU, the names of the classes, and whether the labels were names.

    ``names``: of all classes in their order, where the data tells them.

    >>> numbered(["dog", "cat", "dog"], 3, "x")
    (tensor([1, 0, 1]), ('cat', 'dog'), True)
    """
    if is_frame(y):
        if len(y.columns) != 1:
            got = f"a DataFrame of {len(y.columns)} columns"
            raise DataError(f"one column of labels in {what}", got, 'pass df["label"]')
        y = y.iloc[:, 0]
    categories = getattr(getattr(y, "cat", None), "categories", ())
    if len(categories) and all(isinstance(name, str) for name in categories):
        names = categories
    if hasattr(y, "iloc"):
        plain = isinstance(y.dtype, np.dtype) and y.dtype.kind in "biuf"
        y = y.to_numpy(copy=True) if plain else list(y)
    words = _words(y, what)
    if words is None:
        return as_numbers(y, n, what), tuple(names), False
    order = tuple(names) if set(words) <= set(names) else tuple(sorted(set(words)))
    place = {name: i for i, name in enumerate(order)}
    return torch.tensor([place[word] for word in words], dtype=torch.long), order, True


def _words(y: Any, what: str) -> list[str] | None:
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


def as_numbers(y: Any, n: int, what: str) -> Tensor:
    """Labels (N,) int64 on the CPU: of whole numbers, booleans or one-hot rows (N, K).

    >>> as_numbers(torch.tensor([[0, 1, 0], [1, 0, 0]]), 2, "x").tolist()
    [1, 0]
    """
    try:
        if isinstance(y, (list, tuple)):
            if all(type(one) is int for one in y):  # as most are, and this is faster
                y = torch.tensor(y, dtype=torch.long)
            else:
                y = torch.stack([torch.as_tensor(native(one)) for one in y])
        y = native(y)
        if isinstance(y, np.ndarray) and y.dtype.kind in "biuf":
            y = torch.as_tensor(y)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        kinds = ", ".join(sorted({type(one).__name__ for one in y})[:3])
        raise DataError(f"labels of one kind in {what}", kinds, "number the classes 0 … K-1") from None
    if isinstance(y, Tensor) and not inputs.unusable(y) and not y.is_complex():
        if y.ndim == 2 and y.shape[0] == n and y.shape[1] > 1:
            return _of_one_hot(y, what)
        y = y.reshape(n) if y.shape == (n, 1) else y  # a column
        y = y.long() if y.dtype == torch.bool else y
    return as_labels(y, n, what)


def _of_one_hot(y: Tensor, what: str) -> Tensor:
    if not bool((((y == 0) | (y == 1)).all(1) & (y.double().sum(1) == 1)).all()):
        fix = "pass class indices (argmax of each row), or rows with a single 1"
        raise DataError(f"one class per sample in {what}, one-hot", f"other rows of {y.shape[1]}", fix)
    return y.detach().to(torch.uint8).argmax(1).cpu()


def names_of(data: Any, label: str | None = None) -> tuple[str, ...]:
    """The names of the classes in their order, where data tells them."""
    if hasattr(data, "iloc"):  # a DataFrame, whose attributes are columns
        return ()
    known = getattr(data, "names", None) or getattr(data, "classes", None)
    features = getattr(data, "features", None)
    if not known and isinstance(features, Mapping):
        keys = (label,) if label else LABEL_KEYS
        known = next((getattr(features[key], "names", None) for key in keys if key in features), None)
    if known is None or isinstance(known, str) or not isinstance(known, Iterable):
        return ()
    names = tuple(known)
    return names if all(isinstance(name, str) for name in names) else ()
