"""Datasets and pairs as people have them: lengths, parts, labels that are listed, arrays that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from purge.core.errors import DataError, brief, first_line
from purge.data import inputs
from purge.data.backends import ITEMS
from purge.data.inputs import Inputs
from purge.data.items import LABEL_KEYS, input_and_label, native

MOST_SAMPLES = 1 << 31  # an index of them takes 16 GB


def length(data: Any, what: str = "the dataset") -> int:
    """How many items a dataset has, or a DataError if it cannot say."""
    map_style = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not map_style or isinstance(data, (Mapping, str, Tensor, np.ndarray)):
        raise DataError(
            f"{what} as a dataset with a length and items, a pair of tensors, a DataFrame or purge.Images",
            type(data).__name__,
            "use a map-style dataset (with __len__ and __getitem__)",
        )
    try:
        n = len(data)
    except (Exception, SystemExit) as error:  # whatever the dataset's own code may raise
        fix = "make __len__ return the number of items"
        raise DataError(f"a length of {what}", first_line(error), fix) from error
    if n > MOST_SAMPLES:
        raise DataError(f"at most {MOST_SAMPLES} samples in {what}", str(n), "check its __len__")
    return n


def check_pair(data: Sequence[Any], what: str) -> tuple[Inputs, Any]:
    """Inputs and labels that were given as a pair: arrays become tensors."""
    if len(data) != 2 or not isinstance(data[1], (Tensor, np.ndarray)) or not are_arrays(data[0]):
        kinds = ", ".join(type(part).__name__ for part in data[:4])
        raise DataError(f"{what} as a pair of tensors (x, y)", f"({kinds})", "pass (inputs, labels)")
    try:
        x, y = inputs.apply(lambda t: torch.as_tensor(native(t)), data[0]), native(data[1])
    except TypeError:
        kinds = ", ".join({str(part.dtype) for part in inputs.leaves(data[0])})
        raise DataError(
            f"numbers as inputs in {what}", f"an array of {kinds}", "convert them to floats"
        ) from None
    if odd := inputs.unusable((x, y)):
        raise DataError(f"plain tensors in {what}", odd, "convert it to a dense tensor with values")
    shapes = [tuple(t.shape) for t in (*inputs.leaves(x), y)]
    if not all(shapes) or len({shape[0] for shape in shapes}) > 1:
        raise DataError(
            f"as many inputs as labels in {what}",
            " and ".join(map(str, shapes)),
            "pass tensors with the same first dimension",
        )
    return x, y


def are_arrays(x: Any) -> bool:
    """Is it a tensor or an array, or a dict or tuple of them?"""
    if isinstance(x, (dict, tuple)):
        return bool(x) and all(isinstance(part, (Tensor, np.ndarray)) for part in inputs.leaves(x))
    return isinstance(x, (Tensor, np.ndarray))


def is_table(dataset: Any) -> bool:
    """Is it a TensorDataset that gives out its rows as they are: inputs, labels and perhaps more?"""
    plain = isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__
    return plain and len(dataset.tensors) >= 2


def known_labels(dataset: Any) -> Sequence[Any] | Tensor | None:
    """Labels that a dataset lists, as those of torchvision do, so that not every item must be read.

    What is called ``labels`` is believed if it agrees with some items.
    """
    listed = getattr(dataset, "targets", None)
    if listed is None and _are_labels(named := getattr(dataset, "labels", None), dataset):
        listed = named
    columns = getattr(dataset, "column_names", None) if hasattr(dataset, "features") else None
    if listed is None and isinstance(columns, list):  # Hugging Face
        listed = next((list(dataset[key]) for key in LABEL_KEYS if key in columns), None)
    if listed is None or getattr(dataset, "target_transform", None) is not None:
        return None
    if isinstance(listed, (list, tuple)) and listed and all(isinstance(one, str) for one in listed):
        return listed if len(listed) == len(dataset) else None
    try:
        found = torch.as_tensor(listed)
    except (TypeError, ValueError, RuntimeError):
        return None
    return found if found.ndim and len(found) == len(dataset) else None


def _are_labels(listed: Any, dataset: Any) -> bool:
    """Is it a list of whole numbers, one per item and those that a few items have?"""
    try:
        found, n = torch.as_tensor(listed), len(dataset)
        rows = [i * n // ITEMS for i in range(ITEMS)]
        return found.shape == (n,) and all(int(input_and_label(dataset[i])[1]) == found[i] for i in rows)
    except Exception:  # whatever it is, and whatever the dataset's own code may raise
        return False


def unwrap(dataset: Any) -> tuple[Any, Tensor]:
    """The dataset under any nesting of Subset, and the indices into it."""
    index = torch.arange(length(dataset))
    while isinstance(dataset, Subset):
        index = _indices(dataset)[index]
        n = length(dataset.dataset)
        if bool(((index < -n) | (index >= n)).any()):
            strange = int(index[(index < -n) | (index >= n)][0])
            raise DataError(f"indices of a Subset below {n}", str(strange), "check its indices")
        index = torch.where(index < 0, index + n, index)
        dataset = dataset.dataset
    return dataset, index


def _indices(subset: Subset[Any]) -> Tensor:
    """The indices of a Subset, which may be anything that its caller took for indices."""
    try:
        found = torch.as_tensor(list(subset.indices) or np.empty(0, np.int64))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = torch.empty(0)
    whole = not (found.dtype.is_floating_point or found.dtype.is_complex or found.dtype == torch.bool)
    if found.ndim != 1 or not whole:
        fix = "pass positions in the dataset, Subset(dataset, [0, 1])"
        raise DataError("whole numbers as indices of a Subset", brief(list(subset.indices)[:5]), fix)
    return found.long()
