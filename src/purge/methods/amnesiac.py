"""Amnesiac unlearning: take back the updates of the batches with the samples to forget.

Graves, Nagisetty, Ganesh: "Amnesiac Machine Learning", AAAI 2021, arXiv:2010.10981. While the model is
trained, the change that each batch b makes to the parameters is written to disk; to forget D_f, the
changes of all batches with a sample of D_f are taken back, and the model is trained on the rest for a
short while::

    δ_b = θ_after(b) − θ_before(b)          for every training step b            (the log)
    θ  ← θ − Σ_{b : b ∩ D_f ≠ ∅} δ_b
    θ  ← θ − η ∇ CE(x_r, y_r)               for some epochs                      (the repair)

Published defaults: the paper only calls the repair short; in the authors' notebooks (lmgraves/AmnesiacML)
it is as long as their training, 10 epochs of Adam with η = 1e-3 and without weight decay, batches of 64.

As there, the running statistics of BatchNorm are not logged (a variance minus some of its changes can be
negative); with ``norm="train"`` the repair updates them.

What to expect: few samples touch few batches and little is lost. A class is in nearly every batch, so
nearly everything is taken back and the repair has to train the model from its first weights. This is how
the method works (give it the epochs of a training, or use another). What later batches inherited from the
forgotten ones, through weights, momentum and weight decay, is not taken back.

Where we differ: the repair begins with a fresh optimiser, where the notebooks go on with the training's.
Parameters that take no gradient are not logged. The log lists the samples of *every* step, so that an
incomplete log is noticed. Changes are taken back from the last to the first, each rounded once. In the
repair every batch is full, dropout is off and there is no augmentation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import nn

from purge.engine.losses import cross_entropy
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.methods.update_log import updates_in, updates_with


@dataclass(frozen=True)
class Amnesiac(Method):
    """Take back the logged updates of the batches with forgotten samples, then repair."""

    needs: ClassVar[frozenset[str]] = frozenset({"forget", "retain", "updates"})

    log: str | None = setting(None, "folder of the log that training wrote; see UpdateLog")
    epochs: int = setting(10, "passes over the retain set afterwards; 0: no repair", low=0)
    batch_size: int = setting(64, "samples per step of the repair", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(optimizer="adam", lr=1e-3, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Take back what forgotten samples had a part in; then go through the retain set."""
        files = updates_with(self.log, model, split.forget)
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(split.retain) / self.batch_size)
        order = [torch.empty(0, dtype=torch.long, device=run.device)]  # the first step is the subtraction
        if self.epochs > 0:
            order += run.batch_indices(split.retain, steps=self.epochs * epoch, batch_size=self.batch_size)
        ends = range(1, len(order) + 1, epoch)
        for _, (r,) in run.batches(split.retain, orders=[order], epoch=ends):
            if not len(r):
                take_back(model, files)
                run.log(retain_loss=None, taken_back=torch.tensor(len(files), device=run.device))
                continue
            loss = cross_entropy(model, r.x, r.y, self.norm)
            self.optim.step(optimizer, loss)
            run.log(retain_loss=loss, taken_back=None)


@torch.no_grad()
def take_back(model: nn.Module, files: Sequence[Path]) -> None:
    """θ − Σ δ over the files, one after the other; what takes no gradient stays as it is."""
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for file in files:
        for name, delta in updates_in(file).items():
            if name in params:
                params[name].sub_(delta.to(params[name].device))
