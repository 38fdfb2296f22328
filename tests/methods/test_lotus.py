"""LoTUS against a float64 computation written from the formulas.

Each batch is all of D_f and D_r. The Gumbel noise is known: the same for all samples, another one for
each class, so that nothing depends on the order of the samples.
"""

from __future__ import annotations

import math

import pytest
import torch

import purge
from purge.core.errors import MethodError
from purge.core.settings import replace
from purge.methods import LoTUS
from tests.nets import blobs, small_mlp
from tests.reference import (
    Net,
    assert_same,
    log_softmax,
    vectors,
)

NOISE = torch.tensor([0.3, 2.0, 0.5, 1.1]).double()  # what a draw from Exp(1) could be; −log of it is Gumbel


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda t: t.copy_(NOISE.to(t.dtype).expand_as(t)))


def accuracy(net, x, y):
    return float((net(x, train=False).argmax(1) == y).double().mean())


def lotus_reference(half_trained, s, unseen):
    model, (xf, yf), (xr, _) = half_trained
    student, teacher = Net(model, s.norm), Net(model, "frozen")
    x, n = torch.cat([xr, xf]), len(xr)
    z = teacher(x, train=False).detach() - NOISE.log()
    for _ in range(s.epochs):
        t = log_softmax(z / math.exp(s.alpha * (round(accuracy(student, xf, yf), 2) - unseen))).exp()
        t[:n] = torch.eye(4).double()[z[:n].argmax(1)]
        student.descend(-(t * log_softmax(student(x))).sum(1).mean(), s.optim)
        if round(accuracy(student, xf, yf), 2) <= unseen - 0.01:
            break
    return student.vectors


def lotus(half_trained, **changes):
    model, forget, retain = half_trained
    start = LoTUS(batch_size=96, share=1.0, epochs=3)
    method = replace(start, {"lr": 0.02, "alpha": 3.0, "weight_decay": 0.05, **changes})
    return method, purge.unlearn(model, forget, retain, method=method, progress=False)


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "frozen"}, {"alpha": 0.5}, {"epochs": 5, "lr": 5e-3}], ids=str
)
def test_lotus_is_the_formula(half_trained, known, changes):
    method, result = lotus(half_trained, **changes)
    assert_same(
        vectors(result.model), lotus_reference(half_trained, method, unseen=0.0), vectors(half_trained[0])
    )


@pytest.fixture(scope="module")
def samples():
    """A model, half of its samples to forget, and test data of which it gets two fifths wrong."""
    x, y = blobs(n=96)
    model = purge.train(small_mlp(), (x, y), epochs=20, lr=0.05, batch_size=32, progress=False).model
    xt, yt = blobs(n=60, seed=1)
    yt[:24] = (yt[:24] + 1) % 3
    return model, *purge.split((x, y), fraction=0.5), (xt, yt)


def test_single_samples_are_smoothed_until_they_are_no_better_known_than_test_data(
    samples, known, monkeypatch
):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda t: t.fill_(1.0))  # G = 0
    model, forget, retain, test = samples
    taus, real = [], torch.nn.functional.gumbel_softmax

    def remember(z, tau=1.0, hard=False):
        taus.extend([] if hard else [tau])
        return real(z, tau=tau, hard=hard)

    monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", remember)
    result = purge.unlearn(
        model, forget, retain, test=test, method="lotus", batch_size=96, share=1.0, epochs=4, progress=False
    )
    seen = [r["check_forget_accuracy"] for r in result.history]
    with torch.no_grad():
        unseen = float((model(test[0]).argmax(1) == test[1]).double().mean())
    assert unseen < 0.7
    assert taus == pytest.approx([math.exp(8 * (round(a, 2) - round(unseen, 2))) for a in seen[:-1]])


def test_a_run_ends_once_the_forget_set_is_less_known_than_test_data(samples):
    model, forget, retain, test = samples
    changes = {"batch_size": 96, "share": 0.05, "epochs": 30, "lr": 0.03}
    result = purge.unlearn(model, forget, retain, test=test, method="lotus", progress=False, **changes)
    seen = [r["check_forget_accuracy"] for r in result.history]
    with torch.no_grad():
        unseen = float((model(test[0]).argmax(1) == test[1]).double().mean())
    assert result.steps < 30
    assert result.stopped_by == "schedule"
    below = [round(a, 2) - round(unseen, 2) <= -0.009 for a in seen]
    assert below == [False] * result.steps + [True]


def test_single_samples_need_test_data_and_classes_do_not(samples, toy):
    model, forget, retain, _ = samples
    with pytest.raises(MethodError, match=r"Expected test data for lotus, .* got none. Fix: pass test="):
        purge.unlearn(model, forget, retain, method="lotus", progress=False)
    model, forget, retain, _ = toy
    purge.unlearn(model, forget, retain, method="lotus", epochs=1, progress=False)
