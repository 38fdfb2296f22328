"""When a run ends, and what it says about it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import purge
from purge.data.accept import as_samples
from purge.data.split import Split
from purge.engine.context import Context
from purge.engine.run import Run
from purge.engine.stopping import Stopping

CPU = torch.device("cpu")


class Told(nn.Module):
    """Is right about a share of the forgotten samples, 0 to 99, and has a loss on the retained one, -1."""

    def __init__(self, accuracy: float, loss: float) -> None:
        super().__init__()
        self.accuracy, self.loss = accuracy, loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        i, retained = x[:, 0].round(), torch.tensor(-self.loss).exp()
        p = torch.where(i < 0, retained, torch.where(i < round(100 * self.accuracy), 0.9, 0.1))
        return torch.stack([p, 1 - p], 1).log()


def run_of(model: nn.Module, stop: Stopping) -> Run:
    """A run that shall forget one of ten classes."""
    rows = torch.arange(100.0)[:, None], torch.tensor([[-1.0]])
    forget, retain = (as_samples((x, torch.zeros(len(x)).long()), CPU, "data") for x in rows)
    return Run(model, Split(forget, retain, None, 10, frozenset({0})), Context(CPU), stop=stop)


@pytest.mark.parametrize(
    ("stop", "epoch", "checked"),
    [
        (Stopping(check_every=4), 10, [0, 4, 8, 10, 12, 16, 20]),
        (Stopping(check_every=0), 6, [0, 6, 12, 18, 20]),
        (Stopping(check_every=0, epoch_ends=False), 6, [0, 6, 12, 18, 20]),
        (Stopping(check_every=5, epoch_ends=False), 2, [0, 5, 10, 15, 20]),
        (Stopping(check_every=0), [2, 7], [0, 2, 7, 20]),
    ],
)
def test_checks_are_due_every_n_steps_and_at_epoch_ends(stop, epoch, checked):
    run = run_of(Told(1.0, 0.1), stop)
    for _ in run.steps(20, epoch=epoch):
        run.log(loss=torch.zeros(()))
    assert [row["step"] for row in run.history() if row["check_retain_loss"] is not None] == checked
    assert run.stopped_by == "schedule"


@pytest.mark.parametrize(
    ("start", "now", "reason"),
    [
        (0.05, (0.1, 0.1), "forget_target"),  # exactly 1/K, whatever float32 makes of it
        (0.05, (0.11, 0.1), "schedule"),
        (0.05, (0.5, 0.26), "retain_budget"),
        (0.05, (0.0, 0.26), "retain_budget"),  # the safety net comes first
        (1e-6, (1.0, 0.05), "schedule"),  # a near-perfect model does not stop at once
        (1e-6, (1.0, 0.11), "retain_budget"),
    ],
)
def test_why_a_run_ends_and_at_once(start, now, reason):
    for early in (True, False):
        model = Told(1.0, start)
        stop = Stopping(retain_budget=5, retain_floor=0.02, check_every=1, early=early)
        run = run_of(model, stop)
        for i in run.steps(5, epoch=5):
            run.log(loss=torch.zeros(()))
            if i == 1:
                model.accuracy, model.loss = now
        stops = early and reason != "schedule"
        assert (run.stopped_by, run.step) == ((reason, 2) if stops else ("schedule", 5))
    assert run.forget_target == 0.1
    assert run.retain_budget == pytest.approx(5 * max(start, 0.02), rel=0.2)


def test_default_target_of_single_samples_is_the_accuracy_on_unseen_ones_of_their_classes(toy):
    model, _, (x, y), (x_test, y_test) = toy
    y_test = torch.where((y_test == 2) & (torch.arange(len(y_test)) % 2 == 0), 1, y_test)  # many wrong 1s
    order = y.argsort(descending=True)  # class 2 first, then 1
    single = torch.cat([order[:6], order[-1:]])
    forget, retain = purge.split((x, y), indices=single)
    result = purge.unlearn(
        model, forget, retain, test=(x_test, y_test), method="finetune", epochs=1, progress=False
    )
    with torch.no_grad():
        right = (model.eval()(x_test).argmax(1) == y_test).double()
    expected = (6 * right[y_test == 2].mean() + right[y_test == 1].mean()) / 7
    assert result.info["forget_target"] == pytest.approx(float(expected))
    assert abs(float(expected) - float(right.mean())) > 0.05
