"""MUNBa: forgetting and retaining bargain over each step.

Wu, Harandi: "MUNBa: Machine Unlearning via Nash Bargaining", ICCV 2025, arXiv:2411.15537. The two sides
are g_r = ∇CE(x_r, y_r) and g_f = ∇CE(x_f, y'), y' ~ U{0 … K−1}, drawn anew for every batch; c is the
cosine between them. The Nash solution maximises ⟨g, g_r⟩·⟨g, g_f⟩; with the weights that solve
Gᵀ G α = 1/α, in closed form::

    g = α_r g_r + α_f g_f,    α_r = 1 / (‖g_r‖ √(1 + c)),    α_f = 1 / (‖g_f‖ √(1 + c))
    θ ← θ − η min(1, L/‖g‖) g                 while the epoch has batches of D_f left
    θ ← θ − η ∇CE(x_r, y_r)                   in the rest of the epoch

So g is √2 long and halves the angle between the two gradients, however long these are.

The authors' code has the same α in another form, with a = ‖g_r‖², b = ⟨g_r, g_f⟩, d = ‖g_f‖² and δ = 1e-8::

    α_r² = (ad − b√(ad)) / (a²d − ab² + δ),    α_f = (1 − aα_r²) / (bα_r + δ)

If one of them is not positive, it takes α_r = 1 and α_f = 0.1. That is our default, since the published
numbers come from it; ``exact`` has δ = 0. The two agree for long gradients. Where g_r is short, as in a
model that fits its data, δ outweighs a²d: α_f then comes out far too large or negative, and the clipped
step follows g_f nearly alone.

The authors' defaults, those of their parser: SGD, η = 1e-2, momentum 0.9, weight decay 5e-4, 10 epochs,
batches of 256 of each set, L = 1, BatchNorm in training mode, each part normalised by itself, both sets
augmented as in training. We have not found which values made the published numbers.

Where we differ: every batch is full, dropout is off. Where D_f has more batches than D_r, D_r is gone
through again beside it; the authors' code fails there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from purge.engine.losses import cross_entropy
from purge.engine.projection import clipped, cosine, dot, grad, norm
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.checks import parameters_to_train

GUARD = 1e-8  # δ
FAILED = 0.1  # the weight of g_f beside g_r where there is no bargain


@dataclass(frozen=True)
class Munba(Method):
    """Steps that both sides agree on, then a pass over what is left of the retain set."""

    augments: ClassVar[bool] = True
    epochs: int = setting(10, "passes over the retain set", low=1)
    batch_size: int = setting(256, "samples of each set per step", low=1)
    exact: bool = setting(False, "δ = 0, the paper's α; no: as the authors' code")
    bargain_clip: float = setting(1.0, "L: norm limit of a bargained step; 0: off", low=0)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-2)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through both sets ``epochs`` times, side by side."""
        params = parameters_to_train(model)
        optimizer = self.optim.make(model)
        retain, forget = run.as_trained(split.retain), run.as_trained(split.forget)
        # An epoch begins with one pass over the forget set; after that, it has no forget samples.
        size, per_f = self.batch_size, math.ceil(len(split.forget) / self.batch_size)
        epoch = max(per_f, math.ceil(len(split.retain) / size))
        at_r = run.batch_indices(split.retain, steps=self.epochs * epoch, batch_size=size)
        at_f = run.batch_indices(split.forget, steps=self.epochs * per_f, batch_size=size)
        rest = [at_f[0, :0]] * (epoch - per_f)
        orders = at_r, [row for part in at_f.split(per_f) for row in [*part, *rest]]
        for _, (r, f) in run.batches(retain, forget, orders=orders, epoch=epoch):
            retain_loss = cross_entropy(model, r.x, r.y, self.norm)
            g, forget_loss, angle = grad(retain_loss, params), None, None
            if len(f):
                wrong = torch.randint(split.classes, f.y.shape, device=f.y.device)
                forget_loss = cross_entropy(model, f.x, wrong, self.norm)
                g, angle = bargained(g, grad(forget_loss, params), exact=self.exact)
                g = clipped(g, self.bargain_clip)
            self.optim.along(optimizer, g)
            run.log(retain_loss=retain_loss, forget_loss=forget_loss, gradient_cosine=angle)


def bargained(g_r: Tensor, g_f: Tensor, *, exact: bool) -> tuple[Tensor, Tensor]:
    """The Nash bargaining solution between two gradients, and the cosine between them.

    ``exact``: in the form that is the same for short gradients as for long ones.
    """
    c, size_r, size_f = cosine(g_r, g_f), norm(g_r), norm(g_f)
    if exact:
        root = (1 + c).clamp_min(0).sqrt()
        weight_r, weight_f = 1 / (size_r * root), 1 / (size_f * root)
    else:
        rr, rf, ff = size_r.square(), dot(g_r, g_f), size_f.square()
        weight_r = ((rr * ff - rf * size_r * size_f) / (rr * (rr * ff - rf.square()) + GUARD)).sqrt()
        weight_f = (1 - rr * weight_r.square()) / (rf * weight_r + GUARD)
    agreed = (weight_r > 0) & (weight_f > 0) & weight_r.isfinite() & weight_f.isfinite()
    weight_r, weight_f = torch.where(agreed, weight_r, 1.0), torch.where(agreed, weight_f, FAILED)
    return weight_r * g_r + weight_f * g_f, c
