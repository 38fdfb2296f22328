"""Rows of unequal length, which the caller's collate function pads: all of them padded to one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from purge.core.errors import DataError
from purge.data import inputs
from purge.data.inputs import Inputs

Shapes = Sequence[tuple[int, ...]]
LOOKED = 256  # items that are looked at to learn what a collate function pads with


def widest(shapes: Sequence[Shapes]) -> Shapes:
    """The greatest shape of each tensor.

    >>> widest([[(3,), (2, 5)], [(4,), (2, 1)]])
    [(4,), (2, 5)]
    """
    return [tuple(map(max, zip(*each, strict=True))) for each in zip(*shapes, strict=True)]


def pads_of(items: Any, data: Any, widths: Shapes) -> tuple[Any, ...]:
    """What fills up short rows of each tensor, and on which side: ``(0, "right")``; None where nothing does.

    Two items of unequal length are collated together to see it.
    """

    def pad(a: Tensor, b: Tensor, both: Tensor) -> tuple[Any, str] | None:
        if a.ndim < 2 or a.shape == b.shape:
            return None
        row, alone = (both[0], a[0]) if a.shape[1] < b.shape[1] else (both[1], b[0])
        left = bool((row[-len(alone) :] == alone).all()) and not bool((row[: len(alone)] == alone).all())
        return (row[0] if left else row[-1]).flatten()[0].item(), "left" if left else "right"

    first = items.read([data[0]]).x
    equal = shapes_of(first) == widths  # then perhaps all of them are
    for i in range(1, min(len(data), LOOKED) if equal else len(data)):
        other = items.read([data[i]]).x
        if shapes_of(other) != shapes_of(first):
            both = items.read([data[0], data[i]]).x
            return tuple(map(pad, inputs.leaves(first), inputs.leaves(other), inputs.leaves(both)))
    return (None,) * len(inputs.leaves(first))


def without_pads(row: NDArray[Any], pad: tuple[Any, str] | None) -> NDArray[Any]:
    """A row (L, …) without what fills it up.

    >>> import numpy as np
    >>> without_pads(np.array([5, 0, 7, 0, 0]), (0, "right")).tolist()
    [5, 0, 7]
    """
    if pad is None or row.ndim == 0:
        return row
    value, side = pad
    real = (row != value).reshape(len(row), -1).any(1).nonzero()[0]
    if not len(real):
        return row[:0]
    return row[real[0] :] if side == "left" else row[: real[-1] + 1]


def shapes_of(x: Inputs) -> Shapes:
    """The shape of one row of each tensor."""
    return [tuple(t.shape[1:]) for t in inputs.leaves(x)]


def stretched(x: Inputs, shapes: Shapes, pads: Sequence[Any], what: str) -> Inputs:
    """The inputs (B, L, …) with every tensor padded to its shape, as the collate function pads it."""
    if not shapes or shapes_of(x) == shapes:
        return x
    which = iter(zip(shapes, pads, strict=True))

    def one(t: Tensor) -> Tensor:
        shape, pad = next(which)
        if tuple(t.shape[1:]) == shape:
            return t
        if pad is None or t.ndim < 2 or tuple(t.shape[2:]) != shape[1:]:
            got = f"{tuple(t.shape[1:])} and {shape}"
            raise DataError(f"inputs of one shape in {what}", got, "let the collate_fn pad to one max_length")
        more = shape[0] - t.shape[1]
        sides = (0, 0) * (t.ndim - 2) + ((more, 0) if pad[1] == "left" else (0, more))
        return F.pad(t, sides, value=pad[0])

    return inputs.apply(one, x)
