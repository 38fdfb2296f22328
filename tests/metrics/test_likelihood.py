"""Attacks with shadow models, on arrays, against independent computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from purge.metrics.likelihood import (
    epsilons,
    forgetting_scores,
    gaussians,
    klom,
    likelihood_ratio,
    rmia,
    typical_probability,
)


def halves(models: int, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Every sample in exactly half of the models."""
    return rng.permuted(np.arange(models)[:, None] % 2 == np.zeros(samples), axis=0)


@pytest.mark.parametrize("models", [8, 64])
def test_the_likelihood_ratio_equals_that_of_gaussians(models):
    rng = np.random.default_rng(models)
    inside = halves(models, 12, rng)
    phi = rng.normal(0, 1, 12)
    shadows = rng.normal(rng.normal(0, 2, 12), rng.uniform(0.2, 3, 12), (models, 12)) + 2 * inside
    found, slow = likelihood_ratio(phi, shadows, inside), []
    own = {
        flag: [[shadows[i, j] for i in range(models) if inside[i, j] == flag] for j in range(12)]
        for flag in (True, False)
    }
    shared = {flag: math.sqrt(np.mean([np.var(g, ddof=1) for g in groups])) for flag, groups in own.items()}
    for j in range(12):
        log = {}
        for flag in (True, False):
            spread = shared[flag] if models < 64 else np.std(own[flag][j], ddof=1)
            log[flag] = stats.norm.logpdf(phi[j], np.mean(own[flag][j]), spread)
        slow.append(log[True] - log[False])
    assert found == pytest.approx(np.array(slow))
    p_f, p_n = (stats.norm.pdf(phi, *gaussians(shadows, chosen)) for chosen in (inside, ~inside))
    assert expit(found) == pytest.approx(p_f / (p_f + p_n))  # the score of U-LiRA


def test_shadow_models_that_all_agree_give_finite_scores():
    inside = halves(8, 5, np.random.default_rng(0))
    scores = likelihood_ratio(np.zeros(5), np.ones((8, 5)), inside)
    assert np.isfinite(scores).all()
    assert scores == pytest.approx(0)


def test_rmia_is_the_share_of_the_population_exceeded():
    rng = np.random.default_rng(0)
    inside = halves(6, 30, rng)
    inside[:, 20:] = False  # a population that no model has seen
    shadows, phi = rng.normal(0, 2, (6, 30)), rng.normal(0, 2, 30)
    typical = [np.mean([expit(shadows[i, j]) for i in range(6) if not inside[i, j]]) for j in range(30)]
    assert typical_probability(shadows, inside) == pytest.approx(np.array(typical))
    ratio = [expit(phi[j]) / (0.5 * ((1 + 0.3) * typical[j] + (1 - 0.3))) for j in range(30)]
    slow = [sum(ratio[j] / ratio[k] > 1 for k in range(20, 30)) / 10 for j in range(20)]
    found = rmia(phi[:20], phi[20:], np.array(typical[:20]), np.array(typical[20:]))
    assert found.tolist() == pytest.approx(slow)
    assert len(set(slow)) > 4


# -- ensembles of models -----------------------------------------------------------------------


def epsilon_of(fpr: float, fnr: float) -> float | None:
    if fpr == 0 and fnr == 0:
        return math.inf
    if fpr == 0 or fnr == 0:
        return None
    found = [math.log(1 - 1e-5 - a) - math.log(b) for a, b in ((fpr, fnr), (fnr, fpr)) if 1 - 1e-5 - a > 0]
    return max(0.0, *found) if found else None


def literal_epsilon(unlearned: np.ndarray, retrained: np.ndarray) -> float:
    """The definition of the challenge, with 100 thresholds per unit."""
    ranges = np.ptp(unlearned), np.ptp(retrained)
    if min(ranges) / max(ranges) < 0.01:
        return 50.0
    pos, neg = (
        (retrained, unlearned) if np.median(retrained) > np.median(unlearned) else (unlearned, retrained)
    )
    low, high = min(pos.min(), neg.min()), max(pos.max(), neg.max())
    found = [
        epsilon_of((neg >= t).mean(), (pos < t).mean())
        for t in np.linspace(low, high, math.ceil((high - low) * 100))
    ]
    narrow, wide = (unlearned, retrained) if ranges[0] < ranges[1] else (retrained, unlearned)
    width = np.ptp(narrow)
    for right in np.linspace(narrow.max() - 2, narrow.max() + 2, 400):
        left = np.linspace(right - width - 2, right - width + 2, 400)[:, None]
        called = [((left <= kind) & (kind <= right)).mean(1) for kind in (narrow, wide)]
        found += [epsilon_of(fpr, 1 - tpr) for tpr, fpr in set(zip(*called, strict=True))]
    return min(50.0, max(e for e in found if e is not None))


def spaced(
    rng: np.random.Generator, a: float, b: float, shift: float, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Two samples whose values a grid of 100 thresholds per unit can separate."""
    while True:
        both = np.concatenate([rng.normal(0, a, n), rng.normal(shift, b, n)])
        if np.diff(np.sort(both)).min() > 0.02:
            return both[:n], both[n:]


CASES = [  # spreads of the unlearned and the retrained models, and how far apart they are
    (1, 1, 0), (1, 1, 1), (1, 1, 3), (1, 1, 12), (0.4, 3, 0), (3, 0.5, 0.3), (0.6, 2, 1.5),
    (6, 6, 8), (8, 9, 5), (8, 9, 5), (10, 11, -6), (10, 11, -6),
]  # fmt: skip


@pytest.mark.parametrize("n", [4, 9])
def test_epsilon_equals_that_of_the_challenge(n):
    rng = np.random.default_rng(n)
    pairs = [spaced(rng, *case, n) for case in CASES]
    unlearned, retrained = (np.stack(side, 1) for side in zip(*pairs, strict=True))
    slow = [literal_epsilon(*pair) for pair in pairs]
    assert epsilons(unlearned, retrained) == pytest.approx(np.array(slow))
    assert 50 in slow
    assert len(set(slow)) > (3 if n > 4 else 1)
    most = math.ceil(math.log(n - 1))
    grades = [0.0 if e >= most else 2.0 ** -math.floor(e / 0.5) for e in slow]
    assert forgetting_scores(unlearned, retrained).tolist() == grades


def test_an_attack_may_look_between_two_thresholds():
    wide, narrow = np.array([-4, -3, 0.1, 3, 4, 5.0]), np.array([-0.5, -0.4, -0.2, 0, 0.2, 4.5])
    single = [epsilon_of((narrow >= t).mean(), (wide < t).mean()) or 0 for t in [*wide, *narrow]]
    found = epsilons(wide[:, None], narrow[:, None])
    assert found[0] > max(single)
    assert found == pytest.approx(epsilons(narrow[:, None], wide[:, None]))  # whichever is the unlearned one


def test_epsilon_where_values_are_equal():
    same, other = np.full((6, 1), 2.0), np.full((6, 1), 3.0)
    assert epsilons(same, same) == 0  # nothing to separate
    assert epsilons(same, other) == 50
    assert epsilons(same, np.arange(6.0)[:, None]) == 50  # one range is below 1 % of the other
    assert forgetting_scores(same, same) == 1
    assert forgetting_scores(same, other) == 0


def test_klom_is_the_entropy_of_two_histograms():
    rng = np.random.default_rng(0)
    unlearned, retrained = rng.normal(1, 2, (30, 40)), rng.normal(0, 1, (30, 40))
    unlearned[0, 0], retrained[1, 1], retrained[2, 2] = 1e6, -1e6, np.inf
    slow = []
    for a, b in zip(unlearned.T.clip(-100, 100), retrained.T.clip(-100, 100), strict=True):
        edges = np.linspace(min(a.min(), b.min()), max(a.max(), b.max()), 21)
        p, q = (np.histogram(side, edges)[0] / 30 for side in (a, b))
        slow.append(stats.entropy(p, np.where(p > 0, np.maximum(q, 1e-5), q)))
    assert klom(unlearned, retrained) == pytest.approx(np.array(slow))
    assert klom(unlearned, unlearned) == pytest.approx(0)
    assert klom(np.ones((3, 1)), np.ones((3, 1))) == pytest.approx(0)  # a range of zero
    apart = klom(np.zeros((3, 1)), np.ones((3, 1)))  # the largest value falls into the last bin
    assert apart == pytest.approx(math.log(1 / 1e-5), rel=1e-3)
