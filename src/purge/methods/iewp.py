"""IEWP: the predecessor of PURGE that its authors gave up.

Jawandhia et al., BITS Pilani: the paper on PURGE, section "Why we abandoned IEWPv2"
(Influence-Weighted Entropy Unlearning Protocol v2). It says no more than this: entropy is maximised
with a weight for influence, gradient norms stand for influence, and forget steps alternate with retain
steps. Written out, with θ₀ the original::

    w_i = ‖∇_θ CE(f_θ₀(x_i), y_i)‖ / mean_{D_f} ‖∇_θ CE(f_θ₀(x), y)‖
    θ ← θ + η ∇ mean_i w_i H(σ(f_θ(x_i)))        a forget step
    θ ← θ − η ∇ CE(x_r, y_r)                     then a retain step

Published defaults: none. Batches of 128, 15 epochs, SGD with η = 5e-4, momentum 0.9, weight decay 5e-4
and frozen BatchNorm are those of PURGE in the same paper. No clipping.

What the paper leaves open, and what we chose: w is taken once, at θ₀, where influence is defined, and
has mean 1, so that η means the same for every model; one optimiser takes both kinds of step. The norm
is that of the gradient of all trainable parameters, sample by sample, by ``torch.func.vmap``: the
formula for the last layer alone, (1 + ‖h‖²)^½ ‖σ(z) − e_y‖, would cost less but measures the head only
and needs to know where it is. Every batch is full, dropout is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad
from torch.nn.modules.batchnorm import _BatchNorm

from purge.core.errors import ModelError
from purge.data import inputs
from purge.data.samples import Samples, batches
from purge.engine.projection import of_each
from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.copies import frozen_copy
from purge.models.forward import EVAL_BATCH, forward

GRADIENTS = 1 << 28  # numbers in the gradients of single samples that are held at a time


@dataclass(frozen=True)
class IEWP(Method):
    """Raise the entropy of forgotten samples by their influence, between retain steps."""

    retain_steps: int = setting(1, "retain steps after each forget step", low=1)
    epochs: int = setting(15, "passes over the forget set", low=1)
    batch_size: int = setting(128, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("frozen", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=5e-4)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Alternate for ``epochs`` passes over the forget set."""
        with run.autocast("float32"):
            weights = _influence(model, split.forget)
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(split.forget) / self.batch_size)
        total = self.epochs * epoch
        at_f = run.batch_indices(split.forget, steps=total, batch_size=self.batch_size)
        at_r = run.batch_indices(split.retain, steps=total * self.retain_steps, batch_size=self.batch_size)
        none = torch.empty(0, dtype=torch.long, device=run.device)
        forget = [index for at in at_f for index in (at, *[none] * self.retain_steps)]
        retain = [index for turn in at_r.split(self.retain_steps) for index in (none, *turn)]
        turn = 1 + self.retain_steps
        for _, (f, r) in run.batches(split.forget, split.retain, orders=(forget, retain), epoch=epoch * turn):
            batch = f if len(f) else r
            with statistics(model, self.norm):
                z = forward(model, batch.x).float()
            if len(f):
                logp = z.log_softmax(1)
                loss = (weights[f.rows] * (logp.exp() * logp).sum(1)).mean()  # −w·H
            else:
                loss = F.cross_entropy(z, r.y)
            self.optim.step(optimizer, loss)
            run.log(retain_loss=None if len(f) else loss, forget_loss=loss if len(f) else None)


def _influence(model: nn.Module, forget: Samples) -> Tensor:
    """w: the norm of each sample's gradient, divided by their mean, (|D_f|,)."""
    mixing = [n for n, m in model.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is None]
    if mixing:
        what = "BatchNorm with running statistics, for gradients of single samples"
        raise ModelError(what, f"{mixing[0]}, which has none", "use a method that takes gradients of batches")
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    teacher = frozen_copy(model)

    def loss(params: dict[str, Tensor], x: Inputs, y: Tensor) -> Tensor:
        z = forward(teacher, inputs.take(x, None), params)
        return F.cross_entropy(z.float(), y[None])

    def norm(x: Inputs, y: Tensor) -> Tensor:
        g = grad(loss)(trained, x, y)
        return torch.stack([part.float().square().sum() for part in g.values()]).sum().sqrt()

    at_once = min(EVAL_BATCH, max(1, GRADIENTS // sum(p.numel() for p in trained.values())))
    norms = torch.cat([of_each(norm, x, y, at_once) for x, y in batches(forget, EVAL_BATCH)])
    total = norms.mean()
    return torch.where(total > 0, norms / total, torch.ones_like(norms))
