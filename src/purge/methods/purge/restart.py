"""PURGE by restart, our default: what nothing holds in place washes out.

The network is brought back to a high learning rate on the retained data alone, which then falls to 0.
Memories of single samples go by themselves, since nothing teaches them any more. A class needs a push, too:
its old answer would stay the nearest one. With S steps, x_r a batch of D_r (augmented as in training at
first, plain in the last part), x_f samples of forgotten classes C, z⁰ the original's logits without C, and
L₀ its mean cross-entropy on retained data::

    L_r = w·CE(z_r, y_r) + [last part]·β·min(1, L₀)·KL(σ(z⁰_r/T) ‖ σ(z_r/T))   what must stay
    w   = 1 while the last batches are above L₀, then almost 0
    L_f = −ν·mean log(1 − Σ_{c∈C} p_c(x_f))                                  what must go: classes only
    g   = g_r + project(g_f, g_r)
    d   = Nesterov(g + λθ, μ)
    θ  ← θ − project(ρ_t·‖θ‖/‖d‖·d, g_r)          ρ_t rises over a tenth of S, then falls linearly to 0;
                                                  below L₀ a tenth of it where nothing is pushed

The rate ρ is the length of a step beside that of all weights. It does not depend on how large weights,
gradients or losses are, so the same numbers serve convolutions with BatchNorm, transformers that AdamW
trained, and small perceptrons. No step raises L_r to first order. Below the original's own level L₀ a batch
teaches nothing more, so a model that was trained briefly is not trained on. And an original that knows its
data by heart hardly teaches, since it would also teach what wrong labels have done to it.

BatchNorm is shared: x_f is normalised like some of the retained samples of the step, and the statistics that
are delivered are those of retained samples. A budget that leaves time for it begins with some fresh weights
mixed in, and ends with the mean of the weights of the last steps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.data import inputs
from purge.data.samples import Samples, part_of
from purge.engine.losses import full, kl
from purge.engine.microbatch import CHECKPOINT, MICRO_BATCH, check_micro_batch, mean_grad
from purge.engine.optimizer import FlatOptimizer, FlatParameters
from purge.engine.precision import kept_in_bf16
from purge.engine.projection import cosine, project, step
from purge.methods.base import Inputs, Method, Run, Scalars, Split, Stopping, setting
from purge.methods.purge.plan import Budget, Plan, chosen
from purge.models.batchnorm import batchnorms, recalibrate, statistics
from purge.models.checks import parameters_to_train
from purge.models.copies import mix_in
from purge.models.forward import forward, logits, passing

logger = logging.getLogger("purge")

FORGET, COMPANIONS = 64, 128  # forgotten samples of a push, and retained ones that they are normalised like
PUSH_EVERY = 4  # steps from one push to the next
WARM_UP = 0.1  # share of the steps
RECENT = 0.2  # weight of a batch in the running mean of the retain loss that is compared with L₀
BELOW, COAST = 1e-3, 0.1  # below L₀: the weight of cross-entropy, which still tells uphill; length of steps
RECALIBRATION = 4096  # retained samples behind the BatchNorm statistics that are delivered


@dataclass(frozen=True)
class Purge(Method):
    """Restart; what is left open is chosen by the budget, the request and the model."""

    distributes: ClassVar[bool] = True
    graph: ClassVar[bool] = True
    augments: ClassVar[bool] = True
    budget: Budget = setting("fast", "fast, or close to a retrained model")
    steps: int | None = setting(None, "S: steps; none: by the budget", low=2)
    rate: float | None = setting(
        None, "ρ: length of the longest step beside that of all weights; none: by the budget", above=0, high=1
    )
    batch_size: int | None = setting(None, "retained samples of a step; none: by their number", low=1)
    plain: float | None = setting(
        None, "share of the steps, the last ones, on plain samples; none: by the budget", low=0, high=1
    )
    kd: float | None = setting(
        None, "β: weight of the distillation in these steps, times the original's retain loss L₀ if that "
        "is below 1; none: by the budget", low=0, high=1e38,
    )  # fmt: skip
    temperature: float = setting(2.0, "T: of the distillation", above=0)
    push: float = setting(1.0, "ν: weight of pushing forgotten classes away", low=0, high=1e38)
    fresh_share: float | None = setting(
        None, "share of fresh weights mixed in first; none: by the budget", low=0, high=1
    )
    average: float | None = setting(
        None, "share of the steps, the last ones, whose weights are averaged; none: by the budget",
        low=0, high=1,
    )  # fmt: skip
    momentum: float = setting(0.9, "μ: Nesterov momentum", low=0, high=0.999)
    weight_decay: float = setting(5e-4, "λ: weight decay", low=0, high=1e38)
    freeze: tuple[str, ...] = setting((), "parameters whose names begin with one of these are not changed")
    micro_batch: int | None = setting(None, MICRO_BATCH, low=1)
    checkpoint_activations: bool = setting(False, CHECKPOINT)
    bf16_weights: bool = setting(False, "large weights in bf16 beside float32 masters: for precision=bf16")
    stop: Stopping = Stopping(early=False, check_every=0, check_samples=1024)

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Forget ``split.forget``."""
        check_micro_batch(model, self.micro_batch)
        normed, retain = bool(batchnorms(model)), run.plain(split.retain)
        given = {k: v for k in Plan._fields if (v := getattr(self, k)) is not None}
        size, plan = chosen(self.budget, split, normed, self.batch_size, given)
        total, last = plan.steps, plan.steps - round(plan.plain * plan.steps)  # where the last part begins
        at_r = run.batch_indices(retain, steps=total, batch_size=size)
        classes, at_f = _of_classes(split), at_r[:, :0]
        if len(classes):
            at_f = run.batch_indices(classes, steps=total, batch_size=min(FORGET, size))
        lost = torch.tensor(sorted(split.forget_classes), dtype=torch.long)
        gone = torch.isin(torch.arange(split.classes), lost).to(run.device)
        fresh, ranks = run.fresh(model, partly=True) if plan.fresh_share else None, run.ranks
        own = at_r[:, ranks.part(at_r.shape[1])]
        taught, place = _taught(model, retain, own[last if plan.kd else total :], gone)
        changed = run.augmented(split.retain)
        first_plain = 0 if changed is None else last
        end_level = run.retain_loss(retain)
        start_level = (
            run.retain_loss(changed) if changed and first_plain else end_level
        )  # as its steps see them
        level, lately = (torch.full((), start_level, device=run.device) for _ in range(2))
        trained = parameters_to_train(model, self.freeze)
        if fresh is not None:
            mix_in(model, fresh, plan.fresh_share, trained)
        halved = kept_in_bf16(model, trained, run.precision) if self.bf16_weights else ()
        params = FlatParameters(trained, halved)
        optimizer = FlatOptimizer(
            "sgd", params.read(), lr=plan.rate, momentum=self.momentum, nesterov=True,
            weight_decay=self.weight_decay, relative=True,
        )  # fmt: skip
        beta = torch.zeros((), device=run.device)
        first = range(min(COMPANIONS, at_r.shape[1]) if normed else 0)
        companions = len(first[ranks.part(at_r.shape[1])])
        run.took = plan.words(size, pushes=len(classes) > 0, changed=changed is not None)

        def keep(xr: Inputs, yr: Tensor, taught: Tensor) -> tuple[Tensor, Tensor]:
            with statistics(model, "shared", over=ranks.over):
                zr = forward(model, xr)
            loss, t = F.cross_entropy(full(zr), yr), self.temperature
            weight = (lately >= level).to(loss.dtype).clamp(min=BELOW)
            return weight * loss + beta * kl(zr / t, (taught / t).softmax(1)), loss

        def lose(xr: Inputs, xf: Inputs) -> tuple[Tensor, Tensor]:
            n, both = inputs.count(xr), inputs.join([xr, xf])
            with statistics(model, "shared", leading=n / inputs.count(both) or 1.0, over=ranks.over):
                zf = full(forward(model, both))[n:]
            loss = (zf.logsumexp(1) - zf.masked_fill(gone, -math.inf).logsumexp(1)).mean()
            return self.push * loss, loss

        def restart_step(xr: Inputs, yr: Tensor, taught: Tensor, xf: Inputs | None = None) -> Scalars:
            g, retain_loss = mean_grad(params, keep, (xr, yr, taught), self.micro_batch, ranks, at_r.shape[1])
            g_keep, pushed = g, None
            if xf is not None:
                beside = inputs.take(xr, slice(companions))
                pushes = partial(lose, beside)
                g_lose, pushed = mean_grad(params, pushes, (xf,), self.micro_batch, ranks, at_f.shape[1])
                g = g_keep + project(g_lose, g_keep)
            else:
                optimizer.rate.mul_((lately >= level).to(lately.dtype).clamp(min=COAST))
            taken = step(params, optimizer, g, g_keep, space="update")
            lately.lerp_(retain_loss.to(lately), RECENT)
            return {
                "retain_loss": retain_loss,
                "forget_loss": pushed,
                "projected": taken.projected,
                "cosine": None if xf is None else cosine(g, g_keep),
                "displacement_cosine": taken.cosine,
            }

        @contextmanager
        def delivered() -> Iterator[None]:
            drawn = at_r[: max(run.step, 1)].flatten()[-RECALIBRATION:].unique()
            recalibrate(model, (x for x, _ in passing(retain, drawn)))
            yield

        pushing_step = run.recorded(restart_step)
        one_step = run.recorded(restart_step, after=pushing_step)
        none = at_r[0, :0]
        orders = [
            [*at_r[:first_plain], *[none] * (total - first_plain)],
            [*[none] * first_plain, *at_r[first_plain:]],
            [none if i % PUSH_EVERY else index for i, index in enumerate(at_f)],
        ]
        mean = params.read() if (averaged := math.ceil(plan.average * total)) else torch.empty(0)
        for i, (early, late, f) in run.batches(
            changed or retain, retain, classes, orders=orders, epoch=total, delivered=delivered
        ):
            r = early if len(early) else late
            optimizer.rate.fill_(plan.rate * min(1.0, (i + 1) / (WARM_UP * total), 1 - i / total))
            beta.fill_(plan.kd * min(1.0, end_level) if i >= last else 0.0)
            level.fill_(end_level if i >= first_plain else start_level)
            batch = r.x, r.y, taught[place[r.rows]]
            run.log(**(pushing_step(*batch, f.x) if len(f) else one_step(*batch)))
            if (n := i + 1 - total + averaged) > 0:
                mean.lerp_(params.read(), 1 / n)
            if averaged and i + 1 == total:
                params.store(mean)
        params.widen()
        if run.beyond_budget:
            said = "The retained data suffered: a rate of %.3g is too high for this model. Pass a lower rate."
            logger.warning(said, plan.rate)


def _of_classes(split: Split) -> Samples:
    """The forget samples whose whole class must go."""
    gone = torch.tensor(sorted(split.forget_classes), dtype=torch.long)
    whole = torch.isin(split.forget.labels, gone)
    return split.forget if bool(whole.all()) else part_of(split.forget, whole.nonzero()[:, 0])


def _taught(teacher: nn.Module, retain: Samples, at: Tensor, gone: Tensor) -> tuple[Tensor, Tensor]:
    """The original's logits of the samples at ``at``, without what must go, and which row each sample has.

    Row 0 is for all others, which are not taught.
    """
    rows = at.flatten().unique()
    place = torch.zeros(len(retain), dtype=torch.long, device=gone.device)
    place[rows] = torch.arange(1, len(rows) + 1, device=gone.device)
    none = torch.zeros(1, len(gone), device=gone.device)
    known = [logits(teacher, retain, rows).masked_fill(gone, -math.inf)] if len(rows) else []
    return torch.cat([none, *known]), place
