"""CoUn: contrastive learning on the retain set, which moves forgotten samples along with what is like them.

Khalil, Setayesh, Li: "CoUn: Empowering Machine Unlearning via Contrastive Learning", NeurIPS 2025,
arXiv:2509.16391. No forgotten sample is looked at. With x' and x'' two views of a batch of B samples of
D_r (changed at random, each by itself), h the features before the head and ĥ = h / ‖h‖::

    L_CL = −1/B Σ_i log[ exp(ĥ'_i · ĥ''_i / τ) / Σ_j exp(ĥ'_i · ĥ''_j / τ) ]          InfoNCE
    θ ← θ − η_t ∇[ CE(x', y) + λ L_CL ],     η_t falls from η to 1e-4 along half a cosine

Published: 50 epochs, η between 0.01 and 0.1, λ between 0.1 and 6, τ at most 0.3 (0.1 is best), each tuned
to the task. The defaults are from these ranges.

Where we differ: the batch size (256), momentum and weight decay are those of the other baselines, since we
could not find the authors' code; that CE looks at the first view alone, that negatives are of the other
view, and that there is no projection head, is our reading. Both views go through the model in one batch.
Views are the random changes that the model was trained with (``augment=``); where none are known, both
views are the same, so that L_CL only pushes samples apart. Every batch is full, dropout is off.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import nn

from purge.data.samples import joined
from purge.engine.losses import info_nce
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.forward import forward
from purge.models.hooks import capture_features
from purge.models.inspect import last_layer

logger = logging.getLogger("purge")


@dataclass(frozen=True)
class CoUn(Method):
    """Train on with the retain set, with its labels and with two views of each sample."""

    needs: ClassVar[frozenset[str]] = frozenset({"retain"})
    augments: ClassVar[bool] = True

    contrast: float = setting(1.0, "λ: weight of the contrastive loss", low=0)
    temperature: float = setting(0.1, "τ: of the contrastive loss", above=0)
    epochs: int = setting(50, "passes over the retain set", low=1)
    batch_size: int = setting(256, "samples per step, each in two views", low=1)
    end_lr: float = setting(1e-4, "learning rate that the last steps come down to", low=0)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=0.1)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through two views of the retain set ``epochs`` times."""
        head = last_layer(model, split.retain, "coun")
        views = run.augmented(split.retain)
        if views is None:
            logger.warning("coun has no second view of a sample: pass augment=…, as the model was trained.")
            views = split.retain
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(split.retain) / self.batch_size)
        at = run.batch_indices(split.retain, steps=self.epochs * epoch, batch_size=self.batch_size)
        for i, (one, two) in run.batches(views, views, orders=(at, at), epoch=epoch):
            part = (1 + math.cos(math.pi * i / len(at))) / 2
            optimizer.param_groups[0]["lr"] = self.end_lr + (self.optim.lr - self.end_lr) * part
            with statistics(model, self.norm), capture_features(model, head) as seen:
                z = forward(model, joined(one, two)).float()
            first, second = seen[0].chunk(2)
            retain_loss = F.cross_entropy(z[: len(one)], one.y)
            contrast = info_nce(first, second, self.temperature)
            self.optim.step(optimizer, retain_loss + self.contrast * contrast)
            run.log(retain_loss=retain_loss, contrast=contrast)
