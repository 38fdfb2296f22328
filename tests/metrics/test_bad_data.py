"""Audits of bad data (wrong labels, a backdoor), and the two numbers that papers compare with Retrain."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import purge
from purge.core.errors import DataError
from tests.metrics.numbers import clouds
from tests.nets import blobs, small_mlp
from tests.refusals import assert_sentence

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "bad_labels.py")
GONE = list(range(0, 240, 6))  # forty samples of all classes


@pytest.fixture(scope="module")
def case() -> SimpleNamespace:
    x, y = clouds(240, 0, 3)
    wrong = y.clone()
    wrong[GONE] = (y[GONE] + 1) % 3
    forget, retain = purge.split((x, wrong), indices=GONE)
    test = clouds(150, 1, 3)
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


# -- the gap of the literature ---------------------------------------------------------------------


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
