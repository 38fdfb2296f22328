"""SCRUB and SCRUB+R: away from the teacher on the forget set, towards it on the rest, in turns.

Kurmanji, Triantafillou, Hayes, Triantafillou: "Towards Unbounded Machine Unlearning", NeurIPS 2023,
arXiv:2302.09880. With θ₀ the frozen original and d(x) = T² · KL(σ(z⁰/T) ‖ σ(z/T)), in epochs e = 1 … E::

    if e ≤ M, for x in D_f:    θ ← θ + η ∇ d(x)                            a max-step
    for (x, y) in D_r:         θ ← θ − η ∇[ γ CE(x, y) + α d(x) ]          a min-step

SCRUB+R (``rewind``): the model is kept after every epoch, and in the end one of them is taken. With e_f the
error on D_f after an epoch and e_v the error of the last model on held-out samples of the same classes::

    nearest:  the epoch with the smallest |e_f − e_v|, the first of equals
    first:    the first epoch with e_f > e_v; the last one where there is none

Published defaults, from the authors' notebooks. ``scrub`` has those of the experiments called Large: SGD,
η = 5e-4, a tenth after each of the epochs 3, 5 and 9 (so it never falls in three), momentum 0.9, weight
decay 5e-4, γ = 0.99, α = 0.001, T = 4, M = 2, E = 3, batches of 128 of D_r and 32 of D_f. ``scrub-small``:
Adam, η = 5e-4, falling after the epochs 5, 8 and 9, weight decay 0.1, γ = 1, α = 0.5, T = 2, M = 3, E = 10,
batches of 32 and 64. ``scrub-r`` has those of the notebook that reports SCRUB+R, on CIFAR-10: as Large, but
γ = 1, α = 0.5, M = 3, E = 5, batches of 32 and 16, ``nearest``. The paper and three notebooks rewind to the
nearest; the one that compares with Bad Teacher takes the first. One optimiser for both kinds of steps,
BatchNorm in training mode. Nothing is augmented. No clipping; it may diverge without.

Where we differ: every batch is full, dropout is off. The held-out samples are the test samples whose class
is in D_f. The original itself is never rewound to.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import MethodError
from purge.data.samples import Samples
from purge.engine.losses import distill
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.copies import frozen_copy
from purge.models.forward import forward, logits

logger = logging.getLogger("purge")

Rule = Literal["never", "nearest", "first"]


@dataclass(frozen=True)
class Scrub(Method):
    """Max-steps on the forget set and min-steps on the retain set, pass by pass."""

    gamma: float = setting(0.99, "γ: weight of the cross entropy on retain data", low=0)
    alpha: float = setting(0.001, "α: weight of the distillation on retain data", low=0)
    temperature: float = setting(4.0, "T: distillation temperature", above=0)
    max_steps: int = setting(
        2, "M: epochs, from the first, that begin with a pass over the forget set", low=0
    )
    epochs: int = setting(3, "E: passes over the retain set", low=1)
    batch_size: int = setting(128, "retained samples per step", low=1)
    forget_batch_size: int = setting(32, "forgotten samples per step", low=1)
    decay: float = setting(0.1, "factor on the learning rate after some epochs", above=0, high=1)
    decay_after: tuple[int, ...] = setting((3, 5, 9), "these epochs, counted from 1", low=1)
    rewind: Rule = setting("never", "SCRUB+R: take the epoch whose forget error is that of held-out data")
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=5e-4)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through both sets in turns, ``epochs`` times."""
        held_out = self._held_out(split) if self.rewind != "never" else None
        teacher = frozen_copy(model)
        optimizer = self.optim.make(model)
        kept: list[dict[str, Tensor]] = []
        forget, retain, ends = self._orders(split, run)
        for i, (f, r) in run.batches(split.forget, split.retain, orders=(forget, retain), epoch=ends):
            batch = f if len(f) else r
            epoch = 1 + sum(i >= end for end in ends)
            decays = sum(epoch > after for after in self.decay_after)
            optimizer.param_groups[0]["lr"] = self.optim.lr * self.decay**decays
            with torch.no_grad():
                taught = forward(teacher, batch.x).float()
            with statistics(model, self.norm):
                z = forward(model, batch.x).float()
            distance = distill(z, taught, self.temperature)
            if len(f):
                self.optim.step(optimizer, -distance)
                run.log(retain_loss=None, forget_loss=distance)
            else:
                retain_loss = F.cross_entropy(z, r.y)
                self.optim.step(optimizer, self.gamma * retain_loss + self.alpha * distance)
                run.log(retain_loss=retain_loss, forget_loss=None)
            if held_out is not None and i + 1 in ends:
                kept.append(_state(model))
        if held_out is not None:
            if run.step not in ends:  # it was stopped within an epoch
                kept.append(_state(model))
            reference, errors = _error(model, *held_out), []
            for state in kept:
                model.load_state_dict(state)
                errors.append(_error(model, split.forget))
            if self.rewind == "first":
                best = next((i for i, error in enumerate(errors) if error > reference), len(kept) - 1)
            else:
                best = min(range(len(kept)), key=lambda i: abs(errors[i] - reference))
            model.load_state_dict(kept[best])
            logger.info("SCRUB+R: the model after epoch %d of %d is taken.", best + 1, len(kept))

    def _orders(self, split: Split, run: Run) -> tuple[list[Tensor], list[Tensor], list[int]]:
        """The rows of each step in the forget and in the retain set, and the steps that end an epoch.

        Each epoch is a pass over the retain set; the first ones begin with a pass over the forget set.
        """
        forget: list[Tensor] = []
        retain: list[Tensor] = []
        ends, none = [], torch.empty(0, dtype=torch.long, device=run.device)
        for epoch in range(1, self.epochs + 1):
            if epoch <= self.max_steps:
                steps = math.ceil(len(split.forget) / self.forget_batch_size)
                forget += run.batch_indices(split.forget, steps=steps, batch_size=self.forget_batch_size)
                retain += [none] * steps
            steps = math.ceil(len(split.retain) / self.batch_size)
            retain += run.batch_indices(split.retain, steps=steps, batch_size=self.batch_size)
            forget += [none] * steps
            ends.append(len(retain))
        return forget, retain, ends

    def _held_out(self, split: Split) -> tuple[Samples, Tensor]:
        """The test data, and which of its samples are of a class that the forget set has."""
        if split.test is None:
            raise MethodError("test data for rewind (SCRUB+R)", "none", "pass test=…, or rewind=never")
        at = torch.isin(split.test.labels, split.forget.labels).nonzero()[:, 0]
        if len(at) == 0:
            what = "test samples of the forgotten classes for rewind (SCRUB+R)"
            raise MethodError(what, "none", "pass some, or rewind=never")
        return split.test, at


def _state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights: the model's own would change when another epoch is loaded."""
    return {name: t.clone() for name, t in model.state_dict().items()}


def _error(model: nn.Module, samples: Samples, index: Tensor | None = None) -> float:
    labels = samples.labels if index is None else samples.labels[index]
    return int((logits(model, samples, index).argmax(1).cpu() != labels).sum()) / len(labels)
