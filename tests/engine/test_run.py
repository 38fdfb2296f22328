"""The loop that every method has: batches that stay aligned, checks, and one place that calls a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

import purge
from purge.data.accept import as_samples
from purge.data.split import Split
from purge.engine.context import Context
from purge.engine.run import Run
from purge.engine.stopping import Stopping
from purge.methods.registry import METHODS
from tests.methods.test_contract import NAMES, QUICK
from tests.nets import folded_conv

CPU = torch.device("cpu")


def numbered(n: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples whose input says which row they are."""
    return torch.arange(n)[:, None].float() + offset, torch.arange(n) % 3


@pytest.fixture
def split() -> Split:
    forget, retain = (as_samples(numbered(*given), CPU, "x") for given in ((7, 100), (20, 500)))
    return Split(forget, retain, None, 3, frozenset())


class Constant(nn.Module):
    """Says class 0 whatever it is shown."""

    def forward(self, x):
        return torch.tensor([1.0, 0.0, 0.0]).repeat(len(x), 1)


def a_run(split: Split, **stop) -> Run:
    return Run(Constant(), split, Context(CPU), stop=Stopping(**{"early": False, "check_every": 0, **stop}))


def test_each_batch_carries_its_own_labels_and_rows(split):
    seen = []
    for i, (f, r) in a_run(split).batches(split.forget, split.retain, epochs=2, batch_size=3):
        for batch, samples, offset in ((f, split.forget, 100), (r, split.retain, 500)):
            assert batch.x[:, 0].tolist() == (batch.rows + offset).tolist()
            assert batch.y.tolist() == samples.labels[batch.rows].tolist()
        seen.append(i)
    assert seen == list(range(6))


def test_parts_that_a_step_leaves_out_are_empty_and_nothing_slips(split):
    none = torch.empty(0, dtype=torch.long)
    forget, retain = [torch.tensor([2, 5]), none, torch.tensor([6])], [none, torch.tensor([4]), none]
    run = a_run(split)
    rows = [
        (f.rows.tolist(), r.rows.tolist(), [] if not len(f) else f.x[:, 0].tolist())
        for _, (f, r) in run.batches(split.forget, split.retain, orders=(forget, retain), epoch=3)
    ]
    assert rows == [([2, 5], [], [102, 105]), ([], [4], []), ([6], [], [106])]


def test_a_method_may_end_its_schedule_after_a_check(split):
    run, asked = a_run(split), []

    def done(now):
        asked.append((run.step, now.forget_accuracy == run.forget_accuracy))
        return run.step == 4

    assert list(run.steps(9, epoch=2, done=done)) == [0, 1, 2, 3]
    assert asked == [(2, True), (4, True)]
    assert (run.end, run.stopped_by) == (4, "schedule")


# -- one place that calls a model -----------------------------------------------------------------


class Watched(nn.Sequential):
    """A classifier that remembers which file of the library called it."""

    callers: ClassVar[set[str]] = set()

    def __call__(self, *args, **kwargs):
        frame = sys._getframe(1)
        while "torch" in Path(frame.f_code.co_filename).parts:
            frame = frame.f_back
        self.callers.add("/".join(Path(frame.f_code.co_filename).parts[-2:]))
        return super().__call__(*args, **kwargs)


@pytest.fixture
def watched(toy):
    Watched.callers = set()
    return Watched(*toy[0])


@pytest.mark.parametrize("name", NAMES)
def test_methods_call_a_model_in_one_place(name, watched, toy):
    _, forget, retain, test = toy
    if name == "convolution-transpose":
        watched = Watched(*folded_conv())
    purge.unlearn(
        watched, forget, retain, test=test, method=METHODS[name].method, progress=False, **QUICK.get(name, {})
    )
    assert watched.callers == {"models/forward.py"}
