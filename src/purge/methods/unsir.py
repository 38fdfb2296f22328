"""UNSIR: unlearning by selective impair and repair.

Tarun, Chundawat, Mandal, Kankanhalli: "Fast Yet Effective Machine Unlearning", TNNLS 2023,
arXiv:2111.08947. It never looks at a forgotten sample: noise that the model gets as wrong as can be
stands for the class, θ₀ being the original::

    N_c = argmin_N −CE(f_θ₀(N), c) + λ mean_i ‖N_i‖²      for each forgotten class c, from N ~ 𝒩(0, 1)
    impair: θ ← θ − η ∇ CE(f(x), y)     x, y from {(N_c, c)} ∪ S,  S ⊂ D_r a few samples of each class
    repair: θ ← θ − η ∇ CE(f(x), y)     x, y from S

Published defaults, those of the authors' notebook for CIFAR-10 (vikram2000b/Fast-Machine-Unlearning):
256 noise samples per class, made by 40 steps of Adam 0.1 with λ = 0.1, BatchNorm in training mode, so
that the samples are normalised with each other; three of them, 20 times each, in one shuffled pass with
1,000 samples of each retained class (noise is 0.7 % of the rows for one class of ten); batches of 256,
Adam 0.02; then one pass over the retained samples, Adam 0.01. The three are the number of channels of an
image, over which the notebook loops where it means the batch. No clipping; noise and retained samples are
normalised together. The port of Foster et al. (arXiv:2308.07707), which later comparisons use, has 32
noise samples, 25 steps, 80 repeats, 500 samples of each class, batches of 32 and Adam 1e-4 in both passes;
there noise is 5 % of the rows.

Where we differ: a pass has at least ``min_steps`` steps, so that batches are smaller where there are fewer
than 7,700 rows (six steps of 256 rows leave BatchNorm's moving averages far behind the weights); the noise
of each class is labelled with its own class, where the notebook labels all of it 0; the retained samples are
drawn at random and are not the first 1,000; every batch is full, dropout is off.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from purge.data import inputs
from purge.data.joined import samples_of
from purge.data.samples import Samples, few, joined
from purge.engine.losses import cross_entropy, mean_of
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting


@dataclass(frozen=True)
class UNSIR(Method):
    """Impair with error-maximising noise of the forgotten classes, repair with retained samples."""

    noise_samples: int = setting(256, "noise samples that are made for each forgotten class", low=1)
    noise_steps: int = setting(40, "steps of Adam on the noise", low=0)
    noise_lr: float = setting(0.1, "learning rate of the noise", above=0)
    noise_decay: float = setting(0.1, "λ: weight of the noise's squared norm", low=0)
    noise_shown: int = setting(3, "how many noise samples of each class the model is shown", low=1)
    noise_repeats: int = setting(20, "how often it is shown each of them in an impair epoch", low=1)
    per_class: int = setting(1000, "retained samples of each class that are used, at most", low=1)
    impair_epochs: int = setting(1, "passes over noise and retained samples", low=1)
    repair_epochs: int = setting(1, "passes over the retained samples", low=0)
    batch_size: int = setting(256, "samples per step, at most", low=1)
    min_steps: int = setting(30, "steps per pass at least: few samples make smaller batches", low=1)
    repair_lr: float = setting(0.01, "learning rate of the repair", above=0)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(optimizer="adam", lr=0.02, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Make the noise, impair, repair."""
        before = [b.clone() for b in model.buffers()]
        noise = self._noise(model, split, run.device)
        moved = [b.clone() for b in model.buffers()]
        _write(model, before)
        labels, order = split.retain.labels, torch.randperm(len(split.retain))
        some = [order[labels[order] == c][: self.per_class] for c in labels.unique()]
        chosen = torch.cat(some).to(run.device)
        kept, rows = len(chosen), len(chosen) + len(noise) * self.noise_repeats
        passes = self._passes(range(rows), self.impair_epochs, run)  # over retained samples and then noise
        impair = [chosen[at[at < kept]] for at in passes]
        at_n = [(at[at >= kept] - kept) % len(noise) for at in passes]
        repair = [chosen[at] for at in self._passes(chosen, self.repair_epochs, run)]
        slower = dataclasses.replace(self.optim, lr=self.repair_lr)
        optimizers = [self.optim.make(model)] * len(impair) + [slower.make(model)] * len(repair)
        orders = [impair + repair, at_n + [chosen[:0]] * len(repair)]
        ends = {len(impair), len(impair) + len(repair)}
        for i, (r, n) in run.batches(split.retain, noise, orders=orders, epoch=ends):
            if i == 0:  # the noise has moved the statistics, which the check before must not see
                _write(model, moved)
            each = cross_entropy(model, joined(r, n), torch.cat([r.y, n.y]), self.norm, "none")
            self.optim.step(optimizers[i], each.mean())
            run.log(retain_loss=mean_of(each[: len(r)]), noise_loss=mean_of(each[len(r) :]))

    def _noise(self, model: nn.Module, split: Split, device: torch.device) -> Samples:
        """Noise that the model takes for anything but the class that it stands for."""
        split.refuse_single("unsir")
        like = inputs.continuous(few(split.retain, 1), "unsir")
        shape, shown, named = (self.noise_samples, *like.shape[1:]), [], []
        for c in sorted(split.forget_classes):
            noise = torch.randn(shape, dtype=like.dtype).to(device).requires_grad_()
            y = torch.full((self.noise_samples,), c, device=device)
            optimizer = torch.optim.Adam([noise], self.noise_lr)
            for _ in range(self.noise_steps):
                error = cross_entropy(model, noise, y, self.norm)
                size = noise.square().flatten(1).sum(1).mean()
                (noise.grad,) = torch.autograd.grad(self.noise_decay * size - error, [noise])
                optimizer.step()
            shown.append(noise.detach()[: self.noise_shown])
            named.append(y[: self.noise_shown].cpu())
        return samples_of(torch.cat(shown), torch.cat(named), device)

    def _passes(self, rows: Sized, epochs: int, run: Run) -> list[Tensor]:
        """Shuffled passes over some rows, one after the other, cut into batches."""
        size = min(self.batch_size, math.ceil(len(rows) / self.min_steps))
        steps = epochs * math.ceil(len(rows) / size)
        return [*run.batch_indices(rows, steps=steps, batch_size=size)] if steps else []


def _write(model: nn.Module, buffers: list[Tensor]) -> None:
    for own, before in zip(model.buffers(), buffers, strict=True):
        own.copy_(before)
