"""Metrics with shadow models: planted truths, what every metric guarantees, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from torch import nn

import purge
from purge.auditor import Auditor
from purge.core.errors import FileError, MethodError, MetricError, ModelError, PurgeError
from purge.engine.optimizer import Optim
from purge.engine.trainer import Recipe
from purge.methods import Amnesiac, FineTune, GradientAscent, Retrain, Sisa
from purge.metrics.audited import AuditedModel
from purge.metrics.ensemble import Ensemble
from purge.metrics.likelihood import forgetting_scores, klom, likelihood_ratio, margins
from purge.metrics.registry import METRICS
from purge.metrics.shadow import Shadows
from tests.metrics.shadows import CPU, FINE, QUICK, noise, request
from tests.nets import plain_mlp
from tests.properties import facts

pytestmark = pytest.mark.slow

NAMES = [name for name, metric in METRICS.items() if metric.cost == "shadow"]
ATTACKS = ("lira", "rmia", "u_lira")  # the others are of the method, not of a model


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> dict[str, purge.Report]:
    """Audits of memorised noise after a method that does nothing, and after retraining."""
    recipe = Recipe(epochs=25, lr=0.1, batch_size=32, weight_decay=0.0)
    settings = {**dataclasses.asdict(recipe), "progress": False}
    forget, retain, test = noise(60, 0), noise(64, 1), noise(80, 2)
    both = tuple(torch.cat(pair) for pair in zip(forget, retain, strict=True))
    original = purge.train(plain_mlp(0, 64), both, seed=0, **settings).model
    retrained = purge.train(plain_mlp(1, 64), retain, seed=1, **settings).model
    nothing, folder = (
        FineTune(epochs=1, batch_size=32, optim=Optim(lr=1e-9)),
        tmp_path_factory.mktemp("learnt"),
    )
    return {
        name: purge.audit(
            model, forget, retain, test, retrained=retrained, progress=False, metrics=NAMES,
            shadows=Shadows(number=16, recipe=recipe, method=method, cache=folder), check=False,
        )
        for name, model, method in (
            ("nothing", original, nothing), ("retrain", retrained, Retrain(recipe=recipe)),
        )
    }  # fmt: skip


def test_doing_nothing_is_told_from_retraining(learnt):
    nothing, retrain = learnt["nothing"], learnt["retrain"]
    for attack in ATTACKS:
        assert nothing[f"{attack}.auroc"].low > 0.6
        for blind in (nothing.retrained[f"{attack}.auroc"], retrain[f"{attack}.auroc"]):
            assert blind.low < 0.5 < blind.high
        curves = [nothing.curves[role]["roc"][attack] for role in ("audited", "retrained")]
        assert curves[0] != curves[1]
        assert curves[0]["fpr"][-1] == curves[0]["tpr"][-1] == 1
    assert nothing["forgetting_score.score"].high < nothing["forgetting_score.retrain"].low
    assert nothing["klom.p95"].low > nothing["klom.retrain"].high
    assert retrain["klom.p95"].low < retrain["klom.retrain"].high
    fair = [retrain[f"forgetting_score.{part}"].value for part in ("score", "retrain")]
    assert fair[0] == pytest.approx(fair[1], abs=0.05)
    assert nothing["forgetting_score.retrain"] == retrain["forgetting_score.retrain"]


# -- what every metric guarantees --------------------------------------------------------------

OF_CLASS = {k: (torch.randn(9, 6), torch.full((9,), k)) for k in (0, 1)}
LACKING = {  # what is not there, and the metrics that cannot do without
    "no test": ({"test": None}, ATTACKS),
    "no test of the forgotten class": ({"test": OF_CLASS[1]}, ATTACKS),
    "no test of a retained class": ({"test": OF_CLASS[0]}, ("rmia",)),
}


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


@pytest.fixture(scope="module")
def case(toy, tmp_path_factory) -> dict:
    _, forget, retain, test = toy
    shadows = Shadows(number=6, recipe=QUICK, method=FINE, cache=tmp_path_factory.mktemp("shadows"))
    models = {"model": net(0), "retrained": net(1), "original": net(2)}
    return {"forget": forget, "retain": retain, "test": test, "shadows": shadows, **models}


@pytest.fixture(scope="module")
def full(case) -> purge.Report:
    return audit(case)


def audit(case: dict, **changes) -> purge.Report:
    return purge.audit(**{**case, "metrics": NAMES, "progress": False, **changes})


def of(held: dict, name: str) -> dict:
    return {k: v for k, v in held.items() if k.split(".")[0] == name}


def numbers(values: dict) -> dict:
    """Without the rates that so few samples do not allow."""
    return {k: v for k, v in values.items() if ".tpr_" not in k}


def assert_finite(values: dict) -> None:
    assert values
    assert all(math.isfinite(v.value) for v in numbers(values).values())


def with_shadows(case: dict, **changes) -> purge.Report:
    return audit(case, shadows=dataclasses.replace(case["shadows"], **changes))


def singles(case: dict, indices: range) -> dict:
    whole = tuple(torch.cat([case["forget"][k], case["retain"][k]]) for k in (0, 1))
    return dict(zip(("forget", "retain"), purge.split(whole, indices=indices), strict=True))


def test_with_everything_given_there_is_a_finite_number_with_its_interval(full):
    assert len(full.values) == 3 * 3 + 2 * 2
    for value in numbers(full.values).values():
        assert value.low - 1e-9 <= value.value <= value.high + 1e-9
        assert [type(v) for v in (value.value, value.low, value.high, value.n)] == [float, float, float, int]
        assert value.n >= 1
    assert all("non-members" in v.why for k, v in full.values.items() if ".tpr_" in k)
    plain_json = full.to_dict()
    assert json.loads(json.dumps(plain_json, allow_nan=False)) == plain_json
    assert set(full.curves["audited"]["roc"]) == set(ATTACKS)


def test_a_reused_auditor_computes_anew_what_shadow_models_change(case):
    others = {k: case[k] for k in ("original", "retrained")} | {"check": False}
    auditor = Auditor(case["forget"], case["retain"], case["test"], **others)
    fewer = dataclasses.replace(case["shadows"], number=4)
    given = [None, case["shadows"], fewer, None]
    found = [auditor.audit(case["model"], metrics=NAMES, shadows=s, progress=False) for s in given]
    for ours, shadows in zip(found, given, strict=True):
        alone = audit(case, shadows=shadows)
        for part in ("values", "retrained", "original", "curves"):
            assert getattr(ours, part) == getattr(alone, part)
    assert found[1].retrained["lira.auroc"] != found[2].retrained["lira.auroc"]
    assert found[3].retrained["lira"].value is None
    assert found[3].curves["retrained"] == {}
    assert "at least 6" in found[2]["forgetting_score"].why  # models
    assert math.isfinite(found[2]["klom.p95"].value)


def test_columns_and_the_order_of_metrics(case, full):
    alone = audit(case, model=case["retrained"], retrained=None)
    assert audit(case, metrics=NAMES[::-1]).values == full.values
    for name in NAMES:
        assert of(full.original, name)[name].why == "no shadow models were asked for"
        if name in ATTACKS:
            assert of(alone.values, name) == of(full.retrained, name) != of(full.values, name)
        else:  # the same for every model
            assert "method" in full.retrained[name].why
            assert of(alone.values, name) == of(full.values, name)


@pytest.mark.parametrize("lacking", LACKING)
def test_only_a_missing_need_gives_none_with_a_reason(case, lacking):
    changes, missing = LACKING[lacking]
    report = audit(case, **changes)
    for name in NAMES:
        found = of(report.values, name)
        if name in missing:
            assert list(found) == [name]
            assert "test data" in found[name].why
        else:
            assert_finite(found)


def test_without_shadow_models_or_their_method(case, full):
    assert all("no shadow models" in v.why for v in audit(case, shadows=None).values.values())
    report = with_shadows(case, method=None)
    for name in NAMES:
        if name in ("lira", "rmia"):
            assert of(report.values, name) == of(full.values, name)
        else:
            assert "no unlearning method was given" in report[name].why


def test_a_training_that_fails_is_given_as_the_reason(case, tmp_path):
    report = with_shadows(case, recipe=dataclasses.replace(QUICK, lr=1e30), cache=tmp_path)
    assert all("NaN or infinity" in v.why for v in report.values.values())
    report = with_shadows(case, method=GradientAscent(epochs=30, batch_size=8, optim=Optim(lr=1e6)))
    assert "NaN or infinity" in report["u_lira"].why
    assert report["lira.auroc"].value is not None


def test_models_and_random_numbers_are_left_alone(case, tmp_path):
    models, fresh = {"model": net(0), "retrained": net(1), "original": net(2)}, net(3)
    models["model"][1].eval()
    before, random = [facts(m) for m in (*models.values(), fresh)], torch.get_rng_state()
    assert_finite(with_shadows({**case, **models}, fresh=fresh, cache=tmp_path).values)
    assert [facts(m) for m in (*models.values(), fresh)] == before
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("count", [1, 5])
def test_single_samples(case, count):
    some = singles(case, range(count))
    assert_finite(audit(case, **some).values)
    alone = audit(case, **some, test=None, metrics="klom")
    assert ("cannot be divided" in alone.values["klom"].why) if count == 1 else alone["klom.p95"].value >= 0


def test_numbers_of_the_report_are_those_of_the_attacks(case):
    """With single samples, part of the population are targets, which half of the models have seen."""
    some = singles(case, range(0, 60, 2))
    report, split = audit(case, **some), request(*some.values(), case["test"])
    held = Ensemble(case["shadows"], net(0), split, device=CPU, seed=0, progress=False)
    phi, shadows, n = held.of(AuditedModel(case["model"], split)), held.signals("original"), held.targets
    x, y = (part[held.population] for part in case["test"])
    with torch.no_grad():
        assert phi[n:] == pytest.approx(
            margins(case["model"].eval()(x).double().numpy(), y.numpy()), abs=1e-5
        )
    member, unlearned = np.arange(n) < len(held.forget), held.signals("unlearned")[:, :n]
    for name, others in (("lira", shadows[:, :n]), ("u_lira", unlearned)):
        scores = likelihood_ratio(phi[:n], others, held.inside)
        assert report[f"{name}.auroc"].value == pytest.approx(roc_auc_score(member, scores))

    def ratio(j: int, target: int | None) -> float:
        blind = [i for i in range(6) if target is None or not held.inside[i, target]]
        return expit(phi[j]) / (0.65 * np.mean([expit(shadows[i, j]) for i in blind]) + 0.35)

    at = {row: len(held.forget) + t for t, row in enumerate(held.unseen.tolist())}
    assert at.keys() & set(held.population.tolist())
    beaten = np.array([ratio(n + k, at.get(row)) for k, row in enumerate(held.population.tolist())])
    slow = [np.mean(ratio(j, j) > beaten) for j in range(n)]
    assert report["rmia.auroc"].value == pytest.approx(roc_auc_score(member, slow))
    saw = np.array([unlearned[held.inside[:, j], j] for j in range(30)]).T
    retrained = held.signals("retrained")[:, :30]
    for part, first in (("p95", saw), ("retrain", retrained[:3])):
        expected = np.quantile(klom(first, retrained[3:]), 0.95)
        assert report[f"klom.{part}"].value == pytest.approx(expected)
    grades = forgetting_scores(saw, retrained[3:])
    assert report["forgetting_score.score"].value == pytest.approx(grades.mean())


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"number": 2}, "number >= 4"),
        ({"number": 7}, "even number"),
        ({"number": 4.5}, "whole number"),
        ({"recipe": 3}, "Recipe for recipe"),
        ({"method": "purge"}, "Method for method"),
        ({"method": Sisa()}, "shards"),
        ({"method": Amnesiac()}, "updates"),
        ({"fresh": 3}, "Module for fresh"),
        ({"cache": 3}, "cache"),
    ],
)
def test_bad_settings_are_refused(given, words):
    with pytest.raises(PurgeError, match=rf"^Expected (?=.*{words}).*, got .*\. Fix: .*") as raised:
        Shadows(**given)
    assert "\n" not in str(raised.value)


def test_what_does_not_fit_the_model_is_refused_first(case, tmp_path):
    with pytest.raises(MetricError, match=r"purge\.Shadows.*got 16\. Fix: "):
        audit(case, shadows=16)
    file = tmp_path / "file"
    file.write_text("")
    for error, word, changes in (
        (ModelError, "fresh", {"fresh": plain_mlp(0)}),
        (MethodError, "BatchNorm", {"recipe": Recipe(batch_size=1)}),
        (FileError, "cache", {"cache": file}),
    ):
        with pytest.raises(error, match=word):
            with_shadows(case, **changes)
