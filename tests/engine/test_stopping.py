"""When a run ends, and what it says about it."""

from __future__ import annotations

import pytest
import torch

import purge
from purge.engine.context import Context
from purge.engine.stopping import Check, Stopping


@pytest.mark.parametrize(
    ("stop", "epoch", "checked"),
    [
        (Stopping(check_every=4), 10, [4, 8, 10, 12, 16, 20]),
        (Stopping(check_every=0), 6, [6, 12, 18]),
        (Stopping(check_every=0, epoch_ends=False), 6, [6, 12, 18]),
        (Stopping(check_every=5, epoch_ends=False), 2, [5, 10, 15, 20]),
    ],
)
def test_checks_are_due_every_n_steps_and_at_epoch_ends(stop, epoch, checked):
    assert [s for s in range(1, 21) if stop.due(s, s % epoch == 0)] == checked


def test_reasons():
    stop = Stopping(retain_budget=5, retain_floor=0.02)
    assert stop.reason(Check(0.1, 0.1), target=0.1, start=0.05) == "forget_target"
    assert stop.reason(Check(0.11, 0.1), target=0.1, start=0.05) is None
    assert stop.reason(Check(0.5, 0.26), target=0.1, start=0.05) == "retain_budget"
    assert stop.reason(Check(0.0, 0.26), target=0.1, start=0.05) == "retain_budget", "the safety net is first"


def test_a_near_perfect_model_does_not_stop_at_once():
    stop = Stopping(retain_budget=5, retain_floor=0.02)
    assert stop.reason(Check(1.0, 0.05), target=0.1, start=1e-6) is None
    assert stop.reason(Check(1.0, 0.11), target=0.1, start=1e-6) == "retain_budget"


def test_default_target_is_chance_for_a_class(toy):
    model, forget, retain, _ = toy
    result = purge.unlearn(
        model, forget, retain, method="purge-paper", check_every=1, epochs=300, progress=False
    )
    accuracies = [
        r["check_forget_accuracy"] for r in result.history if r["check_forget_accuracy"] is not None
    ]
    assert result.stopped_by == "forget_target"
    assert accuracies[-1] <= 1 / 3
    assert all(a > 1 / 3 for a in accuracies[:-1]), "it stops at the first check below the target"


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


def test_the_budget_ends_a_run_at_once(toy):
    model, forget, retain, _ = toy
    result = purge.unlearn(
        model,
        forget,
        retain,
        method="gradient-ascent",
        lr=1e-2,
        weight_decay=5.0,
        momentum=0.0,
        epochs=50,
        check_every=1,
        retain_budget=1.5,
        retain_floor=0.0,
        norm="frozen",
        progress=False,
    )  # fmt: skip  (the decay shrinks all weights by 5 % a step, so the retain loss rises)
    checks = [r["check_retain_loss"] for r in result.history if r["check_retain_loss"] is not None]
    assert result.stopped_by == "retain_budget"
    budget = 1.5 * checks[0]
    assert checks[-1] > budget
    assert all(c <= budget for c in checks[:-1])


def test_one_in_k_is_chance():
    """An accuracy of exactly 1/K has reached the target 1/K, whatever float32 makes of it."""
    from purge.data.accept import as_samples
    from purge.data.split import Split
    from purge.engine.run import Run

    x, y = torch.zeros(10, 2), torch.arange(10)
    samples = as_samples((x, y), torch.device("cpu"), "x")
    split = Split(samples, samples, None, 10, frozenset(range(10)))
    always_zero = torch.nn.Linear(2, 10)
    with torch.no_grad():
        always_zero.weight.zero_()
        always_zero.bias.copy_(torch.arange(10.0).flip(0))
    run = Run(always_zero, split, Context(torch.device("cpu")), stop=Stopping(retain_budget=None))
    for _ in run.steps(3, epoch=1):
        run.log(loss=torch.zeros(()))
    assert (run.stopped_by, run.step) == ("forget_target", 1)
