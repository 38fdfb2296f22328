"""Everything around the loop of a method: batches, checks, history, progress, clean copies."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sized
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import RunError
from purge.core.progress import progress_line
from purge.data.samples import Samples
from purge.data.split import Split
from purge.engine.cuda_graph import Recorded, Scalars
from purge.engine.precision import Precision
from purge.engine.stopping import Check, Stopping
from purge.models.copies import reinitialised
from purge.models.forward import EVAL_BATCH, logits, passing


class Run:
    """One run of a method: it hands out steps, keeps the history and decides when to stop.

    Nothing here reads a tensor's value between two checks.
    """

    def __init__(
        self,
        split: Split,
        *,
        device: torch.device,
        stop: Stopping,
        seed: int = 0,
        progress: bool = False,
        title: str = "unlearn",
        fresh: nn.Module | None = None,
        precision: Precision = "float32",
        graph: bool = False,
    ) -> None:
        self.device, self.seed, self.stop = device, seed, stop
        self.precision, self.graph = precision, graph
        self._fresh = fresh
        self.stopped_by: str | None = None
        self.step = 0  # steps taken so far
        self.end = 0  # the step after which the loop ends; moves closer when a reason is found
        self._split, self.progress, self._title = split, progress, title
        self._epoch, self._landing, self._total = 1, 0, 0
        self.forget_target: float | None = None  # what the run aims at, once it has begun
        self._generator = torch.Generator().manual_seed(seed)
        self._rows: list[dict[str, Tensor | None]] = []
        self._checks: dict[int, Check] = {}
        self._chosen: dict[int, Tensor] = {}  # by the size of a set, which samples checks look at
        self._first_bad = torch.full((), -1, device=device)

    # -- batches ---------------------------------------------------------------------------

    def order(self, samples: Sized, *, steps: int, batch_size: int) -> Tensor:
        """Which samples make up each batch: (steps, batch), shuffled passes one after the other.

        Every batch has the same size, ``batch_size`` or all samples if there are fewer.
        """
        n = len(samples)
        size = min(batch_size, n)
        passes = math.ceil(steps * size / n)
        order = torch.cat([torch.randperm(n, generator=self._generator) for _ in range(passes)])
        return order[: steps * size].view(steps, size).to(self.device)

    def steps(self, total: int, *, epoch: int, landing: int = 0) -> Iterator[int]:
        """Count steps 0 … total − 1, and end early once :meth:`check` has found a reason.

        After the forget target has been reached, ``landing`` more steps are given for the
        learning rate to come down in; should the target be lost again by then, the steps go on.
        The retain budget ends the run at once.
        """
        self._epoch, self._landing, self._total, self.end = epoch, landing, total, total
        with progress_line(self._title, total, self.progress) as advance:
            while self.step < self.end:
                self.step += 1
                yield self.step - 1
                now = self._checks.get(self.step)
                advance(1, "" if now is None else f"forget accuracy {now.forget_accuracy:.1%}")
        self.stopped_by = self.stopped_by or "schedule"
        self._raise_if_not_finite()

    def autocast(self, precision: Precision | None = None) -> AbstractContextManager[None]:
        """Convolutions and products in the precision of the run, or in this one.

        Casts are not kept: within the block, weights may change.
        """
        bf16 = (precision or self.precision) == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False)

    def recorded(self, fn: Callable[..., Scalars]) -> Recorded:
        """One step as a function of tensors: on a GPU it is recorded once and replayed."""
        return Recorded(fn, device=self.device, enabled=self.graph)

    def fresh(self, model: nn.Module) -> nn.Module:
        """An untrained model like ``model``, on the device: the caller's, or ``model`` drawn anew."""
        if self._fresh is not None:
            return copy.deepcopy(self._fresh).to(self.device)
        return reinitialised(model)

    # -- checks ----------------------------------------------------------------------------

    @property
    def retain_budget(self) -> float | None:
        """The retain loss that would end the run; None without a budget or before it has begun."""
        return self.stop.budget(self._checks[0].retain_loss) if 0 in self._checks else None

    @property
    def due(self) -> bool:
        """Is a check due after the step just taken?"""
        return self.stop.due(self.step, self._epoch) or self.step == self.end

    def check(self, model: nn.Module) -> None:
        """Measure forget accuracy and retain loss, and find out whether that is a reason to stop."""
        self._raise_if_not_finite()
        retain, at = self._split.retain, self._sample(self._split.retain)
        zr = logits(model, retain, at)
        loss = F.cross_entropy(zr, retain.labels[at].to(zr.device)).item()
        if not math.isfinite(loss):
            raise self._not_finite(self.step)
        now = self._checks[self.step] = Check(self._accuracy(model, self._split.forget), loss)
        if self.step == 0:
            return
        reason = self.stop.reason(now, target=self.forget_target, start=self._checks.get(0, now).retain_loss)
        if reason == "retain_budget" or (reason and self.stopped_by is None):
            self.stopped_by = reason
            landing = self._landing if reason == "forget_target" else 0
            self.end = min(self.end, self.step + landing)
        elif reason is None and self.step == self.end:
            self.stopped_by = None  # the target was lost again while landing: go on
            self.end = self._total

    def begin(self, model: nn.Module) -> None:
        """The check before the first step: the starting retain loss L₀, and the forget target.

        A target left open is 1/K for the samples whose class must go, and for single samples the
        accuracy on test data (1/K without any), weighted by how many there are of each.
        """
        self.forget_target = self.stop.forget_target
        if self.forget_target is None:
            split, chance = self._split, 1 / self._split.classes
            gone = torch.tensor(sorted(split.forget_classes), dtype=torch.long)
            whole = int(torch.isin(split.forget.labels, gone).sum()) / len(split.forget)
            unseen = chance if split.test is None or whole == 1 else self._accuracy(model, split.test)
            self.forget_target = whole * chance + (1 - whole) * unseen
        self.check(model)

    def _accuracy(self, model: nn.Module, samples: Samples) -> float:
        at = self._sample(samples)
        z = logits(model, samples, at)
        if not bool(torch.isfinite(z).all()):
            raise self._not_finite(self.step)
        guess = z.argmax(1).cpu()
        return int((guess == samples.labels[at]).sum()) / len(at)  # exact: 1/K must be able to equal 1/K

    def retain_batches(self) -> Iterator[Tensor]:
        """Retain inputs for recalibrating BatchNorm before a check: some of those that it looks at."""
        at = self._sample(self._split.retain)
        for x, _ in passing(self._split.retain, at[:: math.ceil(len(at) / EVAL_BATCH)]):
            yield x

    # -- history ---------------------------------------------------------------------------

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
        keys = list(self._rows[0]) if self._rows else []
        columns = {k: _column([row[k] for row in self._rows]) for k in keys}
        rows: list[dict[str, Any]] = []
        for step in range(len(self._rows) + 1):
            values = {k: columns[k][step - 1] if step else None for k in keys}
            now = self._checks.get(step)
            values["check_forget_accuracy"] = now.forget_accuracy if now else None
            values["check_retain_loss"] = now.retain_loss if now else None
            rows.append({"step": step, **values})
        return rows

    def _raise_if_not_finite(self) -> None:
        if (step := int(self._first_bad)) >= 0:
            raise self._not_finite(step)

    def _not_finite(self, step: int) -> RunError:
        return RunError(
            "finite losses throughout",
            f"NaN or infinity at step {step} (nothing was returned)",
            "lower lr, or set clip=1",
        )

    def _sample(self, samples: Samples) -> Tensor:
        """A fixed, seeded choice of at most ``check_samples`` samples, in order."""
        n, most = len(samples), self.stop.check_samples
        if n <= most:
            return torch.arange(n)
        if n not in self._chosen:
            generator = torch.Generator().manual_seed(self.seed)
            self._chosen[n] = torch.randperm(n, generator=generator)[:most].sort().values
        return self._chosen[n]


def _column(values: list[Tensor | None]) -> list[Any]:
    found = [v for v in values if v is not None]
    numbers = iter(torch.stack(found).tolist() if found else [])
    return [None if v is None else next(numbers) for v in values]
