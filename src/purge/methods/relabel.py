"""Training on with wrong labels for the forget set: RL, SalUn, and Amnesiac's relabelling.

RL. Golatkar, Achille, Soatto: "Eternal Sunshine of the Spotless Net: Selective Forgetting in Deep
Networks", CVPR 2020, arXiv:1911.04933 (the baseline), as Fan et al. run it. Every epoch is one shuffled
pass over D_f and D_r together::

    θ ← θ − η ∇ CE(x, y'),    y' ~ U{0 … K−1} for x in D_f, drawn anew in every epoch; it may equal y
                              y' = y for x in D_r

Fan et al. changed the order in April 2024, after the paper: since then their code goes first over D_f and
then over D_r in every epoch of CIFAR-10 (``mixed=False``), as it always did for SVHN; CIFAR-100 and
Tiny-ImageNet are mixed to this day. The published CIFAR-10 numbers are of the mixed order, which is our
default. The two forget differently: D_f alone has few steps in an epoch, but nothing else is in them.

SalUn. Fan, Liu, Zhang, Wong, Wei, Liu: "SalUn: Empowering Machine Unlearning via Gradient-based
Weight Saliency in Both Image Classification and Generation", ICLR 2024, arXiv:2310.12508: RL in
which only salient weights move. θ₀ is the original, n the number of parameters::

    m = 1 for the q·n largest of | Σ_{x in D_f} ∇ −CE(x, y; θ₀) | over all parameters, else 0
    ∇ ← m ∇;  after each step θ ← m θ + (1 − m) θ₀, and the momentum ← m · momentum

``soft`` has no mask: after each step, with θ_e the weights at the beginning of the epoch e of E::

    θ ← θ_e + sign(θ − θ_e) max(|θ − θ_e| − τ, 0),    τ = the r-th smallest |θ − θ_e|
    r = (1 − q) (1 − progress) n,    progress: the share of steps taken after the epoch's first one

Amnesiac relabelling. Graves, Nagisetty, Ganesh: "Amnesiac Machine Learning", AAAI 2021,
arXiv:2010.10981, as Chundawat et al. (arXiv:2205.08096) run it: every y' is one of the K − 1 other
classes, drawn once, and each epoch is one shuffled pass over D_f and D_r together.

Published defaults: RL and SalUn SGD, η = 0.013, momentum 0.9, weight decay 5e-4, 10 epochs, q = 0.5, batches
of 256; the authors' README had η = 0.1 while the order was mixed, and has 0.013 since. Amnesiac Adam, η =
1e-4, 3 epochs, batches of 128. No clipping, BatchNorm in training mode, the samples of a batch normalised
together; the saliency is taken in evaluation mode. RL and SalUn: both sets augmented as in training, D_f for
the saliency too. Amnesiac: every image is read once, before the unlearning.

Where we differ: every batch is full, dropout is off; Amnesiac relabelling reads samples as they are; each
sample counts alike in the saliency, where in the authors' code those of a smaller last batch count more;
masked weights are put back after each step, as the authors do since February 2026 (before, weight decay
moved them); the share 1 − q of the soft variant has no published value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from purge.core.errors import MethodError
from purge.data.samples import Samples, joined
from purge.engine.losses import cross_entropy, mean_of
from purge.engine.projection import flat, summed_grad, write
from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Scalars, Split, Stopping, setting
from purge.models.checks import parameters_to_train

Hold = Callable[[int], None]  # what is done to the weights after step i, counted from 0


@dataclass(frozen=True)
class RandomLabel(Method):
    """Train on, with random labels for the forget set and the true ones for the retain set."""

    graph: ClassVar[bool] = True
    epochs: int = setting(10, "passes over both sets", low=1)
    batch_size: int = setting(256, "samples per step", low=1)
    mixed: bool = setting(True, "one shuffled pass over both sets; no: first D_f, then D_r")
    wrong: bool = setting(False, "draw among the other classes only; no: the true label may come up")
    redraw: bool = setting(True, "draw labels anew in every pass; no: once, and nothing is augmented")
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=0.013)
    stop: Stopping = PUBLISHED

    @property
    def augments(self) -> bool:  # type: ignore[override]
        """Amnesiac's authors draw nothing anew: neither the labels nor the changes of an image."""
        return self.redraw

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through both sets ``epochs`` times."""
        params = parameters_to_train(model)
        optimizer = self.optim.make(model)
        retain, forget = split.retain, split.forget
        if self.augments:
            retain, forget = run.as_trained(retain), run.as_trained(forget)
        orders = self._orders(split, run)
        epoch = len(orders[0]) // self.epochs
        holding = self._holding(model, forget, params, optimizer, epoch)
        once: Tensor | None = None

        def step(x: Inputs, y: Tensor) -> Scalars:
            each = cross_entropy(model, x, y, self.norm, "none")
            self.optim.step(optimizer, each.mean())
            return {"each": each}

        one_step = run.recorded(step)
        with holding as hold:
            for i, (r, f) in run.batches(retain, forget, orders=orders, epoch=epoch):
                if not self.redraw and once is None:
                    once = self._draw(split.forget.labels.to(run.device), split.classes)
                wrong = self._draw(f.y, split.classes) if once is None else once[f.rows]
                each = one_step(joined(r, f), torch.cat([r.y, wrong]))["each"]
                assert each is not None
                hold(i)
                run.log(retain_loss=mean_of(each[: len(r)]), forget_loss=mean_of(each[len(r) :]))

    def _holding(
        self,
        model: nn.Module,
        forget: Samples,
        params: list[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        epoch: int,
    ) -> AbstractContextManager[Hold]:
        """What keeps some weights where they are; here they are all free."""
        return nullcontext(lambda _: None)

    def _orders(self, split: Split, run: Run) -> tuple[list[Tensor], list[Tensor]]:
        """For each step the rows of its batch in the retain set, and those in the forget set."""
        kept, lost, size = len(split.retain), len(split.forget), self.batch_size
        if self.mixed:
            total = self.epochs * math.ceil((kept + lost) / size)
            at = run.batch_indices(range(kept + lost), steps=total, batch_size=size)
            at = at.sort(1).values  # rows of the retain set come first
            rows = list(zip(at, (at < kept).sum(1).tolist(), strict=True))
            return [one[:k] for one, k in rows], [one[k:] - kept for one, k in rows]
        per_f, per_r = math.ceil(lost / size), math.ceil(kept / size)
        at_f = run.batch_indices(split.forget, steps=self.epochs * per_f, batch_size=size).split(per_f)
        at_r = run.batch_indices(split.retain, steps=self.epochs * per_r, batch_size=size).split(per_r)
        retain, forget, none = [], [], torch.empty(0, dtype=torch.long, device=run.device)
        for f, r in zip(at_f, at_r, strict=True):
            retain += [none] * per_f + [*r]
            forget += [*f] + [none] * per_r
        return retain, forget

    def _draw(self, y: Tensor, classes: int) -> Tensor:
        """A label for each sample, all classes alike; with ``wrong`` any but the true one."""
        if self.wrong:
            return (y + torch.randint(1, classes, y.shape, device=y.device)) % classes
        return torch.randint(classes, y.shape, device=y.device)


@dataclass(frozen=True)
class SalUn(RandomLabel):
    """Random labels, learnt by the weights that matter most for the forget set."""

    share: float = setting(0.5, "q: share of all parameters that may move", above=0, high=1)
    soft: bool = setting(False, "no mask: the smallest changes are taken back, ever fewer of them")

    def _holding(
        self,
        model: nn.Module,
        forget: Samples,
        params: list[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        epoch: int,
    ) -> AbstractContextManager[Hold]:
        n = sum(p.numel() for p in params)
        if self.share * n < 1:
            what = f"a share that frees at least one of {n} parameters"
            raise MethodError(what, str(self.share), "raise share")
        if self.soft:
            return nullcontext(_soft_threshold(params, 1 - self.share, epoch, self.epochs * epoch))
        total, _ = summed_grad(model, params, forget, batch_size=self.batch_size)
        mask = torch.zeros_like(total, dtype=torch.bool)
        order = total.abs().argsort(descending=True, stable=True)  # by rank: no ties
        mask[order[: int(self.share * n)]] = True
        parts = mask.split([p.numel() for p in params])
        free = [part.view_as(p) for part, p in zip(parts, params, strict=True)]
        return _masked(params, free, optimizer)


@contextmanager
def _masked(
    params: list[nn.Parameter], free: list[Tensor], optimizer: torch.optim.Optimizer
) -> Iterator[Hold]:
    """Within the block only free coordinates have gradients; the others are put back when asked."""
    start = [p.detach().clone() for p in params]
    hooks = [p.register_hook(m.mul) for p, m in zip(params, free, strict=True)]

    @torch.no_grad()
    def put_back(_: int) -> None:
        # No gradient is not enough: weight decay moves a weight without any, and fills its momentum.
        for p, m, origin in zip(params, free, start, strict=True):
            p.copy_(torch.where(m, p, origin))
            for kept in optimizer.state.get(p, {}).values():
                if isinstance(kept, Tensor) and kept.shape == p.shape:
                    kept.mul_(m)

    try:
        yield put_back
    finally:
        for hook in hooks:
            hook.remove()


def _soft_threshold(params: list[nn.Parameter], held: float, epoch: int, total: int) -> Hold:
    """Shrinks all changes since the beginning of the epoch by the r-th smallest of them."""
    start = flat(params)

    @torch.no_grad()
    def shrink(i: int) -> None:
        nonlocal start
        progress = (i - i % epoch + 1) / total
        rank = int(held * (1 - progress) * len(start))
        if rank > 0:
            change = flat(params) - start
            size = change.abs()
            tau = size.topk(rank, largest=False, sorted=False).values.max()
            write(params, start + change.sign() * (size - tau).clamp_min(0))
        if (i + 1) % epoch == 0:
            start = flat(params)

    return shrink
