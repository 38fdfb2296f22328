"""MU-Mis: make the model insensitive to what it learned from the forget set, which alone is looked at.

Cheng, Huang, Zhou, He, Yang, Wu, Huang: "Remaining-data-free Machine Unlearning by Suppressing Sample
Contribution", ICLR 2026, arXiv:2402.15109. Training makes the logit of a sample's own class y sensitive
to the sample; a retrained model is less so, and its other logits are more so. With c' ≠ y a class drawn
anew for each sample and step::

    θ ← θ − η ∇_θ mean_{(x, y) ∈ D_f} [ ‖∇ₓ z_y(x)‖² − ‖∇ₓ z_c'(x)‖² ]

It ends once the other classes are sensitive enough: with S the mean of ‖∇ₓ z_c'‖ over an epoch, after the
epoch in which S is above the least that it was and at least δ times what it was before the first step.
The loss has no lower bound, so a run without that end destroys the model.

Published: gradient descent on D_f alone; S falls at first, and the run ends when it has come back. We could
not find η, δ, batch size or epochs for any data set, and had no access to the authors' code
(poppopbean0903/MU-Mis). So these are ours: plain SGD without weight decay, at most 100 passes in batches of
64, and η = 1e-4 and δ = 2.5, which forget a class of digits. There S rises from the first step on, and δ =
1 would end the run at once. The loss depends on the scale of the inputs: both have to be searched for other
data. On single samples of digits it harms what stays before it forgets, and the authors call these its
weakness, too.

Where we differ: BatchNorm keeps its statistics, since only then ∇ₓ of a batch is that of each sample; the
end is looked for after each pass, not after each step. Every batch is full, dropout is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from purge.data import inputs
from purge.data.samples import batches
from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.forward import forward


@dataclass(frozen=True)
class MuMis(Method):
    """Lower the sensitivity of each forgotten sample's own logit, and raise that of another."""

    full_precision: ClassVar[bool] = True  # second derivatives
    needs: ClassVar[frozenset[str]] = frozenset({"forget"})

    recovery: float | None = setting(
        2.5,
        "δ: end once other classes are this many times as sensitive as at first; none: whole schedule",
        above=0,
    )
    epochs: int = setting(100, "passes over the forget set, at most", low=1)
    batch_size: int = setting(64, "samples per step", low=1)
    optim: Optim = Optim(lr=1e-4, momentum=0.0, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through the forget set until other classes have recovered."""
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(split.forget) / self.batch_size)
        each = [
            _sensitivities(model, x, y)[1].detach().sqrt() for x, y in batches(split.forget, self.batch_size)
        ]
        least = first = torch.cat(each).mean()  # S before the first step
        total = torch.zeros((), device=run.device)
        for i, (f,) in run.batches(split.forget, epochs=self.epochs, batch_size=self.batch_size):
            own, other = _sensitivities(model, f.x, f.y)
            loss = (own - other).mean()
            self.optim.step(optimizer, loss)
            run.log(forget_loss=loss, own=own.mean(), other=other.mean())
            total = total + other.detach().sqrt().mean() / epoch
            if self.recovery is not None and (i + 1) % epoch == 0:
                if bool((total > least) & (total >= self.recovery * first)):
                    run.finish()
                least, total = torch.minimum(least, total), torch.zeros_like(total)


def _sensitivities(model: nn.Module, batch: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
    """‖∇ₓ z_y‖² and ‖∇ₓ z_c'‖² of each sample, (B,) each, that can be differentiated again."""
    x = inputs.continuous(batch, "mu-mis").detach().requires_grad_()
    # Fused attention has no second derivative.
    with statistics(model, "frozen"), sdpa_kernel(SDPBackend.MATH):
        z = forward(model, x).float()
        other = (y + torch.randint(1, z.shape[1], y.shape, device=y.device)) % z.shape[1]
        parts = []
        for chosen in (y, other):
            logit = z.gather(1, chosen[:, None]).sum()
            (g,) = torch.autograd.grad(logit, x, create_graph=True)
            parts.append(g.flatten(1).float().square().sum(1))
    return parts[0], parts[1]
