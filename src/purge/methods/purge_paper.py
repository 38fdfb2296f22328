"""PURGE: Projected Unlearning via Retain-Guided Erasure (Jawandhia et al., BITS Pilani), as published.

For each forget batch x_f with a retain batch x_r, θ₀ the frozen original::

    g_r = ∇[ CE(x_r) + β·T²·KL(σ(z⁰_r/T) ‖ σ(z_r/T)) ]                        what must stay
    g_f = ∇[ L_forget(x_f) + λ·mean_ℓ MSE(pool h_ℓ(x_f), mean_{D_r} pool h⁰_ℓ) ]  what must go
    g   = g_f − min(0, ⟨g_f, g_r⟩)/‖g_r‖² · g_r                               A-GEM projection
    θ  ← θ − η·clip(g, c)          retain-only (g = g_r) where the gate or the cap says so

until forget accuracy ≤ target or retain loss > α·L₀. L_forget is KL(target ‖ σ(z_f)), where the target is
the mean of σ(z⁰) over D_r (``kl_retain``, the paper's choice), 1/K (``kl_uniform``), or σ(z⁰_f) without the
forgotten classes, for a single sample without its label (``masked_teacher``); or it is −CE, which is left
alone once CE ≥ log K (``ga``).

Where we differ from the paper: the direction of every KL is KL(target ‖ model), which is what the
usual call computes; L_rep is the mean squared error of the paper's text (a mean over features, not
a sum); every batch is full (an epoch is ⌈|D_f| / batch⌉ steps); dropout is off; checks look at up to
``check_samples`` of each set; the budget counts a starting loss below ``retain_floor`` as that.

Where the authors' code (vedjaw/la_purge, run.py) differs from their text, we keep to the text:

- erasure: the text has the means of the frozen original over D_r, the code those of the model as it is now
  over the present retain batch;
- checks: the code counts its N steps in each epoch anew, so an epoch of fewer is looked at when it ends;
  ours are counted through. Within an epoch both look at forget accuracy; the code looks at the retain loss
  at epoch ends alone, ours at every check;
- augmentation: the text has none while unlearning; the code crops and flips both sets as in training, also
  for p_r, for L₀ and at checks;
- the code leaves dropout on, ends an epoch with what is left of D_f, and does not project if ‖g_r‖² < 1e-12.

Two settings are ours and off by default: ``space="update"`` projects the whole displacement, after momentum
and weight decay, and ``norm="shared"`` normalises forgotten samples with the statistics of retained ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.data.samples import Samples
from purge.engine.losses import above_gate, distill, kl, masked_teacher
from purge.engine.optimizer import FlatOptimizer, FlatParameters
from purge.engine.projection import Space, cosine, project, step
from purge.methods.base import Inputs, Method, Run, Scalars, Split, Stopping, setting
from purge.models.batchnorm import Norm, recalibrate, statistics
from purge.models.checks import erasure_layers, parameters_to_train
from purge.models.copies import frozen_copy
from purge.models.forward import evaluating, forward, logits, passing
from purge.models.hooks import capture

RECALIBRATION = 2048  # retain samples behind the BatchNorm statistics that norm="shared" delivers


@dataclass(frozen=True)
class PurgePaper(Method):
    """PURGE as published; the defaults are the paper's settings for CIFAR-10."""

    graph: ClassVar[bool] = True
    objective: Literal["kl_retain", "kl_uniform", "ga", "masked_teacher"] = setting(
        "kl_retain",
        "L_forget: pull to the mean output on D_r, to the uniform one, climb the loss (ga), or pull to the "
        "original's output without what must go",
    )
    lr: float = setting(5e-4, "η: learning rate", above=0, high=1e38)
    epochs: int = setting(15, "T: passes over the forget set", low=1)
    batch_size: int = setting(128, "samples of each set per step", low=1)
    erasure: float = setting(0.05, "λ: weight of the representation erasure", low=0)
    layers: tuple[str, ...] | None = setting(
        None, "ℓ: layers to erase; none: chosen by the model's structure"
    )
    kd: float = setting(2.0, "β: weight of the distillation on retain data", low=0)
    temperature: float = setting(4.0, "T: distillation temperature", above=0)
    gate: float = setting(0.0, "γ: retain-only above this share of the maximal entropy; 0: off", low=0)
    clip: float = setting(1.0, "c: gradient norm limit; 0: off", low=0)
    momentum: float = setting(0.9, "μ: of SGD; the first beta of AdamW", low=0, high=0.999)
    weight_decay: float = setting(5e-4, "weight decay while unlearning", low=0, high=1e38)
    optimizer: Literal["sgd", "adamw"] = setting("sgd", "sgd or adamw")
    space: Space = setting("gradient", "what is projected: gradient, update or none")
    norm: Norm = setting("frozen", "BatchNorm statistics: frozen, shared or train")
    freeze: tuple[str, ...] = setting((), "parameters whose names begin with one of these are not changed")
    stop: Stopping = Stopping()

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Forget ``split.forget``; reads like the algorithm of the paper."""
        teacher = frozen_copy(model)
        params = FlatParameters(parameters_to_train(model, self.freeze))
        epoch = math.ceil(len(split.forget) / self.batch_size)
        total = self.epochs * epoch
        at_f = run.batch_indices(split.forget, steps=total, batch_size=self.batch_size)
        at_r = run.batch_indices(split.retain, steps=total, batch_size=self.batch_size)
        erases = self.erasure > 0 or self.layers is not None
        layers = erasure_layers(teacher, split.retain, self.layers) if erases else ()
        teacher_r, means = _teacher_pass(teacher, split.retain, layers)
        target = self._target(teacher, split, teacher_r)
        optimizer = FlatOptimizer(
            self.optimizer, params.read(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )

        def purge_step(
            xr: Inputs, yr: Tensor, taught: Tensor, xf: Inputs, yf: Tensor, target: Tensor
        ) -> Scalars:
            with statistics(model, self.norm) as seen:
                zr = forward(model, xr)
            with statistics(model, self.norm, like=seen), capture(model, layers) as h:
                zf = forward(model, xf)

            retain_loss = F.cross_entropy(zr.float(), yr)
            anchor = self.kd * distill(zr, taught, self.temperature)
            g_keep = params.grad(retain_loss + anchor, keep_graph=self.norm == "shared")

            gated = above_gate(zf, self.gate)
            if self.objective == "ga":
                ce = F.cross_entropy(zf.float(), yf)
                loss, gated = -ce, gated | (ce >= math.log(zf.shape[1]))  # a uniform guess has log K
            else:
                loss = kl(zf, target)
            away = [F.mse_loss(h[name].float(), mean.expand_as(h[name])) for name, mean in means.items()]
            erased = torch.stack(away).mean() if away else torch.zeros_like(loss)
            g_lose = params.grad(loss + self.erasure * erased)

            angle = cosine(g_lose, g_keep)
            g = g_lose if self.space == "none" else project(g_lose, g_keep)
            g = torch.where(gated, g_keep, g)
            taken = step(params, optimizer, g, g_keep, space=self.space, clip=self.clip)
            return {
                "retain_loss": retain_loss,
                "forget_loss": loss,
                "erasure_loss": erased if layers else None,
                "projected": taken.projected | ((angle < 0) & ~gated & (self.space != "none")),
                "gated": gated,
                "cosine": angle,
                "displacement_cosine": taken.cosine,
            }

        @contextmanager
        def recalibrated() -> Iterator[None]:
            drawn = at_r[: max(run.step, 1)].flatten()[:RECALIBRATION].unique()
            recalibrate(model, (x for x, _ in passing(split.retain, drawn)))
            yield

        delivered = recalibrated if self.norm == "shared" else nullcontext  # they belong to the weights
        one_step, sets = run.recorded(purge_step), (split.forget, split.retain)
        for _, (f, r) in run.batches(*sets, orders=(at_f, at_r), epoch=epoch, delivered=delivered):
            run.log(**one_step(r.x, r.y, teacher_r[r.rows], f.x, f.y, target[f.rows]))

    def _target(self, teacher: nn.Module, split: Split, teacher_r: Tensor) -> Tensor:
        """What the output of each forget sample is pulled to, (|D_f|, K); ``ga`` does not look at it."""
        if self.objective == "masked_teacher":
            z = logits(teacher, split.forget)
            return masked_teacher(z, split.forget.labels.to(z.device), split.forget_classes)
        mean = teacher_r.softmax(1).mean(0)
        if self.objective != "kl_retain":
            mean = torch.full_like(mean, 1 / split.classes)
        return mean.expand(len(split.forget), -1)


def _teacher_pass(
    teacher: nn.Module, retain: Samples, layers: tuple[str, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The teacher's logits of all retain samples, and the mean of each layer over them."""
    outputs, sums = [], dict[str, Tensor]()
    with evaluating(teacher), capture(teacher, layers) as h:
        for x, _ in passing(retain):
            outputs.append(forward(teacher, x).float())
            for name in layers:
                sums[name] = sums.get(name, 0) + h[name].float().sum(0)
    return torch.cat(outputs), {name: total / len(retain) for name, total in sums.items()}
