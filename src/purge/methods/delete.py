"""DELETE: masked distillation on the forget set alone.

Zhou, Zheng, Mo, Lu, Lin, Zheng: "Decoupled Distillation to Erase: A General Unlearning Method for Any
Class-centric Tasks", CVPR 2025, arXiv:2503.23751. With θ₀ the frozen original::

    t = σ( z⁰ with z⁰_y := −10¹⁰ )            the original's opinion without the sample's own label
    θ ← θ − η ∇ KL(t ‖ σ(z))                  for (x, y) in D_f, summed over classes, mean over samples

No retained sample is looked at. Published defaults: SGD, momentum 0.9, no weight decay, η = 1e-4 (in
the authors' configuration for CIFAR-10; their script passes 1e-3; 5e-5 for CIFAR-100 and
Tiny-ImageNet), 20 epochs, batches of 128, BatchNorm in training mode, for a single class of
Tiny-ImageNet frozen. D_f augmented as in training; both networks see the same. No clipping.

Where we differ: every batch is full, dropout is off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from purge.engine.losses import kl
from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Scalars, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.copies import frozen_copy
from purge.models.forward import forward

HIDDEN = -1e10  # the logit of a label that must not be seen


@dataclass(frozen=True)
class Delete(Method):
    """Distil the original without each forgotten sample's own label into the model."""

    graph: ClassVar[bool] = True
    augments: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"forget"})

    epochs: int = setting(20, "passes over the forget set", low=1)
    batch_size: int = setting(128, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-4, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through the forget set ``epochs`` times; the retain set is only looked at by checks."""
        teacher = frozen_copy(model)
        optimizer, forget = self.optim.make(model), run.as_trained(split.forget)

        def step(x: Inputs, y: Tensor) -> Scalars:
            with torch.no_grad():
                target = forward(teacher, x).float().scatter(1, y[:, None], HIDDEN).softmax(1)
            with statistics(model, self.norm):
                loss = kl(forward(model, x), target)
            self.optim.step(optimizer, loss)
            return {"forget_loss": loss}

        one_step = run.recorded(step)
        for _, (f,) in run.batches(forget, epochs=self.epochs, batch_size=self.batch_size):
            run.log(**one_step(f.x, f.y))
