"""A pair ``(inputs, labels)`` that knows more than two tensors can say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purge.data import inputs


class Pair(tuple[Any, Tensor]):
    """A pair ``(x, y)`` of tensors; it remembers what it was made of, and whose each sample is."""

    rows: Tensor | None  # which rows of ``whole`` they are; None if nobody asked
    whole: Any  # the data that they come from
    names: tuple[str, ...]  # of all classes, where the labels were names
    subjects: tuple[str, ...]  # the user's own id of each sample; empty: unknown
    pads: tuple[Any, ...]  # of each tensor: what fills short rows up and on which side, None if nothing does
    columns: tuple[Any, ...]  # of a DataFrame, which sets may have in another order
    worded: bool  # the labels were names, and may be numbered in another order
    cast: bool  # numbers of a table, which take the floating type of the model

    def __new__(
        cls, pair: tuple[Any, Tensor], *, rows: Tensor | None = None, whole: Any = None,
        names: Sequence[str] = (), subjects: Sequence[str] = (), pads: Sequence[Any] = (),
        columns: Sequence[Any] = (), worded: bool = False, cast: bool = False,
    ) -> Pair:  # fmt: skip
        """Make a tuple that carries attributes."""
        made = super().__new__(cls, pair)
        made.rows, made.whole, made.cast, made.worded = rows, whole, cast, worded
        made.names, made.subjects = tuple(names), tuple(subjects)
        made.pads, made.columns = tuple(pads), tuple(columns)
        return made

    def __repr__(self) -> str:
        shapes = [
            f"{tuple(t.shape[1:])} {str(t.dtype).removeprefix('torch.')}" for t in inputs.leaves(self[0])
        ]
        ids = len(set(self.subjects))
        whose = f" of {ids} id{'s' * (ids > 1)}" if ids else ""
        return f"Pair({len(self[1])} samples{whose}, each {' and '.join(shapes)})"

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What copies and pickles are made with."""
        return ((self[0], self[1]),), dict(self.__dict__)

    def replaced(self, x: Any, y: Tensor, **changes: Any) -> Pair:
        """The same with other tensors, and other attributes."""
        return Pair((x, y), **{**self.__dict__, **changes})

    def select(self, index: Tensor) -> Pair:
        """The samples at ``index``, which still know where they come from."""
        at = index.to(torch.long)
        return self.replaced(
            inputs.take(self[0], at),
            self[1][at],
            rows=at if self.rows is None else self.rows[at],
            subjects=[self.subjects[i] for i in at.tolist()] if self.subjects else (),
        )
