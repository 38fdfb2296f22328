"""What every metric promises, whatever it measures."""

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
from purge.core.errors import MetricError, ModelError
from purge.metrics import audited as base
from purge.metrics import registry
from purge.metrics.audited import AuditedModel
from purge.metrics.registry import PANELS
from purge.models.checkpoint import digest
from tests.metrics.overfit import audited
from tests.nets import blobs

# Those that train shadow models are held to the same promises in test_shadow.py.
METRICS = {name: metric for name, metric in registry.METRICS.items() if metric.cost != "shadow"}

FEATURES = {"feature_cosine", "feature_l2", "feature_cosine_original", "feature_l2_original", "fid_feat",
            "hidden_change", "probe", "probe_gap", "head_refit", "head_refit_gap"}  # fmt: skip

# What a metric cannot do without, beyond the needs that it declares.
MISSING = {
    "no test": {"test", "same_class_test", "kept_class_test"},
    "no test of the forgotten class": {"same_class_test"},
    "no test of a retained class": {"kept_class_test"},
    "no retrained": {"retrained"},
    "no original": {"original"},
    "no bad data": {"truth", "triggered"},
    "no BatchNorm": set(),
    "no head": set(),
}
ALSO = {
    "no test": {"retrain_gap"},
    "no test of the forgotten class": {"retrain_gap"},
    "no test of a retained class": {"retrain_gap"},
    "no BatchNorm": {"bn_recal"},
    "no head": FEATURES | {"silhouette", "zrf"},  # its free weight cannot be drawn anew
}


def mlp(seed: int, norm: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    first = nn.BatchNorm1d(16) if norm else nn.Identity()
    return nn.Sequential(
        nn.Linear(6, 16), first, nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


class Headless(nn.Module):
    """A classifier whose logits are made without a layer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16))
        self.weight = nn.Parameter(torch.randn(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) @ self.weight


def audit(case: SimpleNamespace, **changes) -> purge.Report:
    given = {**vars(case), "progress": False, **changes}
    return purge.audit(given.pop("model"), **given)


@pytest.fixture(scope="module")
def case(toy) -> SimpleNamespace:
    _, forget, retain, (x, y) = toy
    more_x, more_y = blobs(3300, seed=2)  # rates at 0.1 % false positives need 1,000 of the class
    test = torch.cat([x, more_x[more_y == 0]]), torch.cat([y, more_y[more_y == 0]])
    models = {name: mlp(i) for i, name in enumerate(("model", "retrained", "original"))}
    bad = {"truth": torch.arange(len(forget[1])) % 3, "triggered": (x + 1, torch.full_like(y, 2))}
    return SimpleNamespace(forget=forget, retain=retain, test=test, **models, **bad)


@pytest.fixture(scope="module")
def full(case) -> purge.Report:
    return audit(case)


@pytest.fixture(scope="module")
def without(case) -> dict[str, purge.Report]:
    """The audit with one thing missing at a time."""
    x, y = case.test
    plain, headless = ({"model": f(0), "retrained": f(1), "original": f(2)} for f in (bare, Headless))
    changes = {
        "no test": {"test": None},
        "no test of the forgotten class": {"test": (x[y != 0], y[y != 0])},
        "no test of a retained class": {"test": (x[y == 0], y[y == 0])},
        "no retrained": {"retrained": None},
        "no original": {"original": None},
        "no bad data": {"truth": None, "triggered": None, "metrics": list(METRICS)},  # not left out
        "no BatchNorm": plain,
        "no head": headless,
    }
    return {name: audit(case, **change) for name, change in changes.items()}


def bare(seed: int) -> nn.Module:
    return mlp(seed, norm=False)


def values(report: purge.Report | dict, name: str) -> dict[str, purge.Value]:
    """Every value of a metric, under its full name."""
    held = report.values if isinstance(report, purge.Report) else report
    return {k: v for k, v in held.items() if k == name or k.startswith(name + ".")}


# -- missing needs -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_with_everything_given_there_is_a_finite_number(full, name):
    found = values(full, name)
    assert found
    for value in found.values():
        assert math.isfinite(value.value)
        assert value.why == ""
        assert value.n >= 1


@pytest.mark.parametrize("lacking", MISSING)
@pytest.mark.parametrize("name", METRICS)
def test_a_missing_need_gives_none_and_a_reason_and_nothing_else_does(without, name, lacking):
    found = values(without[lacking], name)
    if METRICS[name].needs & MISSING[lacking] or name in ALSO.get(lacking, ()):
        assert list(found) == [name]
        assert found[name].value is None
        assert (found[name].low, found[name].high) == (None, None)
        assert len(found[name].why) > 10
    else:
        assert found
        assert all(math.isfinite(v.value) for v in found.values())


@pytest.mark.parametrize("name", METRICS)
def test_other_models_do_not_change_a_number_that_does_not_need_them(full, without, name):
    for lacking, need in (("no retrained", "retrained"), ("no original", "original")):
        if need not in METRICS[name].needs:
            assert values(without[lacking], name) == values(full, name)


def test_features_of_different_size_do_not_compare(case):
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Linear(20, 3))
    report = audit(case, retrained=wide)
    for name in ("feature_cosine", "feature_l2", "fid_feat"):
        assert report[name].value is None
        assert "16" in report[name].why
        assert "20" in report[name].why
    assert report["agreement"].value is not None


def test_one_forget_sample_is_enough_for_all_but_a_covariance(case):
    forget, retain = purge.split((torch.cat([case.forget[0], case.retain[0]]),
                                  torch.cat([case.forget[1], case.retain[1]])), indices=[0])  # fmt: skip
    report = audit(case, forget=forget, retain=retain, truth=[1])
    missing = {k: v.why for k, v in report.values.items() if v.value is None}
    alike = {"fid_feat", "cka", "odds_correlation", "silhouette"}
    rates = {"tpr_1pct", "tpr_01pct", "mia_quantile.tpr_1pct", "mia_quantile.tpr_01pct"}
    few = {"mia_split", "probe", "probe_gap", *rates}
    assert set(missing) == alike | few | {"nearest_class"}  # which is about whole classes
    assert all(missing.values())


def test_a_single_retain_sample_does_not_end_the_audit(case):
    # BatchNorm cannot estimate a variance from one row: that is a reason, not a crash
    one = (case.retain[0][:1], case.retain[1][:1])
    report = audit(case, retain=one)
    assert report["ra"].n == 1
    assert report.values["bn_recal"].why


def test_logits_that_are_not_finite_are_refused(case):
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # only one test sample is hit, so that a look at the first few would not find it
            return torch.where((x == worst).all(1, keepdim=True), math.nan, self.layer(x))

    worst = case.test[0][-1]
    with pytest.raises(ModelError, match="finite"):
        audit(case, model=Broken(), metrics="ta")


# -- identical models --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def identical(case) -> purge.Report:
    return audit(case, retrained=case.model, original=copy.deepcopy(case.model), check=False)


# -- nothing of the caller's is touched --------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_an_ideal_is_reached_by_a_model_that_is_the_retrained_one_and_by_no_other(identical, full, name):
    ideal, one = METRICS[name].ideal, values(identical, name)
    if ideal != "retrain":
        assert all(v.value == pytest.approx(ideal, abs=1e-6) for v in one.values())
        if METRICS[name].section == "distance":
            assert any(abs(v.value - ideal) > 1e-3 for v in values(full, name).values())
    elif not METRICS[name].needs & {"retrained", "original"}:
        assert one == values(identical.retrained, name)


def state(model: nn.Module) -> tuple:
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    grads = [p.grad is None for p in model.parameters()]
    return digest(model), [m.training for m in model.modules()], hooks, grads, list(model.state_dict())


def mixed(seed: int) -> nn.Module:
    """Some layers in training mode, some not."""
    model = mlp(seed).train()
    model[1].eval()
    model[4].eval()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_audit_leaves_all_three_models_as_they_were(case, name):
    models = {role: mixed(i) for i, role in enumerate(("model", "retrained", "original"))}
    before = {role: state(m) for role, m in models.items()}
    random = torch.get_rng_state(), np.random.get_state()[1].copy()
    audit(case, metrics=name, **models)
    assert {role: state(m) for role, m in models.items()} == before
    assert torch.equal(torch.get_rng_state(), random[0])
    assert np.array_equal(np.random.get_state()[1], random[1])


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_cleans_up_after_itself(case, name):
    # audit() works on copies; here the metric is given the model itself
    models = [mixed(i) for i in range(3)]
    before = [state(m) for m in models]
    sets = case.forget, case.retain, case.test
    retrained, original = (audited(m, *sets) for m in models[1:])
    ours = audited(models[0], *sets, triggered=case.triggered, truth=case.truth, retrained=retrained,
                   original=original)  # fmt: skip
    ours.value(METRICS[name])
    assert [state(m) for m in models] == before


def test_a_metric_that_fails_leaves_models_and_random_numbers_alone(case):
    def fail(audited: AuditedModel) -> purge.Value:
        torch.rand(3)
        audited.guesses("forget")
        raise ZeroDivisionError

    model = mixed(0)
    before, random = state(model), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        audit(case, model=model, metrics=purge.Metric("fail", "f", "always fails", fail))
    assert state(model) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_each_forward_pass_over_a_set_is_made_once(case):
    """Of all quick metrics together; ZRF also asks an untrained network, and the door tries few samples."""
    rows = []

    class Counting(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows.append(len(x))
            return self.body(x)

    quick = [name for name in PANELS["quick"] if name != "zrf"]
    audit(case, model=Counting(mlp(0)), metrics=quick)
    sets = sum(len(getattr(case, part)[1]) for part in ("forget", "retain", "test"))
    assert sets <= sum(rows) <= sets + 16


@pytest.mark.slow
def test_a_model_in_training_mode_is_measured_in_evaluation_mode(case, full):
    trained = {role: copy.deepcopy(getattr(case, role)) for role in ("model", "retrained", "original")}
    assert audit(case, **{k: m.eval() for k, m in trained.items()}).values == full.values
    assert audit(case, **{k: m.train() for k, m in trained.items()}).values == full.values


# -- the report --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", METRICS)
def test_values_are_plain_json(full, without, name):
    for report in (full, *without.values()):
        plain = report.to_dict()
        for column in ("values", "retrained", "original"):
            text = json.dumps(values(plain[column], name), allow_nan=False)  # no default: nothing odd
            assert json.loads(text) == values(plain[column], name)


@pytest.fixture(scope="module")
def alone(case) -> dict[str, purge.Report]:
    """The audits of the other two models, each beside what is left to compare it with."""
    return {
        role: audit(case, model=getattr(case, role), **{role: None}) for role in ("retrained", "original")
    }


@pytest.mark.parametrize("role", ["retrained", "original"])
@pytest.mark.parametrize("name", METRICS)
def test_columns_are_what_an_audit_of_these_models_alone_gives(full, alone, name, role):
    column = getattr(full, role)
    if role in METRICS[name].needs:  # no comparison with itself
        assert column[name].value is None
        assert role in column[name].why
    else:
        assert values(column, name) == values(alone[role], name)


def test_columns_are_empty_without_their_model(without):
    assert without["no retrained"].retrained == {}
    assert without["no original"].original == {}
    assert without["no original"].retrained != {}


@pytest.mark.slow
def test_the_order_of_metrics_does_not_matter(case, full):
    backwards = audit(case, metrics=list(METRICS)[::-1])
    assert backwards.values == full.values


def test_panels(case, full):
    quick = audit(case, metrics="quick")
    assert set(quick.values) < set(full.values)
    assert not values(quick, "bn_recal")
    assert set(PANELS["standard"]) == set(METRICS) - {"clean_label", "attack_success"}


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_the_metrics_of_bad_data_if_it_was_given(panel):
    bad = {"truth": "clean_label", "triggered": "attack_success"}
    for given in ([], ["truth"], ["triggered"], ["truth", "triggered"]):
        found = [m.name for m in registry.resolve_metrics(panel, given)]
        assert found == [*PANELS[panel], *(bad[name] for name in given)]
        assert [m.name for m in registry.resolve_metrics("ta", given)] == ["ta"]


# -- one look at each model ----------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch) -> list:
    """The forward passes over whole sets, so far."""
    seen, plain = [], base.passing
    monkeypatch.setattr(base, "passing", lambda *given: (seen.append(given), plain(*given))[1])
    return seen


def test_an_auditor_says_what_single_audits_say_and_looks_at_the_others_once(case, passes):
    sets = case.forget, case.retain, case.test
    others = {"original": case.original, "retrained": case.retrained, "check": False}
    auditor, models = Auditor(*sets, **others), (case.model, mlp(7))
    together = [auditor.audit(model, metrics="quick", progress=False) for model in models]
    assert len(passes) == 3 * (2 + 2)  # three sets, two audited models and two others
    alone = [purge.audit(model, *sets, **others, metrics="quick", progress=False) for model in models]
    for one, other in zip(together, alone, strict=True):
        for part in ("values", "retrained", "original", "floor"):
            assert getattr(one, part) == getattr(other, part)
    assert together[0].values != together[1].values


@pytest.mark.parametrize("part", ["forget", "retain", "test", "same_class_test", "kept_class_test"])
def test_what_a_metric_does_to_outputs_is_not_seen_by_the_next(case, part):
    def kept(audited: AuditedModel) -> list[np.ndarray]:
        return [look(part) for look in (audited.log_probs, audited.features, audited.guesses, audited.labels)]

    def spoil(audited: AuditedModel) -> purge.Value:
        for array in kept(audited):
            array[:] = 0
        return purge.Value(0.0)

    def look(audited: AuditedModel) -> purge.Value:
        return purge.Value(float(sum(array.sum() for array in kept(audited))))

    spoiler, looker = (purge.Metric(fn.__name__, fn.__name__, "", fn) for fn in (spoil, look))
    alone, after = (audit(case, metrics=metrics) for metrics in ([looker], [spoiler, looker]))
    assert after["look"].value == alone["look"].value != 0


def test_another_seed_moves_intervals_and_the_numbers_that_are_drawn(case, full):
    again, other = audit(case), audit(case, seed=7)
    assert again.values == full.values
    assert (other["mia"].low, other["kl_retrain"].low) != (full["mia"].low, full["kl_retrain"].low)
    drawn = {"bn_recal", "relearn_few", "relearn_retain", "relearn_ratio", "probe", "probe_gap", "noise",
             "zrf", "silhouette", "field_gap", "nearest_class"}  # fmt: skip
    for name, value in full.values.items():
        if name.split(".")[0] not in drawn and not name.startswith("mia_"):
            assert other[name].value == value.value, name


# -- names and the user's own ------------------------------------------------------------------


def test_needs_of_a_metric_of_the_user_are_honoured(case):
    def never(audited: AuditedModel) -> purge.Value:
        raise AssertionError("called without what it needs")

    own = purge.Metric("own", "o", "needs a lot", never, needs=frozenset({"retrained", "test"}))
    report = audit(case, metrics=own, retrained=None, test=None)
    assert "retrained" in report["own"].why
    assert "test" in report["own"].why


def test_a_metric_of_the_user_does_not_replace_one_of_the_same_name_inside_others(case, full):
    # retrain_gap is made of purge's own fa_test, ra, ta_retain and mia
    own = purge.Metric("ra", "RA", "mine", lambda s: purge.Value(s.model[0].bias.sum().item()))
    report = audit(case, metrics=[own, "retrain_gap"])
    assert report["ra"] != full["ra"]
    assert report["retrain_gap"] == full["retrain_gap"]


@pytest.mark.parametrize("typo", ["fa_tst", "retrain-gap", "standart"])
def test_an_unknown_name_is_answered_with_the_nearest(case, typo):
    with pytest.raises(MetricError, match="did you mean"):
        audit(case, metrics=typo)


@pytest.mark.parametrize("name", registry.METRICS)
def test_every_metric_is_described_in_a_line_and_explained(name):
    assert 10 < len(registry.METRICS[name].about) < 90
    assert len(registry.METRICS[name].explain()) > 10


@pytest.mark.parametrize("nothing", [[], (), [None], [3]])
def test_what_is_not_a_metric_is_refused(case, nothing):
    with pytest.raises(MetricError):
        audit(case, metrics=nothing)


# -- requests and models of other shapes -------------------------------------------------------


class Wrapped(nn.Module):
    """A network that returns its logits in some other form."""

    def __init__(self, form) -> None:
        super().__init__()
        self.body, self.form = mlp(0), form

    def forward(self, x: torch.Tensor):
        return self.form(self.body(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        lambda z: SimpleNamespace(loss=None, logits=z),
        lambda z: {"loss": None, "logits": z},
        lambda z: (z, None),
    ],
    ids=["object", "dict", "tuple"],
)
def test_logits_in_any_form_give_the_same_numbers(case, full, form):
    metrics = ["quick", "bn_recal", "noise"]
    found = audit(case, model=Wrapped(form), metrics=metrics).values
    assert found == {name: full.values[name] for name in found}
    beside = audit(case, retrained=Wrapped(form), metrics="bn_recal").retrained
    assert beside["bn_recal.after"] == full["bn_recal.after"]


class Named(nn.Module):
    """A network whose inputs come in two tensors with names."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return self.body(torch.cat([first, last], 1))


def test_inputs_of_several_tensors_give_the_numbers_of_one(case, full):
    parts = {
        part: ({"first": x[:, :2], "last": x[:, 2:]}, y)
        for part, (x, y) in (
            (part, getattr(case, part)) for part in ("forget", "retain", "test", "triggered")
        )
    }
    models = {role: Named(getattr(case, role)) for role in ("model", "retrained", "original")}
    found = audit(case, **parts, **models).values
    for name in found.keys() - values(found, "cka"):  # layers are named as in the model
        assert found[name] == full.values[name], name
    assert [v.value for v in values(found, "cka").values()] == [v.value for v in values(full, "cka").values()]


def test_a_head_that_is_called_by_keyword(case):
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body[-1](input=self.body[:-1](x))

    names = ["feature_l2", "ra"]
    assert audit(case, model=ByKeyword(), metrics=names).values == audit(case, metrics=names).values


def test_datasets_give_the_numbers_of_their_tensors(case, full):
    sets = ("forget", "retain", "test", "triggered")
    parts = {k: torch.utils.data.TensorDataset(*getattr(case, k)) for k in sets}
    assert audit(case, **parts).values == full.values
