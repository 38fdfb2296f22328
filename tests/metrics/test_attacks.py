"""Attacks on membership against planted truths: who memorised is caught, who never saw is left alone."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from torch import nn

import purge
from purge.metrics import attacks, membership
from purge.metrics.audited import AuditedModel
from purge.metrics.bootstrap import auroc
from purge.metrics.likelihood import margins
from purge.metrics.membership import SIGNALS, mia_margin, roc
from purge.metrics.registry import METRICS
from purge.metrics.value import Missing, Value
from tests.metrics.overfit import Pair, audited, by_heart, noisy_digits

NAMES = [name for name, m in METRICS.items() if str(m.fn).startswith("purge.metrics.membership:")]
AUROCS = ["mia", "mia_split", "mia_quantile.auroc", *(f"mia_{signal}" for signal in SIGNALS)]
GONE = 4


def number(model: AuditedModel, name: str) -> Value:
    return model.named(METRICS[name.partition(".")[0]])[name]


def identity(classes: int, width: int | None = None) -> nn.Module:
    """A model whose logits are its first inputs."""
    model = nn.Sequential(nn.Identity(), nn.Linear(width or classes, classes))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(classes, width or classes))
        model[1].bias.zero_()
    return model


def logits(n: int, sure: float, seed: int) -> Pair:
    """Samples as four logits: the larger ``sure``, the oftener and the clearer they are right."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    x = 2 * torch.randn(n, 4, generator=g)
    x[torch.arange(n), y] += sure * torch.rand(n, generator=g)
    return x, y


def audit(forget: Pair, retain: Pair, test: Pair, metrics, **more) -> purge.Report:
    model = identity(forget[0].shape[1])
    return purge.audit(model, forget, retain, test, metrics=metrics, progress=False, **more)


# -- memorised digits --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task() -> SimpleNamespace:
    """A model that learnt all by heart, one that never saw D_f, and two edits of the first, half trained."""
    train, test = noisy_digits()
    forget, retain = purge.split(train, indices=range(100))
    t = SimpleNamespace(forget=forget, retain=retain, test=test, half=by_heart(train, 0, steps=40))
    t.few, t.most = purge.split(train, indices=range(40))
    t.original, t.retrained = by_heart(train, 0), by_heart(retain, 1)
    t.saw, t.never = (audited(m, forget, retain, test) for m in (t.original, t.retrained))
    return t


@pytest.mark.parametrize("name", AUROCS)
def test_a_model_that_learnt_the_samples_is_told_from_one_that_did_not(task, name):
    saw, never = number(task.saw, name), number(task.never, name)
    assert saw.low > max(0.5, never.value)
    assert never.low <= 0.5 <= never.high


def test_rates_and_shares_tell_labels_learnt_by_heart_from_others():
    g = torch.Generator().manual_seed(0)
    forget, retain, test = (
        (torch.randn(n, 64, generator=g), torch.randint(10, (n,), generator=g)) for n in (150, 150, 1000)
    )
    both = torch.cat([forget[0], retain[0]]), torch.cat([forget[1], retain[1]])
    saw, never = (audited(by_heart(data, 0), forget, retain, test) for data in (both, retain))
    for signal in SIGNALS:
        for name, fpr in (("tpr_1pct", 0.01), ("tpr_01pct", 0.001)):
            blind = number(never, f"{name}.{signal}")
            assert blind.low <= fpr <= blind.high
    for signal in ("loss", "m_entropy", "margin"):  # the others take sure mistakes for memories
        assert number(saw, f"tpr_1pct.{signal}").low > 0.01
    for feature in METRICS["mia_svc"].names():  # shares called NON-member
        assert number(saw, feature).high < number(never, feature).low
    assert number(never, "mia_lr").high < number(saw, "mia_lr").low  # share called member


def leaks(task: SimpleNamespace, model: nn.Module, **changed: Pair) -> dict[str, Value]:
    """Beside the half-trained original."""
    sets = {"forget": task.few, "retain": task.most, "test": task.test} | changed
    return attacks.leak_retained(audited(model, **sets, original=audited(task.half, **sets)))


def test_training_on_retained_samples_gives_them_away_in_either_direction(task, monkeypatch):
    memorised = by_heart(task.most, 0, steps=80, start=copy.deepcopy(task.half))
    found, honest = leaks(task, memorised), leaks(task, by_heart(task.most, 1, steps=40))
    assert found["loss"].low > max(0.6, honest["loss"].high)
    assert found["loss"].value > found["after"].value  # the pair tells more than the model alone
    assert honest["loss"].low < 0.5 < honest["loss"].high
    x, y = task.most
    wrong = (y + torch.randint(1, 10, y.shape, generator=torch.Generator().manual_seed(0))) % 10
    pushed = by_heart((x, wrong), 0, steps=80, start=copy.deepcopy(task.half))
    assert leaks(task, pushed)["loss"].high < 0.47
    same = leaks(task, copy.deepcopy(task.half))
    assert [same[name].value for name in ("loss", "confidence", "distance")] == [0.5] * 3
    u, v = task.test
    some = leaks(task, memorised, test=(u[v < 5], v[v < 5]))  # others have nobody to be ranked among
    assert some["loss"].n == int((y < 5).sum() + (v < 5).sum())
    monkeypatch.setattr(attacks, "MOST", 100)
    few = leaks(task, memorised)["loss"]
    assert (few.n, few.value > 0.6) == (200, True)


def test_it_does_not_matter_which_retained_classes_there_are_more_of(task):
    # without ranks by class, a test set of odd digits would make members of all even ones
    moved = copy.deepcopy(task.half)
    with torch.no_grad():
        moved[-1].bias[::2] += 3
    x, y = task.test
    odd = (y % 2 == 1) | (torch.arange(len(y)) % 20 == 0)
    found = leaks(task, moved, test=(x[odd], y[odd]))["loss"].value
    assert found == pytest.approx(leaks(task, moved)["loss"].value, abs=0.05)


# -- single signals ----------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [50.0, 800.0, 1e6])
def test_signals_stay_exact_where_probabilities_round_to_zero_and_one(gap):
    # two classes: log p_y − log(1 − p_y) is the gap; the modified entropy is −2 (1 − p_y) log p_y
    lp, y = np.array([[-math.exp(-gap), -gap]] * 2), np.array([0, 1])
    assert SIGNALS["margin"](lp, y) == pytest.approx([gap, -gap], rel=1e-12)
    assert SIGNALS["m_entropy"](lp, y) == pytest.approx([0, -2 * gap], rel=1e-12, abs=1e-40)
    for signal in SIGNALS.values():
        assert np.isfinite(signal(lp, y)).all()


def test_roc_curves_are_left_for_the_figures_beside_those_of_other_attacks():
    def first(audited: AuditedModel) -> Value:
        audited.curves.setdefault("roc", {})["lira"] = {"fpr": [1.0], "tpr": [1.0]}
        return Value(1.0)

    forget, retain, test = logits(60, 9.0, 0), logits(40, 9.0, 2), logits(110, 2.0, 1)
    report = audit(forget, retain, test, [purge.Metric("own", "o", "first", first), "tpr_1pct"])
    curves = report.curves["audited"]["roc"]
    assert list(curves) == ["lira", *SIGNALS]
    for name, signal in SIGNALS.items():
        scores = [signal(log_softmax(x.double().numpy(), axis=1), y.numpy()) for x, y in (forget, test)]
        assert curves[name] == roc(*scores, (forget[1].numpy(), test[1].numpy()))
        assert curves[name]["tpr"] == sorted(curves[name]["tpr"])
        assert curves[name]["tpr"][-1] == 1


def test_classes_of_other_shares_do_not_look_like_memory():
    """Class 0 is hard, class 1 easy; class 0 is 3/4 of the forget set and 1/10 of the test data."""
    g = torch.Generator().manual_seed(0)

    def drawn(n: int, share: float) -> Pair:
        y = (torch.arange(n) >= share * n).long()
        x = torch.randn(n, 2, generator=g)
        x[torch.arange(n), y] += torch.where(y == 1, 4.0, 0.5)
        return x, y

    forget, retain, test = drawn(400, 0.75), drawn(200, 0.5), drawn(2000, 0.1)
    report = audit(forget, retain, test, [*NAMES, "fa_test", "fa_train"])  # the model saw nothing at all
    for name in ("mia", "mia_split", *(f"mia_{signal}" for signal in SIGNALS)):
        assert report[name].low <= 0.5 <= report[name].high
        assert report[name].value == pytest.approx(0.5, abs=0.05)
    for value in report["tpr_1pct"].values():
        assert value.low <= 0.01 <= value.high
    assert abs(report["fa_test"].value - report["fa_train"].value) < 0.06
    plain = [SIGNALS["loss"](log_softmax(d[0].double().numpy(), 1), d[1].numpy()) for d in (forget, test)]
    assert auroc(*plain) < 0.35  # without weights
    whole = (test[0].argmax(1) == test[1]).float().mean()
    assert report["fa_test"].value < whole - 0.1


# -- attacks that learn ------------------------------------------------------------------------


def test_many_samples_are_rounded_and_counted_without_another_answer(monkeypatch):
    found = []
    for exact in (membership.EXACT, 10_000):
        monkeypatch.setattr(membership, "EXACT", exact)
        data = logits(500, 4.0, 0), logits(1100, 6.0, 1), logits(1100, 3.0, 2)
        found.append(audit(*data, "mia_svc")["mia_svc"])
    for feature, value in found[0].items():
        assert value.value == pytest.approx(found[1][feature].value, abs=0.01)
        assert 0 < value.value < 1


@pytest.mark.parametrize(
    ("metric", "forget", "retain", "test", "word"),
    [
        ("mia_split", 9, 40, 40, "9 forget"),
        ("mia_split", 40, 40, 9, "9 test"),
        ("mia_svc", 40, 9, 40, "9 retain"),
        ("mia_svc", 40, 40, 9, "9 test"),
        ("mia_lr", 40, 9, 40, "9 retain"),
        ("mia_lr", 40, 40, 9, "9 test"),
        ("mia_quantile", 40, 40, 19, "at least 20 unseen samples, not 19"),
        ("tpr_01pct", 40, 40, 999, "1000 non-members, and there are 999"),
    ],
)
def test_an_attack_does_not_learn_from_a_handful(metric, forget, retain, test, word):
    parts = [logits(n, 3.0, i) for i, n in enumerate((forget, retain, test))]
    found = audit(*parts, metric)
    assert list(found.values) == [metric]
    assert found[metric].value is None
    assert word in found[metric].why
    enough = {9: 10, 19: 20, 999: 1000}
    parts = [logits(enough.get(n, n), 3.0, i) for i, n in enumerate((forget, retain, test))]
    more = audit(*parts, metric).values
    assert next(iter(more.values())).value is not None


# -- a threshold for each sample ---------------------------------------------------------------


def drawn(n: int, seed: int, gain: float = 0.0, shift: float = 0.0) -> Pair:
    """Inputs of 12 numbers: two logits of margin 6·difficulty + noise + gain, ten that show it."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=g)
    hard = torch.randn(n, generator=g)
    phi = 6 * hard + torch.randn(n, generator=g) + gain + shift * y
    x = torch.randn(n, 12, generator=g) + 10 * hard[:, None]
    x[:, 0], x[:, 1] = (1 - 2 * y) * phi / 2, (2 * y - 1) * phi / 2
    return x, y


def shown(forget: Pair, unseen: Pair) -> AuditedModel:
    return audited(identity(2, width=12), forget, drawn(30, 99), unseen)


def ridge(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Intercept and weights of the ridge regression whose leave-one-out error is least, by the hat matrix."""
    centre, mean, best = x.mean(0), y.mean(), (np.inf, np.zeros(0))
    for penalty in attacks.PENALTIES:
        inverse = np.linalg.inv((x - centre).T @ (x - centre) + penalty * np.eye(x.shape[1]))
        weights = inverse @ (x - centre).T @ (y - mean)
        hat = np.diag((x - centre) @ inverse @ (x - centre).T) + 1 / len(y)
        left_out = (y - mean - (x - centre) @ weights) / (1 - hat)
        if (error := (left_out**2).mean()) < best[0]:
            best = error, np.r_[mean - centre @ weights, weights]
    return best[1]


def test_scores_are_those_of_a_ridge_regression_by_linear_algebra():
    rng = np.random.default_rng(0)
    design, unseen = rng.normal(size=(150, 4)), np.arange(150) >= 40
    folds = rng.integers(0, attacks.FOLDS, 150)
    phi = design @ [1, 2, 0, 0] + np.exp(design[:, 2] / 2) * rng.normal(size=150)
    found = attacks.surprise(phi, design, unseen, folds)
    scaled, ones = (phi - np.median(phi[unseen])) / phi[unseen].std(), np.c_[np.ones(150), design]
    for fold in range(attacks.FOLDS):
        learn, ask = unseen & (folds != fold), folds == fold  # no sample is judged by what has seen it
        mean = ones @ ridge(design[learn], scaled[learn])
        gaps = np.log(np.abs(scaled - mean) + 1e-3)
        spread = np.exp(ones @ ridge(design[learn], gaps[learn]))
        assert found[ask] == pytest.approx(((scaled - mean) / spread)[ask], rel=1e-6)


def test_what_is_seen_of_the_inputs_is_that_of_scikit_learn(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 9)) @ rng.normal(size=(9, 9)), np.arange(80) % 3
    found = attacks.described(x, y, np.arange(80) >= 40)  # four components of ten samples each
    pca = PCA(4).fit(x)
    z = pca.transform(x)
    rest = np.linalg.norm(x - pca.inverse_transform(z), axis=1)
    size = np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
    expected = np.c_[z, np.log(rest + 1e-3 * size), y[:, None] == [0, 1, 2]].astype(float)
    expected = (expected - expected.mean(0)) / expected.std(0)
    assert np.abs(found[:, :4]) == pytest.approx(np.abs(expected[:, :4]), rel=1e-8, abs=1e-8)  # either sign
    assert found[:, 4:] == pytest.approx(expected[:, 4:], rel=1e-6)
    y, every = np.repeat([0, 1, 2, 3], [50, 9, 12, 30]), np.ones(101, dtype=bool)
    same = attacks.described(np.full((101, 5), 3.0), y, every)  # inputs that are all the same leave the label
    assert not same[:, :-3].any()
    assert [set(y[column > 0]) for column in same[:, -3:].T] == [{0}, {2}, {3}]  # class 1 has nine
    monkeypatch.setattr(attacks, "CLASSES", 1)
    assert set(y[attacks.described(np.zeros((101, 1)), y, every)[:, -1] > 0]) == {0}


def test_the_metric_is_the_auroc_of_its_scores():
    forget, unseen = drawn(60, 0, gain=1.0), drawn(130, 1)
    found = attacks.mia_quantile(s := shown(forget, unseen))
    x, y = torch.cat([forget[0], unseen[0]]).double().numpy(), torch.cat([forget[1], unseen[1]]).numpy()
    phi = margins(np.concatenate([s.log_probs("forget"), s.log_probs("same_class_test")]), y)
    rng, out = np.random.default_rng(0), np.arange(190) >= 60
    folds = np.r_[rng.permutation(60) % attacks.FOLDS, rng.permutation(130) % attacks.FOLDS]
    scores = attacks.surprise(phi, attacks.described(x, y, out), out, folds)
    assert found["auroc"].value == pytest.approx(roc_auc_score(~out, scores), abs=1e-12)
    assert found["auroc"].n == 190
    assert s.curves["roc"]["quantile"]["tpr"][-1] == 1
    above = np.sort(scores[out])[-2]  # one of 130 may lie above
    assert found["tpr_1pct"].value == pytest.approx((scores[~out] > above).mean())


def test_it_finds_members_that_no_single_threshold_finds_and_nobody_else(monkeypatch):
    s = shown(drawn(300, 0, gain=2.0), drawn(500, 1))
    found, plain = attacks.mia_quantile(s), mia_margin(s)
    best = auroc(*(np.random.default_rng(i).normal(size=100_000) + g for i, g in enumerate((2.0, 0.0))))
    assert plain.high < 0.7
    assert found["auroc"].low > 0.85
    assert found["auroc"].value == pytest.approx(best, abs=0.05)  # .921: as if the difficulty were known
    blind = [attacks.mia_quantile(shown(drawn(40, i), drawn(40, 1000 + i)))["auroc"] for i in range(20)]
    values = np.array([v.value for v in blind])
    assert values.mean() == pytest.approx(0.5, abs=3 * values.std(ddof=1) / np.sqrt(len(values)))
    assert sum(v.low <= 0.5 <= v.high for v in blind) >= 17
    # class 1 has higher margins, and more of the forget set is of class 1: nobody is a member
    (x, y), unseen = drawn(600, 0, shift=20.0), drawn(600, 1, shift=20.0)
    most = (y == 1) | (torch.arange(600) % 4 == 0)
    shares = attacks.mia_quantile(shown((x[most], y[most]), unseen))["auroc"]
    assert shares.low < 0.5 < shares.high
    monkeypatch.setattr(attacks, "MOST", 50)
    few = attacks.mia_quantile(shown(drawn(300, 0, gain=3.0), drawn(300, 1)))["auroc"]
    assert (few.n, few.value > 0.8) == (100, True)


@pytest.mark.parametrize("bias", [None, -3e38])
def test_outputs_without_any_spread_or_far_outside_the_usual_range(task, bias):
    model = by_heart(task.retain, 1, steps=1)
    with torch.no_grad():
        if bias is None:
            model[-1].weight.zero_()
            model[-1].bias.zero_()
        else:
            model[-1].bias[0] = bias
    found = attacks.mia_quantile(audited(model, task.forget, task.retain, task.test))["auroc"]
    assert np.isfinite([found.value, found.low, found.high]).all()
    assert bias is not None or found.value == 0.5


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
    found = attacks.reduced(inputs)
    assert (found.shape, found.dtype) == ((5, width), torch.float32)


# -- the nearest class -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digit() -> SimpleNamespace:
    """A digit to forget, the original, and three retrained models."""
    train, test = noisy_digits(900, noise=0.0)
    forget, retain = purge.split(train, classes=[GONE])
    retrained = [by_heart(retain, seed, steps=400) for seed in (1, 2, 3)]
    original = by_heart(train, 0, steps=400)
    return SimpleNamespace(train=train, test=test, forget=forget, retain=retain, original=original,
                           retrained=retrained)  # fmt: skip


def against(digit: SimpleNamespace, model: nn.Module, **changed: Pair) -> dict[str, Value]:
    data = {**{k: getattr(digit, k) for k in ("forget", "retain", "test")}, **changed}
    return attacks.nearest_class(audited(model, **data, retrained=audited(digit.retrained[0], **data)))


@pytest.mark.parametrize("bias", [0.0, -20.0, -3e38])
def test_the_original_is_caught_behind_any_mask_and_retrained_models_are_left_alone(digit, bias):
    honest = [against(digit, m) for m in digit.retrained[1:]]
    masked = copy.deepcopy(digit.original)
    with torch.no_grad():
        masked[-1].bias[GONE] += bias
    found, plain = against(digit, masked), against(digit, digit.original)
    assert found["auroc"].low > max(abs(h["auroc"].value) for h in honest)
    assert found["taken"].high < -max(abs(h["taken"].value) for h in honest)
    assert all(h["auroc"].low < 0 < h["auroc"].high for h in honest)
    assert found["taken"] == plain["taken"]
    assert found["auroc"].value == pytest.approx(plain["auroc"].value, abs=1e-9)


def test_several_classes_and_single_samples_beside_them(digit, monkeypatch):
    forget, retain = purge.split(digit.train, classes=[GONE, 7])
    (x, y), (rx, ry) = forget, retain
    more = (torch.cat([x, rx[:30]]), torch.cat([y, ry[:30]]))
    data = {"retain": (rx[30:], ry[30:]), "test": digit.test}
    both, mixed = (against(digit, digit.original, forget=f, **data) for f in (forget, more))
    assert both["taken"].n == mixed["taken"].n == len(y)
    assert both["auroc"].value == pytest.approx(mixed["auroc"].value, abs=1e-9)
    near = attacks.nearest(audited(digit.retrained[0], forget, **data))
    assert set(near) == {GONE, 7}
    assert not {GONE, 7} & set(near.values())
    monkeypatch.setattr(attacks, "LEARN", 60)
    monkeypatch.setattr(attacks, "MOST", 40)
    assert against(digit, digit.original)["taken"].n == 40


def test_reasons_where_there_is_no_nearest_class(digit):
    single, rest = purge.split(digit.train, indices=range(20))
    with pytest.raises(Missing, match="no class is forgotten as a whole"):
        against(digit, digit.original, forget=single, retain=rest)
    few = torch.cat([torch.arange(len(digit.test[1]))[digit.test[1] == k][:5] for k in range(10)])
    with pytest.raises(Missing, match="at least 10"):
        against(digit, digit.original, test=(digit.test[0][few], digit.test[1][few]))
    train, test = ((x[y > 7], y[y > 7] - 8) for x, y in (digit.train, digit.test))
    two = audited(nn.Linear(64, 2), *purge.split(train, classes=[1]), test)
    two.retrained = audited(nn.Linear(64, 2), *purge.split(train, classes=[1]), test)
    with pytest.raises(Missing, match="two classes"):
        attacks.nearest_class(two)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["class", "samples"])
def test_attacks_on_the_gpu_find_what_they_find_on_the_cpu(digits, base, kind):
    """Within the tolerances of docs/metrics.md, with the convolutions in TF32, as torch computes them."""
    forget, retain = digits.forget, digits.retain
    if kind == "samples":
        forget, retain = purge.split(digits.train, indices=range(0, 1000, 5))
    reports = [
        purge.audit(base, forget, retain, digits.test, metrics=NAMES, device=device, progress=False)
        for device in ("cpu", "cuda")
    ]
    cpu, cuda = ({k: v.value for k, v in report.values.items()} for report in reports)
    assert cpu.keys() == cuda.keys()
    for name, value in cpu.items():
        counted = name.startswith(("tpr_", "mia_svc", "mia_lr", "mia_split"))
        tolerance = 0.15 if name == "mia_svc.prob" else 0.02 if counted else 0.005
        assert cuda[name] == (None if value is None else pytest.approx(value, abs=tolerance)), name
