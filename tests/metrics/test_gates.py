"""--fail-if: gates that an audit must pass."""

from __future__ import annotations

import pytest

from purge.core.errors import FileError, MetricError
from purge.metrics.gates import as_gate
from purge.metrics.metric import Metric
from purge.metrics.value import Value
from purge.result import Report

REPORT = {
    "values": {
        "fa_test": {"value": 0.031, "why": ""},
        "mia": {"value": 0.52, "why": ""},
        "bn_recal.delta": {"value": 0.02, "why": ""},
        "relearn_few.steps": {"value": 12.0, "why": ""},
        "kl_retrain": {"value": None, "why": "no retrained model was given to compare with"},
        "cka": {"value": None, "why": "no head"},
        "ta": {"value": 0.07, "why": ""},
    }
}


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("fa_test>2", True),
        ("fa_test>3.1", False),  # not above itself
        ("fa_test>=3.1", True),
        ("fa_test > 4 %", False),
        ("fa_test > +.4e1%", False),
        ("ta>7", False),  # though 100 * 0.07 is above 7
        ("fa_test<5", True),
        ("mia>0.5", True),  # not a share: as it is
        ("mia>50", False),
        ("bn_recal.delta>=2", True),
        ("bn_recal.delta>2", False),
        ("relearn_few.steps<20", True),
        ("relearn_few.steps<12", False),
    ],
)
def test_shares_are_compared_in_percent_and_other_numbers_as_they_are(text, broken):
    found = as_gate(text).broken(REPORT)
    assert bool(found) == broken
    if broken:
        assert text.split(">")[0].split("<")[0].strip() in found


def test_a_gate_on_a_missing_value_fails():
    assert "no retrained model" in as_gate("kl_retrain>1").broken(REPORT)
    assert "no head" in as_gate("cka.penultimate<0.5").broken(REPORT)


def test_a_gate_on_a_value_that_is_not_in_the_audit_is_a_bad_request():
    with pytest.raises(MetricError, match=r"did you mean 'bn_recal\.delta'"):
        as_gate("bn_recal.dleta>2").broken(REPORT)
    with pytest.raises(MetricError, match="ra to be measured"):
        as_gate("ra<90").broken(REPORT)


@pytest.mark.parametrize("text", ["fa_test.steps>2", "fa_test.bogus>2", "mia.loss>0.1"])
def test_a_part_that_a_metric_does_not_have_is_not_read_as_the_metric(text):
    with pytest.raises(MetricError, match="to be measured"):
        as_gate(text).broken(REPORT)


def test_a_gate_on_what_will_not_be_measured_is_refused():
    as_gate("bn_recal.delta>2").check(["ra", "bn_recal"])
    with pytest.raises(MetricError, match=r"bn_recal\.delta to be measured.+ add bn_recal to --metrics"):
        as_gate("bn_recal.delta>2").check(["ra", "mia"])


@pytest.mark.parametrize("name", ["bn_recal", "bn_recal.dleta", "fa_test.steps", "destinations.all"])
def test_a_gate_on_a_value_that_a_metric_does_not_have_is_refused(name):
    with pytest.raises(FileError, match="in --fail-if"):
        as_gate(f"{name}>2").check(["bn_recal", "fa_test", "destinations"])


@pytest.mark.parametrize("part", ["3", "03", "٣", "cat"])
def test_a_gate_on_a_class_that_is_not_there_is_refused(part):
    for name in ("class_accuracy.2", "ra"):
        as_gate(f"{name}>2").check_class(3)
    with pytest.raises(MetricError, match="Fix: name one of 0 to 2"):
        as_gate(f"class_accuracy.{part}>2").check_class(3)


@pytest.mark.parametrize("text", ["mia>40%", "relearn_few.steps>5 %", "kl_retrain>1%"])
def test_percent_of_what_is_not_in_percent_is_refused(text):
    with pytest.raises(MetricError, match=r"not in percent, got .+ Fix: leave out the %"):
        as_gate(text)


@pytest.mark.parametrize(
    "text",
    [
        "fa_test", "fa_test>", "fa_test>two", "fa_test>nan", ">2", "fa_test=2", "", "fa_test>inf",
        "fa_test>-infinity", "fa_test>1e999", "fa_test>1_0", "fa_test>٢", "fa_test>.", "fa_test>1e",
        "fa_test>--1",
    ],
)  # fmt: skip
def test_text_that_is_not_a_condition_is_refused(text):
    with pytest.raises(MetricError, match=r"Expected a condition such as 'fa_test>2', got .+ Fix: "):
        as_gate(text)


def test_an_unknown_metric_is_answered_with_the_nearest():
    with pytest.raises(MetricError, match="did you mean 'fa_test'"):
        as_gate("fa_tets>2")


def test_a_gate_on_a_metric_of_ones_own():
    own = Metric("sure", "sure", "how sure the model is", "nowhere:sure", parts=("forget",), unit="share")
    gate = as_gate("sure.forget > 40 %", [own])
    gate.check(["sure"])
    report = {"values": {"sure.forget": {"value": 0.5, "why": ""}}}
    assert gate.broken(report) == "Failed: sure.forget>40, it is 50.0 %."
    with pytest.raises(MetricError, match="the name of a metric"):
        as_gate("sure.forget>40")


# -- in Python -----------------------------------------------------------------------------------


def audited(forgotten: float) -> Report:
    """The audit of a model that is right about so many of 1000 images of a forgotten class."""
    info = {"classes": 10, "names": [], "forget_classes": [3], "forget_samples": 1000}
    before, after = Value(0.99, 0.98, 1.0, 1000), Value(forgotten, forgotten - 0.01, forgotten + 0.01, 1000)
    return Report({"fa_test": after}, {"fa_test": Value(0.0, 0.0, 0.003, 1000)}, {"fa_test": before}, info)


def test_failed_findings_are_a_condition_too():
    good, bad = audited(0.01), audited(0.9)
    assert good.failed == []
    assert [finding.topic for finding in bad.failed] == ["forgetting"]
    assert all(str(finding) in bad.verdict() for finding in bad.failed)
    gate = as_gate(" failed ")
    gate.check([])
    gate.check_class(3)
    assert gate.broken(good.to_dict()) == ""
    assert gate.broken(bad.to_dict()) == f"Failed: {bad.failed[0].title}."


def test_a_report_says_which_conditions_hold():
    report = audited(0.9)
    assert report.check("fa_test > 95", "fa_test < 5 %") == []
    assert report.check("fa_test > 2", "fa_test > 95") == ["Failed: fa_test>2, it is 90.0 %."]
    assert report.check("failed", "fa_test>=90") == [
        f"Failed: {report.failed[0].title}.",
        "Failed: fa_test>=90, it is 90.0 %.",
    ]
    assert audited(0.01).check("failed") == []
    with pytest.raises(MetricError, match="Expected at least one condition"):
        report.check()
    with pytest.raises(MetricError, match="did you mean 'fa_test'"):
        report.check("fa_tset>2")
    with pytest.raises(MetricError, match="ra to be measured"):
        report.check("ra<90")
    with pytest.raises(MetricError, match="a condition such as"):
        report.check("fa_test")


def test_a_report_knows_the_metrics_of_its_owner(tmp_path):
    own = Metric("sure", "sure", "how sure the model is", "nowhere:sure", parts=("forget",), unit="share")
    report = Report({"sure.forget": Value(0.5)}, {}, {}, metrics={"sure": own.describe()})
    report.to_json(tmp_path / "audit.json")
    for one in (report, Report.from_json(tmp_path / "audit.json")):
        assert one.check("sure.forget > 40 %") == ["Failed: sure.forget>40, it is 50.0 %."]
