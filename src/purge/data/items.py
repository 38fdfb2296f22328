"""One item of a dataset, in whatever form people keep them: where its inputs and its label are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, brief, did_you_mean
from purge.data.inputs import Inputs

# Where items that are dicts keep their inputs. What models of Hugging Face take by name goes together;
MODEL_KEYS = (
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "global_attention_mask", "bbox",
    "pixel_values", "pixel_mask", "input_values", "input_features", "inputs_embeds",
)  # fmt: skip
INPUT_KEYS = ("image", "img", "x", "input", "inputs", "features", "data")  # of these the first one is it.
LABEL_KEYS = ("label", "labels", "target", "targets", "y", "class")

ADAPT = "adapt=lambda item: (inputs, label)"


def input_and_label(item: Any, what: str = "the dataset", label: str | None = None) -> tuple[Any, Any]:
    """The input and the label in an item (or a batch): of a tuple the first two, of a dict the usual keys.

    >>> input_and_label({"input_ids": 1, "attention_mask": 2, "label": 0, "text": "…"})
    ({'input_ids': 1, 'attention_mask': 2}, 0)
    """
    if isinstance(item, Mapping):
        return inputs_in(item, what, label), label_in(item, what, label)
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        if label is not None:
            got, fix = f"{label!r} for {type(item).__name__}", f"leave label out, or pass {ADAPT}"
            raise DataError(f"items of {what} as dicts if label= names a key", got, fix)
        return item[0], item[1]
    raise _strange(type(item).__name__, what)


def inputs_in(item: Mapping[Any, Any], what: str, label: str | None = None) -> Any:
    """The inputs in a dict: those that models take by name together, or the first of the usual keys."""
    named = {key: item[key] for key in MODEL_KEYS if item.get(key) is not None and key != label}
    if len(named) > 1:
        return named
    for key in (*named, *INPUT_KEYS):
        if item.get(key) is not None and key != label:
            return item[key]
    raise _strange(f"a dict of {_keys(item)}", what)


def label_in(item: Mapping[Any, Any], what: str, label: str | None = None) -> Any:
    """The label in a dict: what was named, otherwise the first of the usual keys."""
    if label is not None:
        if label not in item:
            fix = did_you_mean(label, map(str, list(item)[:20]))
            raise DataError(f"a key of the items of {what} as label", brief(label), fix)
        return item[label]
    found = next((item[key] for key in LABEL_KEYS if item.get(key) is not None), None)
    if found is None:
        raise _strange(f"a dict of {_keys(item)}", what)
    return found


def _keys(item: Mapping[Any, Any]) -> str:
    return ", ".join(map(repr, list(item)[:12]))


def _strange(got: str, what: str) -> DataError:
    return DataError(
        f"items (x, y), or dicts with an input such as 'pixel_values' and a 'label', in {what}",
        got,
        f"return an input and its label, name the key in label=, or pass {ADAPT}",
    )


def as_tensors(x: Any, what: str) -> Inputs:
    """The inputs of an item as tensors: arrays, lists of numbers and images of Pillow become some.

    >>> as_tensors([[1, 2], [3, 4]], "x")
    tensor([[1, 2],
            [3, 4]])
    """
    if isinstance(x, Tensor):
        return x
    if isinstance(x, Mapping) and x:
        return {key: as_tensors(part, what) for key, part in x.items()}
    if isinstance(x, tuple) and x and not isinstance(x[0], (int, float)):
        return tuple(as_tensors(part, what) for part in x)
    if type(x).__module__.startswith("PIL."):
        return _pixels(x)
    try:
        if isinstance(x, np.ndarray):
            return torch.as_tensor(native(x))
        if isinstance(x, list) and x:
            return torch.stack(x) if isinstance(x[0], Tensor) else torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        got = f"a {type(x).__name__} that is no table of numbers"
        raise DataError(f"numbers as inputs from {what}", got, f"return tensors, or pass {ADAPT}") from None
    fix = f"add a transform such as torchvision.transforms.ToTensor(), or pass {ADAPT}"
    if isinstance(x, str):
        fix = f"tokenize text or read files in the dataset, or pass {ADAPT}"
    raise DataError(f"tensors as inputs from {what}", type(x).__name__, fix)


def _pixels(image: Any) -> Tensor:
    """An image of Pillow as torchvision's ToTensor gives it: (C, H, W), from 0 to 1."""
    from purge.data.decode import eight_bit  # imports Pillow, which few need

    pixels = np.asarray(eight_bit(image))
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.tensor(pixels).float() / 255


def native(part: Any) -> Any:
    """An array as torch takes it: contiguous, writable, and in the byte order of this machine."""
    if not isinstance(part, np.ndarray):
        return part
    found = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
    return found if found.flags.writeable or found.ndim == 0 else found.copy()
