"""Arithmetic on gradients and weights as flat float32 vectors; nothing is read from the device.

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

from purge.core.errors import MethodError
from purge.models.forward import logits_of

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
        "a model with gradients of single samples (torch.func.vmap; BatchNorm with running statistics)",
        got,
        "change that layer, or choose a method that does not need them",
    )


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product, summed in float64: a conflict of 1e-7 relative to the norms is still seen."""
    return (a * b).sum(dtype=_widest(a))


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
    square = norm(r).square()
    share = torch.where(square > 0, dot(v, r).clamp_max(0) / square, torch.zeros_like(square))
    return torch.addcmul(v, r, share.to(v.dtype), value=-1)


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
        g = torch.add(g, theta, alpha=self._decay)
        self._first.mul_(self._momentum).add_(g)
        return self.rate * (
            torch.add(g, self._first, alpha=self._momentum) if self._nesterov else self._first
        )

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


class Weights:
    """The trainable weights as one vector, each in the order in which its numbers lie in memory."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self._params: list[Tensor] = list(params)
        self._dtype = torch.float64 if torch.float64 in {p.dtype for p in params} else torch.float32
        self._coarse = [p.dtype for p in params if p.dtype != self._dtype]
        self.rounding = max(torch.finfo(p.dtype).eps for p in params) / 2  # of one number, relative to it

    def grad(self, loss: Tensor, *, keep_graph: bool = False) -> Tensor:
        """The gradient of ``loss``; weights that are not used get zeros."""
        found = torch.autograd.grad(loss, self._params, retain_graph=keep_graph, allow_unused=True)
        return self._line(
            [torch.zeros_like(p) if g is None else g for g, p in zip(found, self._params, strict=True)]
        )

    def read(self) -> Tensor:
        """The weights as they are now: a copy."""
        return self._line([p.detach() for p in self._params])

    @torch.no_grad()
    def store(self, vector: Tensor) -> Tensor:
        """Make ``vector`` the weights; what they could hold of it is returned."""
        torch._foreach_copy_([*self._params], self._parts(vector))
        return self.read() if self._coarse else vector

    def _line(self, tensors: list[Tensor]) -> Tensor:
        first = self._params[0]
        line = torch.empty(sum(p.numel() for p in self._params), dtype=self._dtype, device=first.device)
        torch._foreach_copy_(self._parts(line), tensors)
        return line

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Views of the vector in the shapes of the weights."""
        parts = vector.split([p.numel() for p in self._params])
        return [_as(part, p) for part, p in zip(parts, self._params, strict=True)]


def _as(part: Tensor, p: Tensor) -> Tensor:
    if p.ndim == 4 and p.is_contiguous(memory_format=torch.channels_last):
        return part.view(p.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
    return part.view(p.shape)


@torch.no_grad()
def step(
    weights: Weights, descent: Descent, g: Tensor, retain: Tensor, *, space: Space, clip: float = 0.0
) -> Taken:
    """Move the weights by one optimiser step along ``g``, kept retain-safe in the given space.

    ``gradient`` projects ``g`` against ``retain`` and then lets the optimiser add momentum and
    decay, which may break what the projection promised (the paper's method and its limitation).
    ``update`` lets the optimiser propose its whole displacement and projects that, so the promise
    ⟨θ − θ', retain⟩ ≥ 0 holds for what is applied, rounding included. ``none`` does neither.
    """
    conflict = dot(g, retain) < 0
    if space == "gradient":
        g = project(g, retain)
    before = weights.read()
    moved = descent.displacement(before, clipped(g, clip))
    if space != "update":
        after = weights.store(before - moved)
        return Taken(conflict & (space == "gradient"), cosine(_wide(before) - after, retain))

    # A float32 weight of size 1 cannot move by less than 6e-8, so what is orthogonal to retain on paper may
    # land on the wrong side once it is stored. So the aim lies past the boundary by ten times the spread of
    # what rounding does; and should that not have been enough, the step is not taken.
    along, size = dot(moved, retain), norm(retain)
    slack = 10 * weights.rounding * norm(before * retain)
    share = torch.where((size > 0) & (along < slack), (along - slack) / size.square(), torch.zeros_like(size))
    after = weights.store(torch.addcmul(before - moved, retain, share.to(before.dtype)))
    moved = _wide(before) - after
    safe = (moved * retain).sum() >= 0
    weights.store(torch.where(safe, after, before))
    return Taken(along < 0, torch.where(safe, cosine(moved, retain), torch.zeros_like(size)))


def _wide(t: Tensor) -> Tensor:
    return t.to(_widest(t))


def _widest(t: Tensor) -> torch.dtype:
    """Float64, or float32 on the one kind of device that has no float64."""
    return torch.float32 if t.device.type == "mps" else torch.float64
