"""IU: one Newton step that takes the influence of the forget set away.

Koh, Liang: "Understanding Black-box Predictions via Influence Functions", ICML 2017,
arXiv:1703.04730; as a baseline by Izzo et al., AISTATS 2021, arXiv:2002.10077, and, with the inverse
Fisher matrix of WoodFisher (Singh, Alistarh, NeurIPS 2020, arXiv:2004.14340), by Jia et al., NeurIPS
2023, arXiv:2304.04934, whose code made the published numbers::

    v = (1/N) Σ_{D_f} ∇CE − N_f/(N·N_r) Σ_{D_r} ∇CE,       N = N_f + N_r, evaluation mode
    F = λ·1 + (1/M) Σ_i g_i g_iᵀ,                          g_i = ∇CE of one retain sample, i = 1 … M
    θ ← θ + α F⁻¹ v

WoodFisher gets F⁻¹ by one rank-one update per sample: F_i⁻¹ = F_{i−1}⁻¹ − u uᵀ / (M + g_iᵀ u) with
u = F_{i−1}⁻¹ g_i, F_0 = λ·1.

Published defaults: α = 10 (CIFAR-10; 20 CIFAR-100, 15 SVHN, 2 a class of SVHN), M = 1000, λ = 1.

Where we differ: F⁻¹v is what that recursion would end at, found at once by Woodbury's identity, which
asks for an M × M matrix instead of M vectors as long as θ. The authors' code keeps one vector o in
place of u, which starts as g_1 and is never led back to the current sample: it stays a multiple of
g_1, and what comes out is v less a multiple of g_1. ``exact=False`` is that recursion. The M samples
are drawn at random, where the authors take the first and two more, and are all of D_r if that has fewer.
The exact product then takes the mean over those; the recursion divides by M all the same, as theirs does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.engine.projection import flat, per_sample_grads, summed_grad, write
from purge.methods.base import PUBLISHED, Method, Run, Split, Stopping, setting
from purge.models.checks import parameters_to_train
from purge.models.forward import EVAL_BATCH

KEPT_BYTES = 2 << 30  # gradients up to this size are kept; larger ones are computed when needed

Rows = Callable[[], Iterator[Tensor]]  # gives the gradients g_i, some rows at a time, from the first on


@dataclass(frozen=True)
class Influence(Method):
    """One step along the inverse Fisher matrix times the gradient to be taken away."""

    full_precision: ClassVar[bool] = True
    alpha: float = setting(10.0, "α: length of the step", above=0)
    samples: int = setting(1000, "M: retain samples in the Fisher matrix", low=1)
    damping: float = setting(1.0, "λ: what is added to the Fisher matrix's diagonal", above=0)
    exact: bool = setting(True, "the inverse Fisher product; no: the recursion of the authors' code")
    batch_size: int = setting(100, "samples whose gradients are held at once", low=1)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Sum both gradients, multiply by the inverse Fisher matrix, take the step."""
        params = parameters_to_train(model)
        per_sample_grads(model, *split.retain.take(torch.arange(1)))  # refuse what cannot be done
        n_f, n_r = len(split.forget), len(split.retain)
        n = n_f + n_r
        drawn = run.batch_indices(split.retain, steps=1, batch_size=self.samples)[0]

        def rows() -> Iterator[Tensor]:
            for x, y in split.retain.stream(drawn.split(self.batch_size)):
                yield per_sample_grads(model, x, y)[0]

        each: Rows = rows
        if len(drawn) * sum(p.numel() for p in params) * 4 <= KEPT_BYTES:
            each = list(rows()).__iter__
        for _ in run.steps(1, epoch=1):
            forget, forget_loss = summed_grad(model, params, split.forget, batch_size=EVAL_BATCH)
            retain, retain_loss = summed_grad(model, params, split.retain, batch_size=EVAL_BATCH)
            v = forget / n - n_f / (n * n_r) * retain
            if self.exact:
                k = _inverse_times(each, v, len(drawn), self.damping)
            else:
                k = _authors_recursion(each, v, self.samples, self.damping)
            write(params, flat(params) + self.alpha * k)
            run.log(retain_loss=retain_loss / n_r, forget_loss=forget_loss / n_f)


def _inverse_times(rows: Rows, v: Tensor, m: int, damping: float) -> Tensor:
    """(λ·1 + GᵀG/M)⁻¹ v = (v − Gᵀ (λM·1 + GGᵀ)⁻¹ G v) / λ with the gradients as rows of G."""
    gram, dots = [], []
    for i, g in enumerate(rows()):
        below = [g @ other.T for other in islice(rows(), i)]  # GGᵀ is symmetric: half of it suffices
        line = torch.cat([*below, g @ g.T], 1)
        gram.append(F.pad(line, (0, m - line.shape[1])))
        dots.append(g @ v)
    system = torch.cat(gram)
    system.diagonal().add_(damping * m)
    factor, _ = torch.linalg.cholesky_ex(system)  # reads the lower half; no look at the device
    weights = torch.cholesky_solve(torch.cat(dots)[:, None], factor)[:, 0]
    at, k = 0, v.clone()
    for g in rows():
        k -= weights[at : at + len(g)] @ g
        at += len(g)
    return k / damping


def _authors_recursion(rows: Rows, v: Tensor, m: int, damping: float) -> Tensor:
    """The recursion k −= (k·g)/(M + o·g) o; o −= (o·g)/(M + o·g) o from k = v/λ and o = g_1/λ."""
    k, o = v / damping, None
    for chunk in rows():
        for g in chunk:
            if o is None:
                o = g / damping
                continue
            along = torch.dot(o, g)
            k = k - torch.dot(k, g) / (m + along) * o
            o = o - along / (m + along) * o
    return k
