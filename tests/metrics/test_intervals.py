"""Intervals, and rates of threshold attacks: against SciPy and scikit-learn; do they hold the truth?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve
from torch import nn

import purge
from purge.metrics.accuracy import calibration_error, change, variation_distance
from purge.metrics.bootstrap import (
    DRAWS,
    auroc,
    interval,
    matched,
    mean_value,
    rate_draws,
    rates,
    resamples,
)
from purge.metrics.membership import GRID, roc, threshold_attacks
from tests.metrics.numbers import assert_like_scipy, audit, made, probs

# -- means and differences ---------------------------------------------------------------------


def pairs_above(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    x, y = a[..., :, None], b[..., None, :]
    return ((x > y) + (x == y) / 2).mean((-1, -2))


def test_intervals_are_those_of_scipy():
    rng = np.random.default_rng(0)
    skewed = rng.exponential(size=120)
    assert_like_scipy(mean_value(skewed, 1), skewed)
    before = rng.random(300) < 0.8
    after = np.where(rng.random(300) < 0.1, ~before, before)  # nearly the same: unpaired would be wider
    assert_like_scipy(change(after, before, 0), after.astype(float) - before)
    confidence, hits = np.repeat([0.9, 0.5], 1000), np.tile(np.arange(10) < 7, 200)
    found = calibration_error(confidence, hits, 0)  # errors of two bins, of either sign, do not cancel
    assert found.value == pytest.approx(0.2)
    assert_like_scipy(found, (hits - confidence) * np.repeat([-1, 1], 1000))
    a, b = rng.integers(8, size=40) + 1.0, rng.integers(8, size=30) + 0.0
    assert_like_scipy(
        purge.Value(auroc(a, b), *interval(rate_draws([(a, b)], 0)[0, 0])), a, b, statistic=pairs_above
    )


@pytest.mark.parametrize(("hits", "n"), [(0, 40), (40, 40), (1, 1), (0, 1), (3, 7), (17, 400), (5000, 9999)])
def test_the_interval_of_a_share_is_that_of_scipy(hits, n):
    reference = stats.binomtest(hits, n).proportion_ci(method="wilson")
    found = mean_value(np.arange(n) < hits, 0)
    assert (found.value, found.n) == (hits / n, n)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=1e-12)
    assert found.low < found.high
    assert (found.low == 0, found.high == 1) == (hits == 0, hits == n)


def test_that_no_sample_changed_does_not_mean_that_none_could():
    hits = np.arange(40) < 30
    found = change(hits, hits, 0)
    assert found.value == 0
    assert -0.1 < found.low < 0 < found.high < 0.1


def test_resamples_draw_n_of_n_independently():
    counts = np.concatenate(list(resamples(30, 0)))
    assert counts.shape == (DRAWS, 30)
    assert (counts.sum(1) == 30).all()
    assert len({row.tobytes() for row in counts}) == DRAWS  # no block is repeated
    assert counts.mean(0) == pytest.approx(np.ones(30), abs=0.15)
    assert counts.var() == pytest.approx(1 - 1 / 30, abs=0.05)  # that of drawing with replacement


def test_the_mean_attack_is_resampled_with_both_signals_at_once():
    # signals of one sample are correlated: averaging independent draws would be too narrow
    c = made(classes=[0])
    inside, outside = (
        [(p := probs(c.model, d))[np.arange(len(p)), d[1]], p.max(1)] for d in (c.forget, c.same)
    )
    rng, draws = np.random.default_rng(0), []
    for _ in range(1500):
        i, j = (rng.integers(len(part[0]), size=len(part[0])) for part in (inside, outside))
        draws.append(np.mean([pairs_above(a[i], b[j]) for a, b in zip(inside, outside, strict=True)]))
    found = audit(c, "mia")["mia"]
    ends = np.quantile(draws, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx(tuple(ends), abs=0.3 * np.std(draws))


class Column(nn.Module):
    """A model that is right where a column of its input says so."""

    def __init__(self, column: int) -> None:
        super().__init__()
        self.column, self.layer = column, nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x[:, self.column].long(), 2).float() + 0 * self.layer(x[:, :1])


def tug_of_war(rng: np.random.Generator, seed: int) -> purge.Value:
    """Of two models that are both right in 60 % of any data: the truth is 1, the value never."""

    def data(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        hits = torch.from_numpy(rng.random((n, 2)) < 0.6)
        return torch.where(hits, k, 1 - k).float(), torch.full((n,), k)

    parts = data(80, 0), data(80, 1), data(80, 1)
    return purge.audit(Column(0), *parts, retrained=Column(1), metrics="tow", seed=seed, progress=False)[
        "tow"
    ]


def spread(*theirs: float) -> Callable[[np.random.Generator, int], purge.Value]:
    def distance(rng: np.random.Generator, seed: int) -> purge.Value:
        a, b = (rng.choice(4, 300, p=p) for p in ([0.4, 0.3, 0.2, 0.1], theirs))
        return variation_distance(a, b, 4, seed)

    return distance


def calibrated(rng: np.random.Generator, seed: int) -> purge.Value:
    confidence = rng.uniform(0.2, 1, 400)
    return calibration_error(confidence, rng.random(400) < confidence, seed)


def tpr(inside: np.ndarray, outside: np.ndarray, fpr: float, seed: int, classes=None) -> purge.Value:
    return threshold_attacks({"score": (inside, outside)}, seed, classes).tpr("score", fpr)


def found_at(shift: float, n: int, m: int) -> Callable[[np.random.Generator, int], purge.Value]:
    """The bootstrap alone holds the truth in 75 to 87 % of cases with 100 others, Wilson's in 28 to 70 %."""
    return lambda rng, seed: tpr(rng.normal(shift, 1, n), rng.normal(0, 1, m), 0.01, seed)


def power(shift: float) -> float:
    return float(stats.norm.sf(stats.norm.isf(0.01) - shift))


COVERED = {
    "share": (lambda rng, seed: mean_value(rng.random(100) < 0.3, seed), 0.3),
    "mean": (lambda rng, seed: mean_value(rng.normal(0.3, 1, 100), seed), 0.3),
    "no distance": (spread(0.4, 0.3, 0.2, 0.1), 0.0),
    "a little": (spread(0.4, 0.35, 0.15, 0.1), 0.05),
    "far": (spread(0.1, 0.2, 0.3, 0.4), 0.4),
    "calibrated": (calibrated, 0.0),
    "tow": (tug_of_war, 1.0),
    "tpr of none": (found_at(0, 50, 100), power(0)),
    "tpr of some": (found_at(1, 300, 100), power(1)),
    "tpr of most": (found_at(3, 300, 100), power(3)),
    "tpr of many": (found_at(1, 50, 1000), power(1)),
}


@pytest.mark.parametrize("name", COVERED)
def test_intervals_hold_the_truth_about_as_often_as_they_say(name):
    draw, truth = COVERED[name]
    rng = np.random.default_rng(1)
    found = [draw(rng, seed) for seed in range(40)]
    assert np.mean([v.low <= truth <= v.high + 1e-9 for v in found]) >= 0.88
    assert any(v.value != truth for v in found)


def test_the_interval_of_the_retrain_free_divergence_reaches_zero_where_it_is_zero():
    c = made(indices=range(60))  # the same model, and data of one distribution: any value is chance
    found = audit(c, "rf_jsd", original=c.model)["rf_jsd"]
    assert found.low == pytest.approx(0, abs=1e-6) != found.value
    assert audit(c, "rf_jsd")["rf_jsd"].low > 1e-4


guessed = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(guessed)
def test_variation_distance_is_a_bounded_symmetric_distance_of_histograms(pairs):
    a, b = np.array(pairs).T
    found = variation_distance(a, b, 4, 0)
    assert -1e-12 <= found.low <= found.value + 1e-12 <= found.high + 2e-12 <= 1 + 3e-12
    assert found.value == pytest.approx(variation_distance(b, a, 4, 0).value)
    assert found.value <= (a != b).mean() + 1e-12  # samples that change class
    assert variation_distance(a, np.roll(a, 1), 4, 0).value == pytest.approx(0)  # the same histogram
    assert variation_distance(a, a, 4, 0) == purge.Value(0.0, 0.0, 0.0, len(a))
    assert variation_distance(a % 2, b % 2 + 2, 4, 0).value == pytest.approx(1)  # no class in common


# -- AUROC, TPR and ROC ------------------------------------------------------------------------


def tpr_of_sklearn(inside: np.ndarray, outside: np.ndarray, fpr: float, weights=1.0) -> float:
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    every = np.r_[np.ones(len(inside)), weights * np.ones(len(outside))]
    false, true, _ = roc_curve(truth, np.r_[inside, outside], sample_weight=every, drop_intermediate=False)
    return float(true[false <= fpr + 1e-12].max())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("levels", [1, 3, 20, 10_000])
def test_rates_are_those_of_scikit_learn_also_with_ties(levels, seed):
    rng = np.random.default_rng(seed)
    inside, outside = rng.integers(levels, size=90) + levels // 5, rng.integers(levels, size=130)
    expected = roc_auc_score(np.repeat([1, 0], [90, 130]), np.r_[inside, outside])
    assert auroc(inside, outside) == pytest.approx(expected, abs=1e-12)
    curve = roc(inside, outside)
    assert curve["fpr"] == list(GRID)
    assert curve["tpr"] == pytest.approx([tpr_of_sklearn(inside, outside, fpr) for fpr in GRID], abs=1e-6)
    for fpr in (0.0, 0.01, 0.1, 0.29, 0.5, 1.0):
        assert rates(inside, outside, [fpr])[1] == pytest.approx(
            tpr_of_sklearn(inside, outside, fpr), abs=1e-12
        )


@pytest.mark.parametrize("percent", [7, 14, 28, 29, 55, 57, 58])
def test_a_rate_that_is_not_a_binary_fraction_allows_all_its_false_positives(percent):
    outside, inside = np.arange(100.0), np.arange(100.0) + 0.5
    assert rates(inside, outside, [percent / 100])[1] == pytest.approx((percent + 1) / 100)


def tpr_by_counting(inside: np.ndarray, outside: np.ndarray, allowed: float) -> float:
    """The most of ``inside`` above a threshold that at most so many of ``outside`` are above."""
    above = [(inside > t).mean() for t in [-np.inf, *outside] if (outside > t).sum() <= allowed + 1e-9]
    return float(max(above))


@pytest.mark.parametrize(("m", "fpr"), [(300, 0.1), (120, 0.01), (64, 1.0)])
def test_draws_of_rates_are_those_of_resampled_data(m, fpr):
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(0.5, 1, 70).round(1), rng.normal(0, 1, m).round(1)) for _ in range(2)]
    w_in, w_out = (np.concatenate(list(resamples(n, s))).astype(int) for n, s in ((70, 3), (m, 4)))
    beyond = np.random.default_rng(5).poisson(1.0, 1000)
    draws = rate_draws(pairs, 3, [fpr])
    assert draws.shape == (2, 2, 1000)
    for (inside, outside), found in zip(pairs, draws, strict=True):  # one resample for both pairs
        for i in (0, 49, 50, 999):
            a, b = np.repeat(inside, w_in[i]), np.repeat(outside, w_out[i])
            assert found[0, i] == pytest.approx(roc_auc_score(np.repeat([1, 0], [70, m]), np.r_[a, b]))
            # and for the threshold, some of ``b`` above all that was seen
            assert found[1, i] == pytest.approx(tpr_by_counting(a, np.r_[b, [np.inf] * beyond[i]], fpr * m))


def test_a_tpr_has_the_wider_of_two_intervals_and_needs_enough_samples():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 400), rng.normal(0, 1, 1000)
    for fpr, least in ((0.01, 100), (0.001, 1000)):
        value = tpr(inside, outside, fpr, 5)
        assert value.value == tpr_of_sklearn(inside, outside, fpr)
        draws = rate_draws([(inside, outside)], 5, [fpr])[0, 1]
        alone = stats.binomtest(round(400 * value.value), 400).proportion_ci(method="wilson")
        assert value.low == pytest.approx(min(np.quantile(draws, 0.025), alone.low))
        assert value.high == pytest.approx(max(np.quantile(draws, 0.975), alone.high))
        assert value.n == 1400
        assert tpr(inside[:10], outside[:least], fpr, 0).value is not None
        few = tpr(inside, outside[: least - 1], fpr, 0)
        assert few.value is None
        for word in (str(least), str(least - 1), f"{100 * fpr:g} %"):
            assert word in few.why
        assert "10 forgotten samples, and there are 9" in tpr(inside[:9], outside, fpr, 0).why


# -- like is compared with like ----------------------------------------------------------------


def test_rates_with_classes_are_the_weighted_ones_of_scikit_learn():
    rng = np.random.default_rng(0)
    classes = np.repeat([0, 1], [45, 15]), np.repeat([0, 1], [20, 180])
    inside, outside = (3.0 * k + rng.normal(size=len(k)) for k in classes)
    weights = np.where(classes[1] == 0, 0.75 / 0.1, 0.25 / 0.9)
    truth, every = np.repeat([1, 0], [60, 200]), np.r_[np.ones(60), weights]
    expected = roc_auc_score(truth, np.r_[inside, outside], sample_weight=every)
    assert rates(inside, outside, classes=classes)[0] == pytest.approx(expected, abs=1e-12)
    for fpr in (0.01, 0.1, 0.5):
        expected = tpr_of_sklearn(inside, outside, fpr, weights)
        assert rates(inside, outside, [fpr], classes)[1] == pytest.approx(expected, abs=1e-12)
    few = tpr(inside, outside, 0.01, 0, classes)  # of 200 others few are of class 0
    assert few.value is None
    assert "200 weigh as much as 35" in few.why


def test_every_resample_is_matched_by_its_own_classes():
    rng = np.random.default_rng(0)
    classes = rng.integers(3, size=40), rng.integers(3, size=90) % 2  # class 2 has no unseen sample
    w_in, w_out = (rng.integers(3, size=(5, n)).astype(float) for n in (40, 90))
    found_in, found_out = matched(w_in, w_out, classes)
    assert np.array_equal(found_in, np.where(classes[0] < 2, w_in, 0))
    assert found_out.sum(1) == pytest.approx(w_out.sum(1))
    for k in (0, 1):
        ours, theirs = (w[:, c == k].sum(1) for w, c in ((found_in, classes[0]), (found_out, classes[1])))
        assert theirs / found_out.sum(1) == pytest.approx(ours / found_in.sum(1))
