"""Climbing the loss of the forget set: GA and NegGrad+.

GA. Thudi, Deza, Chandrasekaran, Papernot: "Unrolling SGD: Understanding Factors Influencing Machine
Unlearning", EuroS&P 2022, arXiv:2109.13398::

    θ ← θ + η ∇ CE(x_f, y_f)

NegGrad+. Kurmanji, Triantafillou, Hayes, Triantafillou: "Towards Unbounded Machine Unlearning",
NeurIPS 2023, arXiv:2302.09880, section 4 (the baseline)::

    θ ← θ − η ∇[ α CE(x_r, y_r) − (1 − α) CE(x_f, y_f) ]

Published defaults: GA SGD, η = 1e-4, 5 epochs; NegGrad+ SGD, η = 1e-2, α = 0.95, 10 epochs over D_r
with D_f gone through again and again. Both without clipping, with BatchNorm in training mode, each
part normalised by itself.

Where we differ: every batch is full, dropout is off, there is no augmentation while unlearning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Scalars, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.forward import forward


@dataclass(frozen=True)
class GradientAscent(Method):
    """Plain gradient ascent on the forget set."""

    graph: ClassVar[bool] = True
    epochs: int = setting(5, "passes over the forget set", low=1)
    batch_size: int = setting(256, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-4)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Climb for ``epochs`` passes over the forget set."""
        optimizer = self.optim.make(model)

        def step(x: Inputs, y: Tensor) -> Scalars:
            with statistics(model, self.norm):
                loss = F.cross_entropy(forward(model, x).float(), y)
            self.optim.step(optimizer, -loss)
            return {"forget_loss": loss}

        one_step = run.recorded(step)
        for _, (f,) in run.batches(split.forget, epochs=self.epochs, batch_size=self.batch_size):
            run.log(**one_step(f.x, f.y))


@dataclass(frozen=True)
class NegGradPlus(Method):
    """Descend on retained samples and climb on forgotten ones, in one step."""

    graph: ClassVar[bool] = True
    alpha: float = setting(0.95, "α: weight of the retain loss; the rest is the forget loss", low=0, high=1)
    epochs: int = setting(10, "passes over the retain set", low=1)
    batch_size: int = setting(256, "samples of each set per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-2)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through the retain set ``epochs`` times, beside it through the forget set."""
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(split.retain) / self.batch_size)
        parts, total = (split.forget, split.retain), self.epochs * epoch
        orders = [run.batch_indices(part, steps=total, batch_size=self.batch_size) for part in parts]

        def step(xr: Inputs, yr: Tensor, xf: Inputs, yf: Tensor) -> Scalars:
            with statistics(model, self.norm):
                retain_loss = F.cross_entropy(forward(model, xr).float(), yr)
                forget_loss = F.cross_entropy(forward(model, xf).float(), yf)
            self.optim.step(optimizer, self.alpha * retain_loss - (1 - self.alpha) * forget_loss)
            return {"retain_loss": retain_loss, "forget_loss": forget_loss}

        one_step = run.recorded(step)
        for _, (f, r) in run.batches(*parts, orders=orders, epoch=epoch):
            run.log(**one_step(r.x, r.y, f.x, f.y))
