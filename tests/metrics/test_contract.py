"""What every metric promises, whatever it measures. Those with shadow models: see test_shadow.py."""

from __future__ import annotations

import copy
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import purge
from purge.auditor import Auditor
from purge.core.errors import ModelError
from purge.metrics import audited as base
from purge.metrics import registry
from purge.metrics.audited import AuditedModel
from purge.metrics.registry import PANELS
from tests.metrics.overfit import audited
from tests.nets import blobs
from tests.properties import facts

METRICS = {name: metric for name, metric in registry.METRICS.items() if metric.cost != "shadow"}

FEATURES = {"feature_cosine", "feature_l2", "feature_cosine_original", "feature_l2_original", "fid_feat",
            "hidden_change", "probe", "probe_gap", "head_refit", "head_refit_gap"}  # fmt: skip

# What is not there, the needs that this leaves open, and what a metric cannot do without beyond its needs.
LACKING = {
    "no test": ({"test", "same_class_test", "kept_class_test"}, {"retrain_gap"}),
    "no test of the forgotten class": ({"same_class_test"}, {"retrain_gap"}),
    "no test of a retained class": ({"kept_class_test"}, {"retrain_gap"}),
    "no retrained": ({"retrained"}, set()),
    "no original": ({"original"}, set()),
    "no bad data": ({"truth", "triggered"}, set()),
    "no BatchNorm": (set(), {"bn_recal"}),
    "no head": (set(), FEATURES | {"silhouette", "zrf"}),  # its free weight cannot be drawn anew
}


def mlp(seed: int, norm: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    first = nn.BatchNorm1d(16) if norm else nn.Identity()
    return nn.Sequential(
        nn.Linear(6, 16), first, nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


class Headless(nn.Module):
    """A classifier whose logits are made without a layer, after a body of any name."""

    def __init__(self, seed: int, name: str = "one", classes: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.name = name
        self.add_module(name, nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16)))
        self.weight = nn.Parameter(torch.randn(16, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_submodule(self.name)(x) @ self.weight


ROLES = ("model", "retrained", "original")


def audit(case: SimpleNamespace, **changes) -> purge.Report:
    return purge.audit(**{**vars(case), "progress": False, **changes})


@pytest.fixture(scope="module")
def case(toy) -> SimpleNamespace:
    _, forget, retain, (x, y) = toy
    more_x, more_y = blobs(3300, seed=2)  # rates at 0.1 % false positives need 1,000 of the class
    test = torch.cat([x, more_x[more_y == 0]]), torch.cat([y, more_y[more_y == 0]])
    models = {role: mlp(i) for i, role in enumerate(ROLES)}
    bad = {"truth": torch.arange(len(forget[1])) % 3, "triggered": (x + 1, torch.full_like(y, 2))}
    return SimpleNamespace(forget=forget, retain=retain, test=test, **models, **bad)


@pytest.fixture(scope="module")
def full(case) -> purge.Report:
    return audit(case)


@pytest.fixture(scope="module")
def without(case) -> dict[str, purge.Report]:
    """The audit with one thing missing at a time."""
    x, y = case.test
    changes = {
        "no test": {"test": None},
        "no test of the forgotten class": {"test": (x[y != 0], y[y != 0])},
        "no test of a retained class": {"test": (x[y == 0], y[y == 0])},
        "no retrained": {"retrained": None},
        "no original": {"original": None},
        "no bad data": {"truth": None, "triggered": None, "metrics": list(METRICS)},  # not left out
        "no BatchNorm": {role: mlp(i, norm=False) for i, role in enumerate(ROLES)},
        "no head": {role: Headless(i) for i, role in enumerate(ROLES)},
    }
    return {name: audit(case, **change) for name, change in changes.items()}


def values(held: dict[str, purge.Value], name: str) -> dict[str, purge.Value]:
    """Every value of a metric, under its full name."""
    return {k: v for k, v in held.items() if k == name or k.startswith(name + ".")}


# -- missing needs -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_with_everything_there_is_a_finite_number_and_otherwise_a_reason(full, without, name):
    found = values(full.values, name)
    assert found
    for value in found.values():
        assert math.isfinite(value.value)
        assert (value.why, value.n >= 1) == ("", True)
    for lacking, (needs, also) in LACKING.items():
        found = values(without[lacking].values, name)
        if METRICS[name].needs & needs or name in also:
            assert list(found) == [name], lacking
            assert (found[name].value, found[name].low, found[name].high) == (None, None, None)
            assert len(found[name].why) > 10
        else:
            assert found
            assert all(math.isfinite(v.value) for v in found.values()), lacking


def test_features_of_different_size_do_not_compare(case):
    wide, names = mlp(3), ["feature_cosine", "feature_l2", "fid_feat"]
    wide[4], wide[6] = nn.Linear(16, 20), nn.Linear(20, 3)
    report = audit(case, retrained=wide, metrics=[*names, "agreement"])
    assert {report[name].why for name in names} == {"features of 16 and 20 dimensions cannot be compared"}
    assert report["agreement"].value is not None


def test_one_forget_sample_is_enough_for_all_but_a_covariance(case):
    data = tuple(torch.cat(pair) for pair in zip(case.forget, case.retain, strict=True))
    forget, retain = purge.split(data, indices=[0])
    report = audit(case, forget=forget, retain=retain, truth=[1])
    missing = {k for k, v in report.values.items() if v.value is None and v.why}
    alike = {"fid_feat", "cka", "odds_correlation", "silhouette"}
    rates = {"tpr_1pct", "tpr_01pct", "mia_quantile.tpr_1pct", "mia_quantile.tpr_01pct"}
    assert missing == alike | rates | {"mia_split", "probe", "probe_gap", "nearest_class"}
    assert report["ta_retain"].value == report["ta"].value  # every class stays


def test_a_single_retain_sample_does_not_end_the_audit(case):
    # BatchNorm cannot estimate a variance from one row: that is a reason, not a crash
    report = audit(case, retain=(case.retain[0][:1], case.retain[1][:1]), metrics=["ra", "bn_recal"])
    assert report["ra"].n == 1
    assert report.values["bn_recal"].why


def test_logits_that_are_not_finite_are_refused(case):
    worst = case.test[0][-1]  # only one test sample is hit, so that a look at the first few would not find it

    class Broken(Headless):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where((x == worst).all(1, keepdim=True), math.nan, super().forward(x))

    with pytest.raises(ModelError, match="finite"):
        audit(case, model=Broken(0), metrics="ta")


# -- the models beside it ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def identical(case) -> purge.Report:
    return audit(case, retrained=case.model, original=copy.deepcopy(case.model), check=False)


@pytest.fixture(scope="module")
def alone(case) -> dict[str, purge.Report]:
    """The audits of the other two models, each beside what is left to compare it with."""
    return {role: audit(case, model=getattr(case, role), **{role: None}) for role in ROLES[1:]}


@pytest.mark.parametrize("name", METRICS)
def test_an_ideal_is_reached_by_a_model_that_is_the_retrained_one_and_by_no_other(identical, full, name):
    ideal, one = METRICS[name].ideal, values(identical.values, name)
    if ideal != "retrain":
        assert all(v.value == pytest.approx(ideal, abs=1e-6) for v in one.values())
        if METRICS[name].section == "distance":
            assert any(abs(v.value - ideal) > 1e-3 for v in values(full.values, name).values())
    elif not METRICS[name].needs & {"retrained", "original"}:
        assert one == values(identical.retrained, name)


@pytest.mark.parametrize("role", ROLES[1:])
@pytest.mark.parametrize("name", METRICS)
def test_columns_are_what_an_audit_of_these_models_alone_gives(full, alone, without, name, role):
    column = getattr(full, role)
    if role in METRICS[name].needs:  # no comparison with itself
        assert column[name].value is None
        assert role in column[name].why
    else:
        assert values(column, name) == values(alone[role].values, name)
        assert values(without[f"no {role}"].values, name) == values(full.values, name)
    assert getattr(without[f"no {role}"], role) == {}


# -- nothing of the caller's is touched --------------------------------------------------------


def mixed(seed: int) -> nn.Module:
    """Some layers in training mode, some not."""
    model = mlp(seed).train()
    model[1].eval()
    model[4].eval()
    return model


def test_models_in_any_mode_are_measured_in_evaluation_mode_and_left_as_they_were(case, full):
    def fail(audited: AuditedModel) -> purge.Value:
        torch.rand(3)
        audited.guesses("forget")
        raise ZeroDivisionError

    models = {role: mixed(i) for i, role in enumerate(ROLES)}
    before, random = [facts(m) for m in models.values()], (torch.get_rng_state(), np.random.get_state()[1])
    assert audit(case, **models).values == full.values
    with pytest.raises(ZeroDivisionError):
        audit(case, **models, metrics=purge.Metric("fail", "f", "always fails", fail))
    assert [facts(m) for m in models.values()] == before
    assert torch.equal(torch.get_rng_state(), random[0])
    assert np.array_equal(np.random.get_state()[1], random[1])


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_cleans_up_after_itself(case, name):
    # audit() works on copies; here the metric is given the model itself
    models = [mixed(i) for i in range(3)]
    before = [facts(m) for m in models]
    sets = case.forget, case.retain, case.test
    retrained, original = (audited(m, *sets) for m in models[1:])
    others = {"retrained": retrained, "original": original}
    audited(models[0], *sets, triggered=case.triggered, truth=case.truth, **others).value(METRICS[name])
    assert [facts(m) for m in models] == before


# -- one look at each model --------------------------------------------------------------------


def test_each_forward_pass_over_a_set_is_made_once(case):
    """Of all quick metrics together; ZRF also asks an untrained network, and the door tries few samples."""
    rows = []

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows.append(len(x))
            return self.body(x)

    audit(case, model=Counting(), metrics=[name for name in PANELS["quick"] if name != "zrf"])
    sets = sum(len(getattr(case, part)[1]) for part in ("forget", "retain", "test"))
    assert sets <= sum(rows) <= sets + 16


def test_an_auditor_says_what_single_audits_say_and_looks_at_the_others_once(case, monkeypatch):
    passes, plain = [], base.passing
    monkeypatch.setattr(base, "passing", lambda *given: (passes.append(given), plain(*given))[1])
    sets = case.forget, case.retain, case.test
    others = {"original": case.original, "retrained": case.retrained, "check": False}
    auditor, models = Auditor(*sets, **others), (case.model, mlp(7))
    together = [auditor.audit(model, metrics="quick", progress=False) for model in models]
    assert len(passes) == 3 * (2 + 2)  # three sets, two audited models and two others
    single = [purge.audit(model, *sets, **others, metrics="quick", progress=False) for model in models]
    for one, other in zip(together, single, strict=True):
        for part in ("values", "retrained", "original", "floor"):
            assert getattr(one, part) == getattr(other, part)
    assert together[0].values != together[1].values


def test_what_a_metric_does_to_outputs_is_not_seen_by_the_next(case):
    def kept(audited: AuditedModel) -> list[np.ndarray]:
        looks = audited.log_probs, audited.features, audited.guesses, audited.labels
        parts = ("forget", "retain", "test", "same_class_test", "kept_class_test")
        return [look(part) for look in looks for part in parts]

    def spoil(audited: AuditedModel) -> purge.Value:
        for array in kept(audited):
            array[:] = 0
        return purge.Value(0.0)

    def look(audited: AuditedModel) -> purge.Value:
        return purge.Value(float(sum(i * array.sum() for i, array in enumerate(kept(audited)))))

    spoiler, looker = (purge.Metric(fn.__name__, fn.__name__, "", fn) for fn in (spoil, look))
    first, after = (audit(case, metrics=metrics) for metrics in ([looker], [spoiler, looker]))
    assert after["look"].value == first["look"].value != 0


# -- the report --------------------------------------------------------------------------------


def test_the_report_is_plain_json_and_the_order_of_metrics_does_not_matter(case, full):
    plain = full.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain  # no default: nothing odd
    assert audit(case, metrics=list(METRICS)[::-1]).values == full.values


def test_another_seed_moves_intervals_and_the_numbers_that_are_drawn(case, full):
    other = audit(case, seed=7)
    assert (other["mia"].low, other["kl_retrain"].low) != (full["mia"].low, full["kl_retrain"].low)
    drawn = {"bn_recal", "relearn_few", "relearn_retain", "relearn_ratio", "probe", "probe_gap", "noise",
             "zrf", "silhouette", "field_gap", "nearest_class"}  # fmt: skip
    for name, value in full.values.items():
        if name.split(".")[0] not in drawn and not name.startswith("mia_"):
            assert other[name].value == value.value, name


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_the_metrics_of_bad_data_if_it_was_given(panel):
    bad = {"truth": "clean_label", "triggered": "attack_success"}
    for given in ([], ["truth"], ["triggered"], ["truth", "triggered"]):
        found = [m.name for m in registry.resolve_metrics(panel, given)]
        assert found == [*PANELS[panel], *(bad[name] for name in given)]
        assert [m.name for m in registry.resolve_metrics("ta", given)] == ["ta"]
    assert set(PANELS["standard"]) == set(METRICS) - {"clean_label", "attack_success"}
    assert set(PANELS["quick"]) < set(PANELS["standard"])


def test_a_metric_of_the_user_does_not_replace_one_of_the_same_name_inside_others(case, full):
    # retrain_gap is made of purge's own fa_test, ra, ta_retain and mia
    own = purge.Metric("ra", "RA", "mine", lambda s: purge.Value(s.model[0].bias.sum().item()))
    report = audit(case, metrics=[own, "retrain_gap"])
    assert report["ra"] != full["ra"]
    assert report["retrain_gap"] == full["retrain_gap"]


# -- models and data of other forms ------------------------------------------------------------


class Form(nn.Module):
    """A network that takes named inputs, calls its head by a keyword, and returns its logits in an object."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body = mlp(seed)

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> SimpleNamespace:
        h = self.body[:-1](torch.cat([first, last], 1))
        return SimpleNamespace(loss=None, logits=self.body[-1](input=h))


def test_a_model_and_inputs_of_another_form_give_the_numbers_of_plain_ones(case, full):
    parts = {part: getattr(case, part) for part in ("forget", "retain", "test", "triggered")}
    parts = {part: ({"first": x[:, :2], "last": x[:, 2:]}, y) for part, (x, y) in parts.items()}
    found = audit(case, **parts, **{role: Form(i) for i, role in enumerate(ROLES)}).values
    for name in found.keys() - values(found, "cka"):  # layers are named as in the model
        assert found[name] == full.values[name], name
