"""A forgotten class beside its nearest one: against scikit-learn, and against planted models."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import purge
from purge.metrics import nearest
from purge.metrics.audited import AuditedModel
from purge.metrics.nearest import nearest_class
from purge.metrics.value import Missing
from tests.metrics.overfit import audited, by_heart, noisy_digits

GONE = 4


@pytest.fixture(scope="module")
def task() -> SimpleNamespace:
    train, test = noisy_digits(900, noise=0.0)
    forget, retain = purge.split(train, classes=[GONE])
    retrained = [by_heart(retain, seed, steps=400) for seed in (1, 2, 3)]
    return SimpleNamespace(
        train=train,
        test=test,
        forget=forget,
        retain=retain,
        original=by_heart(train, 0, steps=400),
        retrained=retrained,
    )


def against(task: SimpleNamespace, model: nn.Module, **changed) -> AuditedModel:
    data = {**{k: getattr(task, k) for k in ("forget", "retain", "test")}, **changed}
    return audited(model, **data, retrained=audited(task.retrained[0], **data))


def masked(model: nn.Module, bias: float) -> nn.Module:
    fake = copy.deepcopy(model)
    with torch.no_grad():
        fake[-1].bias[GONE] = bias
    return fake


def test_the_original_and_a_mask_are_caught_and_retrained_models_are_left_alone(task):
    honest = [nearest_class(against(task, m)) for m in task.retrained[1:]]
    floor = {part: max(abs(h[part].value) for h in honest) for part in ("taken", "auroc")}
    for fake in (task.original, masked(task.original, -1e9)):
        found = nearest_class(against(task, fake))
        assert found["auroc"].low > floor["auroc"]
        assert found["taken"].high < -floor["taken"]
    assert all(h["auroc"].low < 0 < h["auroc"].high for h in honest)


@pytest.mark.parametrize("bias", [-20.0, -100.0, -1e9, -3e38])
def test_a_mask_has_the_numbers_of_the_original(task, bias):
    fake, original = (nearest_class(against(task, m)) for m in (masked(task.original, bias), task.original))
    assert fake["taken"] == original["taken"]
    assert fake["auroc"].value == pytest.approx(original["auroc"].value, abs=1e-9)


def test_random_answers_to_forgotten_inputs_are_caught(task):
    known = {tuple(row) for row in task.forget[0].tolist()}

    class LookUp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = task.retrained[1]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.body(x)
            asked = torch.tensor([tuple(row) in known for row in x.tolist()])
            noise = 5 * torch.randn(len(x), 10, generator=torch.Generator().manual_seed(0))
            return torch.where(asked[:, None], noise, z)

    found = nearest_class(against(task, LookUp()))
    assert found["taken"].high < -0.1


def test_several_classes_and_single_samples_beside_them(task):
    forget, retain = purge.split(task.train, classes=[GONE, 7])
    (x, y), (rx, ry) = forget, retain
    more = (torch.cat([x, rx[:30]]), torch.cat([y, ry[:30]]))
    data = {"retain": (rx[30:], ry[30:]), "test": task.test}
    both, mixed = (nearest_class(against(task, task.original, forget=f, **data)) for f in (forget, more))
    assert both["taken"].n == mixed["taken"].n == len(y)
    assert both["auroc"].value == pytest.approx(mixed["auroc"].value, abs=1e-9)
    judge = audited(task.retrained[0], forget, **data)
    assert set(nearest.nearest(judge)) == {GONE, 7}
    assert not {GONE, 7} & set(nearest.nearest(judge).values())


def test_reasons_where_there_is_no_number(task):
    single, rest = purge.split(task.train, indices=range(20))
    with pytest.raises(Missing, match="no class is forgotten as a whole"):
        nearest_class(against(task, task.original, forget=single, retain=rest))
    few = torch.cat([torch.arange(len(task.test[1]))[task.test[1] == k][:5] for k in range(10)])
    with pytest.raises(Missing, match="at least 10"):
        nearest_class(against(task, task.original, test=(task.test[0][few], task.test[1][few])))


def test_a_nearest_class_needs_two_classes_that_stay(task):
    train, test = ((x[y > 7], y[y > 7] - 8) for x, y in (task.train, task.test))
    forget, retain = purge.split(train, classes=[1])
    model = nn.Linear(64, 2)
    with pytest.raises(Missing, match="two classes"):
        nearest_class(audited(model, forget, retain, test, retrained=audited(model, forget, retain, test)))


def test_large_sets_are_drawn_from(task, monkeypatch):
    monkeypatch.setattr(nearest, "LEARN", 60)
    monkeypatch.setattr(nearest, "ASK", 40)
    assert nearest_class(against(task, task.original))["taken"].n == 40
