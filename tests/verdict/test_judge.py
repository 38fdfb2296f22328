"""The verdict is what the numbers support, and no more: planted numbers, expected levels."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purge.verdict import rules
from purge.verdict.findings import Finding, Headline, Help, WhyOpen
from purge.verdict.judge import judge, verdict_of
from purge.verdict.numbers import Number, Numbers
from purge.verdict.rules import Level, Part, Question, Rule, Topic
from tests.verdict.reports import FORGOT, KNEW, Given, by_rule, made, on

KNOWS: Given = (0.9, 0.88, 0.92)  # what the original has, where the retrained model has 0.5
AIM: Given = (0.5, 0.49, 0.51)
RULE = Rule("made", Topic.FORGETTING, Question.MEMORY, ("fa_test",), 0.05)
EVERY_RULE = [rule for rule in vars(rules).values() if isinstance(rule, Rule) and rule.numbers]
EVERY_RULE = [rule for rule in (*EVERY_RULE, *rules.TREATMENTS) if rule is not rules.MOVED]


def judged(rule: Rule, ours: Given, theirs: Given | None, before: Given | None) -> Finding:
    name = rule.numbers[0]
    parts = [{} if v is None else {name: v} for v in (ours, theirs, before)]
    return judge(Numbers(made(parts[0], parts[1] or None, parts[2])), rule)[0]


# -- the difference of two numbers --------------------------------------------------------------


def share(value: float, low: float, high: float, n: int = 100) -> Number:
    return Number("fa_test", value, low, high, n, sure=True, unit="share")


def test_the_interval_of_a_difference_is_newcombes_and_that_of_a_share_without_a_spread_wilsons():
    # Newcombe (1998), Statistics in Medicine 17, method 10: 56/70 against 48/80 gives 0.0524 to 0.3339.
    off = share(0.8, 0.6918, 0.8769, 70).minus(share(0.6, 0.4904, 0.7000, 80))  # Wilson's intervals
    assert off.value == pytest.approx(0.2)
    assert (off.low, off.high) == pytest.approx((0.0524, 0.3339), abs=2e-3)
    wide = share(0.0, 0.0, 0.0, 37).wide
    assert (wide.low, wide.high) == (0.0, pytest.approx(0.0941, abs=1e-4))
    assert share(1.0, 1.0, 1.0, 37).wide.low == pytest.approx(1 - 0.0941, abs=1e-4)
    assert share(0.5, 0.4, 0.6).wide == share(0.5, 0.4, 0.6)


# -- one rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "ours", "level"),
    [
        ("both", (0.5, 0.49, 0.51), "shown"),
        ("both", (0.5, 0.40, 0.60), "unknown"),  # the two intervals overlap, and yet nothing is shown
        ("both", (0.56, 0.55, 0.57), "unknown"),
        ("both", (0.60, 0.59, 0.61), "failed"),
        ("both", (0.40, 0.39, 0.41), "failed"),  # less than the retrained model is not the same either
        ("above", (0.40, 0.39, 0.41), "shown"),
        ("above", (0.60, 0.59, 0.61), "failed"),
        ("below", (0.60, 0.59, 0.61), "shown"),
        ("below", (0.40, 0.39, 0.41), "failed"),
    ],
)
def test_only_an_interval_within_the_margin_shows_anything(side, ours, level):
    rule = replace(RULE, side=side, power=side == "both")
    assert judged(rule, ours, AIM, KNOWS).level == level


@pytest.mark.parametrize(
    ("before", "help_"),
    [(AIM, Help.MORE_SAMPLES), ((0.56, 0.5, 0.62), Help.MORE_SAMPLES), ((0.5, 0.2, 0.8), Help.MORE_SAMPLES),
     (None, Help.ORIGINAL)],
    ids=["same", "near", "wide", "none"],
)  # fmt: skip
def test_a_test_that_does_not_tell_the_original_shows_nothing(before, help_):
    found = judged(RULE, AIM, AIM, before)
    assert (found.level, found.evidence.help) == (Level.UNKNOWN, help_)
    assert not found.evidence.compared[0].tells


def test_the_evidence_has_the_numbers_that_were_compared():
    (one,) = judged(RULE, AIM, (0.48, 0.47, 0.49), KNOWS).evidence.compared
    assert (one.name, one.ours.value, one.theirs.value, one.ours.n) == ("fa_test", 0.5, 0.48, 1000)
    assert one.original is not None
    assert (one.against, one.original.value, one.margin, one.tells) == ("retrained", 0.9, 0.05, True)
    assert one.difference.value == pytest.approx(0.02)
    assert one.difference.low < 0.02 < one.difference.high


@st.composite
def intervals(draw: st.DrawFn) -> tuple[float, float, float, int]:
    low, value, high = sorted(draw(st.lists(st.floats(0, 1), min_size=3, max_size=3)))
    return value, low, high, draw(st.integers(1, 10_000))


@given(intervals(), intervals(), st.sampled_from([rule for rule in EVERY_RULE if rule.power]))
def test_no_rule_is_ever_shown_for_the_original(before, theirs, rule):
    aim = None if rule.aim is not None else theirs
    assert judged(rule, before, aim, before).level != "shown"


@given(intervals(), st.sampled_from([rule for rule in EVERY_RULE if rule.aim is None]))
def test_without_a_retrained_model_nothing_about_forgetting_is_shown(ours, rule):
    found = judged(rule, ours, None, (1.0, 0.99, 1.0))
    assert found.level != "shown" or rule is rules.KEPT  # the original is the aim there


@given(intervals(), st.sampled_from([rule for rule in EVERY_RULE if rule.aim is None]))
def test_a_model_equal_to_the_retrained_one_never_fails(theirs, rule):
    assert judged(rule, theirs, theirs, (1.0, 0.99, 1.0)).level != "failed"


def test_one_failure_among_many_is_not_averaged_away():
    signals = ("loss", "confidence", "entropy")
    aim: dict[str, Given] = {f"mia_{s}": AIM for s in signals}
    knows: dict[str, Given] = {f"mia_{s}": (0.8, 0.79, 0.81) for s in signals}
    assert by_rule(aim, aim, knows)["attacked"] == "shown"
    found = on("membership", {**aim, "mia_entropy": (0.7, 0.69, 0.71)}, aim, knows)[0]
    assert (found.level, found.evidence.compared[0].name) == ("failed", "mia_entropy")
    assert [c.tells for c in found.evidence.compared] == [True] * 3


def test_a_value_beyond_the_margin_keeps_another_from_showing_it():
    aim: dict[str, Given] = {"fa_train": (0.0, 0.0, 0.01), "fa_test": (0.0, 0.0, 0.2)}
    knows: dict[str, Given] = {"fa_train": 1.0, "fa_test": 1.0}
    assert by_rule({**aim, "fa_test": (0.03, 0.0, 0.2)}, aim, knows)["recognised"] == "shown"
    assert by_rule({**aim, "fa_test": (0.1, 0.0, 0.3)}, aim, knows)["recognised"] == "unknown"


# Rule → what was measured of this model, the retrained and the original one, and what follows.
ROWS: dict[str, tuple[str, dict[str, Given], dict[str, Given] | None, dict[str, Given], str]] = {
    "a class can fail alone": ("recognised", {"fa_test": KNOWS}, None, {}, "failed"),
    "and never be shown alone": (
        "recognised", {"fa_test": (0.0, 0.0, 0.001)}, None, {"fa_test": 1.0}, "unknown"),
    "none of 37 samples proves little": (
        "recognised", {"fa_test": (0.0, 0.0, 0.0, 37)}, {"fa_test": (0.0, 0.0, 0.0, 37)},
        {"fa_test": (1.0, 1.0, 1.0, 37)}, "unknown"),
    "a retrained model that knows it": (
        "recognised", {"fa_test": KNOWS}, {"fa_test": KNOWS}, {"fa_test": KNOWS}, "unknown"),
    "within two points": ("kept", {"ra": (0.9, 0.895, 0.905)}, {"ra": (0.9, 0.895, 0.905)}, {}, "shown"),
    "better is no damage": ("kept", {"ra": (0.95, 0.94, 0.96)}, {"ra": (0.9, 0.895, 0.905)}, {}, "shown"),
    "about two points": ("kept", {"ra": (0.88, 0.87, 0.89)}, {"ra": (0.9, 0.895, 0.905)}, {}, "unknown"),
    "five points": ("kept", {"ra": (0.85, 0.84, 0.86)}, {"ra": (0.9, 0.895, 0.905)}, {}, "failed"),
    "retrained before original": ("kept", {"ra": 0.9}, {"ra": 0.9}, {"ra": 1.0}, "shown"),
    "else the original": ("kept", {"ra": 0.9}, None, {"ra": 1.0}, "failed"),
    "a forgotten class does not suffer": (
        "worst_class", {"class_accuracy.0": 0.9, "class_accuracy.3": 0.0},
        {"class_accuracy.0": 0.9, "class_accuracy.3": 0.9}, {}, "shown"),
    "five samples of a class": (
        "worst_class", {"class_accuracy.0": (0.8, 0.4, 1.0, 5)}, {"class_accuracy.0": (1.0, 1.0, 1.0, 5)}, {},
        "unknown"),
    "the aim is not one half": (
        "attacked", {"mia_loss": (0.5, 0.49, 0.51)}, {"mia_loss": (0.6, 0.59, 0.61)},
        {"mia_loss": (0.8, 0.79, 0.81)}, "failed"),
    "canaries found": (
        "canaries", {"epsilon_canaries.epsilon": 1.5}, None, {"epsilon_canaries.epsilon": 2.6}, "failed"),
    "canaries gone": (
        "canaries", {"epsilon_canaries.epsilon": 0.0}, None, {"epsilon_canaries.epsilon": 2.6}, "shown"),
    "canaries never found": (
        "canaries", {"epsilon_canaries.epsilon": 0.0}, None, {"epsilon_canaries.epsilon": 0.0}, "unknown"),
    **{
        f"relearned {ratio}": ("relearned", {"relearn_ratio": ratio}, FORGOT, {"relearn_ratio": 0.5}, level)
        for ratio, level in (((0.4, 0.3, 0.5), "failed"), ((1.0, 0.9, 1.1), "shown"),
                             ((0.8, 0.7, 0.9), "unknown"), ((2.0, 1.8, 2.2), "shown"))
    },
    **{
        f"{name} of {gap}": ("inside", {name: gap}, FORGOT, {name: (0.2, 0.18, 0.22)}, level)
        for name in ("probe_gap", "head_refit_gap")
        for gap, level in (((0.02, 0.0, 0.04), "shown"), ((0.2, 0.18, 0.22), "failed"),
                           ((0.04, 0.0, 0.1), "unknown"))
    },
    **{
        f"{name} of {after}": (
            rule, {**FORGOT, name: after}, {**FORGOT, name: (0.0, 0.0, 0.02)}, {**KNEW, name: KNOWS}, level)
        for name, rule in (("bn_recal.after", "recalibrated"), ("relearn_retain.after", "trained_on"),
                           ("noise.5pct", "disturbed"), ("prune.50", "disturbed"),
                           ("quantise.int8", "disturbed"))
        for after, level in (((0.4, 0.38, 0.42), "failed"), ((0.0, 0.0, 0.02), "shown"),
                             ((0.1, 0.05, 0.2), "unknown"))
    },
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_each_rule(row):
    rule, ours, theirs, before, level = ROWS[row]
    assert by_rule(ours, theirs, before)[rule] == level


def test_a_mean_does_not_hide_the_class_that_suffered():
    ours: dict[str, Given] = {"ra": 0.95, "class_accuracy.0": 0.99, "class_accuracy.1": (0.6, 0.57, 0.63)}
    aim: dict[str, Given] = {"ra": 0.95, "class_accuracy.0": 0.9, "class_accuracy.1": 0.95}
    kept, worst = on("damage", ours, aim)
    assert (kept.level, worst.level) == ("shown", "failed")
    assert worst.evidence.compared[0].name == "class_accuracy.1"


SVC: dict[str, Given] = {"mia_svc.confidence": KNOWS}
RECALIBRATED: dict[str, Given] = {"bn_recal.after": KNOWS}


@pytest.mark.parametrize(
    ("ours", "theirs", "classes", "rule", "level", "missing"),
    [
        (SVC, {"mia_svc.confidence": AIM}, [], "members", "failed", None),
        (SVC, {"mia_svc.confidence": AIM}, [3], "attacked", "unknown", WhyOpen.MEASUREMENT),
        ({"mia_loss": KNOWS}, {}, [3], "attacked", "unknown", WhyOpen.REFERENCE),
        # what was never forgotten cannot come back, and treatments are judged by classes
        ({**KNEW, **RECALIBRATED}, FORGOT, [3], "lasts", "unknown", WhyOpen.FORGETTING),
        (RECALIBRATED, RECALIBRATED, [], "lasts", "unknown", WhyOpen.METHOD),
    ],
)
def test_what_is_not_judged_and_why(ours, theirs, classes, rule, level, missing):
    theirs = {**theirs, **RECALIBRATED} if theirs else {}
    found = verdict_of(made(ours, theirs, forget_classes=classes)).findings
    (one,) = [f for f in found if f.rule.name == rule]
    assert (one.level, one.evidence.missing) == (level, missing)
    assert (one.evidence.measured is not None) == (missing is WhyOpen.REFERENCE)
    assert (one.evidence.help is Help.RETRAINED) == (missing is WhyOpen.REFERENCE)
    assert classes == [] or "members" not in {f.rule.name for f in found}


@pytest.mark.parametrize(
    ("bound", "rule", "level"),
    [("least", "blocked", "failed"), ("most", "relearned", "unknown"), ("none", "relearned", "unknown"),
     ("", "relearned", "unknown")],  # an audit of an earlier version, which has only the note
)  # fmt: skip
def test_a_model_that_cannot_relearn_earns_nothing(bound, rule, level):
    report = made({**FORGOT, "relearn_ratio": (3.0, 2.9, 3.1)}, FORGOT, {"relearn_ratio": (0.5, 0.4, 0.6)})
    report["values"]["relearn_ratio"] |= {"why": "cut off", "bound": bound}
    (found,) = [f for f in verdict_of(report).findings if f.topic == "robustness"]
    assert (found.rule.name, found.level) == (rule, level)


# -- has anything changed at all? ---------------------------------------------------------------

SAME = {"audited": "abc", "original": "abc"}


@pytest.mark.parametrize(
    ("digests", "kind"),
    [(SAME, Headline.CONTRADICTED), ({**SAME, "original": "abd"}, Headline.NOT_CONTRADICTED),
     ({}, Headline.NOT_CONTRADICTED)],
)  # fmt: skip
def test_equal_weights_fail_whatever_the_numbers_say(digests, kind):
    assert verdict_of(made(FORGOT, FORGOT, KNEW, digests=digests)).kind is kind


@pytest.mark.parametrize(
    ("hidden", "output", "classes", "rule", "level"),
    [
        (0.0, 0.5, [3], "moved", "failed"),
        (0.01, 0.5, [3], "moved", "failed"),
        (0.01, 0.5, [], "moved", "shown"),
        (0.0, 0.5, [], "moved", "failed"),
        (0.3, 0.0, [3], "answers_moved", "failed"),
        (0.3, 0.5, [3], "moved", "shown"),
    ],
)
def test_a_model_that_hardly_moved_fails(hidden, output, classes, rule, level):
    values: dict[str, Given] = {"hidden_change": hidden, "output_change": output}
    theirs: dict[str, Given] = {"hidden_change": 0.3, "output_change": 0.5}
    found = on("forgetting", values, theirs, {}, forget_classes=classes)[-1]
    assert (found.rule.name, found.level) == (rule, level)


# -- distance -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ours", "floor", "level"),
    [
        ("agreement", (0.7, 0.68, 0.74), (0.72, 0.70, 0.74), "shown"),
        ("agreement", (0.6, 0.55, 0.65), (0.72, 0.70, 0.74), "shown"),  # as chance in training may do
        ("agreement", (0.5, 0.45, 0.65), (0.72, 0.70, 0.74), "unknown"),
        ("agreement", (0.3, 0.25, 0.35), (0.72, 0.70, 0.74), "failed"),
        ("kl_retrain", (0.5, 0.4, 0.6), (1.0, 0.9, 1.1), "shown"),
        ("kl_retrain", (1.6, 1.5, 1.8), (1.0, 0.9, 1.1), "unknown"),
        ("kl_retrain", (2.1, 2.0, 2.2), (1.0, 0.9, 1.1), "failed"),
        ("kl_retrain", (2.1, 1.9, 2.2), (1.0, 1.0, 1.0, 1), "unknown"),  # beside a single one
        ("kl_retrain", (2.3, 2.2, 2.4), (1.0, 1.0, 1.0, 1), "failed"),
        ("odds_correlation", (0.1, 0.0, 0.2), (0.9, 0.9, 0.9), "unknown"),  # not judged
    ],
)
def test_as_close_as_another_retraining_or_not(name, ours, floor, level):
    far: Given = (9.0, 8.9, 9.1) if name == "kl_retrain" else (0.01, 0.0, 0.02)
    (found,) = on("distance", {name: ours}, {"ra": 1.0}, {name: far}, {name: floor})
    assert found.level == level
    (same,) = on("distance", {name: ours}, {"ra": 1.0}, {name: ours}, {name: floor})
    assert same.level != "shown"  # it does not tell the original
    (alone,) = on("distance", {name: ours}, {"ra": 1.0}, {name: far})
    assert (alone.level, alone.evidence.help) == ("unknown", Help.SECOND_RETRAINED)


# -- as a whole ---------------------------------------------------------------------------------


def test_nothing_measured_is_nothing_shown():
    found = verdict_of(made({}))
    assert {f.level for f in found.findings} == {Level.UNKNOWN}
    assert {f.topic for f in found.findings} == {*Topic} - {Topic.DISTANCE}
    assert (found.level, found.kind, found.basis) == (Level.UNKNOWN, Headline.OPEN, None)
    assert found.findings[-1].rule is rules.NO_GUARANTEE


BROKEN: dict[str, Given] = {"ra": (0.5, 0.49, 0.51)}
FAR: dict[str, Given] = {"kl_retrain": (9.0, 8.9, 9.1)}
NEAR: dict[str, Given] = {"kl_retrain": (0.1, 0.1, 0.1)}


@pytest.mark.parametrize(
    ("ours", "theirs", "before", "kind", "basis"),
    [
        (FORGOT, FORGOT, KNEW, Headline.NOT_CONTRADICTED, "recognised"),
        (KNEW, FORGOT, KNEW, Headline.CONTRADICTED, "recognised"),
        (FORGOT, {}, {}, Headline.OPEN, None),
        ({**FORGOT, **BROKEN}, {**FORGOT, "ra": 0.9}, KNEW, Headline.DAMAGED, "kept"),
        ({**KNEW, **BROKEN}, {**FORGOT, "ra": 0.9}, KNEW, Headline.CONTRADICTED, "recognised"),
        ({**FORGOT, **FAR}, FORGOT, KNEW, Headline.TOLD_APART, "distance"),
        # having changed is not enough
        ({"hidden_change": 0.3}, {"hidden_change": 0.3}, {}, Headline.OPEN, None),
    ],
)
def test_the_headline_is_the_worst_of_what_was_asked(ours, theirs, before, kind, basis):
    found = verdict_of(made(ours, theirs, before, NEAR))
    levels = {Headline.NOT_CONTRADICTED: Level.SHOWN, Headline.OPEN: Level.UNKNOWN}
    assert (found.kind, found.level) == (kind, levels.get(kind, Level.FAILED))
    assert (found.basis and found.basis.rule.name) == basis
    assert bool(found.failed) == (found.level is Level.FAILED)


def mixed(samples: dict[str, Any]) -> dict[str, Any]:
    whole = made({**FORGOT, "ra": 0.9}, {**FORGOT, "ra": 0.9}, KNEW)
    return {**whole, "parts": {"classes": made(FORGOT, FORGOT, KNEW), "samples": samples}}


def test_the_two_kinds_of_a_mixed_request_are_judged_apart():
    found = verdict_of(mixed(made(KNEW, FORGOT, KNEW, forget_classes=[])))
    levels = [(f.part, f.rule.name, f.level) for f in found.findings if f.topic == "forgetting"]
    expected = [("classes", "recognised", "shown"), ("samples", "right_as_often", "failed")]
    assert levels == expected
    assert len([f for f in found.findings if f.topic == "damage"]) == 1
    half = verdict_of(mixed(made(FORGOT, FORGOT, FORGOT, forget_classes=[])))
    assert (half.kind, half.open_parts) == (Headline.OPEN, (Part.SAMPLES,))


def test_a_verdict_says_what_was_not_given():
    assert {"no_reference", "no_shadows"} <= by_rule({"mia_loss": 0.5}).keys()
    assert not {"no_reference", "no_shadows"} & by_rule({"lira.auroc": 0.5}, {"ra": 1.0}).keys()
    assert "augmented" in by_rule({}, augmented="retain is flipped at random")


def test_numbers_without_a_value_are_named_but_for_those_whose_lack_is_said_already():
    values: dict[str, Given] = {"ta": "no test data", "cka": "no retrained model", "lira": "no shadow models"}
    found = {f.rule.name: f.evidence for f in on("limits", values)}
    assert found["not_computed"].not_computed == ("ta",)
    beside = {f.rule.name: f.evidence for f in on("limits", values, {"ra": 1.0})}
    assert beside["not_computed"].not_computed == ("ta", "cka")


@pytest.mark.parametrize(
    ("copies", "rule"),
    [({"near": 3, "exact": 0}, {"copies_stay"}), ({"exact": 1}, {"copies_stay"}),
     ({"test_retain": 1}, {"copies_tested"}), ({"exact": 0, "test_forget": 0}, set())],
)  # fmt: skip
def test_copies_between_the_sets_are_findings(copies, rule):
    assert {r for r in by_rule({}, copies=copies) if r.startswith("copies")} == rule


def test_a_verdict_is_written_as_kinds_and_numbers():
    found = verdict_of(mixed(made({**KNEW, "mia_loss": 0.6}, FORGOT, KNEW, forget_classes=[])))
    again = json.loads(json.dumps(found.to_dict()))
    assert (again["level"], again["kind"]) == ("failed", "contradicted")
    row = next(f for f in again["findings"] if f["level"] == "failed")
    assert {k: row[k] for k in ("rule", "topic", "question", "part")} == {
        "rule": "right_as_often", "topic": "forgetting", "question": "memory", "part": "samples",
    }  # fmt: skip
    assert row["evidence"]["compared"][0]["difference"]["value"] == 1.0
    assert {f["question"] for f in again["findings"]} <= {*Question, None}
