"""Items of a dataset, in whatever form people keep them: where inputs, label and owner are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, brief, did_you_mean
from purge.data import inputs
from purge.data.ids import IdOf, no_owners
from purge.data.inputs import Inputs

# Where items that are dicts keep their inputs. What models of Hugging Face take by name goes together;
MODEL_KEYS = (
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "global_attention_mask", "bbox",
    "pixel_values", "pixel_mask", "input_values", "input_features", "inputs_embeds",
)  # fmt: skip
INPUT_KEYS = ("image", "img", "x", "input", "inputs", "features", "data")  # of these the first one is it.
LABEL_KEYS = ("label", "labels", "target", "targets", "y", "class")

ADAPT = "adapt=lambda item: (inputs, label)"
LABEL_TYPES = (int, np.integer, np.bool_, str, Tensor, np.ndarray, list)

Adapt = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Form:
    """Where the caller's data keeps labels and owners, if they had to say so."""

    label: str | None = None  # column or key of the label
    id_of: IdOf = None  # column, key or position of the owner, or the owners themselves
    adapt: Adapt | None = None  # from one item to (inputs, label) or (inputs, label, id)
    owned: bool = False  # the owners are needed: look for them where they usually are

    def __post_init__(self) -> None:
        if self.adapt is not None and not callable(self.adapt):
            raise DataError("a function as adapt", brief(self.adapt), f"pass {ADAPT}")
        if self.label is not None and not isinstance(self.label, str):
            raise DataError("the name of a column or key as label", brief(self.label), 'pass label="churned"')

    @property
    def told(self) -> bool:
        """Did the caller say where something is in an item?"""
        return self.adapt is not None or self.label is not None or isinstance(self.id_of, (str, int))

    @property
    def reads(self) -> bool:
        """Must items be read to know what was asked for?"""
        return self.told or self.owned

    def same(self, other: Form) -> bool:
        """Do both read data in the same way?"""
        mine, theirs = ((f.label, f.owned) for f in (self, other))
        return mine == theirs and self.id_of is other.id_of and self.adapt is other.adapt


class Item(NamedTuple):
    """Several items as one batch."""

    x: Inputs
    labels: list[Any]
    owners: list[Any]  # None where an item does not say it


def collated(
    items: Sequence[Any], form: Form, collate: Callable[[Any], Any] | None, what: str, check: bool = False
) -> Item:
    """Items of any form as a batch; ``check``: also that labels are of a kind that can be one."""
    if form.adapt is not None:
        made = [_three(form.adapt(item), what) for item in items]
        return Item(
            stacked([as_tensors(x, what) for x, _, _ in made], what), [y for _, y, _ in made],
            [who for *_, who in made],
        )  # fmt: skip
    owners = [owner_in(item, form) for item in items]
    if collate is not None:
        x, y = input_and_label(collate(list(items)), what, form.label)
        x = as_tensors(x, what)
        if {len(t) for t in inputs.leaves(x)} != {len(items)}:
            got = f"{len(inputs.leaves(x)[0])} rows for {len(items)} items"
            raise DataError(f"a collate_fn of {what} that keeps each item", got, "pass it without mixing")
        return Item(x, list(y) if not isinstance(y, Tensor) else list(y.detach().cpu()), owners)
    pairs = [input_and_label(item, what, form.label) for item in items]
    if check:
        _check_item(*pairs[0], what)
    return Item(stacked([as_tensors(x, what) for x, _ in pairs], what), [y for _, y in pairs], owners)


def _check_item(x: Any, y: Any, what: str) -> None:
    if odd := inputs.unusable((as_tensors(x, what), y)):
        raise DataError(f"plain tensors from {what}", odd, "return a dense tensor with values")
    if not isinstance(y, LABEL_TYPES):
        fix = f"return int labels, names of classes or one-hot rows, or pass {ADAPT}"
        raise DataError(f"whole numbers as labels in {what}", type(y).__name__, fix)


def owner_in(item: Any, form: Form) -> Any:
    """The owner that an item names: under the key or at the position of the form, or in third place."""
    key = form.id_of
    if key is None and not (form.owned and isinstance(item, (tuple, list)) and len(item) > 2):
        return None
    if key is not None and not isinstance(key, (str, int)):
        return None  # the owners themselves were given
    if isinstance(item, Mapping):
        if key not in item:
            fix = did_you_mean(str(key), map(str, item))
            raise DataError("a key of the items as id_of", brief(key), fix)
        return item[key]
    at = 2 if key is None else key
    if not isinstance(item, (tuple, list)) or isinstance(at, str) or not -len(item) <= at < len(item):
        where = f"a position in items of {len(item)}" if isinstance(item, (tuple, list)) else "another way"
        raise no_owners(key, where)
    return item[at]


def _three(made: Any, what: str) -> tuple[Any, Any, Any]:
    """What the caller's function returned: inputs, label and perhaps an id."""
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3):
        got = f"{len(made)} values" if isinstance(made, (tuple, list)) else type(made).__name__
        raise DataError(f"(inputs, label) or (inputs, label, id) from adapt for {what}", got, f"pass {ADAPT}")
    return made[0], made[1], made[2] if len(made) == 3 else None


def stacked(xs: Sequence[Inputs], what: str) -> Inputs:
    """The inputs of several items as one batch."""
    shapes = {tuple(tuple(t.shape) for t in inputs.leaves(x)) for x in xs}
    if len(shapes) > 1:
        two = " and ".join(map(str, sorted({str(s[0]) for s in shapes})[:2]))
        fix = "bring all inputs to one size, or pass a DataLoader whose collate_fn pads them"
        raise DataError(f"inputs of one shape in {what}", two, fix)
    return inputs.apply(lambda *ts: torch.stack(ts), *xs)


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
