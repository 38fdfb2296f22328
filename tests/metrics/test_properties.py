"""Properties that metrics have, and one test that holds each metric to its own.

A property is a change of the model or of the data that leaves the numbers alone, or a statement about them.
A metric is held to every property unless it is listed as without it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from purge.metrics.audited import AuditedModel
from purge.metrics.registry import METRICS
from purge.metrics.value import Value
from tests.metrics.overfit import Pair, audited, by_heart, noisy_digits

FORGOTTEN = 3
ORDER = torch.tensor([4, 0, 3, 1, 2, 9, 8, 7, 6, 5])  # class k becomes class ORDER[k]
QUICK = {name for name, m in METRICS.items() if m.cost == "forward" and "triggered" not in m.needs}


@dataclass(frozen=True)
class Case:
    """The three models of an audit, and its data."""

    models: tuple[nn.Module, ...]  # under audit, retrained, original
    sets: tuple[Pair, ...]  # forget, retain, test

    def audited(self) -> AuditedModel:
        ours, retrained, original = (
            audited(m, *self.sets, truth=self.sets[0][1].roll(1)) for m in self.models
        )
        for one in (ours, retrained, original):
            one.retrained, one.original = retrained, original
        return ours


@pytest.fixture(scope="module")
def case() -> Case:
    train, test = noisy_digits(noise=0.5)
    gone = train[1] == FORGOTTEN
    forget, retain = ((train[0][rows], train[1][rows]) for rows in (gone, ~gone))
    original, retrained = by_heart(train, 0), by_heart(retain, 1)
    return Case(
        (by_heart(retain, 2, 5, copy.deepcopy(original)), retrained, original), (forget, retain, test)
    )


@pytest.fixture(scope="module")
def plain(case) -> AuditedModel:
    return case.audited()


# -- changes that are not to be seen -----------------------------------------------------------


def shuffled_samples(case: Case) -> Case:
    orders = [torch.randperm(len(y), generator=torch.Generator().manual_seed(0)) for _, y in case.sets]
    return Case(case.models, tuple((x[i], y[i]) for (x, y), i in zip(case.sets, orders, strict=True)))


def renumbered_classes(case: Case) -> Case:
    def renumbered(model: nn.Module) -> nn.Module:
        twin = copy.deepcopy(model)
        head, old = twin[-1], model[-1]
        head.weight.data[ORDER], head.bias.data[ORDER] = old.weight.data, old.bias.data
        return twin

    return Case(tuple(map(renumbered, case.models)), tuple((x, ORDER[y]) for x, y in case.sets))


def shifted_logits(case: Case) -> Case:
    models = copy.deepcopy(case.models)
    for model in models:
        model[-1].bias.data += 7.5
    return Case(models, case.sets)


def shuffled_units(case: Case) -> Case:
    models = copy.deepcopy(case.models)
    for model in models:
        order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
        model[2].weight.data, model[2].bias.data = model[2].weight.data[order], model[2].bias.data[order]
        model[4].weight.data = model[4].weight.data[:, order]
    return Case(models, case.sets)


def rescaled_units(case: Case) -> Case:
    """Each unit of the last hidden layer larger by a power of two, and what it says to the next smaller."""
    models = copy.deepcopy(case.models)
    for model in models[:1]:
        scale = 2.0 ** (torch.arange(64) % 5)
        model[2].weight.data *= scale[:, None]
        model[2].bias.data *= scale
        model[4].weight.data /= scale
    return Case(models, case.sets)


DRAWN = {"mia_split", "mia_svc", "mia_quantile", "silhouette"}  # by the seed, from samples in their order
# With the scale that hidden units are written in, as papers have them.
WRITTEN = {"feature_cosine", "feature_l2", "fid_feat", "cka", "feature_cosine_original",
           "feature_l2_original", "silhouette"}  # fmt: skip
UNTRAINED = {"zrf"}  # beside a copy whose weights are drawn layer by layer
BY_CLASS = {"class_accuracy", "class_change", "destinations", "worst_class"}  # name classes: see its own test
UNSEEN_BY: dict[Callable[[Case], Case], set[str]] = {
    shuffled_samples: DRAWN,
    renumbered_classes: DRAWN | BY_CLASS | UNTRAINED,
    shifted_logits: set(),
    shuffled_units: set(),
    rescaled_units: WRITTEN,
}


def numbers(model: AuditedModel, name: str) -> dict[str, float | None]:
    return {key: value.value for key, value in model.named(METRICS[name]).items()}


@pytest.mark.parametrize("change", UNSEEN_BY, ids=lambda change: change.__name__)
def test_what_does_not_change_the_function_changes_no_number(case, plain, change):
    changed, without = change(case).audited(), UNSEEN_BY[change]
    for name in sorted(QUICK - without):
        assert numbers(changed, name) == pytest.approx(numbers(plain, name), abs=2e-4, nan_ok=False), name
    for name in sorted(without & QUICK - DRAWN - {"silhouette"}):  # the list has no metric by mistake
        assert numbers(changed, name) != pytest.approx(numbers(plain, name), abs=2e-4), name


def test_renumbered_classes_are_renumbered_in_the_numbers(case, plain):
    changed = renumbered_classes(case).audited()
    for name in ("class_accuracy", "class_change", "destinations"):
        before, after = numbers(plain, name), numbers(changed, name)
        assert after == {f"{name}.{ORDER[k]}": before[f"{name}.{k}"] for k in range(10)}
    before, after = numbers(plain, "worst_class"), numbers(changed, "worst_class")
    assert after["worst_class.accuracy"] == before["worst_class.accuracy"]


# -- what every number is ----------------------------------------------------------------------


def all_values(model: AuditedModel, name: str) -> list[Value]:
    return [v for one in (model, model.retrained, model.original) for v in one.named(METRICS[name]).values()]


@pytest.mark.parametrize("name", [n for n, m in METRICS.items() if m.cost != "shadow"])
def test_a_number_lies_within_the_limits_of_its_metric(plain, name):
    low, high = METRICS[name].limits
    for value in all_values(plain, name):
        ends = [v for v in (value.value, value.low, value.high) if v is not None]
        assert ends or value.why
        if value.low is not None:
            assert value.low - 1e-9 <= value.value <= value.high + 1e-9
        assert all(type(v) is float for v in ends)
        assert low is None or min(ends, default=low) >= low - 1e-9
        assert high is None or max(ends, default=high) <= high + 1e-9
