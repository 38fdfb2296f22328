"""Gradient ascent, also called NegGrad: climb the loss of what must be forgotten.

Thudi, Deza, Chandrasekaran, Papernot, "Unrolling SGD: Understanding Factors Influencing Machine
Unlearning", 2022, arXiv:2109.13398::

    θ ← θ + η·∇ CE(f_θ(x_f), y_f)

Retain data is used only to watch the retain loss at checks. Deviations: none in the step; the
stopping interface is offered, by default with no budget and a forget target of zero. BatchNorm is
in training mode, as published, so its running statistics follow the forget batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from purge.checks import parameters_to_train
from purge.methods.base import Method
from purge.models import logits_of
from purge.norm import statistics
from purge.runtime import Run
from purge.settings import setting
from purge.splits import Split
from purge.stopping import Stopping


@dataclass(frozen=True)
class GradientAscent(Method):
    """Plain gradient ascent on the forget set, at its published settings."""

    lr: float = setting(1e-4, "η: learning rate", above=0, high=1e38)
    epochs: int = setting(5, "passes over the forget set", low=1)
    batch_size: int = setting(256, "samples per step", low=1)
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=0.999)
    weight_decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(0.0, "gradient norm limit; 0: off", low=0)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    stop: Stopping = Stopping(forget_target=0.0, retain_budget=None)

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Climb for ``epochs`` passes over the forget set, or until nothing of it is known."""
        params = parameters_to_train(model)
        optimizer = torch.optim.SGD(params, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        epoch = math.ceil(len(split.forget) / self.batch_size)
        total = self.epochs * epoch
        at = run.order(split.forget, steps=total, batch_size=self.batch_size)
        run.begin(model)
        for _, (x, y) in zip(run.steps(total, epoch=epoch), split.forget.stream(at), strict=False):
            with statistics(model, self.norm, retain_rows=0):
                loss = F.cross_entropy(logits_of(model(x)).float(), y)
            optimizer.zero_grad()
            (-loss).backward()
            if self.clip > 0:
                nn.utils.clip_grad_norm_(params, self.clip)
            optimizer.step()
            run.log(forget_loss=loss)
            if run.due:
                run.check(model)
