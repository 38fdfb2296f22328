"""Requests that mix a whole class with single samples: each part is also audited alone."""

from __future__ import annotations

import json

import pytest
import torch

import purge
from purge.auditor import Auditor
from tests.nets import blobs, small_mlp

NAMES = ["fa_test", "fa_train", "ta", "ta_retain", "ra", "mia", "agreement", "aus", "zrf"]
VALUES = ("values", "retrained", "original", "floor")


@pytest.fixture(scope="module")
def mixed():
    """Class 0 and ten samples of class 1, with three models to compare with."""
    x, y = blobs(240)
    gone = torch.cat([(y == 0).nonzero()[:, 0], (y == 1).nonzero()[:10, 0]])
    forget, retain = purge.split((x, y), indices=gone)
    models = {"original": small_mlp(2), "retrained": [small_mlp(1), small_mlp(3)]}
    return {"forget": forget, "retain": retain, "test": blobs(150, seed=1), **models}


@pytest.fixture(scope="module")
def report(mixed) -> purge.Report:
    return purge.audit(small_mlp(0), **mixed, metrics=NAMES, progress=False, check=False)


def alone(mixed, which: torch.Tensor, test) -> purge.Report:
    x, y = mixed["forget"]
    given = {**mixed, "forget": (x[which], y[which]), "test": test}
    return purge.audit(small_mlp(0), **given, metrics=NAMES, progress=False, check=False)


def test_the_class_and_the_samples_are_audited_alone(mixed, report):
    y, (x_test, y_test) = mixed["forget"][1], mixed["test"]
    stays = y_test != 0
    expected = {
        "classes": alone(mixed, y == 0, mixed["test"]),
        "samples": alone(mixed, y == 1, (x_test[stays], y_test[stays])),
    }
    assert report.parts.keys() == expected.keys()
    for name, part in report.parts.items():
        for values in VALUES:
            assert getattr(part, values) == getattr(expected[name], values)
        assert part.curves == expected[name].curves
        for key in ("forget_classes", "forget_samples", "retain_samples", "test_samples"):
            assert part.info[key] == expected[name].info[key]
        assert part.values["fa_train"] != report["fa_train"]
        assert part.parts == {}
    assert report.parts["classes"].info["forget_classes"] == [0]
    assert report.parts["samples"].info["forget_classes"] == []
    assert report.parts["samples"].info["forget_samples"] == 10


@pytest.mark.parametrize("kept", [0, 1])
def test_a_request_of_one_kind_has_no_parts(mixed, kept):
    assert alone(mixed, mixed["forget"][1] == kept, mixed["test"]).parts == {}


def test_parts_are_in_the_json_and_read_back(report, tmp_path):
    report.to_json(tmp_path / "audit.json")
    content = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    for name in ("classes", "samples"):
        assert content["parts"][name]["values"]["mia"]["value"] == report.parts[name]["mia"].value
    again = purge.Report.from_json(tmp_path / "audit.json")
    assert again == report
    assert isinstance(again.parts["samples"], purge.Report)
    del content["parts"]  # a report of an earlier version
    (tmp_path / "old.json").write_text(json.dumps(content), encoding="utf-8")
    assert purge.Report.from_json(tmp_path / "old.json").parts == {}


def test_without_test_data_of_other_classes_there_is_still_a_report(mixed):
    x, y = mixed["test"]
    found = purge.audit(
        small_mlp(0), **{**mixed, "test": (x[y == 0], y[y == 0])}, metrics=NAMES, progress=False, check=False
    )
    assert found.parts["classes"]["fa_test"].value is not None
    assert found.parts["samples"]["fa_test"].why == "no test data was given"


def test_an_auditor_looks_at_the_others_once_for_each_part(mixed, monkeypatch):
    from purge.metrics import audited as base

    passes = []
    plain = base.passing
    monkeypatch.setattr(base, "passing", lambda *given: (passes.append(given), plain(*given))[1])
    auditor = Auditor(**mixed, check=False)
    first = auditor.audit(small_mlp(0), metrics=["zrf"], progress=False)
    seen = len(passes)
    second = auditor.audit(small_mlp(5), metrics=["zrf"], progress=False)
    assert seen == 3 * 4  # three forget sets, four models
    assert len(passes) == seen + 3  # then only the audited one
    assert first.parts["samples"].original == second.parts["samples"].original
    assert first.parts["samples"].values != second.parts["samples"].values
