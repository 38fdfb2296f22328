"""Audits of bad data (wrong labels, a backdoor), and the two numbers that papers compare with Retrain."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import pearsonr
from sklearn.svm import SVC
from torch import nn

import purge
from purge.core.errors import DataError
from purge.metrics.bootstrap import wilson
from purge.metrics.distance import correlations
from tests.nets import blobs, small_mlp
from tests.refusals import assert_sentence

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "bad_labels.py")
GONE = list(range(0, 240, 6))  # forty samples of all classes


def clouds(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes that overlap, so that models differ in what they get right."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    return torch.randn(n, 6, generator=g) + y[:, None] / 2, y


@pytest.fixture(scope="module")
def case() -> SimpleNamespace:
    x, y = clouds(240, 0)
    wrong = y.clone()
    wrong[GONE] = (y[GONE] + 1) % 3
    forget, retain = purge.split((x, wrong), indices=GONE)
    test = clouds(150, 1)
    seen = test[1] != 2
    models = [
        purge.train(small_mlp(i), data, epochs=e, lr=0.05, batch_size=32, seed=i, progress=False).model
        for i, (data, e) in enumerate((((x, wrong), 4), ((x, wrong), 40), (retain, 10)))
    ]
    return SimpleNamespace(
        forget=forget, retain=retain, test=test, truth=y[GONE], model=models[0], original=models[1],
        retrained=models[2], triggered=(test[0][seen] + 0.7, torch.full((int(seen.sum()),), 2)),
    )  # fmt: skip


def audit(case: SimpleNamespace, *metrics, **changes) -> purge.Report:
    given = {**vars(case), "metrics": list(metrics) or "quick", "progress": False, "check": False, **changes}
    return purge.audit(given.pop("model"), **given)


@pytest.fixture(scope="module")
def panel(case) -> purge.Report:
    """A panel with everything given, and two further retrainings."""
    return audit(case, retrained=[case.retrained, small_mlp(8), small_mlp(9)])


def logits(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(x).double().numpy()


# -- wrong labels and triggers -------------------------------------------------------------------


def test_clean_labels_and_attacks_are_counted_for_all_three_models(case):
    report = audit(case, "clean_label", "attack_success", "fa_train")
    columns = {"model": report.values, "retrained": report.retrained, "original": report.original}
    shares = set()
    for name, found in columns.items():
        guess = logits(getattr(case, name), case.forget[0]).argmax(1)
        clean = float(np.mean(guess == case.truth.numpy()))
        fooled = float(np.mean(logits(getattr(case, name), case.triggered[0]).argmax(1) == 2))
        for value, share, n in ((found["clean_label"], clean, 40),
                                (found["attack_success"], fooled, len(case.triggered[1]))):  # fmt: skip
            assert (value.value, value.n) == (pytest.approx(share), n)
            assert (value.low, value.high) == pytest.approx(wilson(share, n))
        assert found["fa_train"].value == pytest.approx(np.mean(guess == case.forget[1].numpy()))
        assert clean + found["fa_train"].value <= 1
        shares.add((clean, fooled))
    assert len(shares) == 3  # so that mixed-up models are seen


def test_right_labels_of_any_form_give_the_same_number(case):
    found = [audit(case, "clean_label", truth=form(case.truth)).values for form in
             (lambda y: y, lambda y: y.numpy(), lambda y: y.tolist(), lambda y: tuple(y.tolist()),
              lambda y: y.to(torch.int8))]  # fmt: skip
    assert all(one == found[0] for one in found)
    backwards = audit(case, "clean_label", truth=case.truth.flip(0))
    assert backwards.values != found[0]  # they are taken in the order of the samples


def test_a_panel_shows_them_only_if_the_data_is_there(case, panel):
    assert panel["clean_label"].value is not None
    assert panel["attack_success"].value is not None
    report = audit(case, truth=None, triggered=None)
    assert panel.values.keys() - report.values.keys() == {"clean_label", "attack_success"}
    for need, name in (("truth", "clean_label"), ("triggered", "attack_success")):
        assert name in panel.table()
        assert name not in report.table()
        asked = audit(case, name, **{need: None})[name]
        assert asked.value is None
        assert f"({need}=…)" in asked.why


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        ([0] * 39, "got (39,)"),
        ([], "whole numbers"),
        ([0] * 39 + [3], "labels from 0 to 2 in truth"),
        ([0] * 39 + [-1], "got -1"),
        ([0.5] * 40, "whole numbers"),
        ([True] * 40, "whole numbers"),
        (["cat"] * 40, "whole numbers"),
        ([None] * 40, "whole numbers"),
        ([[0]] * 40, "(40, 1)"),
        (torch.zeros(40, 3).long(), "(40, 3)"),
        ("labels.txt", "got str"),
        (5, "shape (40,)"),
    ],
)
def test_right_labels_that_are_none_are_refused_in_one_line(case, truth, words):
    with pytest.raises(DataError) as refused:
        audit(case, "ta", truth=truth)
    assert_sentence(str(refused.value), words)
    assert "truth" in str(refused.value)


@pytest.mark.parametrize(
    ("triggered", "words"),
    [
        ((torch.zeros(4, 6), torch.full((4,), 3)), "labels from 0 to 2 in triggered"),
        ((torch.zeros(4, 6), torch.zeros(4)), "whole numbers as labels in triggered"),
        ((torch.zeros(4, 6), torch.zeros(5).long()), "as many inputs as labels in triggered"),
        ((torch.zeros(4, 5), torch.zeros(4).long()), "in triggered"),
        ((torch.full((4, 6), float("nan")), torch.zeros(4).long()), "finite inputs in triggered"),
        ((torch.zeros(0, 6), torch.zeros(0).long()), "samples in triggered"),
        (torch.zeros(4, 6), "triggered as a dataset"),
    ],
)
def test_triggered_samples_that_do_not_fit_are_refused_in_one_line(case, triggered, words):
    with pytest.raises(DataError) as refused:
        audit(case, "ta", triggered=triggered)
    assert_sentence(str(refused.value), words)


def test_parts_of_a_mixed_request_have_their_own_right_labels():
    x, y = blobs(240)
    gone = torch.cat([(y == 1).nonzero()[:10, 0], (y == 0).nonzero()[:, 0]])  # the samples come first
    forget, retain = purge.split((x, y), indices=gone)
    truth = torch.arange(len(forget[1])) % 3
    model = small_mlp(0)
    names = ["clean_label", "attack_success"]
    test = blobs(150, seed=1)
    triggered = test[0], torch.zeros_like(test[1])
    report = purge.audit(
        model, forget, retain, test, truth=truth, triggered=triggered, metrics=names, progress=False
    )
    right = logits(model, forget[0]).argmax(1) == truth.numpy()
    for part, label in (("classes", 0), ("samples", 1)):
        own = forget[1].numpy() == label
        assert report.parts[part]["clean_label"].value == pytest.approx(right[own].mean())
        assert report.parts[part]["clean_label"].n == own.sum()
        assert report.parts[part]["attack_success"] == report["attack_success"]
    assert report.parts["classes"]["clean_label"] != report.parts["samples"]["clean_label"]


# -- the correlation of log-odds -------------------------------------------------------------------


def log_odds(model: nn.Module, data) -> np.ndarray:
    """log p_y − log(1 − p_y), by the definition."""
    z, y = logits(model, data[0]), data[1].numpy()
    rows = np.arange(len(y))
    rest = z.copy()
    rest[rows, y] = -np.inf
    return z[rows, y] - logsumexp(rest, axis=1)


def test_the_correlation_of_log_odds_is_that_of_scipy(case):
    x, y = (log_odds(m, case.forget) for m in (case.model, case.retrained))
    p = np.exp(logits(case.model, case.forget[0]))
    p = (p / p.sum(1, keepdims=True))[np.arange(40), case.forget[1].numpy()]
    assert x == pytest.approx(np.log(p / (1 - p)), rel=1e-6)
    found, expected = audit(case, "odds_correlation")["odds_correlation"], pearsonr(x, y).statistic
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.n == 40
    assert found.low < found.value < found.high < 1
    clean = log_odds(case.model, (case.forget[0], case.truth))
    assert abs(pearsonr(clean, y).statistic - expected) > 0.05  # the label is the one it was trained with


def test_its_interval_is_that_of_resampled_pairs(case):
    x, y = (log_odds(m, case.forget) for m in (case.model, case.retrained))
    rng = np.random.default_rng(1)
    drawn = [pearsonr(x[at], y[at]).statistic for at in rng.integers(40, size=(2000, 40))]
    found = audit(case, "odds_correlation")["odds_correlation"]
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.05)


def test_correlations_of_resamples_one_by_one():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=9), 1e3 + 5 * rng.normal(size=9)
    counts = np.array([[1.0] * 9, [2, 0, 0, 3, 1, 1, 0, 0, 2], [9, 0, 0, 0, 0, 0, 0, 0, 0]])
    found = correlations(x, y, counts)
    for row, value in zip(counts[:2].astype(int), found, strict=False):
        assert value == pytest.approx(pearsonr(np.repeat(x, row), np.repeat(y, row)).statistic)
    assert np.isnan(found[2])  # a single sample, drawn nine times


class Fixed(nn.Module):
    """Logits that the input holds, times a scale, plus a shift of the second class."""

    def __init__(self, scale: float, shift: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2, bias=False)
        self.layer.weight.data = scale * torch.eye(2)
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + torch.tensor([0.0, self.shift])


def correlation(model: nn.Module, retrained: nn.Module, odds: list[float]) -> purge.Value:
    """Of samples of class 0 with these log-odds."""
    x = torch.tensor([[value, 0.0] for value in odds])
    forget, retain = (x, torch.zeros(len(odds)).long()), (torch.eye(2) - 9, torch.tensor([0, 1]))
    report = purge.audit(
        model, forget, retain, None, retrained=retrained, metrics="odds_correlation", progress=False,
        check=False,  # the models differ in their code, not in their weights
    )  # fmt: skip
    return report["odds_correlation"]


def test_the_sign_and_extreme_confidence_are_kept():
    odds = [1.0, 40.0, 80.0, -3.0]  # p_y of 1 − 1e-18 and more still differ from 1
    assert correlation(Fixed(1), Fixed(3, shift=-7), odds).value == pytest.approx(1)
    assert correlation(Fixed(-1), Fixed(1), odds).value == pytest.approx(-1)
    bent = pearsonr(odds, [1.0, 40.0, 80.0, 3.0]).statistic

    class Bent(Fixed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.abs())

    found = correlation(Bent(1), Fixed(1), odds)
    assert found.value == pytest.approx(bent)
    assert found.low <= found.value <= found.high <= 1


def test_what_does_not_vary_has_no_correlation():
    flat = correlation(Fixed(0.0), Fixed(1), [1.0, 2.0, 5.0])
    assert flat.value is None
    assert "model's log-odds are the same" in flat.why
    assert "the retrained model's" in correlation(Fixed(1), Fixed(0.0), [1.0, 2.0, 5.0]).why
    assert "three" in correlation(Fixed(1), Fixed(2), [1.0, 2.0]).why


# -- the gap of the literature ---------------------------------------------------------------------


def by_hand(case: SimpleNamespace, model: nn.Module, kept) -> np.ndarray:
    """UA, RA, TA and MIA of one model: 1 − accuracy, accuracies, and SVC on the label's probability."""

    def right(data):
        return logits(model, data[0]).argmax(1) == data[1].numpy()

    def probability(data):
        z = logits(model, data[0])
        p = np.exp(z - logsumexp(z, axis=1, keepdims=True))
        return p[np.arange(len(z)), data[1].numpy()][:, None]

    n = min(len(case.retain[1]), len(kept[1]))
    rng = np.random.default_rng(0)
    drawn = torch.from_numpy(rng.choice(len(case.retain[1]), n, replace=False))
    inside, outside = probability((case.retain[0][drawn], case.retain[1][drawn])), probability(kept)
    svc = SVC(C=3, kernel="rbf", gamma="auto").fit(
        np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)])
    )
    mia = np.mean(svc.predict(probability(case.forget)) == 0)
    return np.array([1 - right(case.forget).mean(), right(case.retain).mean(), right(kept).mean(), mia])


@pytest.mark.parametrize("kind", ["samples", "class"])
def test_the_gap_of_the_literature_by_hand(case, kind):
    if kind == "class":
        forget, retain = purge.split(clouds(240, 0), classes=[0])
        case = SimpleNamespace(**{**vars(case), "forget": forget, "retain": retain, "truth": None})
    stays = case.test[1] != (0 if kind == "class" else -1)
    kept = case.test[0][stays], case.test[1][stays]
    gaps = np.abs(by_hand(case, case.model, kept) - by_hand(case, case.retrained, kept))
    assert gaps.min() > 0.001
    report = audit(case, "field_gap", "retrain_gap")
    assert report["field_gap"].value == pytest.approx(gaps.mean())
    assert report["field_gap"].n == 4
    assert report["field_gap"].value != report["retrain_gap"].value


def test_without_an_attack_there_is_no_gap(case):
    few = case.test[0][:8], case.test[1][:8]  # an SVC wants ten
    found = audit(case, "field_gap", test=few, triggered=None)["field_gap"]
    assert found.value is None
    assert found.why.startswith("mia_svc.confidence could not be computed: an attack learns")


# -- the verdict -----------------------------------------------------------------------------------


# -- the example -----------------------------------------------------------------------------------


def test_the_example_prints_what_an_audit_finds(monkeypatch, capsys):
    example = runpy.run_path(EXAMPLE)
    reports, audited = [], purge.audit
    monkeypatch.setattr(purge, "audit", lambda *a, **k: reports.append(audited(*a, **k)) or reports[0])
    example["main"](epochs=3)
    out = capsys.readouterr().out
    assert "144 of 1437 training labels are wrong" in out
    assert reports[0]["clean_label"].n == 144
    columns = {"original": reports[0].original, "unlearned": reports[0].values,
               "retrained": reports[0].retrained}  # fmt: skip
    for name, found in columns.items():
        row = next(line.split() for line in out.splitlines() if line.startswith(name))
        shown = [f"{found[key].value:.1%}" for key in ("fa_train", "clean_label", "ta")]
        assert row[1:4] == shown
    assert reports[0].retrained["clean_label"].value > reports[0].retrained["fa_train"].value
