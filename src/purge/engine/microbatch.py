"""Gradient accumulation: a batch that is too large for the memory goes through the model in parts.

The gradient of a mean over a batch is the mean of the gradients of its parts, weighted by their sizes. That
is exact for networks that treat samples one by one; BatchNorm looks at the whole batch and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from purge.core.errors import MethodError
from purge.data import inputs
from purge.engine.dist import ALONE, Ranks
from purge.engine.optimizer import FlatParameters

MICRO_BATCH = "samples that go through the model at a time, to save memory; none: a whole batch"
CHECKPOINT = "do not keep activations inside of blocks, compute them again: less memory, slower"


def mean_grad(
    params: FlatParameters,
    loss: Callable[..., tuple[Tensor, Tensor]],
    batch: tuple[Any, ...],
    micro: int | None,
    ranks: Ranks = ALONE,
    rows: int = 0,
) -> tuple[Tensor, Tensor]:
    """The gradient of a batch of ``rows`` over all ranks, flat, and the mean that ``loss`` gives, too."""
    n, g, mean = inputs.count(batch[0]), torch.empty(0), torch.empty(0)
    for start in range(0, n, micro or n):
        part = [inputs.take(one, slice(start, start + micro)) for one in batch] if micro else batch
        share = ranks.share(rows) * inputs.count(part[0]) / n
        total, shown = loss(*part)
        g_part, shown = params.grad(share * total), share * shown.detach()
        g, mean = (g.add_(g_part), mean + shown) if start else (g_part, shown)
    return ranks.sum(g), ranks.sum(mean)


def backward_in_parts(loss: Callable[[Any, Tensor], Tensor], x: Any, y: Tensor, micro: int) -> Tensor:
    """Add the gradient of a batch's mean loss to that of the weights; returns the loss."""
    mean = torch.zeros((), device=y.device)
    for start in range(0, len(y), micro):
        part = slice(start, start + micro)
        part_loss = len(y[part]) / len(y) * loss(inputs.take(x, part), y[part])
        part_loss.backward()
        mean = mean + part_loss.detach()
    return mean


def check_micro_batch(model: nn.Module, micro: int | None) -> None:
    """Refuse to divide the batches of a network that looks at them as a whole."""
    norm = next((name for name, m in model.named_modules() if isinstance(m, _BatchNorm)), None)
    if micro is not None and norm is not None:
        fix = "leave micro_batch out, and set checkpoint_activations=true or a lower batch_size"
        raise MethodError("a network without BatchNorm for micro_batch", f"one with {norm}", fix)
