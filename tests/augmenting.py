"""A method that reads augmented samples, and keeps what it was given for a test to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import nn

from purge.methods.base import PUBLISHED, Method, Run, Split, Stopping
from purge.models.forward import forward


@dataclass(frozen=True)
class Augmenting(Method):
    """A few steps on retained samples, augmented where it is known how."""

    augments: ClassVar[bool] = True
    seen: ClassVar[dict[str, Any]] = {}  # of the last run

    lr: float = 0.01
    batch_size: int = 8
    steps: int = 3
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Descend on batches of the retain set."""
        self.seen.clear()
        changed, plain = run.augmented(split.retain), run.plain(split.retain)
        order = run.batch_indices(split.retain, steps=self.steps, batch_size=self.batch_size)
        batches: list[Any] = []
        for _, (r,) in run.batches(changed or plain, orders=[order], epoch=self.steps):
            loss = F.cross_entropy(forward(model, r.x), r.y)
            model.zero_grad()
            loss.backward()
            for p in model.parameters():
                p.data -= self.lr * p.grad
            batches.append(r)
            run.log(retain_loss=loss)
        self.seen.update(changed=changed, plain=plain, order=order, batches=batches, split=split, run=run)
