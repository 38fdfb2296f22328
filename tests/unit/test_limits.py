"""--fail-if: limits that an audit must keep."""

from __future__ import annotations

import pytest

from purge.errors import MetricError
from purge.limits import as_limit

REPORT = {
    "values": {
        "fa_test": {"value": 0.031, "why": ""},
        "mia": {"value": 0.52, "why": ""},
        "bn_recal.delta": {"value": 0.02, "why": ""},
        "relearn_few.steps": {"value": 12.0, "why": ""},
        "kl_retrain": {"value": None, "why": "no retrained model was given to compare with"},
        "cka": {"value": None, "why": "no head"},
    }
}


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("fa_test>2", True),
        ("fa_test>3.1", False),  # not above itself
        ("fa_test>=3.1", True),
        ("fa_test > 4 %", False),
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
    found = as_limit(text).broken(REPORT)
    assert bool(found) == broken
    if broken:
        assert text.split(">")[0].split("<")[0].strip() in found


def test_a_limit_on_what_was_not_measured_is_not_kept():
    assert "no retrained model" in as_limit("kl_retrain>1").broken(REPORT)
    assert "no head" in as_limit("cka.penultimate<0.5").broken(REPORT)


def test_a_limit_on_what_is_not_in_the_audit_is_a_bad_request():
    with pytest.raises(MetricError, match=r"did you mean 'bn_recal\.delta'"):
        as_limit("bn_recal.dleta>2").broken(REPORT)
    with pytest.raises(MetricError, match="ra to be measured"):
        as_limit("ra<90").broken(REPORT)


@pytest.mark.parametrize("text", ["fa_test", "fa_test>", "fa_test>two", "fa_test>nan", ">2", "fa_test=2", ""])
def test_what_is_no_limit_is_refused(text):
    with pytest.raises(MetricError, match=r"Expected a limit such as 'fa_test>2', got .+ Fix: "):
        as_limit(text)


def test_an_unknown_metric_is_answered_with_the_nearest():
    with pytest.raises(MetricError, match="did you mean 'fa_test'"):
        as_limit("fa_tets>2")
