"""The lower bound on ε: against SciPy, against mechanisms of known ε, and against planted models."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binomtest
from torch import nn

import purge
from purge.core.errors import MetricError
from purge.metrics.canaries import best_bound, epsilon_bound, guessed, p_value
from tests.metrics.overfit import by_heart, noisy_digits

# -- the bound ---------------------------------------------------------------------------------


def clopper_pearson(right: int, guesses: int, confidence: float) -> float:
    """ε from the exact one-sided interval of the share of right guesses: what δ = 0 amounts to."""
    low = binomtest(right, guesses, alternative="greater").proportion_ci(confidence, "exact").low
    return max(math.log(low / (1 - low)), 0.0) if low else 0.0


@pytest.mark.parametrize(
    ("right", "guesses"), [(0, 10), (5, 10), (10, 10), (60, 100), (95, 100), (800, 1000)]
)
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_without_delta_it_is_the_interval_of_clopper_and_pearson(right, guesses, confidence):
    found = epsilon_bound(right, guesses, guesses, confidence)
    assert found == pytest.approx(clopper_pearson(right, guesses, confidence), abs=1e-6)


def by_sums(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The probability of the theorem, from binomial coefficients."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    f = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    extra = max((sum(f[right - i : right]) / i for i in range(1, right + 1)), default=0.0)
    return min(sum(f[right:]) + 2 * canaries * delta * extra, 1.0)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(
    ("right", "guesses", "canaries"), [(0, 8, 8), (7, 8, 30), (30, 40, 100), (40, 40, 40)]
)
def test_the_p_value_is_that_of_the_theorem(right, guesses, canaries, epsilon, delta):
    expected = by_sums(right, guesses, canaries, epsilon, delta)
    assert p_value(right, guesses, canaries, epsilon, delta) == pytest.approx(expected, rel=1e-9)


# -- mechanisms whose ε is known ---------------------------------------------------------------


def randomised_response(m: int, epsilon: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores and coins: each score says the truth with probability e^ε / (1 + e^ε)."""
    coins = rng.random(m) < 0.5
    truthful = rng.random(m) < 1 / (1 + math.exp(-epsilon))
    return np.where(coins == truthful, 1.0, -1.0) + 1e-3 * rng.random(m), coins


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_it_holds_in_at_least_as_many_draws_as_it_says(epsilon):
    rng, draws = np.random.default_rng(0), 200 if epsilon else 1000
    bounds = [best_bound(*randomised_response(200, epsilon, rng), 0.95, 0.0)[0] for _ in range(draws)]
    failed = sum(bound > epsilon for bound in bounds)
    assert binomtest(failed, draws, 0.05, alternative="greater").pvalue > 0.05
    if epsilon == 2.0:
        assert np.median(bounds) > 1.3


def test_the_upper_half_is_called_planted_and_the_lower_left_out():
    scores, coins = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 0.0]), np.array([1, 0, 0, 1, 1, 1], dtype=bool)
    assert guessed(scores, coins, 6).tolist() == [True, True, True, True, True, False]
    assert guessed(scores, coins, 2).tolist() == [True, False]
    assert guessed(scores, coins, 3).tolist() == [True, True, False]
    assert guessed(scores, coins, 1).tolist() == [True]


# -- models ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task() -> SimpleNamespace:
    """A network that learned canaries by heart, one that never saw them, one that was pushed off them."""
    train, test = noisy_digits(500)
    planted = purge.plant_canaries(train, 120, seed=5)
    forget, retain = purge.split(planted.data, indices=planted.rows)
    original = by_heart(planted.data, 0, steps=300)
    return SimpleNamespace(
        planted=planted, forget=forget, retain=retain, test=test, original=original,
        retrained=by_heart(retain, 1, steps=300),
    )  # fmt: skip


def audited(task: SimpleNamespace, model: nn.Module, **settings) -> purge.Report:
    metric = purge.epsilon_canaries(task.planted, **settings)
    others = {"original": task.original, "retrained": task.retrained, "progress": False}
    return purge.audit(model, task.forget, task.retain, task.test, metrics=["ra", metric], **others)


def test_a_model_that_remembers_is_caught_and_a_retrained_one_is_left_alone(task):
    report = audited(task, copy.deepcopy(task.original))
    assert report["epsilon_canaries.epsilon"].value > 2.5
    assert report["epsilon_canaries.right"].value > 0.9
    assert report.original["epsilon_canaries.epsilon"] == report["epsilon_canaries.epsilon"]
    assert report.retrained["epsilon_canaries.epsilon"].value == 0
    assert (
        report.retrained["epsilon_canaries.right"].low < 0.5 < report.retrained["epsilon_canaries.right"].high
    )


def test_the_number_is_that_of_its_guesses(task):
    report = audited(task, task.original)
    x, y = task.planted.samples
    with torch.no_grad():
        p = task.original(x).double().softmax(1)[torch.arange(len(y)), y].numpy()
    coins = task.planted.included.numpy()
    right = ((p > np.median(p)) == coins).sum()
    assert report["epsilon_canaries.right"].value == pytest.approx(right / len(y))
    bounds = {120: clopper_pearson(int(right), 120, 1 - 0.05 / 6)}
    for n in (60, 24):
        order = np.argsort(p)
        hits = coins[order[-n // 2 :]].sum() + (~coins[order[: n // 2]]).sum()
        bounds[n] = clopper_pearson(int(hits), n, 1 - 0.05 / 6)
    value = report["epsilon_canaries.epsilon"]
    assert value.value == pytest.approx(max(bounds.values()), abs=1e-6)
    assert bounds[value.n] == max(bounds.values())


def test_a_model_that_was_pushed_too_far_is_caught_too(task):
    pushed, (x, y) = copy.deepcopy(task.original), task.forget
    optimizer = torch.optim.Adam(pushed.parameters(), lr=3e-3)
    for _ in range(100):  # the planted label becomes less likely than it is for a sample never seen
        optimizer.zero_grad()
        own = pushed(x).log_softmax(1)[torch.arange(len(y)), y]
        (F.relu(own + 40).mean() + F.cross_entropy(pushed(task.retain[0]), task.retain[1])).backward()
        optimizer.step()
    report = audited(task, pushed)
    assert report["epsilon_canaries.right"].value < 0.4
    assert report["epsilon_canaries.epsilon"].value > 0.3


def test_confidence_and_delta_are_settings(task):
    plain = audited(task, task.original)["epsilon_canaries.epsilon"].value
    assert audited(task, task.original, confidence=0.99)["epsilon_canaries.epsilon"].value < plain
    assert audited(task, task.original, delta=1e-4)["epsilon_canaries.epsilon"].value < plain
    assert "99 % confidence" in purge.epsilon_canaries(task.planted, confidence=0.99).about
    assert "lower bound" in purge.epsilon_canaries(task.planted).explain()


def test_settings_out_of_range_and_something_else_than_a_record_are_refused(task):
    for settings in ({"confidence": 1.0}, {"confidence": 0.05}, {"delta": -0.1}):
        with pytest.raises(MetricError, match=next(iter(settings))):
            purge.epsilon_canaries(task.planted, **settings)
    with pytest.raises(MetricError, match="plant_canaries"):
        purge.epsilon_canaries(task.forget)
