"""Optimisers: torch's own for the baselines, and one on a flat vector whose step can be projected.

A batch that is too large for the memory goes through the model in parts: the gradient of a mean over a batch
is the mean of the gradients of its parts, weighted by their sizes. That is exact for networks that treat
samples one by one; BatchNorm looks at the whole batch and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from purge.core.errors import MethodError
from purge.core.settings import normalise, setting
from purge.data import inputs
from purge.engine.dist import ALONE, Ranks
from purge.models.checks import parameters_to_train

BETA, EPSILON = 0.999, 1e-8  # of Adam's second moment
MICRO_BATCH = "samples that go through the model at a time, to save memory; none: a whole batch"
CHECKPOINT = "do not keep activations inside of blocks, compute them again: less memory, slower"


@dataclass(frozen=True)
class Optim:
    """SGD or Adam; the settings of most baselines."""

    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "sgd, adam or adamw")
    lr: float = setting(1e-2, "η: learning rate", above=0, high=1e38)
    momentum: float = setting(0.9, "of SGD; the first beta of Adam", low=0, high=0.999)
    weight_decay: float = setting(5e-4, "weight decay", low=0, high=1e38)
    clip: float = setting(0.0, "gradient norm limit; 0: off", low=0)

    def __post_init__(self) -> None:
        normalise(self)

    def make(self, model: nn.Module) -> torch.optim.Optimizer:
        """A fresh optimiser over the trainable parameters of a model."""
        params = parameters_to_train(model)
        if self.optimizer == "sgd":
            return torch.optim.SGD(params, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        on_gpu = params[0].is_cuda  # there, a step may be recorded as a CUDA graph
        betas = (self.momentum, 0.999)
        return kind(params, self.lr, betas=betas, weight_decay=self.weight_decay, capturable=on_gpu)

    def step(
        self, optimizer: torch.optim.Optimizer, loss: Tensor, ranks: Ranks = ALONE, rows: int = 0
    ) -> None:
        """One step down ``loss``; of several ranks each has the mean over its part of a batch of ``rows``."""
        optimizer.zero_grad(set_to_none=True)
        (ranks.share(rows) * loss).backward()
        ranks.sum_grads(_params(optimizer))
        self._move(optimizer)

    def along(self, optimizer: torch.optim.Optimizer, g: Tensor) -> None:
        """One step down ``g``, a flat gradient of all parameters of the optimiser."""
        params = _params(optimizer)
        for p, part in zip(params, g.split([p.numel() for p in params]), strict=True):
            p.grad = part.view(p.shape).to(p.dtype)
        self._move(optimizer)

    def _move(self, optimizer: torch.optim.Optimizer) -> None:
        if self.clip > 0:
            nn.utils.clip_grad_norm_(_params(optimizer), self.clip)
        optimizer.step()


def _params(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class FlatOptimizer:
    """SGD with momentum, or AdamW, on one flat vector, as torch.optim has them; steps can be recorded.

    ``rate`` lies on the device, to be filled before a step. If ``relative``, it is the length of the step
    beside that of the weights, ‖θ − θ'‖ = rate·‖θ‖, whatever the gradients are.
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
        relative: bool = False,
    ) -> None:
        self._relative = relative
        self._kind, self._momentum, self._nesterov, self._decay = kind, momentum, nesterov, weight_decay
        self._first = torch.zeros_like(theta)  # momentum; of AdamW the mean of the gradients
        self._second = torch.zeros_like(theta if kind == "adamw" else theta[:0])  # and of their squares
        self._steps = torch.zeros((), dtype=widest(theta), device=theta.device)
        self.rate = torch.full_like(self._steps, lr)

    def displacement(self, theta: Tensor, g: Tensor) -> Tensor:
        """θ − θ' of the next step along ``g``."""
        if self._kind == "adamw":
            self._steps += 1
            self._first.mul_(self._momentum).add_(g, alpha=1 - self._momentum)
            self._second.mul_(BETA).addcmul_(g, g, value=1 - BETA)
            mean = self._first / (1 - self._momentum**self._steps)
            d = self._decay * theta + mean / ((self._second / (1 - BETA**self._steps)).sqrt() + EPSILON)
        else:
            g = torch.add(g, theta, alpha=self._decay)
            self._first.mul_(self._momentum).add_(g)
            d = g.add_(self._first, alpha=self._momentum) if self._nesterov else self._first
        if not self._relative:
            return self.rate * d
        size, weights = (torch.linalg.vector_norm(v, dtype=widest(v)) for v in (d, theta))
        scale: Tensor = self.rate * weights / size.clamp_min(1e-30)
        return d.mul(scale.to(d.dtype)) if d is self._first else d.mul_(scale.to(d.dtype))


class FlatParameters:
    """The trainable weights as one vector, each in the order in which its numbers lie in memory."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self._params: list[Tensor] = list(params)
        types = {p.dtype for p in params}
        self._dtype, self._mixed = max(types, key=lambda dtype: dtype.itemsize), len(types) > 1
        self.rounding = max(torch.finfo(dtype).eps for dtype in types) / 2  # of one number, relative to it

    def grad(self, loss: Tensor, *, keep_graph: bool = False) -> Tensor:
        """The gradient of ``loss``; weights that are not used get zeros."""
        grads = torch.autograd.grad(loss, self._params, retain_graph=keep_graph, allow_unused=True)
        own = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, self._params, strict=True)]
        return self._line(own)

    def read(self) -> Tensor:
        """The weights as they are now."""
        return self._line([p.detach() for p in self._params])

    @torch.no_grad()
    def store(self, vector: Tensor) -> Tensor:
        """Make ``vector`` the weights; what they could hold of it is returned."""
        torch._foreach_copy_(self._params, self._parts(vector))
        return self.read() if self._mixed else vector

    def held(self, vector: Tensor) -> Tensor:
        """What the weights could hold of ``vector``; types too coarse for it are tried out."""
        return self.store(vector) if self._mixed else vector

    def _line(self, tensors: list[Tensor]) -> Tensor:
        first = self._params[0]
        line = torch.empty(sum(p.numel() for p in self._params), dtype=self._dtype, device=first.device)
        torch._foreach_copy_(self._parts(line), tensors)
        return line

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Views of the vector in the shapes of the weights."""
        parts = []
        for part, p in zip(vector.split([p.numel() for p in self._params]), self._params, strict=True):
            if p.ndim == 4 and p.is_contiguous(memory_format=torch.channels_last):
                parts.append(part.view(p.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2))
            else:
                parts.append(part.view(p.shape))
        return parts


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


def widest(t: Tensor) -> torch.dtype:
    """Float64, or float32 on the one kind of device that has no float64."""
    return torch.float32 if t.device.type == "mps" else torch.float64
