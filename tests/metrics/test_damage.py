"""What unlearning did to the rest: by class, in calibration, beside the forgotten, and where D_f went."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import softmax
from sklearn.metrics import recall_score
from torch import nn

import purge
from purge.metrics.accuracy import change
from purge.metrics.damage import calibration_error, variation_distance
from tests.metrics.numbers import audit, raw

CLASSES = 5
NAMES = ["class_accuracy", "class_change", "worst_class", "largest_drop", "ece", "neighbours",
         "destinations_tv"]  # fmt: skip


def noise(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=g)
    return torch.randn(n, 6, generator=g) + torch.eye(6)[y] * 2, y


def network(seed: int) -> nn.Module:
    """An untrained MLP that predicts every class now and then."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    with torch.no_grad():
        model[-1].weight.mul_(8)
        model[-1].bias.sub_(model(noise(300, 9)[0]).mean(0))
    return model


def recalls(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> np.ndarray:
    guesses = raw(model, data[0]).argmax(1)
    return recall_score(data[1], guesses, labels=range(CLASSES), average=None, zero_division=np.nan)


@pytest.fixture(scope="module")
def case() -> SimpleNamespace:
    c = SimpleNamespace(model=network(0), retrained=network(1), original=network(11), metrics=NAMES)
    c.data, c.test = noise(300, 0), noise(250, 1)
    c.forget, c.retain = purge.split(c.data, classes=[0])
    c.report = audit(c)
    return c


def assert_like_scipy(value: purge.Value, sample: np.ndarray) -> None:
    """Ends within 0.3 standard errors of SciPy's."""
    reference = stats.bootstrap((sample,), np.mean, n_resamples=4000, method="percentile", batch=500,
                                rng=np.random.default_rng(0))  # fmt: skip
    ends = reference.confidence_interval
    assert (value.low, value.high) == pytest.approx((ends.low, ends.high), abs=0.3 * reference.standard_error)


# -- classes -----------------------------------------------------------------------------------


def test_class_accuracies_are_the_recalls_of_scikit_learn(case):
    found = case.report["class_accuracy"]
    assert list(found) == list("01234")
    assert [v.value for v in found.values()] == pytest.approx(recalls(case.model, case.test).tolist())
    assert [v.n for v in found.values()] == np.bincount(case.test[1]).tolist()
    assert len({v.value for v in found.values()}) > 3


def test_class_changes_are_after_minus_before(case):
    expected = recalls(case.model, case.test) - recalls(case.original, case.test)
    assert [v.value for v in case.report["class_change"].values()] == pytest.approx(expected.tolist())
    assert max(abs(expected)) > 0.05


def test_the_interval_of_a_change_is_that_of_paired_samples(case):
    rng = np.random.default_rng(0)
    before = rng.random(300) < 0.8
    after = np.where(rng.random(300) < 0.1, ~before, before)  # nearly the same: unpaired would be wider
    assert_like_scipy(change(after, before, 0), after.astype(float) - before)
    y, k = case.test[1].numpy(), 2
    right = [raw(m, case.test[0]).argmax(1) == y for m in (case.model, case.original)]
    assert_like_scipy(case.report["class_change.2"], (right[0].astype(float) - right[1])[y == k])


def test_that_no_sample_changed_does_not_mean_that_none_could():
    right = np.arange(40) < 30
    found = change(right, right, 0)
    assert found.value == 0
    assert -0.1 < found.low < 0 < found.high < 0.1


def test_a_class_without_test_data_is_left_out(case):
    x, y = case.test
    report = audit(case, test=(x[y != 3], y[y != 3]))
    for name in ("class_accuracy", "class_change"):
        assert list(report[name]) == ["0", "1", "2", "4"]
    assert report["class_accuracy.4"] == case.report["class_accuracy.4"]


def knows_not(k: int, model: nn.Module) -> nn.Module:
    """The model with class k never predicted."""
    edited = nn.Sequential(*model[:-1], nn.Linear(16, CLASSES))
    edited.load_state_dict(model.state_dict())
    with torch.no_grad():
        edited[-1].bias[k] -= 1e4
    return edited


def test_the_worst_class_is_one_that_stays(case):
    model = knows_not(0, case.model)
    kept = recalls(model, case.test)
    kept[0] = np.inf
    report = audit(case, model=model)
    assert report["class_accuracy.0"].value == 0  # lower than all others, and meant to be
    assert report["worst_class.class"].value == kept.argmin() != 0
    assert report["worst_class.accuracy"].value == pytest.approx(kept.min())
    assert report["worst_class.accuracy"].value > 0
    assert report["worst_class.accuracy"] == report[f"class_accuracy.{kept.argmin()}"]


def test_the_largest_drop_is_that_of_a_class_that_stays(case):
    model = knows_not(0, case.model)
    changes = recalls(model, case.test) - recalls(case.original, case.test)
    kept = changes.copy()
    kept[0] = np.inf
    report = audit(case, model=model)
    assert changes.min() < kept.min() < 0 < changes.max()  # not the forgotten class, and not a gain
    assert report["largest_drop"].value == pytest.approx(kept.min())
    assert report["largest_drop"] == report[f"class_change.{kept.argmin()}"]
    lost = audit(case, model=knows_not(3, model))  # a class that was destroyed is seen
    assert lost["largest_drop"].value == pytest.approx(-recalls(case.original, case.test)[3])
    n = int((case.test[1] == 3).sum())
    above = stats.binomtest(0, n).proportion_ci(method="wilson").high
    assert lost["worst_class"]["accuracy"] == purge.Value(0.0, 0.0, pytest.approx(above), n)
    assert lost["worst_class"]["class"] == purge.Value(3.0, n=n)


# -- calibration -------------------------------------------------------------------------------


def ece_by_hand(p: np.ndarray, y: np.ndarray, bins: int = 15) -> float:
    sure, right, total = p.max(1), p.argmax(1) == y, 0.0
    for i in range(bins):
        here = (sure > i / bins) & (sure <= (i + 1) / bins)
        if here.any():
            total += here.mean() * abs(right[here].mean() - sure[here].mean())
    return total


def test_calibration_error_by_hand_on_classes_that_stay(case):
    p, y = softmax(raw(case.model, case.test[0]), axis=1), case.test[1].numpy()
    kept = y != 0
    assert case.report["ece"].value == pytest.approx(ece_by_hand(p[kept], y[kept]), abs=1e-12)
    assert case.report["ece"].n == kept.sum()
    assert abs(ece_by_hand(p[kept], y[kept]) - ece_by_hand(p, y)) > 1e-3


def test_bins_are_closed_above():
    confidence = np.array([1.0, 14 / 15, np.nextafter(14 / 15, 1)])
    right = np.array([True, False, True])
    # 14/15 lies in the bin below the other two, so its error does not cancel with theirs
    expected = (14 / 15 + 1 / 15) / 3
    assert calibration_error(confidence, right, 0).value == pytest.approx(expected)


def test_a_calibrated_model_may_be_at_zero():
    # the value is above 0 by chance alone; the interval knows, a percentile of resampled sums does not
    rng = np.random.default_rng(0)
    held = []
    for i in range(40):
        confidence = rng.uniform(0.2, 1, 400)
        found = calibration_error(confidence, rng.random(400) < confidence, i)
        held.append(found.low == 0)
        assert found.value > 0.02
    assert np.mean(held) >= 0.9


# -- neighbours --------------------------------------------------------------------------------


def says(*logits: float) -> nn.Module:
    """A model that answers anything with the first input in (−1, 1) with these logits, and the rest well."""

    class Says(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, CLASSES, bias=False)
            self.layer.weight.data = 9 * torch.eye(CLASSES, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x[:, 5:] > 0, torch.tensor(logits), self.layer(x))

    return Says()


@pytest.fixture
def planted() -> SimpleNamespace:
    """Class 0 carries a mark, by which a model may send it anywhere; a third of class 1's tests as well."""
    y = torch.arange(CLASSES).repeat(12)
    x = torch.eye(CLASSES, 6)[y]
    x[y == 0, 5] = 1.0
    c = SimpleNamespace(retrained=None)
    c.forget, c.retain = purge.split((x, y), classes=[0])
    marked = x.clone()
    marked[(y == 1).nonzero()[:4, 0], 5] = 1.0
    c.test = marked, y
    c.original = says(6.0, 3.0, 0.0, 2.0, 1.0)  # nearest to class 0: 1, 3 and 4
    c.model = says(0.0, 0.0, 9.0, 0.0, 0.0)  # it now goes to class 2
    return c


def test_neighbours_are_those_of_the_original_model(planted):
    metrics = ["neighbours", "class_change"]
    report = audit(planted, metrics=metrics)
    curve = report.curves["audited"]["neighbours"]
    assert curve == {"class": [1, 3, 4], "before": [8 / 12, 1.0, 1.0], "after": [8 / 12, 1.0, 1.0]}
    assert report["neighbours.accuracy"].value == pytest.approx(32 / 36)
    assert report["neighbours.accuracy"].n == 36
    assert report["neighbours.change"].value == 0
    better = audit(planted, metrics=metrics, model=says(0.0, 9.0, 0.0, 0.0, 0.0))
    assert better["neighbours.change"].value == pytest.approx(4 / 36)
    assert better.curves["audited"]["neighbours"]["after"] == [1.0, 1.0, 1.0]


def test_neighbours_by_hand(case):
    p = softmax(raw(case.original, case.forget[0]), axis=1).mean(0)
    nearest = [k for k in np.argsort(-p) if k != 0][:3]
    y = case.test[1].numpy()
    near = np.isin(y, nearest)
    after, before = (raw(m, case.test[0]).argmax(1) == y for m in (case.model, case.original))
    found = case.report["neighbours"]
    assert case.report.curves["audited"]["neighbours"]["class"] == nearest
    assert found["accuracy"].value == pytest.approx(after[near].mean())
    assert found["change"].value == pytest.approx(after[near].mean() - before[near].mean())
    assert_like_scipy(found["change"], after[near].astype(float) - before[near])


def test_the_own_class_of_a_single_sample_is_not_its_neighbour(planted):
    x, y = (
        torch.cat([planted.forget[0], planted.retain[0]]),
        torch.cat([planted.forget[1], planted.retain[1]]),
    )
    forget, retain = purge.split((x, y), indices=[0, 1])  # two samples of class 0, which stays
    report = audit(planted, metrics="neighbours", forget=forget, retain=retain)
    assert report.info["forget_classes"] == []
    assert report.curves["audited"]["neighbours"]["class"] == [1, 3, 4]


# -- destinations ------------------------------------------------------------------------------


guesses = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(guesses)
def test_variation_distance_is_a_bounded_symmetric_distance_of_histograms(pairs):
    a, b = np.array(pairs).T
    found = variation_distance(a, b, 4, 0)
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value <= found.high + 1e-12 <= 1 + 2e-12
    assert found.value == pytest.approx(variation_distance(b, a, 4, 0).value)
    assert found.value <= (a != b).mean() + 1e-12  # samples that change class
    assert variation_distance(a, np.roll(a, 1), 4, 0).value == pytest.approx(0)  # the same histogram
    assert variation_distance(a, a, 4, 0) == purge.Value(0.0, 0.0, 0.0, len(a))
    apart = variation_distance(a % 2, b % 2 + 2, 4, 0)  # no class in common
    assert apart.value == pytest.approx(1)


@pytest.mark.parametrize(("theirs", "truth"), [([0.4, 0.3, 0.2, 0.1], 0.0), ([0.4, 0.35, 0.15, 0.1], 0.05),
                                               ([0.1, 0.2, 0.3, 0.4], 0.4)])  # fmt: skip
def test_intervals_of_the_distance_hold_the_truth(theirs, truth):
    rng = np.random.default_rng(1)
    held = []
    for i in range(60):
        a, b = rng.choice(4, 300, p=[0.4, 0.3, 0.2, 0.1]), rng.choice(4, 300, p=theirs)
        found = variation_distance(a, b, 4, i)
        held.append(found.low <= truth <= found.high)
    assert np.mean(held) >= 0.9
