"""Leakage on retained samples: against SciPy and scikit-learn, and against planted models."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import purge
from purge.metrics import leakage
from purge.metrics.audited import AuditedModel
from purge.metrics.leakage import leak_retained
from purge.metrics.registry import METRICS
from tests.metrics.overfit import audited, by_heart, noisy_digits


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


def test_large_sets_are_drawn_from(task, monkeypatch):
    monkeypatch.setattr(leakage, "MOST", 100)
    found = leak_retained(at(task, task.memorised))
    assert found["loss"].n == 200
    assert found["loss"].value > 0.6


def test_retained_samples_without_a_test_sample_of_their_class_are_left_out(task):
    x, y = task.test
    found = leak_retained(at(task, task.memorised, test=(x[y < 5], y[y < 5])))
    assert found["loss"].n == int((task.retain[1] < 5).sum() + (y < 5).sum())
