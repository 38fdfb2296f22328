"""Items of a dataset, in whatever form people keep them: where inputs, label and owner are.

An owner is whose a sample is: the user's own id, such as a customer number or an e-mail address, as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, brief, did_you_mean
from purge.data import inputs
from purge.data.inputs import Inputs

# Where items that are dicts keep their inputs. What models of Hugging Face take by name goes together;
MODEL_KEYS = (
    "input_ids", "attention_mask", "token_type_ids", "position_ids", "global_attention_mask", "bbox",
    "pixel_values", "pixel_mask", "input_values", "input_features", "inputs_embeds",
)  # fmt: skip
INPUT_KEYS = ("image", "img", "x", "input", "inputs", "features", "data")  # of these the first one is it.
LABEL_KEYS = ("label", "labels", "target", "targets", "y", "class")

ADAPT = "adapt=lambda item: (inputs, label)"

SHOWN = 3  # ids that a message may name: they are personal data

Adapt = Callable[[Any], Any]
IdOf: TypeAlias = "str | int | Sequence[Any] | Any | None"  # a column or key, a position, or the ids


@dataclass(frozen=True, eq=False)
class Form:
    """Where the caller's data keeps labels and owners, if they had to say so."""

    label: str | None = None  # column or key of the label
    id_of: IdOf = None  # column, key or position of the owner, or the owners themselves
    adapt: Adapt | None = None  # from one item to (inputs, label) or (inputs, label, id)
    owned: bool = False  # the owners are needed: look for them where they usually are

    @property
    def explicit(self) -> bool:
        """Did the caller say where something is in an item?"""
        return self.adapt is not None or self.label is not None or isinstance(self.id_of, (str, int))

    @property
    def reads(self) -> bool:
        """Must items be read to know what the caller wants?"""
        return self.explicit or self.owned

    def same(self, other: Form) -> bool:
        """Do both read data in the same way?"""
        mine, theirs = ((f.label, f.owned) for f in (self, other))
        return mine == theirs and self.id_of is other.id_of and self.adapt is other.adapt


class Item(NamedTuple):
    """Several items as one batch."""

    x: Inputs
    labels: list[Any]
    owners: list[Any]  # None where an item does not say it


def collated(items: Sequence[Any], form: Form, collate: Callable[[Any], Any] | None, what: str) -> Item:
    """Items of any form as a batch."""
    if collate is not None and form.adapt is None:
        x, y = input_and_label(collate(list(items)), what, form.label)
        x = as_tensors(x, what)
        if {len(t) for t in inputs.leaves(x)} != {len(items)}:
            got = f"{len(inputs.leaves(x)[0])} rows for {len(items)} items"
            raise DataError(f"a collate_fn of {what} that keeps each item", got, "pass it without mixing")
        labels = list(y.detach().cpu() if isinstance(y, Tensor) else y)
        return Item(x, labels, [owner_in(item, form) for item in items])
    xs, labels, owners = [], list[Any](), list[Any]()
    for item in items:
        if form.adapt is None:
            (x, y), owner = input_and_label(item, what, form.label), owner_in(item, form)
        else:
            adapted = form.adapt(item)
            if not isinstance(adapted, (tuple, list)) or len(adapted) not in (2, 3):
                expected = f"(inputs, label) or (inputs, label, id) from adapt for {what}"
                raise DataError(expected, type(adapted).__name__, f"pass {ADAPT}")
            x, y, owner = (*adapted, None)[:3]
        xs.append(as_tensors(x, what))
        labels.append(y)
        owners.append(owner)
    if odd := inputs.unusable((xs[0], labels[0])):
        raise DataError(f"plain tensors from {what}", odd, "return a dense tensor with values")
    shapes = {tuple(tuple(t.shape) for t in inputs.leaves(x)) for x in xs}
    if len(shapes) > 1:
        two = " and ".join(map(str, sorted({str(s[0]) for s in shapes})[:2]))
        fix = "bring all inputs to one size, or pass a DataLoader whose collate_fn pads them"
        raise DataError(f"inputs of one shape in {what}", two, fix)
    return Item(inputs.apply(lambda *ts: torch.stack(ts), *xs), labels, owners)


def owner_in(item: Any, form: Form) -> Any:
    """The owner that an item names: under the key or at the position of the form, or in third place."""
    key, positions = form.id_of, isinstance(item, (tuple, list))
    if key is None and form.owned and positions and len(item) > 2:
        key = 2
    if not isinstance(key, (str, int)):
        return None  # nothing says it, or the owners themselves were passed
    try:
        return item[key]
    except (KeyError, IndexError, TypeError):
        if isinstance(item, Mapping):
            what, fix = "a key of the items", did_you_mean(str(key), map(str, item))
        else:
            what = f"a position in items of {len(item)}" if positions else "another way"
            fix = "use adapt= to return (inputs, label, id)"
        raise DataError(f"{what} as id_of", brief(key), fix) from None


def input_and_label(item: Any, what: str = "the dataset", label: str | None = None) -> tuple[Any, Any]:
    """The input and the label in an item (or a batch): of a tuple the first two, of a dict the usual keys.

    Of a dict the inputs that models take by name go together; otherwise the first of the usual keys counts.

    >>> input_and_label({"input_ids": 1, "attention_mask": 2, "label": 0, "text": "…"})
    ({'input_ids': 1, 'attention_mask': 2}, 0)
    """
    got = type(item).__name__ if label is None else f"{label!r} for {type(item).__name__}"
    if isinstance(item, Mapping):
        there = [key for key in item if item[key] is not None and key != label]
        targets = [key for key in LABEL_KEYS if key in there] if label is None else [label]
        named = [key for key in MODEL_KEYS if key in there]
        usual = [*named, *(key for key in INPUT_KEYS if key in there)]
        if label is not None and label not in item:
            fix = did_you_mean(str(label), map(str, list(item)[:20]))
            raise DataError(f"a key of the items of {what} as label", brief(label), fix)
        if targets and usual:
            x = {key: item[key] for key in named} if len(named) > 1 else item[usual[0]]
            return x, item[targets[0]]
        got = f"a dict of {', '.join(map(repr, list(item)[:12]))}"
    elif isinstance(item, (tuple, list)) and len(item) >= 2 and label is None:
        return item[0], item[1]
    expected = f"items (x, y), or dicts with an input such as 'pixel_values' and a 'label', in {what}"
    fix = f"return an input and its label, name the key of dicts in label=, or pass {ADAPT}"
    raise DataError(expected, got, fix)


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
        from purge.data.decode import eight_bit  # imports Pillow, which few need

        pixels = np.atleast_3d(np.asarray(eight_bit(x))).transpose(2, 0, 1)
        return torch.tensor(pixels).float() / 255  # as torchvision's ToTensor gives it
    got = type(x).__name__
    try:
        if isinstance(x, np.ndarray):
            return torch.as_tensor(native(x))
        if isinstance(x, list) and x:
            return torch.stack(x) if isinstance(x[0], Tensor) else torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError):
        got = f"a {got} that is no table of numbers"
    fix = f"add a transform such as torchvision.transforms.ToTensor(), or pass {ADAPT}"
    if isinstance(x, str):
        fix = f"tokenize text or read files in the dataset, or pass {ADAPT}"
    raise DataError(f"tensors as inputs from {what}", got, fix)


def native(part: Any) -> Any:
    """An array as torch takes it: contiguous, writable, and in the byte order of this machine."""
    if not isinstance(part, np.ndarray):
        return part
    array = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
    return array if array.flags.writeable or array.ndim == 0 else array.copy()


# -- owners ---------------------------------------------------------------------------------------


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
