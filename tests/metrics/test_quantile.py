"""Membership by quantile regression: against linear algebra and SciPy, and against planted truths."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score
from torch import nn

import purge
from purge.metrics import quantile
from purge.metrics.bootstrap import auroc
from purge.metrics.likelihood import margins
from purge.metrics.membership import mia_margin
from purge.metrics.quantile import FOLDS, PENALTIES, described, mia_quantile, reduced, surprise
from purge.metrics.value import Missing
from tests.metrics.overfit import Pair, audited, by_heart, noisy_digits


class Shown(nn.Module):
    """A model that answers with the first two numbers of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(2))
            self.head.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[:, :2])


def drawn(n: int, seed: int, gain: float = 0.0, shift: float = 0.0) -> Pair:
    """Inputs of 12 numbers: two logits of margin 6·difficulty + noise + gain, ten that show it."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=g)
    hard = torch.randn(n, generator=g)
    phi = 6 * hard + torch.randn(n, generator=g) + gain + shift * y
    signs = 2 * y - 1
    x = torch.randn(n, 12, generator=g) + 10 * hard[:, None]
    x[:, 0], x[:, 1] = -signs * phi / 2, signs * phi / 2
    return x, y


def asked(forget: Pair, unseen: Pair, model: nn.Module | None = None):
    return audited(model or Shown(), forget, drawn(30, 99), unseen)


# -- against other computations ----------------------------------------------------------------


def ridge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Intercept and weights of the ridge regression whose leave-one-out error is least, by the hat matrix."""
    centre, mean, best = x.mean(0), y.mean(), (np.inf, np.zeros(0))
    for penalty in PENALTIES:
        inverse = np.linalg.inv((x - centre).T @ (x - centre) + penalty * np.eye(x.shape[1]))
        weights = inverse @ (x - centre).T @ (y - mean)
        hat = np.diag((x - centre) @ inverse @ (x - centre).T) + 1 / len(y)
        left_out = (y - mean - (x - centre) @ weights) / (1 - hat)
        if (error := (left_out**2).mean()) < best[0]:
            best = error, np.r_[mean - centre @ weights, weights]
    return best[1]


def test_scores_are_those_of_a_ridge_regression_by_linear_algebra():
    rng = np.random.default_rng(0)
    design, unseen, folds = rng.normal(size=(150, 4)), np.arange(150) >= 40, rng.integers(0, FOLDS, 150)
    phi = design @ [1, 2, 0, 0] + np.exp(design[:, 2] / 2) * rng.normal(size=150)
    found = surprise(phi, design, unseen, folds)
    scaled = (phi - np.median(phi[unseen])) / phi[unseen].std()
    ones = np.c_[np.ones(150), design]
    for fold in range(FOLDS):
        learn, ask = unseen & (folds != fold), folds == fold
        mean = ones @ ridge(design[learn], scaled[learn])
        gaps = np.log(np.abs(scaled - mean) + 1e-3)
        spread = np.exp(ones @ ridge(design[learn], gaps[learn]))
        assert found[ask] == pytest.approx(((scaled - mean) / spread)[ask], rel=1e-6)


def test_what_is_seen_of_the_inputs_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 9)) @ rng.normal(size=(9, 9)), np.arange(80) % 3
    found = described(x, y, np.arange(80) >= 40)  # four components of ten samples each
    pca = PCA(4).fit(x)
    z = pca.transform(x)
    rest = np.linalg.norm(x - pca.inverse_transform(z), axis=1)
    size = np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
    expected = np.c_[z, np.log(rest + 1e-3 * size), y[:, None] == [0, 1, 2]].astype(float)
    expected = (expected - expected.mean(0)) / expected.std(0)
    assert np.abs(found[:, :4]) == pytest.approx(np.abs(expected[:, :4]), rel=1e-8, abs=1e-8)  # either sign
    assert found[:, 4:] == pytest.approx(expected[:, 4:], rel=1e-6)


def test_the_metric_is_the_auroc_of_its_scores():
    forget, unseen = drawn(60, 0, gain=1.0), drawn(130, 1)
    found = mia_quantile(s := asked(forget, unseen))
    x, y = torch.cat([forget[0], unseen[0]]).double().numpy(), torch.cat([forget[1], unseen[1]]).numpy()
    phi = margins(np.concatenate([s.log_probs("forget"), s.log_probs("same_class_test")]), y)
    rng, out = np.random.default_rng(0), np.arange(190) >= 60
    folds = np.r_[rng.permutation(60) % FOLDS, rng.permutation(130) % FOLDS]
    scores = surprise(phi, described(x, y, out), out, folds)
    assert found["auroc"].value == pytest.approx(roc_auc_score(~out, scores), abs=1e-12)
    assert found["auroc"].n == 190
    assert s.curves["roc"]["quantile"]["tpr"][-1] == 1
    above = np.sort(scores[out])[-2]  # one of 130 may lie above
    assert found["tpr_1pct"].value == pytest.approx((scores[~out] > above).mean())
    assert "1000 non-members" in found["tpr_01pct"].why


# -- planted truths ----------------------------------------------------------------------------


def test_it_finds_members_that_no_single_threshold_finds():
    forget, unseen = drawn(300, 0, gain=2.0), drawn(500, 1)
    s = asked(forget, unseen)
    found, plain = mia_quantile(s), mia_margin(s)
    best = auroc(*(np.random.default_rng(i).normal(size=100_000) + g for i, g in enumerate((2.0, 0.0))))
    assert plain.high < 0.7
    assert found["auroc"].low > 0.85
    assert found["auroc"].value == pytest.approx(best, abs=0.05)  # .921: as if the difficulty were known
    assert found["tpr_1pct"].value > 0.3


def test_samples_that_were_seen_by_nobody_get_a_half():
    found = [mia_quantile(asked(drawn(40, i), drawn(40, 1000 + i)))["auroc"] for i in range(30)]
    values = np.array([v.value for v in found])
    assert values.mean() == pytest.approx(0.5, abs=3 * values.std(ddof=1) / np.sqrt(len(values)))
    assert sum(v.low <= 0.5 <= v.high for v in found) >= 26


def test_no_sample_is_judged_by_a_regression_that_has_seen_it():
    # fitted to all unseen samples and asked about the same ones, a regression finds the others odd
    rng, unseen, folds = np.random.default_rng(0), np.arange(80) >= 40, np.arange(80) % FOLDS
    apart, seen = [], []
    for _ in range(20):
        design, phi = rng.normal(size=(80, 12)), rng.normal(size=80)
        both = (
            surprise(phi, design, unseen, folds),
            phi - LinearRegression().fit(design[unseen], phi[unseen]).predict(design),
        )
        for scores, gaps in zip(both, (apart, seen), strict=True):
            gaps.append(np.abs(scores[~unseen]).mean() / np.abs(scores[unseen]).mean())
    assert np.mean(apart) == pytest.approx(1, abs=0.1)
    assert np.mean(seen) > 1.2


def test_it_does_not_matter_which_classes_there_are_more_of():
    # class 1 has higher margins, and more of the forget set is of class 1: nobody is a member
    forget, unseen = drawn(600, 0, shift=20.0), drawn(600, 1, shift=20.0)
    most = (forget[1] == 1) | (torch.arange(600) % 4 == 0)
    s = asked((forget[0][most], forget[1][most]), unseen)
    found = mia_quantile(s)["auroc"]
    assert found.low < 0.5 < found.high


@pytest.fixture(scope="module")
def task() -> SimpleNamespace:
    train, test = noisy_digits()
    forget, retain = purge.split(train, indices=range(100))
    return SimpleNamespace(
        forget=forget, retain=retain, test=test, original=by_heart(train, 0), retrained=by_heart(retain, 1)
    )


def test_the_untouched_original_is_caught_and_a_retrained_model_is_left_alone(task):
    original, retrained = (
        mia_quantile(audited(m, task.forget, task.retain, task.test))["auroc"]
        for m in (task.original, task.retrained)
    )
    assert original.low > 0.55
    assert original.low > retrained.value
    assert retrained.low < 0.5 < retrained.high


# -- any model, any data -----------------------------------------------------------------------


def test_a_model_that_always_says_the_same_gives_a_half(task):
    constant = nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 10))
    for p in constant.parameters():
        nn.init.zeros_(p)
    assert mia_quantile(audited(constant, task.forget, task.retain, task.test))["auroc"].value == 0.5


def test_margins_far_outside_the_usual_range(task):
    mask = by_heart(task.retain, 1, steps=1)
    with torch.no_grad():
        mask[-1].bias[0] = -3e38
    found = mia_quantile(audited(mask, task.forget, task.retain, task.test))["auroc"]
    assert np.isfinite([found.value, found.low, found.high]).all()


def test_inputs_that_are_all_the_same_leave_the_label():
    y = np.arange(40) % 2
    found = described(np.full((40, 5), 3.0), y, np.ones(40, dtype=bool))
    assert not found[:, :-2].any()
    assert found[:, -1] == pytest.approx(2 * y - 1)


def test_only_classes_with_enough_unseen_samples_have_a_column(monkeypatch):
    y = np.repeat([0, 1, 2, 3], [50, 9, 12, 30])
    x = np.zeros((len(y), 1))
    found = described(x, y, np.ones(len(y), dtype=bool))[:, -3:]
    for column, k in zip(found.T, (0, 2, 3), strict=True):
        assert set(y[column > 0]) == {k}
    monkeypatch.setattr(quantile, "CLASSES", 1)
    assert set(y[described(x, y, np.ones(len(y), dtype=bool))[:, -1] > 0]) == {0}


def test_few_unseen_samples_are_a_reason():
    with pytest.raises(Missing, match="at least 20 unseen samples, not 19"):
        mia_quantile(asked(drawn(40, 0), drawn(19, 1)))


def test_large_sets_are_drawn_from(monkeypatch):
    monkeypatch.setattr(quantile, "MOST", 50)
    found = mia_quantile(asked(drawn(300, 0, gain=3.0), drawn(300, 1)))["auroc"]
    assert found.n == 100
    assert found.value > 0.8


@pytest.mark.parametrize(
    ("inputs", "width"),
    [
        (torch.rand(5, 3, 32, 32), 3 * 64),
        (torch.rand(5, 1, 4, 4), 16),
        (torch.randint(9, (5, 7)), 7),
        (torch.rand(5, 3000), 1024),
        ({"ids": torch.randint(9, (5, 7)), "mask": torch.ones(5, 7, dtype=torch.bool)}, 14),
        ((torch.rand(5), torch.rand(5, 2, 3)), 7),
    ],
    ids=["images", "small images", "tokens", "long", "dict", "tuple"],
)
def test_inputs_of_every_kind_become_numbers(inputs, width):
    found = reduced(inputs)
    assert found.shape == (5, width)
    assert found.dtype == torch.float32
