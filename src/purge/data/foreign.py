"""Datasets and pairs as people have them: lengths, parts, labels that are listed, arrays that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from purge.core.errors import DataError, brief, first_line
from purge.data import inputs
from purge.data.backends import ITEMS
from purge.data.inputs import Inputs
from purge.data.items import LABEL_KEYS, input_and_label, native

ARRAYS = (Tensor, np.ndarray, list, tuple)  # what labels may be in
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
        if n > MOST_SAMPLES:
            raise OverflowError(f"{n} items")
    except (Exception, SystemExit) as error:  # whatever the dataset's own code may raise
        fix = f"make __len__ return the number of items, at most {MOST_SAMPLES}"
        raise DataError(f"a length of {what}", first_line(error), fix) from error
    return n


def unwrap(dataset: Any) -> tuple[Any, Tensor]:
    """The dataset under any nesting of Subset, and the indices into it."""
    index = torch.arange(length(dataset))
    while isinstance(dataset, Subset):
        n = length(dataset.dataset)
        try:
            own = np.asarray(list(dataset.indices) or np.empty(0, np.int64))
        except ValueError:  # lists of unequal length
            own = np.empty((0, 0))
        if own.ndim != 1 or own.dtype.kind not in "iu" or not bool(((own >= -n) & (own < n)).all()):
            what = f"whole numbers as indices of a Subset below {n}"
            got = brief(list(dataset.indices)[:5])
            raise DataError(what, got, "pass positions in the dataset, Subset(dataset, [0, 1])")
        index = torch.from_numpy(own.astype(np.int64))[index]
        index = torch.where(index < 0, index + n, index)
        dataset = dataset.dataset
    return dataset, index


def known_labels(dataset: Any) -> Sequence[Any] | Tensor | None:
    """Labels that a dataset lists, as those of torchvision do, so that not every item must be read.

    What is called ``labels`` is believed if it agrees with some items.
    """
    if getattr(dataset, "target_transform", None) is not None:
        return None
    listed = getattr(dataset, "targets", None)
    if listed is None and _are_labels(named := getattr(dataset, "labels", None), dataset):
        listed = named
    columns = getattr(dataset, "column_names", None) if hasattr(dataset, "features") else None
    if listed is None and isinstance(columns, list):  # Hugging Face
        listed = next((list(dataset[key]) for key in LABEL_KEYS if key in columns), None)
    if isinstance(listed, (list, tuple)) and listed and all(isinstance(one, str) for one in listed):
        return listed if len(listed) == len(dataset) else None
    try:
        labels = torch.as_tensor(listed)
    except (TypeError, ValueError, RuntimeError):
        return None
    return labels if labels.ndim and len(labels) == len(dataset) else None


def _are_labels(listed: Any, dataset: Any) -> bool:
    """Is it a list of whole numbers, one per item and those that a few items have?"""
    try:
        labels, n = torch.as_tensor(listed), len(dataset)
        rows = [i * n // ITEMS for i in range(ITEMS)]
        return labels.shape == (n,) and all(int(input_and_label(dataset[i])[1]) == labels[i] for i in rows)
    except Exception:  # whatever it is, and whatever the dataset's own code may raise
        return False


def are_arrays(x: Any) -> bool:
    """Is it a tensor or an array, or a dict or tuple of them?"""
    nested = isinstance(x, (dict, tuple)) and bool(x)
    return all(isinstance(part, (Tensor, np.ndarray)) for part in (inputs.leaves(x) if nested else [x]))


def check_pair(data: Sequence[Any], what: str) -> Inputs:
    """The inputs of a pair of inputs and labels, whose arrays become tensors."""
    if len(data) != 2 or not isinstance(data[1], ARRAYS) or not are_arrays(data[0]):
        kinds = ", ".join(type(part).__name__ for part in data[:4])
        raise DataError(f"{what} as a pair of tensors (x, y)", f"({kinds})", "pass (inputs, labels)")
    try:
        x = inputs.apply(lambda t: torch.as_tensor(native(t)), data[0])
        odd = inputs.unusable((x, data[1]))
    except TypeError:
        x, odd = None, f"an array of {', '.join({str(part.dtype) for part in inputs.leaves(data[0])})}"
    if odd:
        raise DataError(f"plain tensors of numbers in {what}", odd, "convert it to dense floats with values")
    lengths = [tuple(t.shape[:1]) for t in inputs.leaves(x)]
    lengths.append(tuple(np.shape(data[1])[:1]) if isinstance(data[1], np.ndarray) else (len(data[1]),))
    if not all(lengths) or len(set(lengths)) > 1:
        fix = "pass tensors with the same first dimension"
        raise DataError(f"as many inputs as labels in {what}", " and ".join(map(str, lengths)), fix)
    return x
