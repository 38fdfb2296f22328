"""SSD: dampen the weights that matter more to the forget set than to the rest.

Foster, Schoepf, Brintrup: "Fast Machine Unlearning Without Retraining Through Selective Synaptic
Dampening", AAAI 2024, arXiv:2308.07707::

    I_S,j = mean_{(x, y) ∈ S} (∂CE(x, y)/∂θ_j)²,      S = D = D_f ∪ D_r and S = D_f, evaluation mode
    θ_j ← min(λ I_D,j / I_f,j, 1) θ_j   where I_f,j > α I_D,j

Published defaults: α = 10 (ResNet-18; ViT 5 for a class, 25 for a part of one), λ = 1.

Where we differ: the gradients of single samples are squared, as the definition asks; the authors' code
squares the mean gradient of a batch, of 64 samples and unshuffled, which is ``per_sample=False`` (our
batches are of equal size, and none mixes D_f with D_r). I_D is made of the two sums over D_f and D_r, so
that each sample is looked at once.

As I_D contains I_f, the condition cannot hold where α ≥ |D|/|D_f|: with the default, nothing happens if
a tenth of the data or more is to be forgotten. A warning says so.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from purge.engine.projection import flat, per_sample_grads, squared_grads, write
from purge.methods.base import PUBLISHED, Method, Run, Split, Stopping, setting
from purge.models.checks import parameters_to_train

logger = logging.getLogger("purge")


@dataclass(frozen=True)
class SelectiveDampening(Method):
    """Make the weights smaller that the forget set needs more than the whole data does."""

    full_precision: ClassVar[bool] = True
    alpha: float = setting(10.0, "α: dampen where I_f > α·I_D", above=0)
    dampening: float = setting(1.0, "λ: what stays of a weight is λ·I_D/I_f", low=0)
    per_sample: bool = setting(True, "square single gradients; no: the mean of a batch, as the authors' code")
    batch_size: int = setting(64, "samples whose gradients are held at once, or averaged", low=1)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Measure both importances, then dampen."""
        params = parameters_to_train(model)
        if self.per_sample:
            per_sample_grads(model, *split.retain.take(torch.arange(1)))  # refuse what cannot be done
        size = 1 if self.per_sample else self.batch_size
        n_f, n_r = (math.ceil(len(part) / size) for part in (split.forget, split.retain))
        if self.alpha * n_f >= n_f + n_r:
            logger.warning(
                "ssd cannot dampen anything here: the forget set is 1/%.3g of the data, so no weight can be "
                "more than that many times as important to it, and alpha is %.3g. Lower alpha.",
                (n_f + n_r) / n_f,
                self.alpha,
            )
        for _ in run.steps(1, epoch=1):
            (squares_f, n_f, forget_loss), (squares_r, n_r, retain_loss) = (
                squared_grads(
                    model, params, part, torch.arange(len(part), device=run.device),
                    batch_size=self.batch_size, per_sample=self.per_sample,
                )
                for part in (split.forget, split.retain)
            )  # fmt: skip
            forget, whole = squares_f / n_f, (squares_f + squares_r) / (n_f + n_r)
            chosen = forget > self.alpha * whole
            left = torch.where(chosen, (self.dampening * whole / forget).clamp_max(1), 1)
            write(params, left * flat(params))
            share = torch.where(whole.isfinite().all(), chosen.float().mean(), math.nan)  # NaN > x is False
            run.log(retain_loss=retain_loss, forget_loss=forget_loss, dampened=share)
