"""Items of any form on their way to ``(inputs, label)``: how to read them, and what was read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from purge.core.errors import DataError, brief
from purge.data import inputs
from purge.data.ids import IdOf
from purge.data.inputs import Inputs
from purge.data.items import ADAPT, as_tensors, input_and_label
from purge.data.ragged import stretched

Adapt = Callable[[Any], Any]


@dataclass(frozen=True)
class Form:
    """Where the caller's data keeps labels and ids, if they had to say so."""

    label: str | None = None  # column or key of the label
    id_of: IdOf = None  # column, key or position of the id, or the ids themselves
    adapt: Adapt | None = None  # from one item to (inputs, label) or (inputs, label, id)

    def __post_init__(self) -> None:
        if self.adapt is not None and not callable(self.adapt):
            raise DataError("a function as adapt", brief(self.adapt), f"pass {ADAPT}")
        if self.label is not None and not isinstance(self.label, str):
            raise DataError("the name of a column or key as label", brief(self.label), 'pass label="churned"')

    @property
    def told(self) -> bool:
        """Did the caller say anything?"""
        return self.label is not None or self.id_of is not None or self.adapt is not None


@dataclass
class Raw:
    """What was read: inputs, and labels that may still be names."""

    x: Inputs
    labels: Any
    whole: Any
    rows: Tensor | None = None
    subjects: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    pads: tuple[Any, ...] = ()
    columns: tuple[Any, ...] = ()
    cast: bool = False
    large: Adapted | None = None  # in place of x, if that is too large to keep

    def __len__(self) -> int:
        return len(self.labels)


class Adapted(Dataset[Any]):
    """A dataset whose items became ``(inputs, number of the class)``; for what is too large to keep."""

    def __init__(self, data: Any, form: Form, collate: Callable[[Any], Any] | None, what: str) -> None:
        self.data, self.form, self.collate, self.what = data, form, collate, what
        self.targets: list[int] = []
        self.names: tuple[str, ...] = ()
        self.worded = False  # the labels were names
        self.subjects: tuple[str, ...] = ()
        self.shapes: list[tuple[int, ...]] = []  # of every tensor, if they differ in length
        self.pads: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> tuple[Inputs, int]:
        x, y, _ = self.opened([self.data[i]])
        if self.shapes:
            x = stretched(x, self.shapes, self.pads, self.what)
        return inputs.take(x, 0), self.targets[i] if self.targets else y[0]

    def opened(self, items: Sequence[Any]) -> tuple[Inputs, Any, list[Any]]:
        """Inputs (as one batch), labels and ids of some items as they came."""
        form, what = self.form, self.what
        if form.adapt is not None:
            made = [_three(form.adapt(item), what) for item in items]
            return stacked([as_tensors(x, what) for x, _, _ in made], what), *_columns(made)
        if self.collate is not None:
            x, y = input_and_label(self.collate(list(items)), what, form.label)
            x = as_tensors(x, what)
            if {len(t) for t in inputs.leaves(x)} != {len(items)}:
                got = f"{len(inputs.leaves(x)[0])} rows for {len(items)} items"
                raise DataError(f"a collate_fn of {what} that keeps each item", got, "pass it without mixing")
            return x, list(y) if not isinstance(y, Tensor) else list(y.detach().cpu()), []
        pairs = [input_and_label(item, what, form.label) for item in items]
        return stacked([as_tensors(x, what) for x, _ in pairs], what), [y for _, y in pairs], []


def _columns(made: list[tuple[Any, Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [y for _, y, _ in made], [who for *_, who in made]


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
        few = " and ".join(map(str, sorted({str(s[0]) for s in shapes})[:2]))
        fix = "bring all inputs to one size, or pass a DataLoader whose collate_fn pads them"
        raise DataError(f"inputs of one shape in {what}", few, fix)
    return inputs.apply(lambda *ts: torch.stack(ts), *xs)
