"""Climbing the loss of the forget set: GA and NegGrad+.

GA. Thudi, Deza, Chandrasekaran, Papernot: "Unrolling SGD: Understanding Factors Influencing Machine
Unlearning", EuroS&P 2022, arXiv:2109.13398::

    θ ← θ + η ∇ CE(x_f, y_f)

NegGrad+. Kurmanji, Triantafillou, Hayes, Triantafillou: "Towards Unbounded Machine Unlearning",
NeurIPS 2023, arXiv:2302.09880, section 4 (the baseline). With θ₀ the original::

    θ ← θ − η ∇[ α (CE(x_r, y_r) + λ/2 ‖θ − θ₀‖²) − (1 − α) CE(x_f, y_f) ]

Published defaults: GA SGD, η = 1e-4, 5 epochs, D_f augmented as in training (as Fan et al. run it,
arXiv:2310.12508). NegGrad+ SGD without momentum and without weight decay,
η = 1e-2, α = 0.9999, λ = 0, 10 epochs over D_r in batches of 128 with D_f gone through again and again
in batches of 32, as in the authors' large-scale notebook (their CIFAR-10 notebook: 5 epochs, batches of
32 and 16; the one for VGG, which is the exception, η = 1e-4 and weight decay 5e-4). In their small-scale
notebook (``neggrad-plus-small``) α = 0.95, λ = 0.1, the weight decay of their training, batches of 128 and
64, and BatchNorm in evaluation mode. Otherwise BatchNorm is in training mode, each part normalised by
itself; no clipping, and nothing is augmented.

Where we differ: every batch is full, dropout is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from purge.engine.losses import cross_entropy
from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Scalars, Split, Stopping, setting
from purge.models.checks import parameters_to_train


@dataclass(frozen=True)
class GradientAscent(Method):
    """Plain gradient ascent on the forget set."""

    graph: ClassVar[bool] = True
    augments: ClassVar[bool] = True
    epochs: int = setting(5, "passes over the forget set", low=1)
    batch_size: int = setting(256, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-4)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Climb for ``epochs`` passes over the forget set."""
        optimizer, forget = self.optim.make(model), run.as_trained(split.forget)

        def step(x: Inputs, y: Tensor) -> Scalars:
            loss = cross_entropy(model, x, y, self.norm)
            self.optim.step(optimizer, -loss)
            return {"forget_loss": loss}

        one_step = run.recorded(step)
        for _, (f,) in run.batches(forget, epochs=self.epochs, batch_size=self.batch_size):
            run.log(**one_step(f.x, f.y))


@dataclass(frozen=True)
class NegGradPlus(Method):
    """Descend on retained samples and climb on forgotten ones, in one step."""

    graph: ClassVar[bool] = True
    alpha: float = setting(0.9999, "α: weight of the retain loss; the rest is the forget loss", low=0, high=1)
    pull: float = setting(0.0, "λ: pull of the weights back to the original's", low=0)
    epochs: int = setting(10, "passes over the retain set", low=1)
    batch_size: int = setting(128, "retained samples per step", low=1)
    forget_batch_size: int = setting(32, "forgotten samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-2, momentum=0.0, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through the retain set ``epochs`` times, beside it through the forget set."""
        optimizer = self.optim.make(model)
        params = parameters_to_train(model)
        start = [p.detach().clone() for p in params]
        epoch = math.ceil(len(split.retain) / self.batch_size)
        parts, sizes = (split.forget, split.retain), (self.forget_batch_size, self.batch_size)
        total = self.epochs * epoch
        orders = [run.batch_indices(p, steps=total, batch_size=n) for p, n in zip(parts, sizes, strict=True)]

        def step(xr: Inputs, yr: Tensor, xf: Inputs, yf: Tensor) -> Scalars:
            retain_loss = cross_entropy(model, xr, yr, self.norm)
            forget_loss = cross_entropy(model, xf, yf, self.norm)
            stay = retain_loss
            if self.pull > 0:
                moved = torch.stack([(p - q).square().sum() for p, q in zip(params, start, strict=True)])
                stay = stay + self.pull / 2 * moved.sum()
            self.optim.step(optimizer, self.alpha * stay - (1 - self.alpha) * forget_loss)
            return {"retain_loss": retain_loss, "forget_loss": forget_loss}

        one_step = run.recorded(step)
        for _, (f, r) in run.batches(*parts, orders=orders, epoch=epoch):
            run.log(**one_step(r.x, r.y, f.x, f.y))
