"""Arithmetic on gradients and weights as flat float32 vectors; nothing is read from the device.

The guarantee of PURGE lives here. A displacement θ − θ' is *retain-safe* when
⟨θ − θ', g_r⟩ ≥ 0: to first order, the retain loss does not rise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from purge.core.errors import MethodError
from purge.data import inputs
from purge.data.inputs import Inputs
from purge.data.samples import Samples, batches
from purge.engine.losses import cross_entropy
from purge.engine.optimizer import FlatOptimizer, FlatParameters, widest
from purge.models.batchnorm import Norm
from purge.models.forward import forward

Space = Literal["none", "gradient", "update"]


class StepInfo(NamedTuple):
    """What one optimiser step did, as 0-d tensors on the device."""

    projected: Tensor  # bool: did the projection change anything?
    cosine: Tensor  # of the displacement θ − θ' really applied, with the retain gradient; NaN: none was found


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors into one vector (a copy): float32, or float64 if any of them is."""
    wide = [t.detach().reshape(-1) for t in tensors]
    return torch.cat([t if t.dtype == torch.float64 else t.float() for t in wide])


def grad(loss: Tensor, params: Sequence[nn.Parameter]) -> Tensor:
    """The gradient of ``loss``, flat, in float32; parameters that are not used get zeros."""
    grads = torch.autograd.grad(loss, params, allow_unused=True)
    return flat([torch.zeros_like(p) if g is None else g for g, p in zip(grads, params, strict=True)])


def per_sample_grads(model: nn.Module, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of each sample's cross-entropy, (B, P), and the losses, (B,), in evaluation mode."""

    def loss(weights: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        z = forward(model, inputs.take(x, None), weights).float()
        return F.cross_entropy(z, y[None])

    if any(isinstance(m, _BatchNorm) and m.running_mean is None for m in model.modules()):
        raise MethodError(
            "gradients of single samples (BatchNorm with running statistics)",
            "a BatchNorm layer without any, which looks at the whole batch",
            "change that layer, or choose a method that does not need them",
        )
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    grads, losses = of_each(partial(torch.func.grad_and_value(loss), weights), x, y)
    rows = [g.reshape(len(y), -1) for g in grads.values()]
    return torch.cat([g if g.dtype == torch.float64 else g.float() for g in rows], 1), losses


def of_each(fn: Callable[[Inputs, Tensor], Any], x: Inputs, y: Tensor, most: int | None = None) -> Any:
    """``fn`` of every sample and its label, stacked; one by one where a model branches on a value."""
    try:
        with sdpa_kernel(SDPBackend.MATH):  # vmap takes the fused kernels of attention one by one
            return torch.func.vmap(fn, randomness="different", chunk_size=most)(x, y)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever a layer may raise when it meets vmap; what fails by itself fails again
        return tree_map(
            lambda *parts: torch.stack(parts), *(fn(inputs.take(x, i), y[i]) for i in range(len(y)))
        )


def summed_grad(
    model: nn.Module,
    params: Sequence[nn.Parameter],
    samples: Samples,
    *,
    batch_size: int,
    norm: Norm = "frozen",
    order: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradient of the cross-entropy summed over samples, flat, and that sum."""
    total = torch.zeros_like(flat(params))
    loss = torch.zeros((), device=total.device)
    for x, y in batches(samples, batch_size, order):
        part = cross_entropy(model, x, y, norm, "sum")
        total += grad(part, params)
        loss += part.detach()
    return total, loss


def squared_grads(
    model: nn.Module,
    params: Sequence[nn.Parameter],
    samples: Samples,
    order: Tensor,
    *,
    batch_size: int,
    per_sample: bool,
) -> tuple[Tensor, int, Tensor]:
    """The sum of squared gradients, of samples or of batches, (P,), their number, and the mean loss."""
    n, total, loss = len(order), torch.zeros_like(flat(params)), torch.zeros((), device=order.device)
    for x, y in batches(samples, batch_size, order):
        if per_sample:
            g, losses = per_sample_grads(model, x, y)
            total += g.square_().sum(0)
            loss += losses.sum()
        else:
            mean = F.cross_entropy(forward(model, x).float(), y)
            total += grad(mean, params).square_()
            loss += len(y) * mean.detach()
    return total, n if per_sample else math.ceil(n / batch_size), loss / n


def uphill(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Is the label of each sample the model's answer, and the way up its loss, like ``x``."""
    x = x.detach().requires_grad_()
    z = forward(model, x)
    # A sum, in float64 where there is one: what is far from the boundary keeps its sign.
    (g,) = torch.autograd.grad(F.cross_entropy(z.to(widest(z)), y, reduction="sum"), x)
    return z.argmax(1) == y, g


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product, summed in float64: a conflict of 1e-7 relative to the norms is still seen."""
    return (a * b).sum(dtype=widest(a))


def norm(v: Tensor) -> Tensor:
    """Euclidean norm, summed in float64."""
    return torch.linalg.vector_norm(v, dtype=widest(v))  # type: ignore[no-any-return]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between two vectors; 0 when either of them is zero."""
    norms = norm(a) * norm(b)
    return torch.where(
        norms > 0,
        dot(a, b) / norms.clamp_min(torch.finfo(norms.dtype).tiny),
        torch.zeros_like(norms),
    )


def project(v: Tensor, r: Tensor) -> Tensor:
    r"""The vector nearest to ``v`` that does not point against ``r`` (A-GEM).

    .. math:: v' = v - \min(0, \langle v, r\rangle) / \|r\|^2 \cdot r

    Branch-free. With r = 0 there is nothing to project against and v is returned unchanged.

    >>> project(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
    tensor([1., 0.])
    """
    square = norm(r).square()
    share = torch.where(square > 0, dot(v, r).clamp_max(0) / square, torch.zeros_like(square))
    return torch.addcmul(v, r, share.to(v.dtype), value=-1)


def clipped(g: Tensor, limit: float) -> Tensor:
    """Scale ``g`` down to norm ``limit`` if it is longer; a limit of 0 is off."""
    return g if limit <= 0 else g * (limit / norm(g).clamp_min(limit))


@torch.no_grad()
def write(params: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Copy a flat vector back into the parameters."""
    parts = vector.split([p.numel() for p in params])
    torch._foreach_copy_(list(params), [part.view_as(p) for part, p in zip(parts, params, strict=True)])


@torch.no_grad()
def step(
    params: FlatParameters,
    optimizer: FlatOptimizer,
    g: Tensor,
    retain: Tensor,
    *,
    space: Space,
    clip: float = 0.0,
) -> StepInfo:
    """Move the weights by one optimiser step along ``g``, kept retain-safe in the given space.

    ``gradient`` projects ``g`` against ``retain`` and then lets the optimiser add momentum and
    decay, which may break what the projection promised (the paper's method and its limitation).
    ``update`` lets the optimiser propose its whole displacement and projects that, so the promise
    ⟨θ − θ', retain⟩ ≥ 0 holds for what is applied, rounding included; with gradients that are not finite,
    nothing is. ``none`` does neither.
    """
    conflict = torch.zeros((), dtype=torch.bool, device=g.device)
    if space == "gradient":
        conflict = dot(g, retain) < 0
        g = project(g, retain)
    before = params.read()
    moved = optimizer.displacement(before, clipped(g, clip))
    if space != "update":
        after = params.held(before - moved)
        taken = cosine(before.to(widest(before)) - after, retain)
        params.store(after)
        return StepInfo(conflict, taken)

    # A float32 weight of size 1 cannot move by less than 6e-8, so a step that is orthogonal to ``retain`` may
    # end on the wrong side once it is stored. We aim past the boundary by ten times the spread of the
    # rounding error, and do not take the step if that was not enough.
    along, size = dot(moved, retain), norm(retain)
    slack = 10 * params.rounding * norm(before * retain)
    share = torch.where((size > 0) & (along < slack), (along - slack) / size.square(), torch.zeros_like(size))
    after = params.held(torch.sub(before, moved, out=moved).addcmul_(retain, share.to(before.dtype)))
    moved = before.to(widest(before), copy=True).sub_(after)
    gained = (moved * retain).sum()
    params.store(torch.where(gained >= 0, after, before))
    applied = torch.where(gained >= 0, cosine(moved, retain), torch.zeros_like(size))
    return StepInfo(along < 0, torch.where(gained.isfinite(), applied, torch.full_like(size, math.nan)))
