"""Inputs of a model: any nesting of dicts and tuples with tensors in it, moved, cut and joined here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from purge.core.errors import MethodError

Inputs: TypeAlias = Any  # a tensor, or a pytree of tensors with one row per sample each


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
