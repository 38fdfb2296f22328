"""LoTUS: distil the forget set from a teacher that is smoothed until it knows no more than of unseen data.

Spartalis, Semertzidis, Gavves, Daras: "LoTUS: Large-Scale Machine Unlearning with a Taste of Uncertainty",
CVPR 2025, arXiv:2503.18314. With θ₀ the frozen original, G a fresh Gumbel(0, 1) for each logit, and
batches from D_f ∪ (a share of D_r), shuffled::

    t = σ( (z⁰ + G) / τ ) for x in D_f,     t = one-hot argmax(z⁰ + G) for x in D_r
    θ ← θ − η ∇ mean( −Σ_k t_k log σ(z)_k )
    τ = exp( α (A_f − A_u) ),    before each epoch, A_f: the accuracy of θ on D_f in evaluation mode

A_u is the accuracy of θ₀ on unseen samples, for a class to forget 0; both are rounded to whole points. A
run ends after an epoch that leaves A_f below A_u by a point or more. A forgotten class may come back: at
A_f = 0, τ is 1 and the next epoch teaches what the original says.

The authors' defaults for a ResNet-18: AdamW, η = 1e-4, weight decay 5e-4, 10 epochs, batches of 128, 30 %
of D_r drawn once, α = 32 for a class, 8 for samples of CIFAR-10 (2 for those of other data sets); the
teacher in evaluation mode, the student's BatchNorm in training mode over the mixed batch.

D_f and D_r are augmented as in training; teacher and student see the same.

Where we differ: every batch is full, dropout is off; A_f is of samples as they are. Unseen samples are the
test samples, which a request of single samples needs. In a request of both kinds, samples whose class goes
count with A_u = 0. A_f is that of the last check. The authors also look at the end of a run before its first
epoch; ours has one epoch at least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from purge.core.errors import MethodError
from purge.data.samples import joined
from purge.engine.losses import mean_of
from purge.engine.run import mixed_orders
from purge.methods.base import Method, Optim, Run, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.copies import frozen_copy
from purge.models.forward import forward, logits

BELOW = 0.01  # a run ends once the forget accuracy is so far below that of unseen samples


@dataclass(frozen=True)
class LoTUS(Method):
    """Distil smoothed answers on the forget set, and the original's on a share of the rest."""

    augments: ClassVar[bool] = True
    alpha: float | None = setting(
        None, "α: how fast τ grows with the accuracy to lose; none: 32 for classes, 8 for samples", low=0,
        high=100,
    )  # fmt: skip
    share: float = setting(0.3, "share of the retain set that is distilled beside it", above=0, high=1)
    epochs: int = setting(10, "passes over the forget set and that share", low=1)
    batch_size: int = setting(128, "samples of both together per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(optimizer="adamw", lr=1e-4)
    stop: Stopping = Stopping(early=False, retain_budget=None, check_every=0)

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go at most ``epochs`` times through the forget set and a share of the retain set."""
        teacher = frozen_copy(model)
        alpha, unseen = self.alpha, 0.0  # of a class nothing may be left
        if alpha is None:
            alpha = 8.0 if split.single else 32.0
        if split.single:
            if split.test is None:
                what = "test data for lotus, to see how well the model does on unseen samples"
                raise MethodError(what, "none", "pass test=…")
            hits = logits(teacher, split.test).argmax(1).cpu() == split.test.labels
            unseen = float(hits.double().mean()) * float((~split.whole).double().mean())
        optimizer = self.optim.make(model)
        kept = torch.randperm(len(split.retain))[: max(1, int(self.share * len(split.retain)))]
        epoch = math.ceil((len(kept) + len(split.forget)) / self.batch_size)
        size, steps = self.batch_size, self.epochs * epoch
        parts = run.as_trained(split.retain), run.as_trained(split.forget)
        orders = mixed_orders(kept.to(run.device), len(split.forget), steps=steps, batch_size=size)
        temperature = 1.0
        for i, (r, f) in run.batches(
            *parts, orders=orders, epoch=epoch, done=lambda now: _gap(now.forget_accuracy, unseen) <= -BELOW
        ):
            if i % epoch == 0:
                temperature = math.exp(alpha * _gap(run.forget_accuracy, unseen))
            x = joined(r, f)
            with torch.no_grad():
                z = forward(teacher, x).float()
                hard = F.gumbel_softmax(z[: len(r)], hard=True)
                target = torch.cat([hard, F.gumbel_softmax(z[len(r) :], tau=temperature)])
            with statistics(model, self.norm):
                each = -(target * forward(model, x).float().log_softmax(1)).sum(1)
            self.optim.step(optimizer, each.mean())
            run.log(retain_loss=mean_of(each[: len(r)]), forget_loss=mean_of(each[len(r) :]))


def _gap(accuracy: float, unseen: float) -> float:
    """A_f − A_u in whole points: the authors round accuracies to a hundredth."""
    return round(round(accuracy, 2) - round(unseen, 2), 2)
