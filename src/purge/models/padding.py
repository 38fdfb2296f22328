"""Which positions of a sequence are padding: nothing that is pooled over positions may depend on them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

REAL = ("attention_mask",)  # names of arguments that are 1 where a sequence has something, 0 where padding is
PADDED = ("key_padding_mask", "src_key_padding_mask")  # and the other way round


class Mask(NamedTuple):
    """What a batch says about its padding."""

    there: Tensor  # (B, T): true where a position is not padding
    model: nn.Module  # which may know how its layers shorten a sequence

    def at(self, rows: int, length: int) -> Tensor | None:
        """The mask of an output with so many rows and positions; None if it has other positions."""
        if tuple(self.there.shape) == (rows, length):
            return self.there
        if len(self.there) != rows or self.there.shape[1] < length:
            return None
        for module in self.model.modules():  # audio models of Hugging Face, whose convolutions shorten it
            shortened = getattr(module, "_get_feat_extract_output_lengths", None)
            mask_of = getattr(module, "_get_feature_vector_attention_mask", None)
            if callable(shortened) and callable(mask_of):
                whole = int(shortened(torch.tensor(self.there.shape[1])))
                found = mask_of(length, self.there.long()) if whole == length else None
                return found.bool() if isinstance(found, Tensor) else None
        return None


_current: ContextVar[Mask | None] = ContextVar("mask", default=None)


@contextmanager
def padded_as(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, a pass of the model with these arguments is under way."""
    before = _current.set(mask_of(model, args, kwargs))
    try:
        yield
    finally:
        _current.reset(before)


def mask_of(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mask | None:
    """The mask among the arguments of a model, known by its name; None if there is none."""
    named = dict(kwargs)
    if len(args) > 1:  # a tuple of inputs: the model's signature has their names
        named |= dict(zip(_names(model), args, strict=False))
    for name in (*REAL, *PADDED):
        found = named.get(name)
        if isinstance(found, Tensor) and found.ndim == 2:
            return Mask(found != 0 if name in REAL else found == 0, model)
    return None


def _names(model: nn.Module) -> list[str]:
    """The names of the arguments of a model's forward; none where Python cannot tell."""
    try:
        return [*inspect.signature(model.forward).parameters]
    except (TypeError, ValueError):
        return []


def pooled(h: Tensor) -> Tensor:
    """One vector per sample of an output (B, C, positions …): the mean over its positions.

    Within a pass whose inputs have a mask, over those that are not padding.
    """
    if h.ndim < 3:
        return h
    mask = _current.get()
    there = None if mask is None or h.ndim != 3 else mask.at(len(h), h.shape[2])
    if there is None:
        return h.mean(tuple(range(2, h.ndim)))
    total = h.masked_fill(~there[:, None], 0.0).sum(2)
    return total / there.sum(1, keepdim=True).clamp_min(1).to(total)
