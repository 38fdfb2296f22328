"""Arithmetic on gradients: flat float32 vectors, no state, nothing printed.

The guarantee of PURGE lives here. A displacement θ − θ' is *retain-safe* when
⟨θ − θ', g_r⟩ ≥ 0: to first order, the retain loss does not rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from purge.errors import MethodError, expected
from purge.models import logits_of

Space = Literal["none", "gradient", "update"]


class Taken(NamedTuple):
    """What one optimiser step did; both are 0-d tensors, left on the device."""

    projected: Tensor  # bool: did the projection change anything?
    cosine: Tensor  # of the displacement θ − θ' really applied, with the retain gradient


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors into one vector (a copy): float32, or float64 if any of them is."""
    wide = [t.detach().reshape(-1) for t in tensors]
    return torch.cat([t if t.dtype == torch.float64 else t.float() for t in wide])


def grad(loss: Tensor, params: Sequence[nn.Parameter], *, keep_graph: bool = False) -> Tensor:
    """The gradient of ``loss``, flat, in float32; parameters that are not used get zeros."""
    found = torch.autograd.grad(loss, params, retain_graph=keep_graph, allow_unused=True)
    return flat([torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)])


def per_sample_grads(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of each sample's cross-entropy, (B, P), and the losses, (B,).

    P counts the trainable parameters in the order of :func:`flat`. All samples go through the model
    at once (``torch.func.vmap``), which takes about 2·B·P numbers of memory. The model is to be in
    evaluation mode. One that vmap cannot take is refused in a sentence; one that fails by itself
    raises its own error.
    """

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        z = logits_of(torch.func.functional_call(model, weights, (x[None],))).float()
        return F.cross_entropy(z, y[None])

    if any(isinstance(m, _BatchNorm) and m.running_mean is None for m in model.modules()):
        raise _no_single_samples("a BatchNorm layer without any, which looks at the whole batch")
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    each = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0), randomness="different")
    try:
        with sdpa_kernel(SDPBackend.MATH):  # vmap takes the fused kernels of attention one by one
            found, losses = each(weights, x, y)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a layer may raise when it meets vmap
        with torch.no_grad():
            model(x)
        reason = (str(error) or "?").splitlines()[0].rstrip(".")
        raise _no_single_samples(f"{type(error).__name__}: {reason}") from error
    rows = [g.reshape(len(x), -1) for g in found.values()]
    return torch.cat([g if g.dtype == torch.float64 else g.float() for g in rows], 1), losses


def _no_single_samples(got: str) -> MethodError:
    return MethodError(
        expected(
            "a model with gradients of single samples (torch.func.vmap; BatchNorm with running statistics)",
            got,
            "change that layer, or choose a method that does not need them",
        )
    )


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product, summed in float64: a conflict of 1e-7 relative to the norms is still seen."""
    return torch.dot(_wide(a), _wide(b))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between two vectors; 0 when either of them is zero."""
    norms = _wide(a).norm() * _wide(b).norm()
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
    square = dot(r, r)
    share = torch.where(square > 0, dot(v, r).clamp_max(0) / square, torch.zeros_like(square))
    return (_wide(v) - share * _wide(r)).to(v.dtype)


def clipped(g: Tensor, limit: float) -> Tensor:
    """Scale ``g`` down to norm ``limit`` if it is longer; a limit of 0 is off."""
    if limit <= 0:
        return g
    scale: Tensor = limit / _wide(g).norm().clamp_min(limit)
    return (g * scale).to(g.dtype)


@torch.no_grad()
def write(params: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Copy a flat vector back into the parameters."""
    at = 0
    for p in params:
        p.copy_(vector[at : at + p.numel()].view_as(p))
        at += p.numel()


@torch.no_grad()
def step(
    optimizer: torch.optim.Optimizer,
    params: Sequence[nn.Parameter],
    g: Tensor,
    retain: Tensor,
    *,
    space: Space,
    clip: float = 0.0,
) -> Taken:
    """Move ``params`` by one optimiser step along ``g``, kept retain-safe in the given space.

    ``gradient`` projects ``g`` against ``retain`` and then lets the optimiser add momentum and
    decay, which may break what the projection promised (the paper's method and its limitation).
    ``update`` lets the optimiser propose its whole displacement and projects that, so the promise
    ⟨θ − θ', retain⟩ ≥ 0 holds for what is applied, rounding included. ``none`` does neither.
    """
    conflict = dot(g, retain) < 0
    if space == "gradient":
        g = project(g, retain)
    g = clipped(g, clip)
    before = flat(params)
    at = 0
    for p in params:
        p.grad = g[at : at + p.numel()].view_as(p).to(p.dtype)
        at += p.numel()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    moved = _wide(before) - _wide(flat(params))
    if space == "update":
        conflict = dot(moved, retain) < 0
        moved = _apply_safely(params, before, moved, retain)
    elif space == "none":
        conflict = torch.zeros_like(conflict)
    return Taken(conflict, cosine(moved, retain))


@torch.no_grad()
def _apply_safely(params: Sequence[nn.Parameter], before: Tensor, moved: Tensor, retain: Tensor) -> Tensor:
    """Apply ``project(moved, retain)`` so that the promise survives rounding; return what moved.

    A float32 weight of size 1 cannot move by less than 6e-8, so a displacement that is orthogonal
    to ``retain`` on paper may land slightly on the wrong side once it is stored. What was stored
    is therefore measured; on the wrong side, it is corrected past the boundary by twice what
    rounding can do, and should the weights be too coarse for that too, the step is not taken.
    """
    after = _stored(params, before - project(moved, retain))
    square = dot(retain, retain)
    amiss = dot(_wide(before) - _wide(after), retain)
    coarsest = max(torch.finfo(p.dtype).eps for p in params) / 2
    slack = 2 * coarsest * dot(after.abs(), retain.abs())
    share = torch.where((square > 0) & (amiss < 0), (amiss - slack) / square, torch.zeros_like(square))
    after = _stored(params, _wide(after) + share * _wide(retain))
    safe = dot(_wide(before) - _wide(after), retain) >= 0
    after = _stored(params, torch.where(safe, after, before))
    return _wide(before) - _wide(after)


def _stored(params: Sequence[nn.Parameter], vector: Tensor) -> Tensor:
    """Write the vector into the parameters and read back what they could hold of it."""
    write(params, vector)
    return flat(params)


def _wide(t: Tensor) -> Tensor:
    """Float64, or float32 on the one kind of device that has no float64."""
    return t.float() if t.device.type == "mps" else t.double()
