"""PURGE by restart, our default: what nothing holds in place washes out.

The network is brought back to a high learning rate on the retained data alone, which then falls to 0.
Memories of single samples go by themselves, since nothing teaches them any more. A class needs a push, too:
its old answer would stay the nearest one. With S steps, x_r a batch of D_r (augmented as in training at
first, plain in the last part), x_f samples of forgotten classes C, z⁰ the original's logits without C, and
L₀ its mean cross-entropy on retained data::

    L_r = w·CE(z_r, y_r) + [last part]·β·κ·KL(σ(z⁰_r/T) ‖ σ(z_r/T))            what must stay
    w   = 1 while the last batches are above L₀, then almost 0; 1 throughout if L₀ ≤ .02
    κ   = max(min(1, L₀), share of D_f that still gets its label halfway)
    L_f = −ν·mean log(1 − Σ_{c∈C} p_c(x_f))                                  what must go: classes only
    g   = g_r + project(g_f, g_r)
    d   = Nesterov(g + λθ, μ)
    θ  ← θ − project(ρ_t·‖θ‖/‖d‖·d, g_r)          ρ_t rises over a tenth of S, then falls linearly to 0;
                                                  where w is almost 0 and nothing is pushed, a tenth of it

The rate ρ is the length of a step beside that of all weights. It does not depend on how large weights,
gradients or losses are, so the same numbers serve convolutions with BatchNorm, transformers that AdamW
trained, and small perceptrons. No step raises L_r to first order. Below the original's own level L₀ a batch
teaches nothing more, so a model that was trained briefly is not trained on. An original that knows its data
by heart, wrong labels too, gives these away in its answers to other samples. So it teaches as far as the
labels that must go were right: as far as they are still given once nothing has held them for a while.

BatchNorm is shared: x_f is normalised like some of the retained samples of the step, and the statistics that
are delivered are those of retained samples. A budget that leaves time for it begins with some fresh weights
mixed in, and ends with the mean of the weights of the last steps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.data import inputs
from purge.data.samples import Samples
from purge.engine.dist import Ranks
from purge.engine.losses import full, kl
from purge.engine.optimizer import (
    CHECKPOINT,
    MICRO_BATCH,
    FlatOptimizer,
    FlatParameters,
    check_micro_batch,
    mean_grad,
)
from purge.engine.projection import cosine, project, step
from purge.methods.base import Inputs, Method, Run, Scalars, Split, Stopping, setting
from purge.models.batchnorm import batchnorms, recalibrate, statistics
from purge.models.checks import parameters_to_train
from purge.models.copies import mix_in
from purge.models.forward import forward, logits, passing

logger = logging.getLogger("purge")

Budget = Literal["fast", "close"]

BATCH, LEAST, PARTS = 512, 16, 16  # a batch is a sixteenth of D_r, within these limits
HIGHEST = 0.03  # the highest rate
RARE = 0.01  # of a smaller share of samples a retrained model differs little: distil the original
FORGET, COMPANIONS = 64, 128  # forgotten samples of a push, and retained ones that they are normalised like
PUSH_EVERY = 4  # steps from one push to the next
WARM_UP = 0.1  # share of the steps
BY_HEART = 0.02  # an L₀ of labels that are given 98 % on average
RECENT = 0.2  # weight of a batch in the running mean of the retain loss that is compared with L₀
BELOW, COAST = 1e-3, 0.1  # below L₀: the weight of cross-entropy, which still tells uphill; length of steps
RECOGNISED = 1024  # forgotten samples that are looked at once, to see whether their labels were right
RECALIBRATION = 4096  # retained samples behind the BatchNorm statistics that are delivered


class Restart(NamedTuple):
    """What a budget stands for; the settings of :class:`Purge` with these names."""

    steps: int
    rate: float  # with one pass over D_r; it grows with the root of the passes, up to three times as high
    plain: float
    kd: float
    fresh_share: float  # only for networks with BatchNorm, which makes up for the size of weights
    average: float

    @property
    def first_plain(self) -> int:
        """The step at which the last part begins: plain samples, and distillation."""
        return self.steps - round(self.plain * self.steps)

    @property
    def averaged(self) -> int:
        """How many steps, the last ones, have their weights averaged."""
        return math.ceil(self.average * self.steps)

    def in_words(self, size: int, *, pushes: bool, changed: bool) -> str:
        """What the result says was done."""
        words = f"a restart of {self.steps} steps of {size} retained samples"
        if self.fresh_share:
            words = f"{self.fresh_share:.0%} fresh weights mixed in, then {words}"
        words += f", the longest {self.rate:.1%} of the length of all weights"
        if changed and self.plain < 1:
            words += f"; the first {1 - self.plain:.0%} on augmented samples"
        return words + ("; forgotten classes pushed away" if pushes else "")


# Chosen on CIFAR-10 with images held out of training (class 5, and a tenth of the samples), and tried on
# digits with networks of five kinds; docs/methods/purge.md says what else was tried.
RESTARTS: dict[tuple[Budget, str], Restart] = {
    ("fast", "classes"): Restart(64, 0.01, 0.7, 0.0, 0.0, 0.0),
    ("fast", "samples"): Restart(80, 0.02, 1.0, 0.0, 0.0, 0.0),
    ("close", "classes"): Restart(440, 0.01, 0.4, 1.0, 0.0, 0.25),
    ("close", "samples"): Restart(480, 0.011, 0.3, 1.0, 0.5, 0.25),
}


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
        None, "β: weight of the distillation in these steps, times κ; none: by the budget", low=0, high=1e38
    )
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
    stop: Stopping = Stopping(early=False, check_every=0, check_samples=1024)

    def restart(self, split: Split, *, normed: bool) -> tuple[int, Restart]:
        """The size of a batch and the restart for a request; settings that the user has made stand.

        ``normed``: does the network have BatchNorm?
        """
        n = len(split.retain)
        size = min(self.batch_size or min(BATCH, max(LEAST, n // PARTS)), n)
        plan = RESTARTS[self.budget, "samples" if split.single else "classes"]
        if not normed:
            plan = plan._replace(fresh_share=0.0)
        if len(split.forget) < RARE * n:
            plan = plan._replace(kd=1.0)
        own = {k: v for k in Restart._fields if (v := getattr(self, k)) is not None}
        passes = own.get("steps", plan.steps) * size / n
        rate = min(HIGHEST, plan.rate * min(max(passes, 1.0), 9.0) ** 0.5)
        return size, plan._replace(**{"rate": rate, **own})

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Forget ``split.forget``."""
        check_micro_batch(model, self.micro_batch)
        normed, retain = bool(batchnorms(model)), run.plain(split.retain)
        classes = split.forget.select(split.whole.nonzero()[:, 0]) if split.single else split.forget
        size, plan = self.restart(split, normed=normed)
        at_r = run.batch_indices(retain, steps=plan.steps, batch_size=size)
        at_f = at_r[:, :0]
        if len(classes):
            at_f = run.batch_indices(classes, steps=plan.steps, batch_size=min(FORGET, size))
        lost = split.forgotten(run.device)
        own = at_r[:, run.ranks.part(size)]  # of several ranks, the rows of this one
        taught = _taught(model, retain, own[plan.first_plain if plan.kd else plan.steps :], lost)
        changed = run.augmented(split.retain)
        early, first_plain = changed or retain, 0 if changed is None else plan.first_plain
        level = run.retain_loss(retain)
        levels = [run.retain_loss(early) if first_plain else level] * first_plain
        levels += [level] * (plan.steps - first_plain + 1)  # the last one is the level of plain samples
        trained = parameters_to_train(model, self.freeze)
        if plan.fresh_share:
            mix_in(model, run.fresh(model, partly=True), plan.fresh_share, trained)
        params = FlatParameters(trained)
        sizes = size, at_f.shape[1]  # of the batches that all ranks share
        one = _Step(self, plan, model, params, split.forget, lost, run.ranks, levels, sizes, normed)
        run.took = plan.in_words(size, pushes=len(classes) > 0, changed=changed is not None)

        @contextmanager
        def delivered() -> Iterator[None]:
            drawn = at_r[: max(run.step, 1)].flatten()[-RECALIBRATION:].unique()
            recalibrate(model, (x for x, _ in passing(retain, drawn, model)))
            yield

        pushing_step = run.recorded(one)
        one_step = run.recorded(one, after=pushing_step)
        sets, orders = (early, retain, classes), _orders(at_r, at_f, first_plain)
        for i, (first, late, f) in run.batches(*sets, orders=orders, epoch=plan.steps, delivered=delivered):
            r = first if len(first) else late
            one.begin(i)
            batch = r.x, r.y, taught(r.rows)
            run.log(**(pushing_step(*batch, f.x) if len(f) else one_step(*batch)))
            one.end(i)
        if run.beyond_budget:
            suffered = "The retained data suffered: a rate of %.3g is too high for this model. "
            logger.warning(suffered + "Pass a lower rate.", plan.rate)


class _Step:
    """One step of a restart: towards what must stay, away from forgotten classes, and never uphill.

    All that changes from step to step lies on the device, so that a step can be recorded.
    """

    def __init__(
        self, how: Purge, plan: Restart, model: nn.Module, params: FlatParameters, forget: Samples,
        lost: Tensor, ranks: Ranks, levels: list[float], sizes: tuple[int, int], normed: bool,
    ) -> None:  # fmt: skip
        self.how, self.plan, self.model, self.params = how, plan, model, params
        self.forget, self.lost, self.ranks, self.levels = forget, lost, ranks, levels
        self.size, self.pushed = sizes
        companions = range(min(COMPANIONS, self.size) if normed else 0)
        self.companions = len(companions[ranks.part(self.size)])
        self.level, self.lately, self.beta = (torch.zeros((), device=lost.device) for _ in range(3))
        self.lately.fill_(levels[0])
        self.mean = params.read() if plan.averaged else torch.empty(0)
        self.optimizer = FlatOptimizer(
            "sgd", params.read(), lr=1.0, momentum=how.momentum, nesterov=True,
            weight_decay=how.weight_decay, relative=True,
        )  # fmt: skip

    def begin(self, i: int) -> None:
        """Rate, level and weight of the distillation of step ``i``."""
        plan, level = self.plan, self.levels[-1]
        rising, falling = (i + 1) / (WARM_UP * plan.steps), 1 - i / plan.steps
        self.optimizer.rate.fill_(plan.rate * min(1.0, rising, falling))
        if level > BY_HEART:  # otherwise there is no level to be held at
            self.level.fill_(self.levels[i])
        if i == plan.first_plain:
            self.beta.fill_(plan.kd * min(1.0, level))
        if plan.kd and i == max(plan.first_plain, plan.steps // 2):
            self.beta.copy_(plan.kd * _recognised(self.model, self.forget).clamp(min=min(1.0, level)))

    def end(self, i: int) -> None:
        """The mean of the weights of the last steps takes their place after the last one."""
        first = self.plan.steps - self.plan.averaged
        if i >= first:
            self.mean.lerp_(self.params.read(), 1 / (i - first + 1))
            if i == self.plan.steps - 1:
                self.params.store(self.mean)

    def __call__(self, xr: Inputs, yr: Tensor, taught: Tensor, xf: Inputs | None = None) -> Scalars:
        micro, pushed_loss = self.how.micro_batch, None
        g, retain_loss = mean_grad(self.params, self.keep, (xr, yr, taught), micro, self.ranks, self.size)
        g_keep = g
        if xf is not None:
            lose = partial(self.lose, inputs.take(xr, slice(self.companions)))
            g_lose, pushed_loss = mean_grad(self.params, lose, (xf,), micro, self.ranks, self.pushed)
            g = g_keep + project(g_lose, g_keep)
        else:
            self.optimizer.rate.mul_(self.teaches(self.lately.dtype).clamp(min=COAST))
        taken = step(self.params, self.optimizer, g, g_keep, space="update")
        self.lately.lerp_(retain_loss.to(self.lately), RECENT)
        return {
            "retain_loss": retain_loss,
            "forget_loss": pushed_loss,
            "projected": taken.projected,
            "cosine": None if xf is None else cosine(g, g_keep),
            "displacement_cosine": taken.cosine,
        }

    def teaches(self, dtype: torch.dtype) -> Tensor:
        """1 while the last batches are above the original's level, so that they teach something; else 0."""
        return (self.lately >= self.level).to(dtype)

    def keep(self, xr: Inputs, yr: Tensor, taught: Tensor) -> tuple[Tensor, Tensor]:
        """L_r of retained samples, and their cross-entropy."""
        with statistics(self.model, "shared", over=self.ranks.over):
            zr = forward(self.model, xr)
        loss, t = F.cross_entropy(full(zr), yr), self.how.temperature
        weight = self.teaches(loss.dtype).clamp(min=BELOW)
        return weight * loss + self.beta * kl(zr / t, (taught / t).softmax(1)), loss

    def lose(self, beside: Inputs, xf: Inputs) -> tuple[Tensor, Tensor]:
        """L_f of forgotten samples, normalised like the retained ones ``beside`` them; without ν, too."""
        n, both = inputs.count(beside), inputs.join([beside, xf])
        with statistics(self.model, "shared", leading=n / inputs.count(both) or 1.0, over=self.ranks.over):
            zf = full(forward(self.model, both))[n:]
        loss = (zf.logsumexp(1) - zf.masked_fill(self.lost, -math.inf).logsumexp(1)).mean()
        return self.how.push * loss, loss


def _taught(model: nn.Module, retain: Samples, at: Tensor, lost: Tensor) -> Callable[[Tensor], Tensor]:
    """What gives the original's logits, without what must go, of samples of these batches; else zeros."""
    rows = at.flatten().unique()
    place = torch.zeros(len(retain), dtype=torch.long, device=lost.device)
    place[rows] = torch.arange(1, len(rows) + 1, device=lost.device)
    untaught = torch.zeros(1, len(lost), device=lost.device)  # the row of all other samples
    known = [logits(model, retain, rows).masked_fill(lost, -math.inf)] if len(rows) else []
    of_all = torch.cat([untaught, *known])
    return lambda rows: of_all[place[rows]]


def _orders(at_r: Tensor, at_f: Tensor, first_plain: int) -> list[list[Tensor]]:
    """The rows of each step: of samples changed at random, of plain ones, and of those that are pushed."""
    none, steps = at_r[0, :0], len(at_r)
    return [
        [*at_r[:first_plain], *[none] * (steps - first_plain)],
        [*[none] * first_plain, *at_r[first_plain:]],
        [none if i % PUSH_EVERY else index for i, index in enumerate(at_f)],
    ]


@torch.no_grad()
def _recognised(model: nn.Module, forget: Samples) -> Tensor:
    """The share of the forgotten samples that still get their label, far from the original's weights."""
    n = len(forget)
    x, y = forget.take(torch.linspace(0, n - 1, min(n, RECOGNISED)).long())
    with statistics(model, "shared"):  # the running ones are those of other weights
        return (forward(model, x).argmax(1) == y).float().mean()
