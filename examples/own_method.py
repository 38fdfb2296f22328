"""A method of your own, in one file: forget by noise on the last layer, then repair on retained data.

    uv run python examples/own_method.py

The same class works by name: ``purge unlearn … --method own_method:NoisyHead --set noise=0.5`` in the folder
of this file, or ``{method: "own_method:NoisyHead"}`` in the YAML of a bench, run with ``--trust``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import purge
from purge.methods.base import Method, Optim, Run, Split, Stopping, setting
from purge.models.forward import forward


@dataclass(frozen=True)
class NoisyHead(Method):
    """Add noise to the last layer, then train on with the retained samples."""

    noise: float = setting(1.0, "standard deviation of the noise, in those of the weights", low=0)
    epochs: int = setting(3, "passes over the retain set", low=1)
    batch_size: int = setting(64, "samples per step", low=1)
    optim: Optim = Optim(lr=0.02)
    stop: Stopping = Stopping(early=False)

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Edit ``model``, which is a copy; batches, checks and progress come from ``run``."""
        optimizer = self.optim.make(model)
        for i, (r,) in run.batches(split.retain, epochs=self.epochs, batch_size=self.batch_size):
            if i == 0:
                head = list(model.parameters())[-2:]
                for p in head:
                    p.data += self.noise * p.std() * torch.randn_like(p)
            loss = F.cross_entropy(forward(model, r.x).float(), r.y)
            self.optim.step(optimizer, loss)
            run.log(retain_loss=loss)


def main() -> None:
    """Forget the digit 3 of a small trained network."""
    model, train, test = purge.demo.example(epochs=5)
    forget, retain = purge.split(train, classes=[3])
    result = purge.unlearn(model, forget, retain, method=NoisyHead(noise=2.0))
    print(purge.audit(result, forget, retain, test, original=model, metrics=["fa_test", "ta_retain", "mia"]))


if __name__ == "__main__":
    import purge.demo

    main()
