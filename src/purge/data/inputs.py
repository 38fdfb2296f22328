"""Inputs of a model: any nesting of dicts and tuples of tensors, moved, cut, joined and padded here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from purge.core.errors import DataError, MethodError

LOOKED = 256  # items that are looked at to learn what a collate function pads with

Inputs: TypeAlias = Any  # a tensor, or a pytree of tensors with one row per sample each
Shapes: TypeAlias = Sequence[tuple[int, ...]]  # of one row of each tensor


def leaves(inputs: Inputs) -> list[Tensor]:
    """The tensors of the inputs."""
    tensors: list[Tensor] = tree_leaves(inputs)
    return tensors


def apply(fn: Callable[..., Tensor], *inputs: Inputs) -> Inputs:
    """``fn`` of each tensor, or of the tensors at the same place of several inputs."""
    return tree_map(fn, *inputs)


def take(inputs: Inputs, index: Any) -> Inputs:
    """The rows at ``index``.

    >>> take({"ids": torch.arange(4), "mask": torch.ones(4)}, [1, 3])["ids"]
    tensor([1, 3])
    """
    return tree_map(lambda t: t[index], inputs)


def to(inputs: Inputs, device: torch.device) -> Inputs:
    """The inputs on a device, without waiting for the copy."""
    return tree_map(lambda t: t.detach().to(device, non_blocking=True), inputs)


def join(parts: Sequence[Inputs]) -> Inputs:
    """The rows of all parts, one after the other."""
    return parts[0] if len(parts) == 1 else tree_map(lambda *ts: torch.cat(ts), *parts)


def unusable(inputs: Inputs) -> str:
    """Why the first tensor that cannot be computed with as it is cannot be; empty if all of them can."""
    kinds: dict[str, Callable[[Tensor], bool]] = {
        "on meta, without values": lambda t: t.is_meta,
        "nested": lambda t: bool(t.is_nested),
        "sparse": lambda t: t.layout != torch.strided,
        "quantized": lambda t: t.is_quantized,
        "of 8-bit floats": lambda t: t.is_floating_point() and t.element_size() == 1,
    }
    tensors = [t for t in leaves(inputs) if isinstance(t, Tensor)]
    return next(
        (f"a tensor that is {kind}" for t in tensors for kind, is_it in kinds.items() if is_it(t)), ""
    )


def size(inputs: Inputs) -> int:
    """How many bytes they take."""
    return sum(t.nbytes for t in leaves(inputs))


def count(inputs: Inputs) -> int:
    """How many samples they hold."""
    return len(leaves(inputs)[0])


def continuous(inputs: Inputs, method: str) -> Tensor:
    """The inputs, if they are one tensor of numbers that a small step can change; others are refused."""
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        return inputs
    raise MethodError(
        f"one tensor of floats as inputs for {method}, which changes them",
        describe(inputs),
        "pass such a tensor by itself, or use a method that leaves the inputs alone",
    )


def describe(inputs: Inputs) -> str:
    """Shapes and types of one sample, in words.

    >>> describe(torch.zeros(5, 3, 8, 8))
    '(3, 8, 8) of float32'
    """
    words = [f"{tuple(t.shape[1:])} of {str(t.dtype).removeprefix('torch.')}" for t in leaves(inputs)]
    if isinstance(inputs, dict):
        words = [f"{key}: {word}" for key, word in zip(inputs, words, strict=False)]
    return ", ".join(words)


# -- rows of unequal length, which the caller's collate function pads -----------------------------


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
            return tuple(map(pad, leaves(first), leaves(other), leaves(both)))
    return (None,) * len(leaves(first))


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
    return [tuple(t.shape[1:]) for t in leaves(x)]


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

    return apply(one, x)
