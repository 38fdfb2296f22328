"""PURGE: Projected Unlearning via Retain-Guided Erasure (Jawandhia et al., BITS Pilani).

For each forget batch x_f with a retain batch x_r, θ₀ the frozen original::

    g_r = ∇[ CE(x_r) + β·T²·KL(σ(z⁰_r/T) ‖ σ(z_r/T)) ]                        what must stay
    g_f = ∇[ L_forget(x_f) + λ·mean_ℓ MSE(pool h_ℓ(x_f), mean_{D_r} pool h⁰_ℓ) ]  what must go
    g   = g_f − min(0, ⟨g_f, g_r⟩)/‖g_r‖² · g_r                               A-GEM projection
    θ  ← θ − η·clip(g, c)          retain-only (g = g_r) where the gate or the cap says so

until forget accuracy ≤ target or retain loss > α·L₀.

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

Ours, off in ``purge-paper``: the target ``masked``, its opinions and their sharpening, the suppression of
forgotten classes (ν·mean (log p_c(x_f) − l)², l being what a class that was never learned gets), erasure
towards the means of the classes that the target names, the projection of the whole displacement
(``space="update"``), shared BatchNorm statistics (at the end those of retain samples that were drawn),
descent on the retain loss beside the projected step, and a cool-down of the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.engine.losses import above_gate, distill, never_learned
from purge.engine.optimizer import FlatOptimizer, FlatParameters
from purge.engine.projection import Space, cosine, project, step
from purge.methods.base import Inputs, Method, Run, Scalars, Split, Stopping, setting
from purge.methods.purge.targets import Masked, Paper, Scene
from purge.models.batchnorm import Norm, recalibrate, statistics
from purge.models.checks import erasure_layers, parameters_to_train
from purge.models.copies import frozen_copy
from purge.models.forward import evaluating, forward, logits, passing
from purge.models.hooks import capture

RECALIBRATION = 2048  # retain samples behind the BatchNorm statistics that are delivered
RATES = {"sgd": 2e-2, "adamw": 2e-3}
AHEAD = 8  # steps whose retain samples the teacher looks at together


@dataclass(frozen=True)
class Pull(Method):
    """PURGE by pull; the defaults are the preset ``purge-pull``."""

    graph: ClassVar[bool] = True
    target: Masked | Paper = setting(Masked(), "what forgotten outputs are pulled to: masked or paper")
    lr: float | None = setting(
        None, "η: learning rate; none: .02 for sgd, .002 for adamw", above=0, high=1e38
    )
    epochs: int = setting(2, "T: passes over the forget set", low=1)
    min_steps: int = setting(32, "a schedule has at least this many steps, however small the set", low=1)
    max_steps: int = setting(1000, "a schedule has at most this many steps, however large the set", low=1)
    batch_size: int = setting(128, "samples of each set per step", low=1)
    suppression: float = setting(
        0.0, "ν: weight of pushing forgotten classes to the level of a class never learned", low=0,
        renamed_from=("silence",),
    )  # fmt: skip
    erasure: float = setting(0.0, "λ: weight of the representation erasure", low=0)
    erase_to: Literal["mean", "neighbours"] = setting(
        "mean", "h: the mean of D_r (paper), or of its classes as the target weighs them"
    )
    layers: tuple[str, ...] | None = setting(
        None, "ℓ: layers to erase; none: chosen by the model's structure"
    )
    kd: float = setting(2.0, "β: weight of the distillation on retain data", low=0)
    temperature: float = setting(4.0, "T: distillation temperature", above=0)
    gate: float = setting(0.0, "γ: retain-only above this share of the maximal entropy; 0: off", low=0)
    clip: float = setting(1.0, "c: gradient norm limit; 0: off", low=0)
    momentum: float = setting(0.9, "μ: of SGD; the first beta of AdamW", low=0, high=0.999)
    nesterov: bool = setting(False, "Nesterov momentum (SGD)")
    weight_decay: float = setting(5e-4, "weight decay while unlearning", low=0, high=1e38)
    optimizer: Literal["sgd", "adamw"] = setting("sgd", "sgd or adamw")
    space: Space = setting("update", "what is projected: gradient (paper), update or none")
    norm: Norm = setting("shared", "BatchNorm statistics: frozen (paper), shared or train")
    descend: bool = setting(True, "also descend on the retain loss at every step")
    cooldown: float = setting(0.25, "share of the steps over which the rate falls to 0", low=0, high=1)
    freeze: tuple[str, ...] = setting((), "parameters whose names begin with one of these are not changed")
    stop: Stopping = Stopping(check_every=10, epoch_ends=False, check_samples=1024)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What the target needs too: a copy that relearns begins with fresh weights."""
        return Method.needs | self.target.needs

    @property
    def augments(self) -> bool:  # type: ignore[override]
        """A target may look at samples changed at random."""
        return self.target.augments

    @property
    def rate(self) -> float:
        """The learning rate, chosen by the optimiser where it was left open."""
        return RATES[self.optimizer] if self.lr is None else self.lr

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Forget ``split.forget``; reads like the algorithm of the paper."""
        teacher = frozen_copy(model)
        params = FlatParameters(parameters_to_train(model, self.freeze))
        epoch = math.ceil(len(split.forget) / self.batch_size)
        total = self._within(self.epochs * epoch)
        cooldown = math.ceil(self.cooldown * total)
        at_f = run.batch_indices(split.forget, steps=total, batch_size=self.batch_size)
        at_r = run.batch_indices(split.retain, steps=total, batch_size=self.batch_size)
        layers = self._layers(teacher, split)
        # All of D_r where a mean over it is needed, or if the run will soon have gone through it anyway.
        whole = bool(layers) or self.target.whole_retain or len(split.retain) <= 3 * at_r[:AHEAD].numel()
        teacher_r, sums = _teacher_pass(teacher, split, layers) if whole else (None, {})
        centres = {name: self._centres(total, split) for name, total in sums.items()}
        aim = self.target.aim(Scene(teacher, split, run, teacher_r, self._within))
        run.unseen_accuracy = aim.accuracy
        first = logits(teacher, split.retain, at_r[:AHEAD].flatten()) if teacher_r is None else teacher_r
        gone = torch.tensor(sorted(split.forget_classes), device=run.device, dtype=torch.long)
        levels = self._levels(split, gone, aim.second, first)
        optimizer = FlatOptimizer(
            self.optimizer, params.read(), lr=self.rate, momentum=self.momentum, nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )  # fmt: skip

        def purge_step(
            xr: Inputs, yr: Tensor, taught: Tensor, xf: Inputs, yf: Tensor, target: Tensor, level: Tensor
        ) -> Scalars:
            with statistics(model, self.norm) as seen:
                zr = forward(model, xr)
            with statistics(model, self.norm, like=seen), capture(model, layers) as h:
                zf = forward(model, xf)

            retain_loss = F.cross_entropy(zr.float(), yr)
            anchor = self.kd * distill(zr, taught, self.temperature)
            g_keep = params.grad(retain_loss + anchor, keep_graph=self.norm == "shared")

            loss = self.target.loss(zf, yf, target)
            if self.suppression:
                loss = loss + self.suppression * never_learned(zf, level, gone)
            erased = _erasure(h, {name: _mixed(target, c) for name, c in centres.items()}, like=loss)
            g_lose = params.grad(loss + self.erasure * erased)

            angle = cosine(g_lose, g_keep)
            gated = above_gate(zf, self.gate) | self.target.capped(zf, yf)
            g = g_lose if self.space == "none" else project(g_lose, g_keep)
            g = torch.where(gated, g_keep, g + g_keep if self.descend else g)
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
        def delivered() -> Iterator[None]:
            if self.norm == "shared":  # shared statistics belong to the weights
                recalibrate(model, run.retain_batches())
            yield

        one_step = run.recorded(purge_step)
        for i, (f, r) in run.batches(
            split.forget, split.retain, orders=(at_f, at_r), epoch=epoch, cooldown_steps=cooldown,
            delivered=delivered,
        ):  # fmt: skip
            if teacher_r is None and i % AHEAD == 0:
                block = at_r[i : i + AHEAD]
                ahead = first if i == 0 else logits(teacher, split.retain, block.flatten())
                ahead = ahead.unflatten(0, block.shape)
            taught = ahead[i % AHEAD] if teacher_r is None else teacher_r[r.rows]
            optimizer.rate.fill_(self.rate * min(1.0, (run.end - i) / cooldown if cooldown else 1.0))
            run.log(**one_step(r.x, r.y, taught, f.x, f.y, aim.target[f.rows], levels[f.rows]))
        if self.norm == "shared":
            drawn = at_r[: run.step].flatten()[:RECALIBRATION].unique()
            recalibrate(model, (x for x, _ in passing(split.retain, drawn)))

    def _within(self, steps: int) -> int:
        """A number of steps, brought into the limits of a schedule."""
        return min(max(steps, self.min_steps), self.max_steps)

    def _layers(self, teacher: nn.Module, split: Split) -> tuple[str, ...]:
        """The layers to erase; none if erasure is off."""
        if self.erasure == 0 and self.layers is None:
            return ()
        return erasure_layers(teacher, split.retain, self.layers)

    def _centres(self, sums: Tensor, split: Split) -> Tensor:
        """What a layer is pulled to on behalf of each class, (K, width): its mean, or that of all of D_r."""
        if self.erase_to == "mean":
            return (sums.sum(0) / len(split.retain)).expand_as(sums)
        return sums / split.retain.labels.bincount(minlength=split.classes)[:, None].clamp_min(1).to(sums)

    def _levels(self, split: Split, gone: Tensor, second: Tensor | None, elsewhere: Tensor) -> Tensor:
        """The log-probability that each forgotten class may have on each forget sample, (|D_f|, C).

        What the second opinion gives it, which never learned it; without one, what the teacher gives it on
        average on retain samples, whose logits are ``elsewhere``. NaN for single samples of a class that
        stays. C = 0 where suppression is off.
        """
        n = len(split.forget)
        if not self.suppression:
            return torch.zeros(n, 0, device=gone.device)
        if second is not None:
            level = second.log_softmax(1)[:, gone]
        else:
            level = elsewhere.log_softmax(1)[:, gone].mean(0).expand(n, -1)
        whole = torch.isin(split.forget.labels.to(gone.device), gone)
        return level.masked_fill(~whole[:, None], math.nan)


def _teacher_pass(
    teacher: nn.Module, split: Split, layers: tuple[str, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The teacher's logits of all retain samples, and of each layer the sum over each class, (K, width)."""
    found, sums = [], dict[str, Tensor]()
    with evaluating(teacher), capture(teacher, layers) as h:
        for x, y in passing(split.retain):
            found.append(forward(teacher, x).float())
            members = F.one_hot(y, split.classes).float().T
            for name in layers:
                sums[name] = sums.get(name, 0) + _mixed(members, h[name].float())
    return torch.cat(found), sums


def _erasure(h: dict[str, Tensor], aims: dict[str, Tensor], *, like: Tensor) -> Tensor:
    """L_rep: mean over layers of the mean squared distance to the teacher's means."""
    parts = [F.mse_loss(h[name].float(), aim) for name, aim in aims.items()]
    return torch.stack(parts).mean() if parts else torch.zeros_like(like)


def _mixed(shares: Tensor, rows: Tensor) -> Tensor:
    """Sums of rows by shares, in float32 whatever precision the run has."""
    with torch.autocast(rows.device.type, enabled=False):
        return shares @ rows
