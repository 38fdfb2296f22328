"""A text classifier forgets a class and 12 sentences, beside a retrained one, with every metric."""

from __future__ import annotations

import math

import pytest
import torch

import purge
from purge.engine.trainer import Recipe
from purge.methods import FineTune
from purge.metrics.registry import METRICS, PANELS
from purge.models.checkpoint import digest
from tests.sequences import bert, distilbert, pictures, resnet, roberta, sentences, vit, wav2vec2, waves

FEW = "needs at least 1000 non-members"
NO_NORM = "the model has no BatchNorm statistics to recalibrate"
ALWAYS = {"tpr_01pct": FEW, "mia_quantile.tpr_01pct": FEW, "bn_recal": NO_NORM}
FEWER = "needs at least 100 non-members"
MISSING = {  # metrics that have no number here, and why
    "class": {**ALWAYS, "tpr_1pct": FEWER, "mia_quantile.tpr_1pct": FEWER},
    "rows": {**ALWAYS, "nearest_class": "no class is forgotten as a whole"},
}
ASKED = {"class": {"classes": [0]}, "rows": {"indices": range(12)}}
RECIPE = {"epochs": 25, "lr": 0.1, "batch_size": 32, "progress": False}


def trained(model, data, **more):
    return purge.train(model, data, **{**RECIPE, **more}).model


@pytest.fixture(scope="module")
def text():
    data = sentences()
    return trained(bert(), data), data, sentences(seed=1)


def check_every_metric(report, reasons, panel):
    """Each has a finite number, or none for one of these reasons."""
    assert {name.partition(".")[0] for name in report.values} == set(panel)
    assert {name for name, value in report.values.items() if value.value is None} == set(reasons)
    for name, value in report.values.items():
        assert reasons.get(name, "") in value.why
        assert value.value is None or math.isfinite(value.value)
        if value.value is not None and METRICS[name.partition(".")[0]].unit_of(name) == "share":
            assert -1 <= value.value <= 1, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ASKED)
def test_a_text_classifier_forgets_with_every_metric(text, kind):
    """A class also with those that train shadow models, or need right labels or samples with a trigger."""
    model, data, test = text
    forget, retain = purge.split(data, **ASKED[kind])
    before = digest(model)
    retrained = trained(bert(1), retain, seed=1)
    result = purge.unlearn(model, forget, retain, test=test, progress=False)
    more, reasons, names = {}, MISSING[kind], [*PANELS["standard"]]
    if kind == "class":
        x, y = sentences(30, seed=2)
        triggered = {name: t[y != 1] for name, t in x.items()}, torch.ones(int((y != 1).sum())).long()
        fine = FineTune(epochs=1, batch_size=32)
        shadows = purge.Shadows(number=6, recipe=Recipe(epochs=2, batch_size=32), method=fine)
        more = {"shadows": shadows, "truth": torch.ones(len(forget[1])).long(), "triggered": triggered}
        rates = {
            f"{k}.{rate}": "non-members"
            for k in ("lira", "rmia", "u_lira")
            for rate in ("tpr_1pct", "tpr_01pct")
        }
        names, reasons = [*METRICS], reasons | rates
    report = purge.audit(
        result, forget, retain, test, original=model, retrained=retrained, metrics=names, progress=False,
        **more,
    )  # fmt: skip
    assert digest(model) == before != digest(result.model)
    check_every_metric(report, reasons, names)
    assert report["ra"].value >= 0.95
    assert report["ta_retain"].value >= 0.9
    assert report.original["fa_train"].value >= 0.9
    assert (report["fa_train"].value == 0) == (kind == "class")
    if kind == "class":
        assert report["fa_test"].value == report.retrained["fa_test"].value == 0
        assert abs(report["mia"].value - 0.5) < 0.15


OTHERS = {
    "distilbert": (distilbert, sentences, MISSING["class"]),
    "roberta": (roberta, sentences, MISSING["class"]),
    "vit": (vit, pictures, MISSING["class"]),
    "resnet": (resnet, pictures, {k: v for k, v in MISSING["class"].items() if k != "bn_recal"}),
    "wav2vec2": (wav2vec2, waves, {**MISSING["class"], "zrf": "cannot be drawn anew"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_classifiers_of_hugging_face_forget_a_class(name):
    make, data_of, reasons = OTHERS[name]
    data, test = data_of(), data_of(seed=1)
    lr = 0.1 if data_of is sentences else 0.03
    model = trained(make(), data, lr=lr)
    forget, retain = purge.split(data, classes=[0])
    result = purge.unlearn(model, forget, retain, rate=0.01, progress=False)
    report = purge.audit(
        result, forget, retain, test, original=model, retrained=trained(make(1), retain, seed=1, lr=lr),
        progress=False,
    )  # fmt: skip
    check_every_metric(report, reasons, PANELS["standard"])
    assert report["fa_test"].value == 0
    assert report["ra"].value >= 0.9
