"""Bad Teacher: a model that knows nothing teaches the forget set, the original teaches the rest.

Chundawat, Tarun, Mandal, Kankanhalli: "Can Bad Teaching Induce Forgetting? Unlearning in Deep Networks
Using an Incompetent Teacher", AAAI 2023, arXiv:2205.08096. With θ₀ the frozen original and θ_d an
untrained network of the same kind, for batches of B samples from D_f ∪ (a share of D_r), shuffled::

    t = σ(z_d / T) for x in D_f,    t = σ(z⁰ / T) for x in D_r
    θ ← θ − η ∇ 1/(B·K) Σ_x Σ_k t_k (log t_k − log σ(z / T)_k)

The sum is divided by the number of classes K too (PyTorch's reduction ``mean``), as in the authors'
code; where a port divides by B alone, its loss and its gradient are K times as large. There is no T².

Published defaults: Adam, η = 1e-4, no weight decay, 1 epoch, batches of 256, T = 1, 30 % of D_r drawn
once; both teachers in evaluation mode, the student's BatchNorm in training mode over the mixed batch.
No clipping. The authors read every image once, before they unlearn.

Where we differ: every batch is full, dropout is off, images are read as they are; the untrained network is
the caller's ``fresh``, or the model with its weights drawn anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from purge.core.errors import ModelError
from purge.data.samples import joined
from purge.engine.run import mixed_orders
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.copies import frozen_copy
from purge.models.forward import forward, logits


@dataclass(frozen=True)
class BadTeacher(Method):
    """Distil from an untrained network what must go, and from the original what must stay."""

    needs: ClassVar[frozenset[str]] = frozenset({"forget", "retain", "fresh"})

    share: float = setting(0.3, "share of the retain set that is distilled beside it", above=0, high=1)
    temperature: float = setting(1.0, "T: of both teachers and the student", above=0)
    epochs: int = setting(1, "passes over the forget set and that share", low=1)
    batch_size: int = setting(256, "samples of both together per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(optimizer="adam", lr=1e-4, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go ``epochs`` times through the forget set and a share of the retain set."""
        good, bad = frozen_copy(model), frozen_copy(run.fresh(model))
        k = logits(bad, split.forget, torch.arange(min(2, len(split.forget)))).shape[1]
        if k != split.classes:
            what = f"{split.classes} outputs from the untrained model"
            raise ModelError(what, str(k), "pass fresh=…, an untrained model of the same kind")
        optimizer = self.optim.make(model)
        kept = torch.randperm(len(split.retain))[: max(1, int(self.share * len(split.retain)))]
        epoch = math.ceil((len(kept) + len(split.forget)) / self.batch_size)
        orders = mixed_orders(
            kept.to(run.device), len(split.forget), steps=self.epochs * epoch, batch_size=self.batch_size
        )
        for _, (r, f) in run.batches(split.retain, split.forget, orders=orders, epoch=epoch):
            with torch.no_grad():
                taught = [forward(teacher, part.x) for teacher, part in ((good, r), (bad, f)) if len(part)]
                target = (torch.cat(taught).float() / self.temperature).softmax(1)
            with statistics(model, self.norm):
                logp = (forward(model, joined(r, f)).float() / self.temperature).log_softmax(1)
            each = F.kl_div(logp, target, reduction="none").mean(1)  # over K: see above
            self.optim.step(optimizer, each.mean())
            run.log(
                retain_loss=each[: len(r)].mean() if len(r) else None,
                forget_loss=each[len(r) :].mean() if len(f) else None,
            )
