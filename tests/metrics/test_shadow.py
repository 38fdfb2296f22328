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
from purge.core.errors import FileError, MethodError, MetricError, ModelError, PurgeError
from purge.engine.optimizer import Optim
from purge.engine.trainer import Recipe
from purge.methods import Amnesiac, FineTune, GradientAscent, Retrain, Sisa
from purge.metrics.audited import AuditedModel
from purge.metrics.ensemble import Ensemble
from purge.metrics.likelihood import (
    forgetting_scores,
    klom,
    likelihood_ratio,
    margins,
)
from purge.metrics.registry import METRICS
from purge.metrics.shadow import Shadows
from purge.models.checkpoint import digest
from tests.metrics.shadows import CPU, FINE, QUICK, noise, request
from tests.nets import plain_mlp

pytestmark = pytest.mark.slow

NAMES = [name for name, metric in METRICS.items() if metric.cost == "shadow"]


def by_heart(width: int = 128) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def test_lira_detects_memorised_samples_and_nothing_in_a_model_that_never_saw_them(digits, tmp_path):
    # Half of all labels are random, those of unseen samples too: a model can only memorise them.
    x = torch.cat([s.take(torch.arange(len(s)))[0] for s in (digits.train, digits.test)]).flatten(1)
    y = torch.cat([digits.train.labels, digits.test.labels])
    g = torch.Generator().manual_seed(0)
    y = torch.where(torch.rand(len(y), generator=g) < 0.5, torch.randint(10, y.shape, generator=g), y)
    order = torch.randperm(len(y), generator=g)
    retain, forget, test = ((x[at], y[at]) for at in order[:1000].split([400, 200, 400]))
    everything = torch.cat([retain[0], forget[0]]), torch.cat([retain[1], forget[1]])
    recipe = Recipe(epochs=30, lr=0.1, batch_size=50, weight_decay=0.0)
    settings = {**dataclasses.asdict(recipe), "progress": False}
    over = purge.train(by_heart(), everything, seed=5, **settings).model
    never = purge.train(by_heart(), retain, seed=6, **settings).model
    report = purge.audit(
        over, forget, retain, test, retrained=never, metrics=["lira", "rmia"], progress=False,
        shadows=purge.Shadows(number=16, recipe=recipe, cache=tmp_path),
    )  # fmt: skip
    for attack in ("lira", "rmia"):
        assert report[f"{attack}.auroc"].low > 0.8
        assert report[f"{attack}.tpr_1pct"].value > 0.2
        blind = report.retrained[f"{attack}.auroc"]
        assert blind.low < 0.5 < blind.high
        curve = report.curves["audited"]["roc"][attack]
        assert curve["fpr"][-1] == curve["tpr"][-1] == 1
        assert curve != report.curves["retrained"]["roc"][attack]
    assert report["lira.auroc"].n == 400
    assert "1000" in report["lira.tpr_01pct"].why


@pytest.fixture(scope="module")
def learnt(tmp_path_factory) -> dict:
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


def test_u_lira_detects_a_method_that_does_nothing(learnt):
    assert learnt["nothing"]["u_lira.auroc"].low > 0.65
    fair = learnt["retrain"]["u_lira.auroc"]
    assert fair.low < 0.5 < fair.high
    blind = learnt["nothing"].retrained["u_lira.auroc"]
    assert blind.low < 0.5 < blind.high


def test_ensembles_separate_doing_nothing_from_retraining(learnt):
    nothing, retrain = learnt["nothing"], learnt["retrain"]
    assert nothing["forgetting_score.score"].high < nothing["forgetting_score.retrain"].low
    assert nothing["klom.p95"].low > nothing["klom.retrain"].high
    assert retrain["klom.p95"].low < retrain["klom.retrain"].high
    assert retrain["forgetting_score.score"].value == pytest.approx(
        retrain["forgetting_score.retrain"].value, abs=0.05
    )
    assert nothing["forgetting_score.retrain"] == retrain["forgetting_score.retrain"]


# -- what every metric guarantees --------------------------------------------------------------

PROCEDURE = {"forgetting_score", "klom"}  # of the method, not of a model
NEEDS = {
    "no test": {"test": None},
    "no test of the forgotten class": {"test": (torch.randn(9, 6), torch.ones(9, dtype=torch.long))},
    "no test of a retained class": {"test": (torch.randn(9, 6), torch.zeros(9, dtype=torch.long))},
}
LACK = {
    "no test": {"lira", "rmia", "u_lira"},
    "no test of the forgotten class": {"lira", "rmia", "u_lira"},
    "no test of a retained class": {"rmia"},
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


def audit(case: dict, **changes) -> purge.Report:
    return purge.audit(**{**case, "metrics": NAMES, "progress": False, **changes})


def of(held: dict, name: str) -> dict:
    return {k: v for k, v in held.items() if k.split(".")[0] == name}


def numbers(values: dict) -> dict:
    """Without the rates that so few samples do not allow."""
    return {k: v for k, v in values.items() if ".tpr_" not in k}


@pytest.fixture(scope="module")
def full(case) -> purge.Report:
    return audit(case)


def test_with_everything_given_there_is_a_finite_number_with_its_interval(full):
    assert len(full.values) == 3 * 3 + 2 * 2
    for value in numbers(full.values).values():
        assert value.low - 1e-9 <= value.value <= value.high + 1e-9
        assert [type(v) for v in (value.value, value.low, value.high, value.n)] == [float, float, float, int]
        assert value.n >= 1
    assert all("non-members" in v.why for k, v in full.values.items() if ".tpr_" in k)
    plain_json = full.to_dict()
    assert json.loads(json.dumps(plain_json, allow_nan=False)) == plain_json
    assert set(full.curves["audited"]["roc"]) == {"lira", "rmia", "u_lira"}


def test_a_reused_auditor_computes_anew_what_shadow_models_change(case, full, tmp_path):
    from purge.auditor import Auditor

    others = {k: case[k] for k in ("original", "retrained")} | {"check": False}
    auditor = Auditor(case["forget"], case["retain"], case["test"], **others)
    fewer = dataclasses.replace(case["shadows"], number=4)
    given = [None, case["shadows"], fewer, None]
    found = [auditor.audit(case["model"], metrics=NAMES, shadows=s, progress=False) for s in given]
    alone = [audit(case, shadows=s) for s in given]
    for ours, expected in zip(found, alone, strict=True):
        for part in ("values", "retrained", "original", "curves"):
            assert getattr(ours, part) == getattr(expected, part)
    assert found[1].retrained["lira.auroc"] != found[2].retrained["lira.auroc"]
    assert found[3].retrained["lira"].value is None
    assert found[3].curves["retrained"] == {}


def test_columns(case, full):
    for name in NAMES:
        assert of(full.original, name)[name].why == "no shadow models were asked for"
        if name in PROCEDURE:
            assert "method" in full.retrained[name].why
        else:
            assert of(full.retrained, name) != of(full.values, name)
    alone = audit(case, model=case["retrained"], retrained=None)
    for name in NAMES:
        if name in PROCEDURE:  # the same for every model
            assert of(alone.values, name) == of(full.values, name)
        else:
            assert of(alone.values, name) == of(full.retrained, name)


@pytest.mark.parametrize("lacking", NEEDS)
def test_only_a_missing_need_gives_none_with_a_reason(case, lacking):
    report = audit(case, **NEEDS[lacking])
    for name in NAMES:
        found = of(report.values, name)
        if name in LACK[lacking]:
            assert list(found) == [name]
            assert "test data" in found[name].why
        else:
            assert all(math.isfinite(v.value) for v in numbers(found).values())


def test_without_shadow_models_or_their_method(case, full):
    assert all("no shadow models" in v.why for v in audit(case, shadows=None).values.values())
    report = audit(case, shadows=dataclasses.replace(case["shadows"], method=None))
    for name in NAMES:
        if name in ("lira", "rmia"):
            assert of(report.values, name) == of(full.values, name)
        else:
            assert "no unlearning method was given" in report[name].why


def test_too_few_models(case):
    report = audit(case, shadows=dataclasses.replace(case["shadows"], number=4))
    assert "at least 6" in report["forgetting_score"].why
    assert all(math.isfinite(v.value) for v in numbers(report.values).values() if not v.why)
    assert math.isfinite(report["klom.p95"].value)


def test_a_training_that_fails_is_given_as_the_reason(case, tmp_path):
    broken = Shadows(number=6, recipe=dataclasses.replace(QUICK, lr=1e30), method=FINE, cache=tmp_path)
    report = audit(case, shadows=broken)
    assert all("NaN or infinity" in v.why for v in report.values.values())
    ascent = GradientAscent(epochs=30, batch_size=8, optim=Optim(lr=1e6))
    report = audit(case, shadows=dataclasses.replace(case["shadows"], method=ascent))
    assert "NaN or infinity" in report["u_lira"].why
    assert report["lira.auroc"].value is not None


def test_the_order_of_metrics_does_not_matter(case, full):
    assert audit(case, metrics=NAMES[::-1]).values == full.values
    for name in NAMES:
        assert audit(case, metrics=name).values == of(full.values, name)


def state(model: nn.Module) -> tuple:
    grads = [p.grad is None for p in model.parameters()]
    return digest(model), [m.training for m in model.modules()], grads, list(model.state_dict())


def test_models_and_random_numbers_are_left_alone(case, tmp_path):
    models = {"model": net(0), "retrained": net(1), "original": net(2)}
    fresh = net(3)
    models["model"][1].eval()
    before, random = [state(m) for m in (*models.values(), fresh)], torch.get_rng_state()
    shadows = dataclasses.replace(case["shadows"], fresh=fresh, cache=tmp_path)
    report = audit(case, **models, shadows=shadows)
    assert [state(m) for m in (*models.values(), fresh)] == before
    assert torch.equal(torch.get_rng_state(), random)
    assert math.isfinite(report["lira.auroc"].value)


@pytest.mark.parametrize("count", [1, 5])
def test_single_samples(case, count):
    whole = tuple(torch.cat([case["forget"][k], case["retain"][k]]) for k in (0, 1))
    forget, retain = purge.split(whole, indices=range(count))
    report = audit(case, forget=forget, retain=retain)
    assert all(math.isfinite(v.value) for v in numbers(report.values).values())
    alone = audit(case, forget=forget, retain=retain, test=None)
    if count == 1:
        assert alone["klom"].why == "a single sample cannot be divided among shadow models"
    else:
        assert math.isfinite(alone["klom.p95"].value)


def test_numbers_of_the_report_are_those_of_the_attacks(case):
    """With single samples, part of the population are targets, which half of the models have seen."""
    whole = tuple(torch.cat([case["forget"][k], case["retain"][k]]) for k in (0, 1))
    forget, retain = purge.split(whole, indices=range(0, 60, 2))
    report = audit(case, forget=forget, retain=retain)
    split = request(forget, retain, case["test"])
    held = Ensemble(case["shadows"], net(0), split, device=CPU, seed=0, progress=False)
    phi, shadows, n = held.of(AuditedModel(case["model"], split)), held.signals("original"), held.targets
    with torch.no_grad():
        z = case["model"].eval()(case["test"][0][held.population]).double().numpy()
    assert phi[n:] == pytest.approx(margins(z, case["test"][1][held.population].numpy()), abs=1e-5)
    member = np.arange(n) < len(held.forget)
    scores = likelihood_ratio(phi[:n], shadows[:, :n], held.inside)
    assert report["lira.auroc"].value == pytest.approx(roc_auc_score(member, scores))
    scores = likelihood_ratio(phi[:n], held.signals("unlearned")[:, :n], held.inside)
    assert report["u_lira.auroc"].value == pytest.approx(roc_auc_score(member, scores))
    slow, both = [], set(held.population.tolist()) & set(held.unseen.tolist())
    assert both

    def ratio(j: int, blind: list[int]) -> float:
        return expit(phi[j]) / (0.65 * np.mean([expit(shadows[i, j]) for i in blind]) + 0.35)

    beaten = []
    for k, row in enumerate(held.population.tolist()):
        target = [len(held.forget) + t for t, r in enumerate(held.unseen.tolist()) if r == row]
        beaten.append(ratio(n + k, [i for i in range(6) if not (target and held.inside[i, target[0]])]))
    for j in range(n):
        own = ratio(j, [i for i in range(6) if not held.inside[i, j]])
        slow.append(np.mean([own > other for other in beaten]))
    assert report["rmia.auroc"].value == pytest.approx(roc_auc_score(member, slow))
    saw = [[held.signals("unlearned")[i, j] for i in range(6) if held.inside[i, j]] for j in range(30)]
    retrained = held.signals("retrained")[:, :30]
    assert report["klom.p95"].value == pytest.approx(np.quantile(klom(np.array(saw).T, retrained[3:]), 0.95))
    assert report["klom.retrain"].value == pytest.approx(
        np.quantile(klom(retrained[:3], retrained[3:]), 0.95)
    )
    grades = forgetting_scores(np.array(saw).T, retrained[3:])
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
        ({"together": "perhaps"}, "true or false"),
    ],
)
def test_bad_settings_are_refused(given, words):
    with pytest.raises(PurgeError, match=rf"^Expected (?=.*{words}).*, got .*\. Fix: .*") as raised:
        Shadows(**given)
    assert "\n" not in str(raised.value)


def test_what_does_not_fit_the_model_is_refused_first(case, tmp_path):
    with pytest.raises(MetricError, match=r"purge\.Shadows.*got 16\. Fix: "):
        audit(case, shadows=16)
    with pytest.raises(ModelError, match="fresh"):
        audit(case, shadows=dataclasses.replace(case["shadows"], fresh=plain_mlp(0)))
    with pytest.raises(MethodError, match="BatchNorm"):
        audit(case, shadows=dataclasses.replace(case["shadows"], recipe=Recipe(batch_size=1)))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(FileError, match="cache"):
        audit(case, shadows=dataclasses.replace(case["shadows"], cache=file))
