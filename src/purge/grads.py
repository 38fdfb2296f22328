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
    return (a * _wide(b)).sum()


def norm(v: Tensor) -> Tensor:
    """Euclidean norm, summed in float64."""
    return torch.linalg.vector_norm(v, dtype=_widest(v))  # type: ignore[no-any-return]


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
    square = dot(r, r)
    share = torch.where(square > 0, dot(v, r).clamp_max(0) / square, torch.zeros_like(square))
    return v - share * r


def clipped(g: Tensor, limit: float) -> Tensor:
    """Scale ``g`` down to norm ``limit`` if it is longer; a limit of 0 is off."""
    return g if limit <= 0 else g * (limit / norm(g).clamp_min(limit))


class Descent:
    """SGD with momentum, or AdamW, on one flat vector, step for step as torch.optim has them.

    The state is changed in place and nothing is read from the device, so a step can be recorded.
    The learning rate is ``rate``, on the device, to be filled before a step.
    """

    def __init__(
        self,
        kind: Literal["sgd", "adamw"],
        theta: Tensor,
        *,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        self._kind, self._momentum, self._nesterov, self._decay = kind, momentum, nesterov, weight_decay
        self._first = torch.zeros_like(theta)  # momentum; of AdamW the mean of the gradients
        self._second = torch.zeros_like(theta if kind == "adamw" else theta[:0])  # and of their squares
        self._steps = torch.zeros((), dtype=_widest(theta), device=theta.device)
        self.rate = torch.full_like(self._steps, lr)

    def displacement(self, theta: Tensor, g: Tensor) -> Tensor:
        """θ − θ' of the next step along ``g``."""
        if self._kind == "adamw":
            return self.rate * (self._decay * theta + self._adam(g))
        g = g + self._decay * theta
        self._first.mul_(self._momentum).add_(g)
        return self.rate * (g + self._momentum * self._first if self._nesterov else self._first)

    def _adam(self, g: Tensor, beta: float = 0.999, eps: float = 1e-8) -> Tensor:
        self._steps += 1
        self._first.mul_(self._momentum).add_(g, alpha=1 - self._momentum)
        self._second.mul_(beta).addcmul_(g, g, value=1 - beta)
        mean = self._first / (1 - self._momentum**self._steps)
        return mean / ((self._second / (1 - beta**self._steps)).sqrt() + eps)


@torch.no_grad()
def write(params: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Copy a flat vector back into the parameters."""
    parts = vector.split([p.numel() for p in params])
    torch._foreach_copy_(list(params), [part.view_as(p) for part, p in zip(parts, params, strict=True)])


@torch.no_grad()
def step(
    params: Sequence[nn.Parameter],
    descent: Descent,
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
    before = flat(params)
    moved = descent.displacement(before, clipped(g, clip))
    if space == "update":
        conflict = dot(moved, retain) < 0
        moved = _apply_safely(params, before, moved, retain)
    else:
        moved = _wide(before) - _stored(params, before - moved)
    return Taken(conflict & (space != "none"), cosine(moved, retain))


@torch.no_grad()
def _apply_safely(params: Sequence[nn.Parameter], before: Tensor, moved: Tensor, retain: Tensor) -> Tensor:
    """Apply ``project(moved, retain)`` so that the promise survives rounding; return what moved.

    A float32 weight of size 1 cannot move by less than 6e-8, so a displacement that is orthogonal
    to ``retain`` on paper may land slightly on the wrong side once it is stored. What was stored
    is therefore measured; on the wrong side, it is corrected past the boundary by twice what
    rounding can do, and should the weights be too coarse for that too, the step is not taken.
    """
    start, r = _wide(before), _wide(retain)
    square = dot(r, r)
    after = _stored(params, before - project(moved, retain))
    amiss = dot(start - after, r)
    coarsest = max(torch.finfo(p.dtype).eps for p in params) / 2
    slack = 2 * coarsest * dot(after.abs(), r.abs())
    share = torch.where((square > 0) & (amiss < 0), (amiss - slack) / square, torch.zeros_like(square))
    after = _stored(params, after + share * r)
    safe = dot(start - after, r) >= 0
    return start - _stored(params, torch.where(safe, after, before))


def _stored(params: Sequence[nn.Parameter], vector: Tensor) -> Tensor:
    """Write the vector into the parameters and read back what they could hold of it."""
    write(params, vector)
    return flat(params)


def _wide(t: Tensor) -> Tensor:
    return t.to(_widest(t))


def _widest(t: Tensor) -> torch.dtype:
    """Float64, or float32 on the one kind of device that has no float64."""
    return torch.float32 if t.device.type == "mps" else torch.float64
