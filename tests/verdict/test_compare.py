"""The one comparator, and the conditions of --fail-if and report.check."""

from __future__ import annotations

import pytest

from purge.audit_report import Report
from purge.core.errors import FileError, MetricError
from purge.metrics.metric import Metric
from purge.metrics.registry import METRICS, find_metric, read_conditions
from purge.metrics.value import Value
from purge.verdict.compare import Sign, missed_by, read_condition


@pytest.mark.parametrize(("sign", "holds"), [(">", "a"), (">=", "ae"), ("<", "b"), ("<=", "be")])
def test_a_bound_is_compared_but_for_rounding(sign, holds):
    assert Sign(sign).holds(0.2, 0.3) is ("b" in holds)
    assert Sign(sign).holds(0.1 + 0.2, 0.3) is ("e" in holds)
    assert Sign(sign).holds(0.3, 0.1 + 0.2) is ("e" in holds)
    assert Sign(sign).holds(0.4, 0.3) is ("a" in holds)


@pytest.mark.parametrize(
    ("value", "side", "slack", "off"),
    [(0.5, "least", 0.0, 0.25), (1.0, "least", 0.0, 0.0), (1.0, "most", 0.0, 0.25), (0.5, "most", 0.0, 0.0),
     (0.5, "near", 0.0, 0.25), (1.0, "near", 0.125, 0.125), (1.0, "near", 0.25, 0.0)],
)  # fmt: skip
def test_a_goal_is_missed_by_what_lies_beyond_its_slack(value, side, slack, off):
    assert missed_by(value, side, 0.75, slack) == off


# -- conditions ---------------------------------------------------------------------------------

VALUES = {
    "fa_test": Value(0.031), "mia": Value(0.52), "bn_recal.delta": Value(0.02), "ta": Value(0.07),
    "relearn_few.steps": Value(12.0), "cka": Value.missing("no head"),
    "kl_retrain": Value.missing("no retrained model was given to compare with"),
}  # fmt: skip
REPORT = Report(VALUES, {}, {})


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
        ("kl_retrain>1", True),  # a value that is missing does not pass
        ("cka.penultimate<0.5", True),
    ],
)
def test_shares_are_compared_in_percent_and_other_numbers_as_they_are(text, broken):
    assert bool(REPORT.check(text)) == broken


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bn_recal.dleta>2", r"did you mean 'bn_recal\.delta'"),
        ("ra<90", "ra to be measured"),
        ("fa_tets>2", "did you mean 'fa_test'"),
        *((name, "to be measured") for name in ("fa_test.steps>2", "fa_test.bogus>2", "mia.loss>0.1")),
        *((text, r"not in percent, got .+ Fix: leave out the %")
          for text in ("mia>40%", "relearn_few.steps>5 %", "kl_retrain>1%")),
        *((text, r"Expected a condition such as 'fa_test>2', got .+ Fix: ")
          for text in ("fa_test", "fa_test>", "fa_test>two", "fa_test>nan", ">2", "fa_test=2", "",
                       "fa_test>inf", "fa_test>-infinity", "fa_test>1e999", "fa_test>1_0", "fa_test>٢",
                       "fa_test>.", "fa_test>1e", "fa_test>--1")),
    ],
)  # fmt: skip
def test_what_is_no_condition_on_this_audit_is_refused(text, message):
    with pytest.raises(MetricError, match=message):
        REPORT.check(text)
    with pytest.raises(MetricError, match="Expected at least one condition"):
        REPORT.check()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bn_recal.delta>2", r"bn_recal\.delta to be measured.+ add bn_recal to --metrics"),
        *((f"{name}>2", "in --fail-if") for name in ("fa_test.steps", "destinations.all", "destinations")),
    ],
)
def test_a_condition_that_can_never_hold_is_refused_before_anything_is_measured(text, message):
    wanted = [METRICS["fa_test"], METRICS["destinations"]]
    read_conditions(["failed", "fa_test>2", "destinations.3>2"], wanted)
    with pytest.raises((MetricError, FileError), match=message):
        read_conditions([text], wanted)


@pytest.mark.parametrize("part", ["3", "03", "٣", "cat"])
def test_a_condition_on_a_class_that_is_not_there_is_refused(part):
    def condition(text):
        return read_condition(text, lambda name: find_metric(name).describe())

    for text in ("class_accuracy.2>2", "ra>2", "failed"):
        condition(text).check_class(3)
    with pytest.raises(MetricError, match="Fix: name one of 0 to 2"):
        condition(f"class_accuracy.{part}>2").check_class(3)


def test_a_report_knows_the_metrics_of_its_owner(tmp_path):
    own = Metric("sure", "sure", "how sure the model is", "nowhere:sure", parts=("forget",), unit="share")
    report = Report({"sure.forget": Value(0.5)}, {}, {}, metrics={"sure": own.describe()})
    report.to_json(tmp_path / "audit.json")
    for one in (report, Report.from_json(tmp_path / "audit.json")):
        assert one.check("sure.forget > 40 %") == ["Failed: sure.forget>40, it is 50.0 %."]
        assert one.check("sure.forget > 60 %") == []
    assert read_conditions(["sure.forget > 40 %"], [own])
    with pytest.raises(MetricError, match="the name of a metric"):
        read_conditions(["sure.forget>40"], [])
