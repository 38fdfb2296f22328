"""SCRUB, Bad Teacher and DELETE against float64 computations written from the formulas.

The batches are the whole sets, so nothing depends on the order of the samples.
"""

from __future__ import annotations

import copy
import logging
import math

import pytest
import torch
from torch import nn

import purge
from purge.core.errors import MethodError, ModelError
from purge.core.settings import replace
from purge.methods.badteacher import BadTeacher
from purge.methods.delete import Delete
from purge.methods.scrub import Scrub
from purge.models.checkpoint import digest
from tests.nets import blobs
from tests.reference import (
    Net,
    assert_same,
    cross_entropy,
    kl,
    log_softmax,
    network,
    vectors,
)

K = 4


@pytest.fixture(scope="module")
def case(half_trained):
    return half_trained


# -- SCRUB -------------------------------------------------------------------------------------


def scrub_reference(case, s):
    model, (xf, _), (xr, yr) = case
    student, teacher = Net(model, s.norm), Net(model, "frozen")

    def distance(x):
        z, t = student(x), teacher(x, train=False).detach()
        return s.temperature**2 * kl(t / s.temperature, z / s.temperature).mean(), z

    for epoch in range(1, s.epochs + 1):
        decays = sum(epoch > e for e in s.decay_after)
        optim = replace(s.optim, {"lr": s.optim.lr * s.decay**decays})
        if epoch <= s.max_steps:
            student.descend(-distance(xf)[0], optim)
        d, z = distance(xr)
        student.descend(s.gamma * cross_entropy(z, yr) + s.alpha * d, optim)
    return student.vectors


WHOLE = {"batch_size": 96, "forget_batch_size": 96}


def scrubbed(case, **changes):
    model, forget, retain = case
    method = replace(Scrub(**WHOLE), {"lr": 0.05, "alpha": 0.3, **changes})
    return method, purge.unlearn(model, forget, retain, method=method, progress=False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "frozen"},
        {"temperature": 1.0},
        {"temperature": 2.0, "gamma": 1.0, "alpha": 0.5, "max_steps": 3},
        {"max_steps": 0},
        {"epochs": 1, "max_steps": 5},
        {"momentum": 0.0, "weight_decay": 0.0},
        {"epochs": 6, "decay": 0.5, "max_steps": 6, "lr": 5e-3},  # the rate falls after epochs 3 and 5
        {"epochs": 4, "decay": 0.5, "max_steps": 4, "lr": 5e-3, "decay_after": (1, 3)},
        {"optimizer": "adam", "lr": 5e-3, "weight_decay": 0.1, "norm": "frozen"},
    ],
    ids=str,
)
def test_scrub_is_the_formula(case, changes):
    method, result = scrubbed(case, **changes)
    assert_same(vectors(result.model), scrub_reference(case, method), vectors(case[0]))


@pytest.fixture(scope="module")
def noisy():
    """Classes that overlap, and single samples to forget: held-out data is known in part only."""
    x, y = blobs(n=160, classes=3)
    noise = torch.randn(160, 6, generator=torch.Generator().manual_seed(5))
    data = (x + 8 * noise, y)
    train, test = (data[0][:100], data[1][:100]), (data[0][100:], data[1][100:])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))
    model = purge.train(model, train, epochs=40, lr=0.1, batch_size=32, progress=False).model
    return model, train, test


REWIND = {"epochs": 4, "max_steps": 2, "forget_batch_size": 8, "batch_size": 32}


def wrong(model, data):
    with torch.no_grad():
        return float((model(data[0]).argmax(1) != data[1]).double().mean())


def test_rewinding_takes_the_epoch_that_is_nearest_to_held_out_data(noisy, caplog):
    model, data, test = noisy
    after, rewound = rewinding(model, *purge.split(data, fraction=0.3), test, caplog, lr=0.1)
    away = distances(after, test)
    assert away.index(min(away)) == 1, "the case must have something to rewind"
    assert sorted(away)[1] > 2 * min(away), "and only one answer"
    assert digest(rewound) == digest(after[1][0])
    assert "epoch 2 of 4" in caplog.text


def test_rewinding_can_take_the_first_epoch_that_forgot_more_than_held_out_data_is_unknown(noisy, caplog):
    model, data, test = noisy
    parts = purge.split(data, fraction=0.3)
    after, rewound = rewinding(model, *parts, test, caplog, lr=0.2, rewind="first")
    unknown = wrong(after[-1][0], test)
    enough = [error > unknown for _, error in after]
    assert enough.index(True) != nearest(distances(after, test)), "the two rules must differ here"
    assert digest(rewound) == digest(after[enough.index(True)][0])
    after, rewound = rewinding(model, *parts, test, caplog, lr=0.02, rewind="first")
    assert not any(error > wrong(after[-1][0], test) for _, error in after)
    assert digest(rewound) == digest(after[-1][0]), "where no epoch did, the last one"


def rewinding(model, forget, retain, test, caplog, *, lr, rewind="nearest"):
    """The models after 1, 2, 3 and 4 epochs of one run with their forget errors, and what SCRUB+R takes."""

    def go(**changes):
        settings = {**REWIND, "lr": lr, **changes}
        return purge.unlearn(
            model, forget, retain, test=test, method=Scrub(), progress=False, **settings
        ).model

    after = [(m, wrong(m, forget)) for m in (go(epochs=e) for e in (1, 2, 3, 4))]
    with caplog.at_level(logging.INFO, "purge"):
        return after, go(rewind=rewind)


def distances(after, held_out):
    return [abs(error - wrong(after[-1][0], held_out)) for _, error in after]


def nearest(away):
    return away.index(min(away))  # the first of equals


@pytest.mark.parametrize("method", ["scrub-r", Scrub(rewind="first")], ids=str)
def test_rewinding_is_refused_without_held_out_samples_of_the_same_classes(toy, method):
    model, forget, retain, (x, y) = toy
    with pytest.raises(MethodError, match=r"Expected test data for rewind \(SCRUB\+R\), got none. Fix: pass"):
        purge.unlearn(model, forget, retain, method=method, progress=False)
    others = (x[y != 0], y[y != 0])
    with pytest.raises(MethodError, match="test samples of the forgotten classes"):
        purge.unlearn(model, forget, retain, test=others, method=method, progress=False)


# -- Bad Teacher -------------------------------------------------------------------------------


def bad_reference(case, s, fresh):
    model, (xf, _), (xr, _) = case
    student, good, bad = Net(model, s.norm), Net(model, "frozen"), Net(fresh, "frozen")
    t = s.temperature
    for _ in range(s.epochs):
        target = torch.cat([good(xr, train=False), bad(xf, train=False)]).detach()
        z = student(torch.cat([xr, xf]))
        student.descend(kl(target / t, z / t).mean() / K, s.optim)
    return student.vectors


def badly_taught(case, **changes):
    model, forget, retain = case
    start = BadTeacher(share=1.0, batch_size=96, epochs=3)
    method = replace(start, {"optimizer": "sgd", "lr": 1.0, "temperature": 2.0, **changes})
    fresh = network(9, classes=K).double()
    return method, fresh, purge.unlearn(model, forget, retain, method=method, fresh=fresh, progress=False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "frozen"},
        {"temperature": 1.0},
        # frozen: with batch statistics the bias before BatchNorm has no gradient but rounding noise
        {"optimizer": "adam", "lr": 1e-3, "norm": "frozen"},
        {"optimizer": "adam", "lr": 1e-3, "norm": "frozen", "temperature": 1.0, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_bad_teacher_is_the_formula(case, changes):
    method, fresh, result = badly_taught(case, **changes)
    assert_same(vectors(result.model), bad_reference(case, method, fresh), vectors(case[0]))


def test_bad_teacher_needs_a_network_that_knows_nothing(toy):
    model, forget, retain, _ = toy
    assert "fresh" in BadTeacher.needs

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = copy.deepcopy(model), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.inner(x) * self.scale

    with pytest.raises(ModelError, match="pass fresh="):
        purge.unlearn(Own(), forget, retain, method=BadTeacher(), progress=False)
    assert purge.unlearn(Own(), forget, retain, method=BadTeacher(), fresh=Own(), progress=False).steps == 1
    other = network(classes=5)
    with pytest.raises(ModelError, match="Expected 3 outputs from the untrained model, got 5"):
        purge.unlearn(model, forget, retain, method=BadTeacher(), fresh=other, progress=False)


# -- DELETE ------------------------------------------------------------------------------------


def delete_reference(case, s):
    model, (xf, yf), _ = case
    student, teacher = Net(model, s.norm), Net(model, "frozen")
    for _ in range(s.epochs):
        p = log_softmax(teacher(xf, train=False).detach()).exp()
        p[range(len(yf)), yf] = 0
        p = p / p.sum(1, keepdim=True)
        student.descend((torch.xlogy(p, p) - p * log_softmax(student(xf))).sum(1).mean(), s.optim)
    return student.vectors


def deleted(case, **changes):
    model, forget, retain = case
    start = Delete(batch_size=96, epochs=3)
    method = replace(start, {"lr": 0.05, **changes})
    return method, purge.unlearn(model, forget, retain, method=method, progress=False)


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "frozen"}, {"momentum": 0.0, "epochs": 1}, {"weight_decay": 0.1}], ids=str
)
def test_delete_is_the_formula(case, changes):
    method, result = deleted(case, **changes)
    assert_same(vectors(result.model), delete_reference(case, method), vectors(case[0]))


def test_delete_never_looks_at_retained_samples(toy):
    model, forget, (xr, yr), _ = toy
    few = (torch.randn(7, xr.shape[1]), yr[:7])
    one, two = (
        purge.unlearn(model, forget, r, method=Delete(epochs=3, batch_size=16), lr=0.01, progress=False)
        for r in ((xr, yr), few)
    )
    assert digest(one.model) == digest(two.model)
    assert Delete.needs == {"forget"}
    assert "retain_loss" not in one.history[1]


def test_delete_with_two_classes_and_half_precision(case):
    """With K = 2 only the other class is left, and −10¹⁰ is more than half precision can hold."""
    model = nn.Linear(6, 2)
    x, y = blobs(classes=2)
    forget, retain = purge.split((x, y), classes=[0])
    result = purge.unlearn(model, forget, retain, method=Delete(), lr=0.1, progress=False)
    assert all(math.isfinite(row["forget_loss"]) for row in result.history[1:])
    assert wrong(result.model, forget) == 1.0
    low = nn.Linear(6, 2).half()
    data = [(a.half(), b) for a, b in (forget, retain)]
    result = purge.unlearn(low, *data, method=Delete(), lr=0.1, progress=False)
    assert all(math.isfinite(row["forget_loss"]) for row in result.history[1:])


# -- all three ---------------------------------------------------------------------------------
