"""AMUN: learn the wrong answers that the model itself gives right beside the forgotten samples.

Ebrahimpour-Boroojeny, Sundaram, Chandrasekaran: "Not All Wrong is Bad: Using Adversarial Examples for
Unlearning", ICML 2025, arXiv:2503.00917. For (x, y) in D_f, with θ₀ the original and ε = ε₀, 2ε₀, 4ε₀ …,
steps of ε/10 up the loss in the ball of that radius, until the answer is another one::

    u ← Π_{‖u − x‖ ≤ ε}[ u + ε/10 · g/‖g‖ ],   g = ∇ᵤ CE(f_θ₀(u), y);      x' = u,  y' = argmax f_θ₀(x') ≠ y
    θ ← θ − η_e ∇ CE     on shuffled batches of D_r ∪ D_f ∪ {(x', y')},     D_f with its true labels

A sample that the model gets wrong already is its own neighbour. Published defaults: ε₀ = 0.04 for pixels
between 0 and 1, 50 steps for each ε, clamped to [0, 1]; SGD, momentum 0.9, weight decay 5e-4, 10 epochs,
batches of 128, η = 0.01, a tenth of it after each epoch (η and after how many epochs it falls were searched:
1, 5 or 10). BatchNorm in training mode; D_r and D_f augmented, x' not.

Where we differ: for a class that must go, its samples are not trained on with their labels (the authors
forget single samples only; ``own=True`` trains on all of them, ``own=False`` is their variant without D_f).
Inputs arrive normalised, so lengths are shares of the range of values that the forget set has in a channel,
and the clamp is to that range (``unit="input"``: inputs as they are). ε is doubled 15 times at most.
Every batch is full, dropout is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from purge.core.errors import MethodError
from purge.data.joined import one_after_another, samples_of
from purge.data.samples import Samples, batches, value_range
from purge.engine.losses import cross_entropy, mean_where
from purge.engine.projection import uphill
from purge.engine.run import not_finite
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.copies import frozen_copy
from purge.models.forward import forward

DOUBLINGS = 15  # from 0.04 past the longest way between two images


@dataclass(frozen=True)
class Amun(Method):
    """Train on with the nearest adversarial example of each forgotten sample, and the label it gets."""

    augments: ClassVar[bool] = True

    radius: float = setting(0.04, "ε₀: first radius that is searched for another answer", above=0)
    attack_steps: int = setting(50, "steps of ε/10 in each radius", low=1)
    unit: Literal["range", "input"] = setting(
        "range", "of lengths: range (of the forget set's values in a channel) or input (as it is)"
    )
    own: bool | None = setting(
        None, "train on forgotten samples with their labels too; none: on those whose class stays"
    )
    decay: float = setting(0.1, "factor on the learning rate", above=0, high=1)
    decay_every: int = setting(1, "epochs after which it falls by that factor", low=1)
    epochs: int = setting(10, "passes over all of these samples", low=1)
    batch_size: int = setting(128, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-2)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Find the neighbours, then go ``epochs`` times through them and the rest."""
        beside = self._neighbours(frozen_copy(model), split.forget, run.device)
        trained = ~split.whole if self.own is None else torch.full_like(split.whole, self.own)
        data = [split.retain, split.forget.select(trained.nonzero()[:, 0])]
        changed = [run.as_trained(part) for part in data if len(part)]
        both, known = one_after_another([beside, *changed]), len(beside)
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(both) / self.batch_size)
        for i, (b,) in run.batches(both, epochs=self.epochs, batch_size=self.batch_size):
            optimizer.param_groups[0]["lr"] = self.optim.lr * self.decay ** (i // epoch // self.decay_every)
            each = cross_entropy(model, b.x, b.y, self.norm, "none")
            self.optim.step(optimizer, each.mean())
            wrong = b.rows < known
            run.log(retain_loss=mean_where(each, ~wrong), forget_loss=mean_where(each, wrong))

    def _neighbours(self, teacher: nn.Module, forget: Samples, device: torch.device) -> Samples:
        """x' and y' of every forget sample that has another answer near it."""
        low, high = value_range(forget, "amun")
        nearest = [self._nearest(teacher, x, y, low, high) for x, y in batches(forget, self.batch_size)]
        if not all(bool(x.isfinite().all()) for x in nearest):
            raise not_finite(1)
        with torch.no_grad():
            labels = torch.cat([forward(teacher, x).argmax(1) for x in nearest]).cpu()
        other = labels != forget.labels  # the right label beside a sample would teach it again
        if not bool(other.any()):
            what = "another answer of the model near at least one forgotten sample"
            raise MethodError(what, "none", "raise radius, or choose another method")
        return samples_of(torch.cat(nearest)[other.to(device)], labels[other], device)

    def _nearest(self, teacher: nn.Module, x: Tensor, y: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """For each sample of a batch a point near it that the teacher gives another label."""
        scale = high - low if self.unit == "range" else torch.ones_like(low)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # a channel that never changes
        radius, moved = torch.full((len(x),), self.radius, device=x.device), x
        for _ in range(DOUBLINGS):
            for _ in range(self.attack_steps):
                same, g = uphill(teacher, moved, y)
                if not bool(same.any()):
                    return moved
                g = g * scale
                unit = g / _rows(g.flatten(1).norm(dim=1).clamp_min(torch.finfo(g.dtype).tiny), x)
                way = (moved - x) / scale + _rows(radius / 10, x) * unit
                shorter = (radius / way.flatten(1).norm(dim=1).clamp_min(1e-30)).clamp_max(1)
                there = torch.clamp(x + scale * (way * _rows(shorter, x)), low, high).to(x.dtype)
                moved = torch.where(_rows(same, x), there, moved)
            radius = torch.where(uphill(teacher, moved, y)[0], 2 * radius, radius)
        return moved


def _rows(each: Tensor, like: Tensor) -> Tensor:
    return each.view(-1, *[1] * (like.ndim - 1))
