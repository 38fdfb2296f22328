"""Every number of the audit against an independent computation, and the intervals against SciPy."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import sqrtm
from scipy.special import log_softmax, rel_entr, softmax
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.metrics.pairwise import paired_cosine_distances
from torch import nn

import purge
from purge.metrics import audited as base
from purge.metrics.bootstrap import DRAWS, auroc, auroc_draws, interval, mean_value, resamples
from purge.metrics.distance import frechet
from purge.runs.make import fresh_model
from tests.metrics.numbers import audit, features, guesses, noise, pick, raw

# -- a case with numbers in the interior: untrained networks on overlapping data ---------------


def network(seed: int) -> nn.Module:
    """An MLP whose running statistics are far from those of the data."""
    torch.manual_seed(seed)
    body = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
    model = nn.Sequential(*body, nn.Linear(16, 3))
    model[1].running_mean.copy_(2 * torch.randn(16))
    model[1].running_var.copy_(0.2 + torch.rand(16))
    model[1].num_batches_tracked.fill_(9)  # so that a cumulative average has to begin anew
    with torch.no_grad():  # all classes are predicted, none nearly always
        model[-1].weight.mul_(10)
        model[-1].bias.sub_(model.eval()(noise(300, 9)[0]).mean(0))
    return model


@pytest.fixture(scope="module")
def case() -> SimpleNamespace:
    c = SimpleNamespace(model=network(0), retrained=network(1), original=network(2))
    c.forget, c.retain = purge.split(noise(240, 0), classes=[0])
    c.test = noise(150, 1)
    c.same, c.kept = pick(c.test, c.test[1] == 0), pick(c.test, c.test[1] != 0)
    c.report = audit(c)
    return c


# -- accuracies --------------------------------------------------------------------------------


def test_an_auditor_says_what_single_audits_say_and_looks_at_the_others_once(case, monkeypatch):
    from purge.auditor import Auditor

    passes = []
    plain = base.passing
    monkeypatch.setattr(base, "passing", lambda *given: (passes.append(given), plain(*given))[1])
    models = [case.model, network(7)]
    others = {"original": case.original, "retrained": case.retrained, "check": False}
    auditor = Auditor(case.forget, case.retain, case.test, **others)
    together = [auditor.audit(model, progress=False) for model in models]
    assert len(passes) == 3 * (2 + 2)  # three sets, two audited models and two others
    given = {**others, "progress": False}
    alone = [purge.audit(model, case.forget, case.retain, case.test, **given) for model in models]
    assert len(passes) == 3 * (2 + 2) + 3 * 2 * 3
    for one, other in zip(together, alone, strict=True):
        one, other = one.to_dict(), other.to_dict()
        for part in ("values", "retrained", "original", "floor"):
            assert one[part] == other[part]
    assert together[0].to_dict()["values"] != together[1].to_dict()["values"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ta", "test"),
        ("ta_retain", "kept"),
        ("fa_train", "forget"),
        ("fa_test", "same"),
        ("ra", "retain"),
    ],
)
def test_accuracies_are_those_of_scikit_learn(case, name, part):
    data = getattr(case, part)
    value = case.report[name]
    assert value.value == pytest.approx(accuracy_score(data[1], guesses(case.model, data)), abs=1e-12)
    assert value.n == len(data[1])
    assert 0 < value.value < 1  # a number that could have come out wrong


def test_destinations_count_the_predictions_of_the_forget_set(case):
    counted = np.bincount(guesses(case.model, case.forget), minlength=3) / len(case.forget[1])
    found = case.report["destinations"]
    assert list(found) == ["0", "1", "2"]
    assert [v.value for v in found.values()] == pytest.approx(counted.tolist(), abs=1e-12)
    assert (counted > 0).sum() > 1


def test_two_forgotten_classes_share_their_test_data(case):
    forget, retain = purge.split(noise(240, 0), classes=[0, 2])
    report = purge.audit(case.model, forget, retain, case.test, metrics=["fa_test", "ta_retain"])
    both, rest = pick(case.test, case.test[1] != 1), pick(case.test, case.test[1] == 1)
    assert report["fa_test"].value == pytest.approx(accuracy_score(both[1], guesses(case.model, both)))
    assert report["ta_retain"].value == pytest.approx(accuracy_score(rest[1], guesses(case.model, rest)))


def test_single_samples_are_compared_with_test_data_of_their_classes(case):
    data = noise(240, 0)
    some = (data[1] == 1).nonzero()[:20, 0]  # class 1 stays, 20 samples of it go
    forget, retain = purge.split(data, indices=some)
    names = ["fa_test", "ta_retain", "mia_loss"]
    report = purge.audit(case.model, forget, retain, case.test, metrics=names)
    same = pick(case.test, case.test[1] == 1)
    assert report["fa_test"].value == pytest.approx(accuracy_score(same[1], guesses(case.model, same)))
    # no class is gone, so all of the test data is of classes that stay
    assert report["ta_retain"].value == pytest.approx(
        accuracy_score(case.test[1], guesses(case.model, case.test))
    )
    assert report["mia_loss"].value == pytest.approx(attack_by_hand(case.model, forget, same, "loss"))


def test_more_samples_than_fit_one_batch():
    # the audit goes in batches of 512; 1200 samples must give what one large batch gives
    model, data = network(0), noise(1200, 5)
    forget, retain = purge.split(data, classes=[1])
    report = purge.audit(model, forget, retain, noise(1200, 6), metrics=["ra", "ta"], progress=False)
    assert report["ra"].value == pytest.approx(accuracy_score(retain[1], guesses(model, retain)), abs=1e-12)
    assert report["ta"].n == 1200


def test_images_and_convolutions(digits):
    # pixels are normalised by the data, features are what the last layer is given
    models = [fresh_model("small-resnet", digits.train, seed=seed) for seed in (0, 1)]
    names = ["ra", "feature_l2", "feature_cosine", "fid_feat"]
    report = purge.audit(
        models[0], digits.forget, digits.retain, digits.test, retrained=models[1], metrics=names
    )

    def pixels(images: purge.Images) -> torch.Tensor:
        return (images.pixels / 255 - images.mean[0]) / images.std[0]

    a, b = (penultimate(m.eval(), pixels(digits.forget)) for m in models)
    assert report["feature_l2"].value == pytest.approx(np.linalg.norm(a - b, axis=1).mean(), rel=1e-4)
    assert report["feature_cosine"].value == pytest.approx(1 - paired_cosine_distances(a, b).mean(), abs=1e-5)
    assert report["fid_feat"].value == pytest.approx(by_sqrtm(a, b), rel=1e-3, abs=1e-6)
    right = raw(models[0], pixels(digits.retain)).argmax(1) == digits.retain.labels.numpy()
    assert report["ra"].value == pytest.approx(right.mean(), abs=1e-3)


def penultimate(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        h = torch.relu(model.bn1(model.conv1(x)))
        for block in (model.layer1, model.layer2, model.layer3, model.layer4):
            h = block(h)
        return h.mean((2, 3)).double().numpy()


# -- membership --------------------------------------------------------------------------------


def attack_by_hand(model, members, others, signal: str) -> float:
    scores = []
    for x, y in (members, others):
        p = log_softmax(raw(model, x), axis=1)
        scores.append(p.max(1) if signal == "confidence" else p[np.arange(len(y)), y])
    truth = np.r_[np.ones(len(scores[0])), np.zeros(len(scores[1]))]
    return roc_auc_score(truth, np.concatenate(scores))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_auroc_with_ties_is_that_of_scikit_learn(levels, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(levels, size=37) / 7, rng.integers(levels, size=23) / 7 - 0.1 * (levels == 1000)
    truth = np.r_[np.ones(37), np.zeros(23)]
    assert auroc(a, b) == pytest.approx(roc_auc_score(truth, np.r_[a, b]), abs=1e-12)
    assert auroc(a, b) + auroc(b, a) == pytest.approx(1)


# -- distances ---------------------------------------------------------------------------------


def test_agreement_counts_equal_predictions(case):
    same = guesses(case.model, case.forget) == guesses(case.retrained, case.forget)
    assert 0 < same.mean() < 1
    assert case.report["agreement"].value == pytest.approx(same.mean(), abs=1e-12)


def test_kl_is_that_of_scipy_and_from_the_retrained_model(case):
    p, q = (softmax(raw(m, case.forget[0]), axis=1) for m in (case.retrained, case.model))
    forward, backward = rel_entr(p, q).sum(1).mean(), rel_entr(q, p).sum(1).mean()
    assert abs(forward - backward) > 1e-4  # otherwise the wrong direction would go unseen
    assert case.report["kl_retrain"].value == pytest.approx(forward, rel=1e-9)
    assert case.report["kl_retrain"].value == pytest.approx(stats.entropy(p, q, axis=1).mean(), rel=1e-9)


def test_kl_stays_exact_where_probabilities_underflow():
    def sure(k: int) -> nn.Module:
        model = nn.Sequential(nn.Linear(1, 2))
        with torch.no_grad():
            model[0].weight.zero_()
            model[0].bias.copy_(torch.tensor([0.0, -2000.0]).roll(k))
        return model

    forget, retain = (torch.zeros(3, 1), torch.zeros(3).long()), (torch.ones(3, 1), torch.ones(3).long())
    report = purge.audit(sure(0), forget, retain, None, retrained=sure(1), metrics="kl_retrain")
    assert report["kl_retrain"].value == pytest.approx(2000, rel=1e-12)


@pytest.mark.parametrize(("suffix", "other"), [("", "retrained"), ("_original", "original")])
def test_feature_distances_are_those_of_numpy_and_scikit_learn(case, suffix, other):
    a, b = (features(m, case.forget[0]) for m in (case.model, getattr(case, other)))
    cosine = 1 - paired_cosine_distances(a, b).mean()
    assert case.report[f"feature_cosine{suffix}"].value == pytest.approx(cosine, abs=1e-9)
    distance = np.sqrt(((a - b) ** 2).sum(1)).mean()
    assert case.report[f"feature_l2{suffix}"].value == pytest.approx(distance, rel=1e-9)
    assert 0.01 < cosine < 0.99


def scaled(model: nn.Module, factor: float) -> nn.Module:
    """The same network with features (after a ReLU) times ``factor``."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model[3].weight.mul_(factor)
        model[3].bias.mul_(factor)
    return model


@pytest.mark.parametrize("factor", [1e3, 1e-3, 1e-7])
def test_cosine_does_not_depend_on_the_scale_of_features(case, factor):
    small = SimpleNamespace(**vars(case))
    small.model, small.retrained = scaled(case.model, factor), scaled(case.retrained, factor)
    report = audit(small, metrics=["feature_cosine", "feature_l2"])
    assert report["feature_cosine"].value == pytest.approx(case.report["feature_cosine"].value, abs=1e-4)
    assert report["feature_l2"].value == pytest.approx(factor * case.report["feature_l2"].value, rel=1e-4)


def test_features_that_are_all_zero_are_not_called_orthogonal(case):
    # a ReLU layer can die while unlearning; identical models must not get cosine 0 then
    dead = SimpleNamespace(**vars(case))
    dead.model = dead.retrained = scaled(case.model, 0.0)
    value = audit(dead, metrics="feature_cosine")["feature_cosine"]
    assert value.value == pytest.approx(1)
    dead.retrained = case.retrained  # one that is not zero is far from it
    assert audit(dead, metrics="feature_cosine")["feature_cosine"].value == pytest.approx(0)


def by_sqrtm(a: np.ndarray, b: np.ndarray) -> float:
    sa, sb = (np.atleast_2d(np.cov(x.T)) for x in (a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the root of a singular matrix is found all the same
        root = sqrtm(sa @ sb)
    assert np.isfinite(root).all()
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(sa + sb - 2 * np.real(root)))


def cloud(n: int, d: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


@pytest.mark.parametrize(("n", "d"), [(200, 5), (50, 20), (30, 1)])
def test_frechet_is_that_of_the_matrix_root(n, d):
    a, b = cloud(n, d, 0), cloud(n, d, 1)
    assert frechet(a, b) == pytest.approx(by_sqrtm(a, b), rel=1e-7)
    assert frechet(a, b) == pytest.approx(frechet(b, a), rel=1e-7)
    assert frechet(a, a) == pytest.approx(0, abs=1e-6 * np.trace(np.atleast_2d(np.cov(a.T))))
    assert frechet(a, a + 3) == pytest.approx(9 * d, rel=1e-6)


def by_eigenvalues(a: np.ndarray, b: np.ndarray) -> float:
    """The trace of the root is the sum of the roots of the eigenvalues, also of a singular product."""
    sa, sb = np.cov(a.T), np.cov(b.T)
    roots = np.sqrt(np.maximum(np.real(np.linalg.eigvals(sa @ sb)), 0))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(sa + sb) - 2 * roots.sum())


def test_frechet_with_fewer_samples_than_dimensions_and_dead_features():
    a, b = cloud(6, 12, 0), cloud(6, 12, 1)
    a[:, :3] = b[:, :3] = 0
    assert frechet(a, b) == pytest.approx(by_eigenvalues(a, b), rel=1e-4)
    assert frechet(a, a) == pytest.approx(0, abs=1e-5)
    assert frechet(np.zeros((4, 3)), np.zeros((4, 3))) == 0


def test_frechet_in_closed_form_on_lines():
    t, u = np.random.default_rng(0).normal(size=40), np.array([0.6, 0.8, 0.0])
    s = t.std(ddof=1)
    shift = 3 * t.mean() - t.mean()
    # the same line: the standard deviations are subtracted
    assert frechet(t[:, None] * u, 3 * t[:, None] * u) == pytest.approx(shift**2 + (3 * s - s) ** 2)
    # orthogonal lines: nothing in common, so all of the variance counts
    v = np.array([0.0, 0.0, 1.0])
    expected = 2 * t.mean() ** 2 + 2 * s**2
    assert frechet(t[:, None] * u, t[:, None] * v) == pytest.approx(expected)
    assert frechet(t[:, None], 2 * t[:, None]) == pytest.approx(t.mean() ** 2 + s**2)


def test_fid_looks_at_the_features_of_the_forget_set(case):
    a, b = (features(m, case.forget[0]) for m in (case.model, case.retrained))
    assert case.report["fid_feat"].value == pytest.approx(by_sqrtm(a, b), rel=1e-5)
    others = [features(m, case.retain[0]) for m in (case.model, case.retrained)]
    assert case.report["fid_feat"].value != pytest.approx(by_sqrtm(*others), rel=1e-3)


def test_retrain_gap_by_hand(case):
    def numbers(model: nn.Module) -> np.ndarray:
        accuracies = [np.mean(guesses(model, d) == d[1].numpy()) for d in (case.same, case.retain, case.kept)]
        attacks = [attack_by_hand(model, case.forget, case.same, s) for s in ("loss", "confidence")]
        return np.array([*accuracies, np.mean(attacks)])

    differences = numbers(case.model) - numbers(case.retrained)
    assert (np.sign(differences) > 0).any()
    assert (np.sign(differences) < 0).any()  # so that absolute values matter
    assert case.report["retrain_gap"].value == pytest.approx(np.abs(differences).mean(), abs=1e-12)


# -- BatchNorm recalibration -------------------------------------------------------------------


def recalibrated(model: nn.Module, x: torch.Tensor, size: int) -> nn.Module:
    """The attack by hand: reset, cumulative average, one pass."""
    model = copy.deepcopy(model)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm1d):
            m.reset_running_stats()
            m.momentum = None
    model.train()
    with torch.no_grad():
        for part in x.split(size):
            model(part)
    return model.eval()


def test_recalibration_by_hand(case):
    def accuracy(model: nn.Module) -> float:
        return accuracy_score(case.same[1], guesses(model, case.same))

    before, after = accuracy(case.model), accuracy(recalibrated(case.model, case.retain[0], 512))
    assert abs(after - before) > 0.05  # otherwise an attack that does nothing would pass
    found = case.report["bn_recal"]
    assert found["before"].value == pytest.approx(before, abs=1e-12)
    assert found["after"].value == pytest.approx(after, abs=1e-12)
    assert found["delta"].value == pytest.approx(after - before, abs=1e-12)
    assert found["before"].value == case.report["fa_test"].value
    # statistics of the wrong data would be seen
    assert accuracy(recalibrated(case.model, case.forget[0], 512)) != after


def test_recalibration_over_several_batches_is_a_cumulative_average():
    # the last batches must not count more than the first, as they do with a usual momentum
    model, data, test = network(0), noise(2400, 3), noise(1200, 4)
    forget, retain = purge.split(data, classes=[1])
    report = purge.audit(model, forget, retain, test, metrics="bn_recal", progress=False)
    same = pick(test, test[1] == 1)

    def accuracy(model: nn.Module) -> float:
        return accuracy_score(same[1], guesses(model, same))

    once = recalibrated(model, retain[0], len(retain[0]))
    assert report["bn_recal.after"].value == pytest.approx(accuracy(once), abs=0.01)
    assert abs(report["bn_recal.before"].value - accuracy(once)) > 0.05
    usual = copy.deepcopy(model).train()  # three batches at momentum 0.1 are far from it
    with torch.no_grad():
        for part in retain[0].split(512):
            usual(part)
    assert abs(accuracy(usual.eval()) - accuracy(once)) > 0.02


def test_recalibration_leaves_dropout_off():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.9), nn.BatchNorm1d(16), nn.Linear(16, 3))
    forget, retain = purge.split(noise(300, 0), classes=[0])
    test = noise(200, 1)
    report = purge.audit(model, forget, retain, test, metrics="bn_recal", progress=False)
    plain = nn.Sequential(model[0], nn.Identity(), model[2], model[3])
    same = pick(test, test[1] == 0)
    expected = accuracy_score(same[1], guesses(recalibrated(plain, retain[0], 512), same))
    assert report["bn_recal.after"].value == pytest.approx(expected, abs=0.01)


# -- bootstrap intervals -----------------------------------------------------------------------


def assert_like_scipy(value: purge.Value, *samples: np.ndarray, statistic=np.mean) -> None:
    """Ends within 0.25 standard errors of SciPy's: a 90 % interval would be off by 0.31."""
    reference = stats.bootstrap(
        samples, statistic, n_resamples=10_000, method="percentile", batch=500, rng=np.random.default_rng(0)
    )
    error = reference.standard_error
    assert value.low == pytest.approx(reference.confidence_interval.low, abs=0.25 * error)
    assert value.high == pytest.approx(reference.confidence_interval.high, abs=0.25 * error)
    assert value.low <= value.value <= value.high


@pytest.mark.parametrize("seed", range(3))
def test_intervals_of_means_are_those_of_scipy(seed):
    rng = np.random.default_rng(seed)
    skewed = rng.exponential(size=120)
    assert_like_scipy(mean_value(skewed, seed), skewed)


def pairs_above(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
    x, y = a[..., :, None], b[..., None, :]
    return ((x > y) + (x == y) / 2).mean((-1, -2))


def test_intervals_of_the_auroc_are_those_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.integers(8, size=40) + 1.0, rng.integers(8, size=30) + 0.0
    assert_like_scipy(purge.Value(auroc(a, b), *interval(auroc_draws(a, b, 0))), a, b, statistic=pairs_above)


def test_the_mean_attack_is_resampled_with_both_signals_at_once(case):
    # signals of one sample are correlated: averaging independent draws would be too narrow
    def scores(data: tuple[torch.Tensor, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        p = log_softmax(raw(case.model, data[0]), axis=1)
        return p[np.arange(len(p)), data[1]], p.max(1)

    inside, outside = scores(case.forget), scores(case.same)
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(1500):
        i, j = (rng.integers(len(part[0]), size=len(part[0])) for part in (inside, outside))
        draws.append(np.mean([pairs_above(a[i], b[j]) for a, b in zip(inside, outside, strict=True)]))
    low, high = np.quantile(draws, [0.025, 0.975])
    found = case.report["mia"]
    assert found.low == pytest.approx(low, abs=0.3 * np.std(draws))
    assert found.high == pytest.approx(high, abs=0.3 * np.std(draws))


@pytest.mark.parametrize("kind", ["hits", "numbers"])
def test_intervals_cover_the_truth_about_as_often_as_they_say(kind):
    rng = np.random.default_rng(1)
    covered = []
    for i in range(200):
        x = rng.random(100) < 0.3 if kind == "hits" else rng.normal(0.3, 1, size=100)
        value = mean_value(x, i)
        covered.append(value.low <= 0.3 <= value.high)
    assert 0.88 <= np.mean(covered) <= 0.99


@pytest.mark.parametrize(("hits", "n"), [(0, 40), (40, 40), (1, 1), (0, 1), (3, 7), (17, 400), (5000, 9999)])
def test_the_interval_of_a_share_is_that_of_scipy(hits, n):
    reference = stats.binomtest(hits, n).proportion_ci(method="wilson")
    found = mean_value(np.arange(n) < hits, 0)
    assert (found.value, found.n) == (hits / n, n)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=1e-12)
    assert found.low < found.high
    assert (found.low == 0) == (hits == 0)
    assert (found.high == 1) == (hits == n)


def test_resamples_draw_n_of_n_independently():
    counts = np.concatenate(list(resamples(30, 0)))
    assert counts.shape == (DRAWS, 30)
    assert (counts.sum(1) == 30).all()
    assert len({row.tobytes() for row in counts}) == DRAWS  # no block is repeated
    assert counts.mean(0) == pytest.approx(np.ones(30), abs=0.15)
    assert counts.var() == pytest.approx(1 - 1 / 30, abs=0.05)  # that of drawing with replacement


@pytest.mark.parametrize("part", ["forget", "retain", "test", "same_class_test", "kept_class_test"])
def test_what_a_metric_does_to_outputs_is_not_seen_by_the_next(case, part):
    def spoil(audited) -> purge.Value:
        for found in (audited.log_probs, audited.features, audited.guesses, audited.labels):
            found(part)[:] = 0
        return purge.Value(0.0)

    def look(audited) -> purge.Value:
        kept = audited.log_probs, audited.features, audited.guesses, audited.labels
        return purge.Value(float(sum(found(part).sum() for found in kept)))

    spoiler, looker = (purge.Metric(fn.__name__, fn.__name__, "", fn) for fn in (spoil, look))
    data = case.forget, case.retain, case.test
    alone = purge.audit(case.model, *data, metrics=[looker], progress=False)
    after = purge.audit(case.model, *data, metrics=[spoiler, looker], progress=False)
    assert after["look"].value == alone["look"].value != 0


def test_intervals_are_the_same_for_a_seed_and_others_for_another(case):
    again, other = audit(case), audit(case, seed=7)
    assert again.values == case.report.values
    moved = [
        name
        for name, v in case.report.values.items()
        if v.low is not None and (v.low, v.high) != (other[name].low, other[name].high)
    ]
    assert "mia" in moved
    assert "kl_retrain" in moved
    drawn = {"bn_recal", "mia_svc", "mia_split"}  # the seed also chooses or shuffles their data
    drawn |= {"relearn_few", "relearn_retain", "relearn_ratio", "probe", "probe_gap", "noise", "zrf"}
    drawn |= {"mia_quantile", "field_gap"}  # which MIA SVC is a part of
    for name, v in case.report.values.items():
        if name.split(".")[0] not in drawn:
            assert other[name].value == v.value
