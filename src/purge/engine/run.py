"""Everything around the loop of a method: batches, checks, history, progress, and when to stop."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import MethodError, RunError
from purge.core.progress import progress_line
from purge.data.augmented import Augmentation, Change, Drawn, plain
from purge.data.prefetch import Order
from purge.data.samples import Batch, Samples
from purge.data.split import Split, matched_to
from purge.engine.context import Context
from purge.engine.cuda_graph import Recorded, Scalars
from purge.engine.precision import Precision
from purge.engine.seeding import apart
from purge.engine.stopping import Check, Stopping
from purge.models.copies import reinitialised, widened
from purge.models.forward import logits

MOST_DRAWN = 10**9  # row numbers that a run draws ahead, which take 8 GB

Delivered = Callable[[], AbstractContextManager[None]]  # puts a model into the state that is delivered
Done = Callable[[Check], bool]  # may a method end its schedule after this check?


class Run:
    """One run of a method: it hands out batches, keeps the history and decides when to stop.

    A method's loop is one ``for`` over :meth:`batches`. Nothing here reads a tensor's value between two
    checks, so a GPU never waits for Python.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        context: Context,
        *,
        stop: Stopping,
        title: str = "unlearn",
        fresh: nn.Module | None = None,
        augment: Augmentation | Change | None = None,
    ) -> None:
        self.context, self.stop = context, stop
        self.device, self.seed, self.ranks = context.device, context.seed, context.ranks
        self.precision, self.progress = context.precision, context.progress
        self._model, self._split, self._title, self._fresh = model, split, title, fresh
        self.step = 0  # steps taken so far
        self.end = 0  # the step after which the loop ends; a check may bring it forward
        self.stopped_by: str | None = None
        self.took: str | None = None  # what a method that chooses did, in words
        self.exact: dict[str, Any] | None = None  # what a method that can delete exactly has verified
        self.forget_target: float | None = None  # known once the loop has begun
        self._delivered: Delivered = nullcontext
        self._done: Done = lambda now: False
        self._generator = torch.Generator().manual_seed(self.seed)
        # Not from the seed of the shuffles itself: the move of a sample would depend on its place in them.
        self._augment, self._moves = augment, torch.Generator().manual_seed(self.seed ^ 0xA06)
        self._plain: dict[int, tuple[Samples, Samples]] = {}  # by id, and what had that id
        self._rows: list[dict[str, Tensor | None]] = []
        self._checks: dict[int, Check] = {}
        self._first_bad = torch.full((), -1, device=self.device)

    def batch_indices(self, samples: Sized, *, steps: int, batch_size: int) -> Tensor:
        """Which samples make up each batch, (steps, batch): shuffled passes one after the other.

        Every batch has the same size, ``batch_size`` or all samples if there are fewer.
        """
        n = len(samples)
        size = min(batch_size, n)
        if steps * size > MOST_DRAWN:
            got = f"{steps} steps of {size} samples"
            raise MethodError(f"at most {MOST_DRAWN} samples in all steps", got, "lower epochs or steps")
        passes = math.ceil(steps * size / n)
        order = torch.cat([torch.randperm(n, generator=self._generator) for _ in range(passes)])
        return order[: steps * size].view(steps, size).to(self.device)

    def batches(
        self,
        *parts: Samples,
        epochs: int = 0,
        batch_size: int = 0,
        orders: Sequence[Order] = (),
        epoch: int | Collection[int] = 0,
        delivered: Delivered = nullcontext,
        done: Done = lambda now: False,
    ) -> Iterator[tuple[int, tuple[Batch, ...]]]:
        """Number each step from 0 and hand out one batch of each part.

        The first part is gone through ``epochs`` times in shuffled batches of ``batch_size``, the others
        beside it, unless ``orders`` gives the indices of each part and step; an empty index leaves a part
        out. Of several ranks each gets its part of every batch.
        """
        if not orders:
            epoch = math.ceil(len(parts[0]) / batch_size)
            steps = epochs * epoch
            orders = [self.batch_indices(part, steps=steps, batch_size=batch_size) for part in parts]
        if self.ranks.world > 1:
            apart(self.seed, self.ranks.rank, device=self.device)  # each draws for its own rows
        streams = [
            self.ranks.stream(
                part, order if isinstance(order, Tensor) else [index for index in order if len(index)]
            )
            for part, order in zip(parts, orders, strict=True)
        ]
        orders = [self.ranks.of_each(order) for order in orders]
        nothing = torch.empty(0, dtype=torch.long, device=self.device)
        empty = Batch(None, nothing, nothing)
        for i in self.steps(len(orders[0]), epoch=epoch, delivered=delivered, done=done):
            yield (
                i,
                tuple(
                    Batch(*next(stream), order[i]) if len(order[i]) else empty
                    for stream, order in zip(streams, orders, strict=True)
                ),
            )

    def augmented(self, samples: Samples) -> Samples | None:
        """The samples changed at random as ``augment=`` says; None where it does not say how, or not at all.

        Data whose items are random is augmented by itself.
        """
        if self._augment is None:
            return None if samples.steady else samples
        named = isinstance(self._augment, Augmentation)
        if self._augment == Augmentation() or (named and samples.pixel_shape is None):
            return None
        return samples.replaced(change=Drawn(self._augment, self._moves))

    def as_trained(self, samples: Samples) -> Samples:
        """The samples as a model is trained on them: changed at random where it is known how."""
        return self.augmented(samples) or self.plain(samples)

    def plain(self, samples: Samples) -> Samples:
        """The samples without random transforms; as they are if their dataset does not let go of these."""
        if id(samples) not in self._plain:
            self._plain[id(samples)] = samples, plain(samples)
        return self._plain[id(samples)][1]

    def steps(
        self,
        total: int,
        *,
        epoch: int | Collection[int],
        delivered: Delivered = nullcontext,
        done: Done = lambda now: False,
    ) -> Iterator[int]:
        """Count steps from 0, check the model where a check is due, and end once there is a reason.

        ``epoch``: the number of steps in an epoch, or the steps after which one ends.
        ``delivered``: a context in which the model is as it would be delivered; checks are made in it.
        ``done``: a rule of the method's own, by which the schedule ends after a check.
        """
        self.end, every = total, self.stop.check_every
        ends = range(epoch, total + 1, epoch) if isinstance(epoch, int) else epoch
        if every and not self.stop.epoch_ends:
            ends = ()
        self._delivered, self._done = delivered, done
        self._check()  # before the first step: the starting retain loss L₀
        with progress_line(self._title, total, self.progress) as advance:
            while self.step < self.end:
                self.step += 1
                yield self.step - 1
                if self.context.each is not None:
                    self.context.each(self.step, self.end)
                if self.step == self.end or self.step in ends or (every and self.step % every == 0):
                    self._check()
                now = self._checks.get(self.step)
                advance(1, "" if now is None else f"forget accuracy {now.forget_accuracy:.1%}")
        self.stopped_by = self.stopped_by or "schedule"
        self._raise_if_not_finite()

    def finish(self) -> None:
        """End after the current step, because a method's own rule says so."""
        self.end = self.step

    def part(self, stop: Stopping, title: str, seed: int) -> Run:
        """A run for another method that does a part of the work; its checks look at the whole request."""
        tell, before = self.context.tell, self.step
        later = None if tell is None else lambda step, values: tell(before + step, values)
        each, end = self.context.each, self.end
        after = None if each is None else lambda step, steps: each(before + step, max(end, before + steps))
        context = dataclasses.replace(self.context, seed=seed, tell=later, each=after)
        return Run(
            self._model, self._split, context, stop=stop, title=title, fresh=self._fresh,
            augment=self._augment,
        )  # fmt: skip

    def follow(self, part: Run) -> None:
        """Take over what a part has done: its steps come after those that were taken before."""
        self._checks |= {self.step + step: check for step, check in part._checks.items()}
        self._rows += part._rows
        self.step = self.end = self.step + part.step
        self.stopped_by, self.forget_target = part.stopped_by, part.forget_target

    def autocast(self, precision: Precision | None = None) -> AbstractContextManager[None]:
        """Compute convolutions and products in the precision of the run, or in ``precision``.

        Casts of weights are not cached: weights may change within the block.
        """
        bf16 = (precision or self.precision) == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)

    def recorded(self, fn: Callable[..., Scalars], *, after: Recorded | None = None) -> Recorded:
        """A step as a function of tensors; on a GPU it is recorded once and replayed."""
        return Recorded(fn, model=self._model, enabled=self.context.graph, after=after)

    def fresh(self, model: nn.Module, *, partly: bool = False) -> nn.Module:
        """An untrained model like ``model``, on the device: the caller's, or ``model`` with new weights.

        ``partly``: weights that cannot be drawn anew stay; otherwise such a model is refused.
        """
        if self._fresh is not None:
            return widened(copy.deepcopy(self._fresh).to(self.device))
        return reinitialised(model, partly=partly)

    @property
    def retain_budget(self) -> float | None:
        """The retain loss that would end the run; None without a budget or before the first step."""
        return self.stop.budget(self._checks[0].retain_loss) if 0 in self._checks else None

    @property
    def forget_accuracy(self) -> float:
        """The accuracy on the forget set when it was last looked at."""
        return self._checks[max(self._checks)].forget_accuracy

    @property
    def beyond_budget(self) -> bool:
        """Is the retain loss, when it was last looked at, higher than the budget allows?"""
        budget = self.retain_budget
        return budget is not None and self._checks[max(self._checks)].retain_loss > budget

    def retain_loss(self, samples: Samples) -> float:
        """The model's mean cross-entropy on some of the samples, as many as a check looks at."""
        at = self._sample(samples)
        z = logits(self._model, samples, at)
        loss = F.cross_entropy(z, samples.labels[at].to(z.device)).item()
        if not math.isfinite(loss):
            raise not_finite(self.step)
        return self.ranks.agreed(loss)

    def _check(self) -> None:
        """Measure forget accuracy and retain loss, and decide whether that is a reason to stop."""
        with self._delivered():
            self._raise_if_not_finite()
            if not self._checks:
                self.forget_target = self._target()
            loss = self.retain_loss(self._split.retain)
            now = self._checks[self.step] = Check(self._accuracy(self._split.forget), loss)
        if self.context.tell is not None:
            self.context.tell(self.step, {f"check_{name}": v for name, v in now._asdict().items()})
        if self.step == 0:
            return
        met = self.forget_target is not None and now.forget_accuracy <= self.forget_target
        reason = "retain_budget" if self.beyond_budget else "forget_target" if met else None
        if reason and self.stop.early:
            self.stopped_by, self.end = reason, self.step
        if self._done(now):
            self.end = self.step

    def _target(self) -> float | None:
        """The forget accuracy to stop at.

        One that was left open is 1/K for samples whose class must go, and for single samples the accuracy on
        test data of their classes, weighted by how many there are of each. Without any, single samples get
        1/K in a run that may stop early; in others there is no target.
        """
        split, chance = self._split, 1 / self._split.classes
        if self.stop.forget_target is not None:
            return self.stop.forget_target
        single = split.forget.labels[~split.whole]
        whole = 1 - len(single) / len(split.forget)
        if split.test is not None and whole < 1:
            return whole * chance + (1 - whole) * self._accuracy(split.test, single)
        if whole == 1 or self.stop.early:
            return whole * chance + (1 - whole) * chance
        return None

    def _accuracy(self, samples: Samples, like: Tensor | None = None) -> float:
        """The accuracy on some of the samples; with ``like``, in the class shares of these labels."""
        at = self._sample(samples)
        z = logits(self._model, samples, at)
        if not bool(torch.isfinite(z).all()):
            raise not_finite(self.step)
        hits = z.argmax(1).cpu() == samples.labels[at]
        if like is not None:
            return self.ranks.agreed(float(hits.double() @ matched_to(samples.labels[at], like)) / len(at))
        return self.ranks.agreed(int(hits.sum()) / len(at))  # exact: 1/K must be able to equal 1/K

    def _sample(self, samples: Samples) -> Tensor:
        """A fixed, seeded choice of at most ``check_samples`` samples, in order."""
        n, most = len(samples), self.stop.check_samples
        if n <= most:
            return torch.arange(n)
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(n, generator=generator)[:most].sort().values

    def log(self, **scalars: Tensor | None) -> None:
        """Keep 0-d tensors of the current step on the device; they are read when the run is over.

        None stands for what this run does not measure.
        """
        values = {k: None if v is None else v.detach() for k, v in scalars.items()}
        finite = torch.stack([torch.isfinite(v) for v in values.values() if v is not None]).all()
        new = ~finite & (self._first_bad < 0)
        self._first_bad = torch.where(new, torch.full_like(self._first_bad, self.step), self._first_bad)
        self._rows.append(values)

    def history(self) -> list[dict[str, Any]]:
        """One dict per step (step 0: before the first), checks included; None where not measured."""
        keys = list(dict.fromkeys(k for row in self._rows for k in row))  # parts may log different things
        rows: list[dict[str, Any]] = []
        columns: dict[str, list[Any]] = {}
        for k in keys:
            values = [row.get(k) for row in self._rows]
            measured = [v for v in values if v is not None]
            numbers = iter(torch.stack(measured).tolist() if measured else [])  # read at once
            columns[k] = [None if v is None else next(numbers) for v in values]
        for step in range(len(self._rows) + 1):
            logged = {k: columns[k][step - 1] if step else None for k in keys}
            now = self._checks.get(step, Check(None, None))  # type: ignore[arg-type]
            rows.append({"step": step, **logged, **{f"check_{k}": v for k, v in now._asdict().items()}})
        return rows

    def _raise_if_not_finite(self) -> None:
        if (step := int(self._first_bad)) >= 0:
            raise not_finite(step)


def mixed_orders(
    kept: Tensor, lost: int, *, steps: int, batch_size: int
) -> tuple[list[Tensor], list[Tensor]]:
    """The rows of each batch in the retain set, at ``kept``, and in the forget set, shuffled together."""
    m = len(kept)
    n = m + lost
    size = min(batch_size, n)
    passes = torch.cat([torch.randperm(n) for _ in range(math.ceil(steps * size / n))])
    order = passes[: steps * size].view(steps, size).sort(1).values.to(kept.device)  # retained rows first
    counts = (order < m).sum(1).tolist()
    rows = list(zip(order, counts, strict=True))
    return [kept[index[:k]] for index, k in rows], [index[k:] - m for index, k in rows]


def not_finite(step: int) -> RunError:
    """The error of a run that cannot go on."""
    got = f"NaN or infinity at step {step} (nothing was returned)"
    fix = "lower lr (in purge: rate) or clip gradients; at the first steps, look for √0 or log 0 in the model"
    return RunError("finite losses and gradients throughout", got, fix)
