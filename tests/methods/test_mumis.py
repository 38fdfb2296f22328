"""MU-Mis against the input gradients of a small network, written out in float64."""

from __future__ import annotations

import pytest
import torch

import purge
from purge.engine.optimizer import Optim
from purge.methods import MuMis
from tests.reference import WHOLE, assert_weights, net, sgd, trained, weights_of


def squared(w, x, y):
    """‖∇ₓ z_y‖² by the chain rule, BatchNorm with running statistics."""
    open_ = (net(w, x, frozen=True)[1] > 0).double()
    scale = w["1.weight"] / (w["1.running_var"] + 1e-5).sqrt()
    return ((w["3.weight"][y] * open_ * scale) @ w["0.weight"]).square().sum(1)


def unlearned(model, parts, lr, momentum=0.0, **settings):
    optim = Optim(lr=lr, momentum=momentum, weight_decay=0.0)
    return purge.unlearn(
        model, *parts, method=MuMis(batch_size=WHOLE, optim=optim, **settings), progress=False
    )


def gap(x, y):
    return lambda w: (squared(w, x, y) - squared(w, x, 1 - y)).mean()


def test_a_step_lowers_the_own_sensitivity_and_raises_the_other():
    model, data = trained(classes=2)  # so that there is one other class
    forget, retain = purge.split(data, fraction=0.3)
    result = unlearned(model, (forget, retain), 1e-3, momentum=0.9, recovery=None, epochs=2)
    start = weights_of(model)
    assert_weights(result, sgd(start, gap(*forget), rates=[1e-3, 1e-3], decay=0.0))
    assert torch.equal(result.model[1].running_mean, model[1].running_mean)
    assert result.history[1]["own"] == pytest.approx(float(squared(start, *forget).mean()), rel=1e-5)


def test_it_ends_when_other_classes_are_sensitive_enough():
    model, data = trained(classes=2)
    (x, y), retain = purge.split(data, fraction=0.3)
    w, seen = weights_of(model), []
    for _ in range(9):
        seen.append(float(squared(w, x, 1 - y).sqrt().mean()))
        w = sgd(w, gap(x, y), rates=[0.02], momentum=0.0, decay=0.0)
    assert seen == sorted(seen), "here the sensitivity only rises"
    between = (seen[4] + seen[5]) / 2 / seen[0]
    steps = {
        recovery: unlearned(model, ((x, y), retain), 0.02, recovery=recovery, epochs=9).steps
        for recovery in (None, between, 1e6)
    }
    assert steps == {None: 9, between: 6, 1e6: 9}
