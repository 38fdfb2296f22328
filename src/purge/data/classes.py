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
from purge.data.formats.source import MOST_CLASSES
from purge.data.items import LABEL_KEYS, native


def numbered(y: Any, n: int, what: str, names: Sequence[str] = ()) -> tuple[Tensor, tuple[str, ...], bool]:
    """Labels (N,) int64 on the CPU, the names of the classes, and whether the labels were names.

    ``names``: of all classes in their order, where the data tells them.

    >>> numbered(["dog", "cat", "dog"], 3, "x")
    (tensor([1, 0, 1]), ('cat', 'dog'), True)
    """
    if is_frame(y):
        y = y.iloc[:, 0] if len(y.columns) == 1 else y.to_numpy()
    categories = getattr(getattr(y, "cat", None), "categories", ())
    if len(categories) and all(isinstance(name, str) for name in categories):
        names = categories
    if hasattr(y, "iloc"):
        plain = isinstance(y.dtype, np.dtype) and y.dtype.kind in "biuf"
        y = y.to_numpy(copy=True) if plain else list(y)
    numbers = isinstance(y, Tensor) or (isinstance(y, np.ndarray) and y.dtype.kind not in "OUST")
    words = [] if numbers else y.tolist() if hasattr(y, "tolist") else list(y)
    if not any(isinstance(value, str) for value in words[:1000]):
        return as_labels(y, n, what), tuple(names), False
    for row, value in enumerate(words):
        if not isinstance(value, str) or not value.strip():
            got = f"{brief(value)} as label of sample {row}"
            raise DataError(f"a name of its class for every sample of {what}", got, "fill it in or drop it")
    order = tuple(names) if set(words) <= set(names) else tuple(sorted(set(words)))
    place = {name: i for i, name in enumerate(order)}
    return torch.tensor([place[word] for word in words], dtype=torch.long), order, True


def as_labels(y: Any, n: int, what: str) -> Tensor:
    """Labels (N,) int64 on the CPU: of whole numbers, booleans or one-hot rows (N, K).

    >>> as_labels(torch.tensor([[0, 1, 0], [1, 0, 0]]), 2, "x").tolist()
    [1, 0]
    """
    try:
        if isinstance(y, (list, tuple)) and not all(type(one) is int for one in y):
            y = torch.stack([torch.as_tensor(native(one)) for one in y])
        y = torch.as_tensor(native(y))
        odd = inputs.unusable(y)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        odd = ", ".join(sorted({type(one).__name__ for one in (y if isinstance(y, list) else [y])})[:3])
    if not odd and y.ndim == 2 and len(y) == n and y.shape[1] > 1:
        if not bool((((y == 0) | (y == 1)).all(1) & (y.double().sum(1) == 1)).all()):
            fix = "pass class indices (argmax of each row), or rows with a single 1"
            raise DataError(f"one class per sample in {what}, one-hot", f"other rows of {y.shape[1]}", fix)
        y = y.to(torch.uint8).argmax(1)
    if odd or y.is_floating_point() or y.is_complex():
        raise DataError(
            f"whole numbers as labels in {what}", odd or str(y.dtype), "convert them with y.long()"
        )
    if y.shape not in ((n,), (n, 1)):
        got, fix = str(tuple(y.shape)), "pass the number of its class for each sample"
        raise DataError(f"one label per sample in {what}, shape ({n},)", got, fix)
    labels: Tensor = y.detach().reshape(n).long().cpu()
    low, high = (int(labels.min()), int(labels.max())) if n else (0, 0)
    if low < 0 or high >= MOST_CLASSES:
        got, fix = str(low if low < 0 else high), "number the classes 0 … K-1"
        raise DataError(f"labels from 0 to {MOST_CLASSES - 1} in {what}", got, fix)
    return labels


def names_of(data: Any, label: str | None = None) -> tuple[str, ...]:
    """The names of the classes in their order, where data tells them."""
    if hasattr(data, "iloc"):  # a DataFrame, whose attributes are columns
        return ()
    known = getattr(data, "names", None) or getattr(data, "classes", None)
    features = getattr(data, "features", None)
    if not known and isinstance(features, Mapping):
        keys = (label,) if label else LABEL_KEYS
        known = next((getattr(features[key], "names", None) for key in keys if key in features), None)
    names = tuple(known) if isinstance(known, Iterable) and not isinstance(known, str) else ()
    return names if all(isinstance(name, str) for name in names) else ()
