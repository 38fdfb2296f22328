"""TRW: send each sample of a forgotten class where its class's neighbours say it would go.

Ebrahimpour-Boroojeny, Wang, Sundaram: "On the Necessity of Output Distribution Reweighting for Effective
Class Unlearning", 2025, arXiv:2506.20893 (TREW at ICML 2026). With p₀ the original's answer, f the sample's
own class, C all forgotten classes and w_k the rows of the head's weights::

    s_f,y = softmax over y ∉ C of cos(v_f, v_y) / T,      v = w on its principal components over the classes
    q(y | x) ∝ 1[y ∉ C] · p₀(y | x) · exp(β s_f,y)        for x in D_f,      q = the true label for x in D_r
    θ ← θ − η ∇ CE(q, p_θ)                                in shuffled batches of D_r ∪ D_f

q is the distribution nearest to p₀ without C whose mean similarity is as wanted: hence the exponential.

Published: β = 10, a sharp softmax. The authors' code could not be had, and what we have read of the paper is
the abstract, the reviews and the equation. So these are ours: the temperature T = 0.1, all principal
components, one pass over both sets in shuffled batches, with SGD, η = 0.01, momentum 0.9, weight decay 5e-4,
10 epochs and batches of 128 as in the authors' code of AMUN. Their variant TRW-2R is not here.

Where we differ: several classes may go at once; every batch is full, dropout is off, there is no
augmentation while unlearning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.data.joined import one_after_another
from purge.engine.losses import cross_entropy, mean_where
from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Scalars, Split, Stopping, setting
from purge.models.forward import logits
from purge.models.inspect import last_layer


@dataclass(frozen=True)
class TiltedReweighting(Method):
    """Train on; forgotten samples get the original's answer without their class, tilted to similar ones."""

    graph: ClassVar[bool] = True

    beta: float = setting(10.0, "β: how far the answer is tilted to similar classes", low=0)
    temperature: float = setting(0.1, "T: of the softmax over the similarities", above=0)
    components: int | None = setting(
        None, "principal components of the class weights that are compared; none: all", low=1
    )
    epochs: int = setting(10, "passes over both sets", low=1)
    batch_size: int = setting(128, "samples of both together per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-2)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go ``epochs`` times through both sets."""
        split.refuse_single("trw")
        head = last_layer(model, split.retain, "trw", split.classes)
        forgotten_classes, rows = split.forgotten(run.device), torch.as_tensor(head.weight).detach()
        centred = rows.flatten(1).float()
        centred = centred - centred.mean(0)
        _, _, directions = torch.linalg.svd(centred, full_matrices=False)
        v = F.normalize(centred @ directions[: self.components].T, dim=1)
        similar = (v @ v.T / self.temperature).masked_fill(forgotten_classes, -math.inf).softmax(1)
        tilted = logits(model, split.forget) + self.beta * similar[split.forget.labels.to(run.device)]
        wanted = tilted.masked_fill(forgotten_classes, -math.inf).softmax(1)  # q of every forget sample
        optimizer = self.optim.make(model)
        kept, labels = len(split.retain), torch.eye(split.classes, device=run.device)

        def step(x: Inputs, q: Tensor, forgotten: Tensor) -> Scalars:
            each = cross_entropy(model, x, q, self.norm, "none")
            self.optim.step(optimizer, each.mean())
            return {
                "retain_loss": mean_where(each, ~forgotten),
                "forget_loss": mean_where(each, forgotten),
            }

        one_step = run.recorded(step)
        both = one_after_another([split.retain, split.forget])
        for _, (b,) in run.batches(both, epochs=self.epochs, batch_size=self.batch_size):
            forgotten = b.rows >= kept
            q = torch.where(forgotten[:, None], wanted[(b.rows - kept).clamp_min(0)], labels[b.y])
            run.log(**one_step(b.x, q, forgotten))
