"""SFR-on: a weighted ascent by salient weights, between steps on the retain set.

Huang, Cheng, Zheng, Wang, He, Li, Huang: "Unified Gradient-Based Machine Unlearning with Remain Geometry
Enhancement", NeurIPS 2024, arXiv:2409.19732. With ℓ = CE, in steps i = 0 … N − 1 and
c_i = (1 + cos(π i / N)) / 2::

    m = 1 where F_f ≥ γ F_r, else 0;    F_S = mean over batches of S of (∇ℓ)², at the original
    w = ℓ(x_f)^−λ / Σ ℓ(x_f)^−λ                    the samples of a batch that are best known weigh most
    θ ← θ + c_i η clip( c_i α m ∇ Σ w ℓ(x_f) )     in every s-th step, from the first
    θ ← θ − c_i η ∇ℓ(x_r)                          in every step
    θ ← θ_before + β (θ − θ_before)                the slow update, θ_before: as the step began

The steps on the retain set that follow an ascent take the place of a product with the inverse Hessian
of the retain loss: what an ascent broke and they repair is not in the way of retaining.

A loss of exactly 0 takes all the weight of its batch and has no gradient, so that a model which has learnt
single samples by heart may keep them; then lower λ.

The authors' defaults for 10 % of CIFAR-10 and a ResNet-18: SGD, η = 1e-2, momentum 0.9, weight decay
5e-4, one optimiser for both kinds of steps, N = 1500, s = 5, batches of 128, α = 25, λ = 0.5, γ = 1, the
ascent clipped to norm 7, BatchNorm in training mode, the Fisher information in evaluation mode. β = 1:
the slow weights are the fast ones. Both sets are augmented as in training, also for the Fisher information.

Where we differ: every batch is full, dropout is off. Momentum and weight decay move all weights, salient or
not, as in the authors' code. We know the algorithm from that code; the paper's text could not be compared
with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from purge.engine.losses import cross_entropy
from purge.engine.projection import clipped, flat, grad, squared_grads, write
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.checks import parameters_to_train

TINY = 1e-15  # the authors' guard against division by zero


@dataclass(frozen=True)
class SFRon(Method):
    """Climb on the forget set by the weights that it needs most, and descend on the retain set."""

    augments: ClassVar[bool] = True
    steps: int = setting(1500, "N: steps on the retain set", low=1)
    forget_every: int = setting(5, "s: steps between two on the forget set", low=1)
    batch_size: int = setting(128, "samples of each set per step", low=1)
    ascent: float = setting(25.0, "α: weight of the ascent at the start", low=0)
    adaptive: float = setting(0.5, "λ: how much more well-known samples weigh; 0: all alike", low=0)
    saliency: float = setting(1.0, "γ: weights move up where F_f is γ times F_r or more", low=0)
    ascent_clip: float = setting(7.0, "norm limit of the ascent's gradient; 0: off", low=0)
    slow: float = setting(1.0, "β: share of each step that is kept", above=0, high=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-2)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Take ``steps`` steps on the retain set, each ``forget_every``-th after one on the forget set."""
        params = parameters_to_train(model)
        retain, forget = run.as_trained(split.retain), run.as_trained(split.forget)
        size, every = self.batch_size, self.forget_every
        fisher = []
        for part in (forget, retain):
            order = torch.randperm(len(part)).to(run.device)  # batches of mixed classes, as in training
            squares, n, _ = squared_grads(model, params, part, order, batch_size=size, per_sample=False)
            fisher.append(squares / n + TINY)
        salient = (fisher[0] / fisher[1] >= self.saliency).float()
        optimizer = self.optim.make(model)
        at_r = run.batch_indices(split.retain, steps=self.steps, batch_size=size)
        at_f = run.batch_indices(split.forget, steps=math.ceil(self.steps / every), batch_size=size)
        climbs = [at_f[0, :0] if i % every else at_f[i // every] for i in range(self.steps)]
        epoch = math.ceil(len(split.retain) / size)
        for i, (r, f) in run.batches(retain, forget, orders=(at_r, climbs), epoch=epoch):
            before, left = flat(params), (1 + math.cos(math.pi * i / self.steps)) / 2
            optimizer.param_groups[0]["lr"] = self.optim.lr * left
            forget_loss = None
            if len(f):
                each = cross_entropy(model, f.x, f.y, self.norm, "none")
                forget_loss = each.mean()
                weights = 1 / (each.detach() ** self.adaptive + TINY)
                weighted = (weights / weights.sum() * each).sum()
                up = self.ascent * left * salient * grad(weighted, params)
                self.optim.along(optimizer, -clipped(up, self.ascent_clip))
            retain_loss = cross_entropy(model, r.x, r.y, self.norm)
            self.optim.step(optimizer, retain_loss)
            if self.slow < 1:
                write(params, torch.lerp(before, flat(params), self.slow))
            run.log(retain_loss=retain_loss, forget_loss=forget_loss)
