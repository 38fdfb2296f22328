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

from purge.hooks import training_flags_kept
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
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    with training_flags_kept(model):
        try:
            for m in layers:
                m.train(kind == "train")
                if kind != "frozen" or m.running_mean is None:  # without any, each part has its own
                    forward = _shared if kind == "shared" else _apart
                    # An instance attribute shadows the class's forward and is deleted below.
                    m.forward = partial(forward, m, retain_rows)  # type: ignore[method-assign]
            yield
        finally:
            for m in layers:
                m.__dict__.pop("forward", None)


def _shared(bn: _BatchNorm, rows: int, x: Tensor) -> Tensor:
    over = [d for d in range(x.ndim) if d != 1]
    part = x[:rows] if x.dtype == torch.float64 else x[:rows].float()
    var, mean = torch.var_mean(part, over, correction=0)
    scale = torch.rsqrt(var + bn.eps)
    shift = -mean * scale
    if bn.weight is not None:
        scale, shift = scale * bn.weight, shift * bn.weight + bn.bias
    shape = [1, -1] + [1] * (x.ndim - 2)
    return (x * scale.view(shape) + shift.view(shape)).to(x.dtype)


def _apart(bn: _BatchNorm, rows: int, x: Tensor) -> Tensor:
    return torch.cat([_own(bn, part) for part in (x[:rows], x[rows:]) if len(part)])


def _own(bn: _BatchNorm, x: Tensor) -> Tensor:
    if x.numel() > x.shape[1] or bn.running_mean is None:
        return type(bn).forward(bn, x)
    # One value per channel has no variance: the running statistics serve.
    return F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, eps=bn.eps)


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Reset the running statistics and set them to the cumulative average over ``batches``."""
    layers = batchnorms(model)
    if not layers:
        return
    momenta = [m.momentum for m in layers]
    with training_flags_kept(model):
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
