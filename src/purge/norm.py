"""BatchNorm while unlearning: frozen, shared or training statistics, and recalibration.

A batch is always ``[retain rows; forget rows]``. With ``frozen`` statistics the cheapest way to
forget is a shift of activations that the stale statistics turn into suppression; one pass over
retain data afterwards undoes it. With ``shared`` statistics such a shift is useless: every row is
normalised with what the retain rows look like *now*, and gradients flow through those statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from purge.models import logits_of

Norm = Literal["frozen", "shared", "train"]


def batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers of a model that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


@contextmanager
def statistics(model: nn.Module, kind: Norm, *, retain_rows: int) -> Iterator[None]:
    """Within the block, BatchNorm treats batches ``[retain_rows of retain; forget]`` as ``kind`` says.

    ``frozen`` uses the running statistics and leaves them alone. ``shared`` normalises all rows
    with the batch statistics of the retain rows, differentiably, and leaves the running ones alone.
    ``train`` normalises each part with its own batch statistics and updates the running ones with
    both, as two separate forward passes in training mode would. Without BatchNorm nothing happens.
    """
    layers = batchnorms(model)
    flags = [m.training for m in layers]
    forward = {"frozen": None, "shared": _shared, "train": _apart}[kind]
    try:
        for m in layers:
            m.train(kind == "train")
            if forward is not None:
                # An instance attribute shadows the class's forward and is deleted below.
                m.forward = partial(forward, m, retain_rows)  # type: ignore[method-assign]
        yield
    finally:
        for m, flag in zip(layers, flags, strict=True):
            m.__dict__.pop("forward", None)
            m.train(flag)


def _shared(bn: _BatchNorm, rows: int, x: Tensor) -> Tensor:
    over = [d for d in range(x.ndim) if d != 1]
    var, mean = torch.var_mean(x[:rows].float(), over, correction=0)
    scale = torch.rsqrt(var + bn.eps)
    shift = -mean * scale
    if bn.weight is not None:
        scale, shift = scale * bn.weight, shift * bn.weight + bn.bias
    shape = [1, -1] + [1] * (x.ndim - 2)
    return (x * scale.view(shape) + shift.view(shape)).to(x.dtype)


def _apart(bn: _BatchNorm, rows: int, x: Tensor) -> Tensor:
    return torch.cat([_own(bn, part) for part in (x[:rows], x[rows:]) if len(part)])


def _own(bn: _BatchNorm, x: Tensor) -> Tensor:
    if x.numel() > x.shape[1]:
        return type(bn).forward(bn, x)
    # One value per channel has no variance: the running statistics serve.
    return F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, eps=bn.eps)


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Reset the running statistics and set them to the cumulative average over ``batches``."""
    layers = batchnorms(model)
    if not layers:
        return
    flags = {m: m.training for m in model.modules()}
    momenta = [m.momentum for m in layers]
    try:
        model.eval()
        for m in layers:
            m.reset_running_stats()
            m.momentum = None  # cumulative average
            m.train()
        for x in batches:  # a variance needs two rows: a lone one is its own twin
            logits_of(model(x if len(x) > 1 else torch.cat([x, x])))
    finally:
        for m, momentum in zip(layers, momenta, strict=True):
            m.momentum = momentum
        for module, flag in flags.items():
            module.training = flag
