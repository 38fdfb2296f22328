"""UNSIR: unlearning by selective impair and repair.

Tarun, Chundawat, Mandal, Kankanhalli: "Fast Yet Effective Machine Unlearning", TNNLS 2023,
arXiv:2111.08947. It never looks at a forgotten sample: noise that the model gets as wrong as can be
stands for the class, θ₀ being the original::

    N_c = argmin_N −CE(f_θ₀(N), c) + λ mean_i ‖N_i‖²      for each forgotten class c, from N ~ 𝒩(0, 1)
    impair: θ ← θ − η ∇ CE(f(x), y)     x, y from {(N_c, c)} ∪ S,  S ⊂ D_r a few samples of each class
    repair: θ ← θ − η ∇ CE(f(x), y)     x, y from S

Published defaults: Adam 0.1 for the noise, λ = 0.1, 32 noise samples per class, S 500 samples of each
class, one epoch each. The number of noise steps (25), how often noise is repeated (80 times), the
batches (32, then 128) and η = 1e-4 are those that comparisons use (Foster et al., arXiv:2308.07707);
the authors have 40, 20, 256 and η = 0.02, then 0.01. No clipping, BatchNorm in training mode, noise
and retained samples normalised together.

Where we differ: all 32 noise samples are repeated, where the loop of the code in use takes as many of
them as an image has channels; S is drawn at random, not the first 500; each impair batch holds noise
and retained samples in the proportion of the whole; every batch is full, dropout is off.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import MethodError
from purge.data import inputs
from purge.data.samples import few
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.copies import frozen_copy
from purge.models.forward import forward


@dataclass(frozen=True)
class UNSIR(Method):
    """Impair with error-maximising noise of the forgotten classes, repair with retained samples."""

    noise_samples: int = setting(32, "noise samples for each forgotten class", low=1)
    noise_steps: int = setting(25, "steps of Adam on the noise", low=0)
    noise_lr: float = setting(0.1, "learning rate of the noise", above=0)
    noise_decay: float = setting(0.1, "λ: weight of the noise's squared norm", low=0)
    noise_repeats: int = setting(80, "how often each noise sample is seen in an impair epoch", low=1)
    per_class: int = setting(500, "retained samples of each class that are used, at most", low=1)
    impair_epochs: int = setting(1, "passes over noise and retained samples", low=1)
    repair_epochs: int = setting(1, "passes over the retained samples", low=0)
    batch_size: int = setting(32, "samples per impair step", low=2)
    repair_batch_size: int = setting(128, "samples per repair step", low=1)
    repair_lr: float = setting(1e-4, "learning rate of the repair", above=0)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(optimizer="adam", lr=1e-4, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Make the noise, impair, repair."""
        noise, named = self._noise(frozen_copy(model), split, run.device)
        chosen = _some_of_each(split.retain.labels, self.per_class)
        at_n, at_r = (at.to(run.device) for at in self._impair_order(len(noise), chosen))
        at_repair = self._repair_order(chosen).to(run.device)
        repair = dataclasses.replace(self.optim, lr=self.repair_lr)
        optimizers = {"impair": self.optim.make(model), "repair": repair.make(model)}
        ends = {len(at_r), len(at_r) + len(at_repair)}
        for i, (r,) in run.batches(split.retain, orders=[[*at_r, *at_repair]], epoch=ends):
            impair = i < len(at_r)
            x, y = r.x, r.y
            if impair:
                x, y = torch.cat([x, noise[at_n[i]]]), torch.cat([y, named[at_n[i]]])
            with statistics(model, self.norm):
                each = F.cross_entropy(forward(model, x).float(), y, reduction="none")
            self.optim.step(optimizers["impair" if impair else "repair"], each.mean())
            noise_loss = each[len(r) :].mean() if impair else None
            run.log(retain_loss=each[: len(r)].mean(), noise_loss=noise_loss)

    def _noise(self, teacher: nn.Module, split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
        """Noise that the teacher takes for anything but its class, and the classes it stands for."""
        like = _inputs_of_whole_classes(split)
        shape, found, named = (self.noise_samples, *like.shape[1:]), [], []
        for c in sorted(split.forget_classes):
            noise = torch.randn(shape, dtype=like.dtype).to(device).requires_grad_()
            y = torch.full((self.noise_samples,), c, device=device)
            optimizer = torch.optim.Adam([noise], self.noise_lr)
            for _ in range(self.noise_steps):
                error = F.cross_entropy(forward(teacher, noise).float(), y)
                size = noise.square().flatten(1).sum(1).mean()
                optimizer.zero_grad(set_to_none=True)
                (self.noise_decay * size - error).backward()
                optimizer.step()
            found.append(noise.detach())
            named.append(y)
        return torch.cat(found), torch.cat(named)

    def _impair_order(self, noise: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Which noise and which retained samples make up each impair batch, (steps, rows) each."""
        rows = noise * self.noise_repeats + len(chosen)
        size = min(self.batch_size, rows)
        kept = min(max(1, round(size * len(chosen) / rows)), size - 1)
        steps = self.impair_epochs * math.ceil(rows / size)
        return _passes(noise, steps, size - kept), chosen[_passes(len(chosen), steps, kept)]

    def _repair_order(self, chosen: Tensor) -> Tensor:
        """Which retained samples make up each repair batch, (steps, rows)."""
        size = min(self.repair_batch_size, len(chosen))
        steps = self.repair_epochs * math.ceil(len(chosen) / size)
        return chosen[_passes(len(chosen), steps, size)]


def _inputs_of_whole_classes(split: Split) -> Tensor:
    """One input, once it is sure that whole classes must go and that noise can stand for them."""
    if split.single:
        gone = torch.tensor(sorted(split.forget_classes), dtype=torch.long)
        others = int((~torch.isin(split.forget.labels, gone)).sum())
        raise MethodError(
            "whole classes to forget, since noise stands for a class",
            f"{others} single samples of classes that stay",
            "use a method that forgets single samples, such as purge",
        )
    x = few(split.retain, 1)
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        raise MethodError(
            "floating-point inputs, to make noise of",
            inputs.describe(x),
            "use a method that leaves the inputs alone",
        )
    return x


def _some_of_each(labels: Tensor, most: int) -> Tensor:
    """Indices of at most ``most`` samples of each class, drawn at random."""
    order = torch.randperm(len(labels))
    return torch.cat([order[labels[order] == c][:most] for c in labels.unique()])


def _passes(n: int, steps: int, size: int) -> Tensor:
    """Shuffled passes over n rows, one after the other, cut into batches: (steps, size)."""
    passes = max(1, math.ceil(steps * size / n))
    order = torch.cat([torch.randperm(n) for _ in range(passes)])
    return order[: steps * size].view(steps, size)
