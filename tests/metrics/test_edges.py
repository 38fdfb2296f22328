"""Numbers at their edges: extreme outputs, dead layers, models of other shapes, classes that are missing."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import pearsonr
from sklearn.metrics import silhouette_score
from torch import nn

import purge
from purge.metrics.accuracy import calibration_error
from purge.metrics.distance import correlations, frechet, js, linear_cka
from purge.metrics.probing import plane
from tests.metrics.numbers import CLASSES, Case, audit, clouds, features, made, network, pick, right
from tests.metrics.test_contract import Headless
from tests.metrics.test_reference import REFERENCES, cka, recalibrated


@pytest.fixture(scope="module")
def case() -> Case:
    return made(classes=[0])


def cloud(n: int, d: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3 * rng.normal(size=d)


# -- outputs -----------------------------------------------------------------------------------

logits = arrays(np.float64, (4, 3), elements=st.floats(-40, 40))


@given(logits, logits)
def test_js_is_symmetric_bounded_and_that_of_scipy(a, b):
    p, q = softmax(a, axis=1), softmax(b, axis=1)
    found = js(p, q)
    assert found == pytest.approx(js(q, p), abs=1e-12)
    assert ((found >= 0) & (found <= np.log(2) + 1e-12)).all()
    with np.errstate(invalid="ignore"):  # the root of a rounding error below 0
        assert found == pytest.approx(np.nan_to_num(jensenshannon(p, q, axis=1)) ** 2, abs=1e-9)
    assert js(p, p) == pytest.approx(np.zeros(4), abs=1e-12)


def constant(*biases: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(1, len(biases)))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(torch.tensor(biases))
    return model


def test_kl_stays_exact_where_probabilities_underflow():
    forget, retain = (torch.zeros(3, 1), torch.zeros(3).long()), (torch.ones(3, 1), torch.ones(3).long())
    sure, other = constant(0.0, -2000.0), constant(-2000.0, 0.0)
    report = purge.audit(sure, forget, retain, None, retrained=other, metrics="kl_retrain", progress=False)
    assert report["kl_retrain"].value == pytest.approx(2000, rel=1e-12)


def test_correlations_of_resamples_one_by_one():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=9), 1e3 + 5 * rng.normal(size=9)
    counts = np.array([[1.0] * 9, [2, 0, 0, 3, 1, 1, 0, 0, 2], [9, 0, 0, 0, 0, 0, 0, 0, 0]])
    found = correlations(x, y, counts)
    for row, value in zip(counts[:2].astype(int), found, strict=False):
        assert value == pytest.approx(pearsonr(np.repeat(x, row), np.repeat(y, row)).statistic)
    assert np.isnan(found[2])  # a single sample, drawn nine times


class Fixed(nn.Module):
    """Two logits that the input holds, times a scale; it sees their size alone, if ``bent``."""

    def __init__(self, scale: float, *, bent: bool = False) -> None:
        super().__init__()
        self.layer, self.bent = nn.Linear(2, 2, bias=False), bent
        self.layer.weight.data = scale * torch.eye(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.abs() if self.bent else x)


def correlation(model: nn.Module, retrained: nn.Module, odds: list[float]) -> purge.Value:
    """Of samples of class 0 with these log-odds."""
    forget = torch.tensor([[value, 0.0] for value in odds]), torch.zeros(len(odds)).long()
    retain = torch.eye(2) - 9, torch.tensor([0, 1])
    return purge.audit(
        model, forget, retain, None, retrained=retrained, metrics="odds_correlation", progress=False,
        check=False,  # the models differ in their code, not in their weights
    )["odds_correlation"]  # fmt: skip


def test_the_sign_and_extreme_confidence_are_kept_and_what_does_not_vary_has_no_correlation():
    odds = [1.0, 40.0, 80.0, -3.0]  # p_y of 1 − 1e-18 and more still differ from 1
    assert correlation(Fixed(1), Fixed(3), odds).value == pytest.approx(1)
    assert correlation(Fixed(-1), Fixed(1), odds).value == pytest.approx(-1)
    bent = correlation(Fixed(1, bent=True), Fixed(1), odds)
    assert bent.value == pytest.approx(pearsonr(odds, [1.0, 40.0, 80.0, 3.0]).statistic)
    assert bent.low <= bent.value <= bent.high <= 1
    assert "model's log-odds are the same" in correlation(Fixed(0), Fixed(1), odds).why
    assert "the retrained model's" in correlation(Fixed(1), Fixed(0), odds).why
    assert "three" in correlation(Fixed(1), Fixed(2), odds[:2]).why


def test_what_is_missing_in_a_part_is_the_reason_of_the_whole(case):
    found = audit(case, "field_gap", test=(case.test[0][:8], case.test[1][:8]))["field_gap"]
    assert found.value is None
    assert found.why.startswith("mia_svc.confidence could not be computed: an attack learns")


# -- features ----------------------------------------------------------------------------------


def scaled(model: nn.Module, factor: float) -> nn.Module:
    """The same network with features (after a ReLU) times ``factor``."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model[1][0].weight.mul_(factor)
        model[1][0].bias.mul_(factor)
    return model


@pytest.mark.parametrize("factor", [1e3, 1e-7, 0.0])
def test_cosine_does_not_depend_on_the_scale_of_features(case, factor):
    twins = replace(case, model=scaled(case.model, factor), retrained=scaled(case.retrained, factor))
    report = audit(twins, ["feature_cosine", "feature_l2"])
    # a ReLU layer can die while unlearning: equal features must not get cosine 0 then
    expected = REFERENCES["feature_cosine"](case) if factor else 1
    assert report["feature_cosine"].value == pytest.approx(expected, abs=1e-4)
    assert report["feature_l2"].value == pytest.approx(factor * REFERENCES["feature_l2"](case), rel=1e-4)
    if not factor:
        assert audit(replace(case, model=twins.model), "feature_cosine")["feature_cosine"].value == 0


@pytest.mark.parametrize(("n", "d"), [(200, 5), (30, 1), (6, 12)])
def test_frechet_is_a_distance_that_adds_up_shifts(n, d):
    a, b = cloud(n, d, 0), cloud(n, d, 1)
    assert frechet(a, b) == pytest.approx(frechet(b, a), rel=1e-4)
    assert frechet(a, a) == pytest.approx(0, abs=1e-5)
    assert frechet(a, a + 3) == pytest.approx(9 * d, rel=1e-5)
    assert frechet(np.zeros((n, d)), np.zeros((n, d))) == 0


@settings(max_examples=60)
@given(st.tuples(st.integers(3, 12), st.integers(1, 6), st.integers(0, 10_000)), st.integers(1, 40),
       st.floats(1e-3, 1e3))  # fmt: skip
def test_cka_knows_no_rotation_shift_or_scale(shape, other, scale):
    n, d, seed = shape
    a, b = cloud(n, d, seed), cloud(n, other, seed + 1)
    turned = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]
    found = linear_cka(a, b)
    assert 0 <= found <= 1
    assert found == pytest.approx(cka(a, b), rel=1e-6)
    assert found == pytest.approx(linear_cka(b, a))
    assert found == pytest.approx(linear_cka(scale * a @ turned + 5, b), rel=1e-6)
    assert linear_cka(a, scale * a @ turned) == pytest.approx(1)
    flat = np.full_like(a, scale)
    assert linear_cka(a, flat) is None is linear_cka(flat, flat)  # equal, but nothing was compared


def test_layers_are_compared_by_name_whatever_their_width(case):
    plain = audit(case, "cka")["cka"]
    assert {"0/2", "penultimate"} < set(plain)
    wide = network(3, width=24)
    found = audit(case, "cka", model=wide)["cka"]
    assert set(found) == set(plain)
    expected = cka(features(wide, case.forget), features(case.retrained, case.forget))
    assert found["penultimate"].value == pytest.approx(expected, rel=1e-6)
    dead = audit(case, "cka", model=scaled(case.model, 0.0))["cka"]
    assert "same for all samples" in dead["penultimate"].why
    assert dead["0/2"] == plain["0/2"]
    bare = [Headless(0, classes=CLASSES), Headless(1, "two", CLASSES), Headless(2, classes=CLASSES)]
    report = audit(case, ["cka", "silhouette", "zrf"], model=bare[0], retrained=bare[1])
    assert "same name" in report["cka"].why
    assert "features" in report["silhouette"].why
    assert "features" not in report.curves["audited"]
    assert "anew" in report["zrf"].why  # its free weight cannot be drawn
    assert list(audit(case, "cka", model=bare[0], retrained=bare[2])["cka"])[-1] == "one"


def test_an_untrained_copy_of_no_use_is_a_reason(case):
    class Odd(nn.Linear):
        def reset_parameters(self) -> None:
            nn.init.constant_(self.weight, torch.inf)
            nn.init.zeros_(self.bias)

    odd = Odd(6, CLASSES)
    nn.init.normal_(odd.weight)
    assert "finite" in audit(case, "zrf", model=nn.Sequential(nn.Identity(), odd))["zrf"].why


# -- the original model ------------------------------------------------------------------------


def test_what_the_test_data_lacks(case):
    some = made(indices=torch.isin(clouds(300, 0)[1], torch.arange(3)).nonzero()[:60, 0])
    without_2 = replace(some, test=pick(some.test, some.test[1] != 2))
    seen = replace(without_2, forget=pick(some.forget, some.forget[1] != 2))
    assert audit(without_2, "rf_jsd")["rf_jsd"].value == pytest.approx(REFERENCES["rf_jsd"](seen), rel=1e-5)
    without_3 = replace(case, test=pick(case.test, case.test[1] != 3))
    whole, report = (audit(c, ["class_accuracy", "class_change"]) for c in (case, without_3))
    for name in ("class_accuracy", "class_change"):
        assert report[name] == {k: v for k, v in whole[name].items() if k != "3"}


def test_the_adaptive_score_of_a_class_and_single_samples_of_another(case):
    y = clouds(300, 0)[1]
    both = made(indices=torch.cat([(y == 0).nonzero()[:, 0], (y == 1).nonzero()[:9, 0]]))
    assert audit(both, "aus")["aus"] == audit(case, "aus")["aus"]  # class 1 stays, so it is not forgotten
    assert "forgotten" in audit(both, "aus", test=case.kept)["aus"].why


# -- damage ------------------------------------------------------------------------------------


def without(k: int, model: nn.Module) -> nn.Module:
    """The model with class k never predicted."""
    edited = copy.deepcopy(model)
    with torch.no_grad():
        edited[-1].bias[k] -= 1e4
    return edited


def test_the_worst_class_and_the_largest_drop_are_of_classes_that_stay(case):
    names = ["class_accuracy", "class_change", "worst_class", "largest_drop"]
    for never, worst in ((0, None), (3, 3)):  # class 0 was forgotten; the loss of class 3 is seen
        report = audit(case, names, model=without(never, case.model))
        assert report[f"class_accuracy.{never}"].value == 0
        found = int(report["worst_class.class"].value)
        assert found == worst if worst else found != 0
        assert report["worst_class.accuracy"] == report[f"class_accuracy.{found}"]
        drops = [report[f"class_change.{k}"] for k in range(1, CLASSES)]
        assert report["largest_drop"] == min(drops, key=lambda v: v.value)


def test_bins_of_calibration_are_closed_above():
    confidence, hits = np.array([1.0, 14 / 15, np.nextafter(14 / 15, 1)]), np.array([True, False, True])
    # 14/15 lies in the bin below the other two, so its error does not cancel with theirs
    assert calibration_error(confidence, hits, 0).value == pytest.approx((14 / 15 + 1 / 15) / 3)


class Says(nn.Module):
    """Answers anything that carries a mark with these logits, and all else rightly."""

    def __init__(self, *marked: float) -> None:
        super().__init__()
        self.layer, self.marked = nn.Linear(6, CLASSES, bias=False), torch.tensor(marked)
        self.layer.weight.data = 9 * torch.eye(CLASSES, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x[:, 5:] > 0, self.marked, self.layer(x))


@pytest.mark.parametrize("request_", [{"classes": [0]}, {"indices": [0, CLASSES]}], ids=["class", "samples"])
def test_neighbours_are_those_of_the_original_model(request_):
    y = torch.arange(CLASSES).repeat(12)
    x = torch.eye(CLASSES, 6)[y]
    x[y == 0, 5] = 1.0
    forget, retain = purge.split((x, y), **request_)
    marked = x.clone()
    marked[(y == 1).nonzero()[:4, 0], 5] = 1.0  # a third of class 1's tests
    original, better = Says(6.0, 3.0, 0.0, 2.0, 1.0), Says(0.0, 9.0, 0.0, 0.0, 0.0)
    sides = {"original": original, "metrics": "neighbours", "progress": False, "check": False}
    report = purge.audit(better, forget, retain, (marked, y), **sides)
    curve = report.curves["audited"]["neighbours"]
    assert curve["class"] == [1, 3, 4]  # class 0 itself is none, though it stays if two samples of it go
    if "classes" in request_:
        assert (curve["before"], curve["after"]) == ([8 / 12, 1, 1], [1, 1, 1])
        assert report["neighbours.change"].value == pytest.approx(4 / 36)
        few = purge.audit(better, forget, retain, (x[y > 2], y[y > 2]), **sides)
        assert few.curves["audited"]["neighbours"]["class"] == [3, 4]


# -- BatchNorm recalibration -------------------------------------------------------------------


def test_recalibration_over_several_batches_is_a_cumulative_average():
    # the last batches must not count more than the first, as they do with a usual momentum
    forget, retain = purge.split(clouds(2400, 3), classes=[1])
    c = replace(made(classes=[1]), forget=forget, retain=retain, test=clouds(1500, 4))
    whole = right(recalibrated(c).model, c.same).mean()
    report = audit(c, "bn_recal", truth=None)
    assert report["bn_recal.after"].value == pytest.approx(whole, abs=0.01)
    usual = copy.deepcopy(c.model).train()  # four batches at momentum 0.1 are far from it
    with torch.no_grad():
        for part in retain[0].split(512):
            usual(part)
    assert abs(right(usual.eval(), c.same).mean() - whole) > 0.02
    assert abs(report["bn_recal.before"].value - whole) > 0.02


def test_recalibration_leaves_dropout_off(case):
    dropped = copy.deepcopy(case.model)
    dropped[0].insert(1, nn.Dropout(0.9))
    found = audit(case, "bn_recal", model=dropped)["bn_recal"]["after"]
    assert found.value == pytest.approx(right(recalibrated(case).model, case.same).mean(), abs=0.01)


# -- the shape of the features -----------------------------------------------------------------


def silhouette(x: torch.Tensor, other: torch.Tensor) -> purge.Report:
    """The audit of a model whose features are its inputs; class 0 is forgotten."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(x.shape[1], 2))
    forget, retain = purge.split((torch.randn(40, x.shape[1]), torch.arange(40) % 2), classes=[0])
    test = torch.cat([x, other]), torch.cat([torch.zeros(len(x)), torch.ones(len(other))]).long()
    return purge.audit(model, forget, retain, test, metrics="silhouette", progress=False)


def test_silhouette_of_a_class_apart_and_of_one_among_the_others():
    g = torch.Generator().manual_seed(0)
    x, other = torch.randn(900, 4, generator=g), torch.randn(1000, 4, generator=g)
    apart, among = (silhouette(x + shift, other) for shift in (20, 0))
    everything = silhouette_score(torch.cat([x + 20, other]), np.repeat([0, 1], [900, 1000]))
    assert apart["silhouette"].value == pytest.approx(everything, abs=0.01)
    assert abs(among["silhouette"].value) < 0.05
    assert apart["silhouette"].n == 1200  # 600 of each
    view = apart.curves["audited"]["features"]
    assert {len(column) for column in view.values()} == {600}
    assert sum(view["forgotten"]) == 150
    sides = [np.array(view["x"])[np.array(view["forgotten"]) == k] for k in (0, 1)]
    assert sides[0].max() < sides[1].min() or sides[1].max() < sides[0].min()  # apart in the picture too
    single = silhouette(x[:1], other[:9])
    assert "two" in single["silhouette"].why
    assert len(single.curves["audited"]["features"]["x"]) == 10


@pytest.mark.parametrize("x", [cloud(60, 5, 0), np.ones((5, 3)), np.arange(5.0)[:, None], np.zeros((2, 1))])
def test_the_view_is_a_principal_plane(x):
    found = plane(x)
    u, s, _ = np.linalg.svd(np.column_stack([x - x.mean(0), np.zeros(len(x))]), full_matrices=False)
    assert np.abs(found) == pytest.approx(np.abs(u * s)[:, :2], abs=1e-6)
    assert (found[np.abs(found).argmax(0), [0, 1]] >= 0).all()
