"""Audits of special requests: a class mixed with single samples, wrong labels, and a backdoor."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

import purge
from purge.auditor import Auditor
from purge.core.errors import DataError
from purge.metrics import audited as base
from tests.metrics.numbers import CLASSES, audit, clouds, made, network, pick
from tests.refusals import assert_sentence

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "bad_labels.py")
NAMES = ["fa_test", "fa_train", "ta", "ta_retain", "ra", "mia", "agreement", "aus", "zrf", "clean_label",
         "attack_success"]  # fmt: skip


# -- a class and single samples of another -----------------------------------------------------


@pytest.fixture(scope="module")
def mixed():
    """Class 0 and ten samples of class 1, which come first."""
    y = clouds(300, 0)[1]
    return made(indices=torch.cat([(y == 1).nonzero()[:10, 0], (y == 0).nonzero()[:, 0]]))


@pytest.fixture(scope="module")
def report(mixed) -> purge.Report:
    return audit(mixed, NAMES)


def test_the_class_and_the_samples_are_audited_alone(mixed, report, tmp_path):
    y, stays = mixed.forget[1], mixed.test[1] != 0
    for name, own, test in (("classes", y == 0, mixed.test), ("samples", y == 1, pick(mixed.test, stays))):
        part = report.parts[name]
        alone = audit(mixed, NAMES, forget=pick(mixed.forget, own), truth=mixed.truth[own], test=test)
        assert alone.parts == part.parts == {}  # a request of one kind has no parts
        for values in ("values", "retrained", "original", "floor", "curves"):
            assert getattr(part, values) == getattr(alone, values)
        for key in ("forget_classes", "forget_samples", "retain_samples", "test_samples"):
            assert part.info[key] == alone.info[key]
        assert part.values["fa_train"] != report["fa_train"]
    assert [part.info["forget_classes"] for part in report.parts.values()] == [[0], []]
    report.to_json(tmp_path / "audit.json")
    content = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert content["parts"]["samples"]["values"]["mia"]["value"] == report.parts["samples"]["mia"].value
    assert purge.Report.from_json(tmp_path / "audit.json") == report


def test_without_test_data_of_other_classes_there_is_still_a_report(mixed):
    found = audit(mixed, NAMES, test=pick(mixed.test, mixed.test[1] == 0))
    assert found.parts["classes"]["fa_test"].value is not None
    assert found.parts["samples"]["fa_test"].why == "no test data was given"


def test_an_auditor_looks_at_the_others_once_for_each_part(mixed, monkeypatch):
    passes, plain = [], base.passing
    monkeypatch.setattr(base, "passing", lambda *given: (passes.append(given), plain(*given))[1])
    given = {k: v for k, v in vars(mixed).items() if k not in ("model", "truth", "triggered")}
    auditor = Auditor(**given, check=False)
    first = auditor.audit(mixed.model, metrics=["zrf"], progress=False)
    seen = len(passes)
    second = auditor.audit(network(5), metrics=["zrf"], progress=False)
    assert seen == 3 * 3  # three forget sets, three models
    assert len(passes) == seen + 3  # then only the audited one
    assert first.parts["samples"].original == second.parts["samples"].original
    assert first.parts["samples"].values != second.parts["samples"].values


# -- wrong labels and triggers -----------------------------------------------------------------


@pytest.fixture(scope="module")
def case():
    return made(indices=range(0, 240, 6))  # forty samples of all classes


def test_right_labels_of_any_form_give_the_same_number(case):
    found = {}
    for form in (torch.Tensor.numpy, torch.Tensor.tolist, lambda y: tuple(y.tolist()), torch.Tensor.char):
        found[form] = audit(case, "clean_label", truth=form(case.truth)).values
    plain = audit(case, "clean_label").values
    assert all(one == plain for one in found.values())
    assert audit(case, "clean_label", truth=case.truth.roll(7)).values != plain  # in the order of the samples


X, ZERO = torch.zeros(4, 6), torch.zeros(4).long()


@pytest.mark.parametrize(
    ("what", "given", "words"),
    [
        ("truth", [0] * 39, "shape (40,), got (39,)"),
        ("truth", [0] * 39 + [CLASSES], "labels from 0 to 4 in truth"),
        ("truth", [0] * 39 + [-1], "got -1"),
        ("truth", [0.5] * 40, "whole numbers"),
        ("truth", ["cat"] * 40, "whole numbers"),
        ("truth", [None] * 40, "whole numbers"),
        ("truth", "labels.txt", "got str"),
        ("truth", 5, "shape (40,)"),
        ("triggered", (X, ZERO + CLASSES), "labels from 0 to 4 in triggered"),
        ("triggered", (X, ZERO.float()), "whole numbers as labels in triggered"),
        ("triggered", (X, ZERO[:3]), "as many inputs as labels in triggered"),
        ("triggered", (X[:, 1:], ZERO), "in triggered"),
        ("triggered", (X / 0, ZERO), "finite inputs in triggered"),
        ("triggered", (X[:0], ZERO[:0]), "samples in triggered"),
        ("triggered", X, "triggered as a pair of tensors"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(case, what, given, words):
    with pytest.raises(DataError) as refused:
        audit(case, "ta", **{what: given})
    assert_sentence(str(refused.value), words)
    assert what in str(refused.value)


def test_the_example_prints_what_an_audit_finds(monkeypatch, capsys):
    example = runpy.run_path(EXAMPLE)
    reports, audited = [], purge.audit
    monkeypatch.setattr(purge, "audit", lambda *a, **k: reports.append(audited(*a, **k)) or reports[0])
    example["main"](epochs=3)
    out, report = capsys.readouterr().out, reports[0]
    assert "144 of 1437 training labels are wrong" in out
    assert report["clean_label"].n == 144
    columns = {"original": report.original, "unlearned": report.values, "retrained": report.retrained}
    for name, found in columns.items():
        row = next(line.split() for line in out.splitlines() if line.startswith(name))
        assert row[1:4] == [f"{found[key].value:.1%}" for key in ("fa_train", "clean_label", "ta")]
    assert report.retrained["clean_label"].value > report.retrained["fa_train"].value
