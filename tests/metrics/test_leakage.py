"""Leakage on retained samples: against SciPy and scikit-learn, and against planted models."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import percentileofscore
from sklearn.metrics import roc_auc_score
from torch import nn

import purge
from purge.metrics import leakage
from purge.metrics.audited import AuditedModel
from purge.metrics.leakage import changes, leak_retained, ranked
from purge.metrics.registry import METRICS
from tests.metrics.overfit import audited, by_heart, noisy_digits

PARTS = ("loss", "confidence", "distance", "after")


@pytest.fixture(scope="module")
def task() -> SimpleNamespace:
    """A network that is not yet trained to the end, and two that were edited in ways that give away."""
    train, test = noisy_digits()
    forget, retain = purge.split(train, indices=range(40))
    original, retrained = by_heart(train, 0, steps=40), by_heart(retain, 1, steps=40)
    memorised = by_heart(retain, 0, steps=80, start=copy.deepcopy(original))
    return SimpleNamespace(
        train=train, test=test, forget=forget, retain=retain, original=original, retrained=retrained,
        memorised=memorised,
    )  # fmt: skip


def at(task: SimpleNamespace, model: nn.Module, **changed) -> AuditedModel:
    data = {**{k: getattr(task, k) for k in ("forget", "retain", "test")}, **changed}
    return audited(model, **data, original=audited(task.original, **data))


def raw(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return model(x).double().numpy()


def test_signals_are_their_formulas(task):
    x, y = task.test[0][:50], task.test[1][:50].numpy()
    after, before = raw(task.memorised, x), raw(task.original, x)
    found = changes(log_softmax(after, axis=1), log_softmax(before, axis=1), y)
    p, q = softmax(after, axis=1), softmax(before, axis=1)
    own = np.arange(50), y
    logit = [np.log(r[own] / (1 - r[own])) for r in (p, q)]
    assert found["loss"] == pytest.approx(logit[0] - logit[1], rel=1e-6)
    assert found["after"] == pytest.approx(logit[0], rel=1e-6)
    assert found["confidence"] == pytest.approx(np.log(p.max(1) / q.max(1)), rel=1e-9)
    assert found["distance"] == pytest.approx(
        [-np.maximum(a - b, 0).sum() for a, b in zip(p, q, strict=True)]
    )


def test_the_attack_is_that_of_scipy_and_scikit_learn(task):
    found = leak_retained(at(task, task.memorised))
    (x, y), (u, v) = task.retain, task.test
    both = [changes(*(log_softmax(raw(m, t), axis=1) for m in (task.memorised, task.original)), t_y.numpy())
            for t, t_y in ((x, y), (u, v))]  # fmt: skip
    truth = np.r_[np.ones(len(y)), np.zeros(len(v))]
    for name in PARTS:
        inside, outside = (
            [
                percentileofscore(both[1][name][v.numpy() == k], s, kind="mean")
                for s, k in zip(part[name], t, strict=True)
            ]
            for part, t in zip(both, (y.numpy(), v.numpy()), strict=True)
        )
        assert found[name].value == pytest.approx(roc_auc_score(truth, np.r_[inside, outside]), abs=1e-5)
        assert found[name].n == len(truth)
        assert found[name].low < found[name].value < found[name].high


def test_a_model_that_learned_retained_samples_by_heart_is_caught(task):
    found, honest = (leak_retained(at(task, m)) for m in (task.memorised, task.retrained))
    assert found["loss"].low > 0.6
    assert found["loss"].low > honest["loss"].high
    assert found["loss"].value > found["after"].value  # the pair tells more than the model alone


def test_a_retrained_model_is_left_alone(task):
    found = leak_retained(at(task, task.retrained))
    assert found["loss"].low < 0.5 < found["loss"].high


def test_a_model_pushed_away_from_retained_samples_is_caught_the_other_way(task):
    x, y = task.retain
    wrong = (y + torch.randint(1, 10, y.shape, generator=torch.Generator().manual_seed(0))) % 10
    pushed = by_heart((x, wrong), 0, steps=80, start=copy.deepcopy(task.original))
    assert leak_retained(at(task, pushed))["loss"].high < 0.47


def test_a_model_that_did_not_change_says_nothing_by_its_change(task):
    found = leak_retained(at(task, copy.deepcopy(task.original)))
    assert [found[name].value for name in ("loss", "confidence", "distance")] == [0.5] * 3


def test_the_original_itself_has_no_value(task):
    original = audited(task.original, task.forget, task.retain, task.test)
    original.original = original
    assert "original model itself" in original.value(METRICS["leak_retained"]).why


def test_it_does_not_matter_which_classes_there_are_more_of(task):
    # a model whose answers for even digits changed by a lot: without ranks by class, a test set
    # of odd digits would make members of them all
    moved = copy.deepcopy(task.original)
    with torch.no_grad():
        moved[-1].bias[::2] += 3
    x, y = task.test
    odd = (y % 2 == 1) | (torch.arange(len(y)) % 20 == 0)
    found = leak_retained(at(task, moved, test=(x[odd], y[odd])))["loss"].value
    plain = leak_retained(at(task, moved))["loss"].value
    assert found == pytest.approx(plain, abs=0.05)


def test_ranks_are_those_of_scipy_by_class():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, 40).astype(float), rng.integers(0, 3, 40)
    reference, labels = rng.integers(0, 9, 60).astype(float), rng.integers(0, 3, 60)
    expected = [
        percentileofscore(reference[labels == k], v, kind="mean") / 100 for v, k in zip(x, y, strict=True)
    ]
    assert ranked(x, y, reference, labels) == pytest.approx(expected)


def test_large_sets_are_drawn_from(task, monkeypatch):
    monkeypatch.setattr(leakage, "MOST", 100)
    found = leak_retained(at(task, task.memorised))
    assert found["loss"].n == 200
    assert found["loss"].value > 0.6


def test_retained_samples_without_a_test_sample_of_their_class_are_left_out(task):
    x, y = task.test
    found = leak_retained(at(task, task.memorised, test=(x[y < 5], y[y < 5])))
    assert found["loss"].n == int((task.retain[1] < 5).sum() + (y < 5).sum())
