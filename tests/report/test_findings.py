"""The verdict says what the numbers support, and no more: planted numbers, expected findings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import purge
from purge.auditor import Auditor
from purge.metrics.registry import METRICS, number
from purge.report import rules
from purge.report.findings import headline, judge, verdict
from purge.report.numbers import Number, Numbers
from purge.report.rules import LIMITS, Finding, Rule
from purge.report.tables import MANY, as_text, audit_table, ordered, value_words
from tests.report.test_figures import full_report

Given = float | tuple[float, float, float] | tuple[float, float, float, int] | str


def value(given: Given) -> dict[str, Any]:
    """A number, a number with its interval (and count), or the reason why there is none."""
    if isinstance(given, str):
        return {"value": None, "low": None, "high": None, "n": None, "why": given}
    if isinstance(given, tuple):
        v, low, high, *n = given
        return {"value": v, "low": low, "high": high, "n": n[0] if n else 1000, "why": ""}
    return {"value": given, "low": given, "high": given, "n": 1000, "why": ""}


def made(
    values: dict[str, Given],
    retrained: dict[str, Given] | None = None,
    original: dict[str, Given] | None = None,
    floor: dict[str, Given] | None = None,
    **info: Any,
) -> dict[str, Any]:
    parts = {"values": values, "retrained": retrained, "original": original, "floor": floor}
    found: dict[str, Any] = {p: {k: value(v) for k, v in (given or {}).items()} for p, given in parts.items()}
    known = {"classes": 10, "forget_classes": [3], "names": [], "forget_samples": 100, "retain_samples": 900}
    metrics = {name: metric.describe() for name, metric in METRICS.items()}
    return {**found, "info": {**known, **info}, "curves": {}, "metrics": metrics}


def on(topic: str, *args: Any, **more: Any) -> list[Finding]:
    return [f for f in verdict(made(*args, **more)) if f.topic == topic]


def first(topic: str, *args: Any, **more: Any) -> Finding:
    return on(topic, *args, **more)[0]


# -- the difference of two numbers --------------------------------------------------------------


def share(value: float, low: float, high: float, n: int = 100) -> Number:
    return Number("fa_test", value, low, high, n, sure=True, unit="share")


def test_the_interval_of_a_difference_is_newcombes():
    # Newcombe (1998), Statistics in Medicine 17, method 10: 56/70 against 48/80 gives 0.0524 to 0.3339.
    a = share(0.8, 0.6918, 0.8769, 70)  # Wilson's intervals
    b = share(0.6, 0.4904, 0.7000, 80)
    off = a.minus(b)
    assert off.value == pytest.approx(0.2)
    assert (off.low, off.high) == pytest.approx((0.0524, 0.3339), abs=2e-3)


def test_a_share_without_a_spread_gets_wilsons():
    wide = share(0.0, 0.0, 0.0, 37).wide
    assert wide.low == 0.0
    assert wide.high == pytest.approx(0.0941, abs=1e-4)
    assert share(1.0, 1.0, 1.0, 37).wide.low == pytest.approx(1 - 0.0941, abs=1e-4)
    assert share(0.5, 0.4, 0.6).wide == share(0.5, 0.4, 0.6)


# -- one rule -----------------------------------------------------------------------------------

EVERY_RULE = [
    rules.CLASS, rules.SAMPLES, rules.KEPT, *rules.MEMBERSHIP, rules.RELEARNED, rules.INSIDE,
    *rules.TREATMENTS,
]  # fmt: skip
RULE = Rule("forgetting", "yes", "no", "perhaps", {"fa_test": "accuracy"}, 0.05)


def judged(rule: Rule, ours: Given, theirs: Given | None, before: Given | None) -> Finding:
    name = next(iter(rule.numbers))
    parts = [{} if v is None else {name: v} for v in (ours, theirs, before)]
    return judge(Numbers(made(parts[0], parts[1] or None, parts[2])), rule)[0]


KNOWS: Given = (0.9, 0.88, 0.92)  # what the original has, where the retrained model has 0.5


@pytest.mark.parametrize(
    ("ours", "level"),
    [
        ((0.5, 0.49, 0.51), "shown"),
        ((0.5, 0.40, 0.60), "unknown"),  # the two intervals overlap, and yet nothing is shown
        ((0.56, 0.55, 0.57), "unknown"),
        ((0.60, 0.59, 0.61), "failed"),
        ((0.40, 0.39, 0.41), "failed"),  # less than the retrained model is not the same either
    ],
)
def test_only_an_interval_within_the_margin_shows_anything(ours, level):
    assert judged(RULE, ours, (0.5, 0.49, 0.51), KNOWS).level == level


@pytest.mark.parametrize(
    ("side", "ours", "level"),
    [("above", 0.4, "shown"), ("below", 0.6, "shown"), ("above", 0.6, "failed"), ("below", 0.4, "failed")],
)
def test_a_rule_may_look_at_one_side_only(side, ours, level):
    rule = Rule("damage", "yes", "no", "perhaps", {"fa_test": "accuracy"}, 0.05, side, power=False)
    assert judged(rule, (ours, ours - 0.01, ours + 0.01), (0.5, 0.49, 0.51), None).level == level


@pytest.mark.parametrize(
    "before",
    [(0.5, 0.49, 0.51), (0.56, 0.50, 0.62), (0.5, 0.2, 0.8), None],
    ids=["same", "near", "wide", "none"],
)
def test_a_test_that_does_not_tell_the_original_shows_nothing(before):
    found = judged(RULE, (0.5, 0.49, 0.51), (0.5, 0.49, 0.51), before)
    assert found.level == "unknown"
    if before:
        assert "the test does not tell the original either" in found.text
        assert "these 1000 samples are too few" in found.text
    else:
        assert "(--original RUN)" in found.next


def test_margin_sample_size_and_power_are_said():
    found = judged(RULE, (0.5, 0.49, 0.51), (0.5, 0.49, 0.51), KNOWS)
    assert found.text == (
        "Accuracy: 50.0 %, in the retrained model 50.0 %, in the original 90.0 %. The difference is −1.4 to "
        "+1.4 points (95 % interval, 1000 samples); the margin is 5 points. The original's is +37.8 to +42.2 "
        "points, so this test can tell."
    )


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
    aim: dict[str, Given] = {f"mia_{s}": (0.5, 0.49, 0.51) for s in signals}
    knows: dict[str, Given] = {f"mia_{s}": (0.8, 0.79, 0.81) for s in signals}
    ours: dict[str, Given] = {**aim, "mia_entropy": (0.7, 0.69, 0.71)}
    assert first("membership", aim, aim, knows).level == "shown"
    found = first("membership", ours, aim, knows)
    assert found.level == "failed"
    assert "AUROC of the attack by entropy: 0.700" in found.text
    assert "one of 3 numbers of this kind, of which 3 can tell the original" in found.text


def test_a_value_beyond_the_margin_keeps_another_from_showing_it():
    aim: dict[str, Given] = {"fa_train": (0.0, 0.0, 0.01), "fa_test": (0.0, 0.0, 0.2)}
    knows: dict[str, Given] = {"fa_train": 1.0, "fa_test": 1.0}
    assert first("forgetting", {"fa_train": 0.0, "fa_test": (0.03, 0.0, 0.2)}, aim, knows).level == "shown"
    assert first("forgetting", {"fa_train": 0.0, "fa_test": (0.1, 0.0, 0.3)}, aim, knows).level == "unknown"


# -- as a whole ---------------------------------------------------------------------------------


def test_nothing_measured_is_nothing_shown():
    found = verdict(made({}))
    assert {f.level for f in found} == {"unknown"}
    assert {f.topic for f in found} == {"forgetting", "damage", "membership", "robustness", "limits"}
    assert headline(found).level == "unknown"


def test_a_verdict_ends_with_what_no_audit_can_show():
    assert verdict(made({}))[-1] == LIMITS


def test_a_finding_reads_as_a_sentence_without_colour():
    found = Finding("failed", "damage", "It broke", "Accuracy fell.", "measure more")
    assert str(found) == "✘ Failed: It broke. Accuracy fell. To decide it: measure more."


def test_every_text_ends_as_a_sentence():
    for finding in verdict(full_report()):
        assert finding.text.endswith((".", "?"))
        assert not finding.title.endswith(".")
        assert not finding.next.endswith(".")


FORGOT: dict[str, Given] = {"fa_train": (0.0, 0.0, 0.01)}
KNEW: dict[str, Given] = {"fa_train": (1.0, 0.99, 1.0)}


def test_the_headline_is_the_worst_of_what_was_asked():
    good = verdict(made(FORGOT, FORGOT, KNEW))
    assert headline(good).level == "shown"
    assert headline(good).text.startswith(
        "It no longer recognises what was to be forgotten, within the margins"
    )
    assert headline(verdict(made(KNEW, FORGOT, KNEW))).level == "failed"
    assert headline(verdict(made(FORGOT))).level == "unknown"
    broken = verdict(made({**FORGOT, "ra": (0.5, 0.49, 0.51)}, {**FORGOT, "ra": 0.9}, KNEW))
    assert headline(broken).level == "failed"
    assert str(headline(broken)) == "✘ Failed: The model was damaged. What was to stay has suffered."
    both = verdict(made({**KNEW, "ra": (0.5, 0.49, 0.51)}, {**FORGOT, "ra": 0.9}, KNEW))
    assert headline(both).title == "This audit contradicts the deletion"


def test_having_changed_is_not_enough_for_the_headline():
    moved: dict[str, Given] = {"hidden_change": 0.3, "output_change": 0.5}
    found = verdict(made(moved, moved, {}))
    assert [f.level for f in found if f.title == rules.MOVED.shown] == ["shown"]
    assert headline(found).level == "unknown"


def test_the_two_kinds_of_a_mixed_request_are_judged_apart():
    classes, samples = made(FORGOT, FORGOT, KNEW), made(KNEW, FORGOT, KNEW, forget_classes=[])
    report = {
        **made({**FORGOT, "ra": 0.9}, {**FORGOT, "ra": 0.9}, KNEW),
        "parts": {"classes": classes, "samples": samples},
    }
    found = verdict(report)
    titles = [(f.level, f.title) for f in found if f.topic == "forgetting"]
    assert titles == [
        ("shown", "The classes: it no longer recognises what was to be forgotten"),
        ("failed", "The single samples: it is not right about the forgotten samples as often as a model that "
         "never saw them"),
    ]  # fmt: skip
    assert len([f for f in found if f.topic == "damage"]) == 1
    half = {
        **report,
        "parts": {"classes": classes, "samples": made(FORGOT, FORGOT, FORGOT, forget_classes=[])},
    }
    assert headline(verdict(half)).level == "unknown"
    assert headline(verdict(half)).title == "This audit cannot say whether the single samples were forgotten"


# -- forgetting ---------------------------------------------------------------------------------


def test_without_a_retrained_model_a_class_can_only_fail():
    assert first("forgetting", {"fa_test": (0.9, 0.88, 0.92)}).level == "failed"
    found = first("forgetting", {"fa_test": (0.0, 0.0, 0.001)}, None, {"fa_test": 1.0})
    assert found.level == "unknown"
    assert "by guessing 10.0 %" in found.text
    assert "--retrained RUN" in found.next


def test_recognising_none_of_few_samples_proves_little():
    none: dict[str, Given] = {"fa_test": (0.0, 0.0, 0.0, 37)}
    found = first("forgetting", none, none, {"fa_test": (1.0, 1.0, 1.0, 37)})
    assert found.level == "unknown"  # up to 9.4 % may be recognised
    assert "+9.4 points" in found.text


def test_a_retrained_model_that_recognises_it_too_shows_nothing():
    knows: dict[str, Given] = {"fa_test": (0.9, 0.89, 0.91)}
    assert first("forgetting", knows, knows, knows).level == "unknown"


def test_names_of_metrics_keep_their_lower_case():
    found = first("forgetting", {"fa_train": "fa_train is missing"})
    assert found.text == "fa_train is missing."


SAME = {"audited": "abc", "original": "abc"}


def test_equal_weights_fail_whatever_the_numbers_say():
    found = verdict(made(FORGOT, FORGOT, KNEW, digests=SAME))
    assert [f.title for f in found if f.level == "failed"] == ["Its weights are the original's"]
    assert headline(found).level == "failed"
    other = verdict(made(FORGOT, FORGOT, KNEW, digests={**SAME, "original": "abd"}))
    assert headline(other).level == "shown"
    assert headline(verdict(made(FORGOT, FORGOT, KNEW, digests={}))).level == "shown"


@pytest.mark.parametrize(
    ("hidden", "output", "classes", "title"),
    [
        (0.0, 0.5, [3], "Its hidden layers are still the original's"),
        (0.01, 0.5, [3], "Its hidden layers are still the original's"),
        (0.01, 0.5, [], "Its outputs and hidden layers are no longer the original's"),
        (0.0, 0.5, [], "Its hidden layers are still the original's"),
        (0.3, 0.0, [3], "It still answers as the original does"),
        (0.3, 0.5, [3], "Its outputs and hidden layers are no longer the original's"),
    ],
)
def test_a_model_that_hardly_moved_fails(hidden, output, classes, title):
    values: dict[str, Given] = {"hidden_change": hidden, "output_change": output}
    theirs: dict[str, Given] = {"hidden_change": 0.3, "output_change": 0.5}
    found = on("forgetting", values, theirs, {}, forget_classes=classes)
    assert found[-1].title == title
    assert (found[-1].level == "shown") == ("no longer" in title)


# -- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "level"),
    [((0.90, 0.895, 0.905), "shown"), ((0.95, 0.94, 0.96), "shown"), ((0.88, 0.87, 0.89), "unknown"),
     ((0.85, 0.84, 0.86), "failed")],
)  # fmt: skip
def test_damage_is_what_is_lost_beyond_two_points(ours, level):
    assert first("damage", {"ta_retain": ours}, {"ta_retain": (0.9, 0.895, 0.905)}).level == level


def test_damage_is_measured_against_the_retrained_then_the_original():
    against = first("damage", {"ra": 0.9}, {"ra": 0.9}, {"ra": 1.0})
    assert (against.level, "in the retrained model 90.0 %" in against.text) == ("shown", True)
    alone = first("damage", {"ra": 0.9}, None, {"ra": 1.0})
    assert (alone.level, "in the original 100.0 %" in alone.text) == ("failed", True)
    assert first("damage", {"ra": 0.9}).level == "unknown"


def test_a_mean_does_not_hide_the_class_that_suffered():
    ours: dict[str, Given] = {"ra": 0.95, "class_accuracy.0": 0.99, "class_accuracy.1": (0.6, 0.57, 0.63)}
    aim: dict[str, Given] = {"ra": 0.95, "class_accuracy.0": 0.9, "class_accuracy.1": 0.95}
    found = on("damage", ours, aim, names=["cat", "dog"])
    assert [f.level for f in found] == ["shown", "failed"]
    assert "class 1 (dog) lost most: 60.0 %, retrained model 95.0 %" in found[1].text


def test_the_forgotten_class_does_not_count_as_the_one_that_suffered():
    ours: dict[str, Given] = {"class_accuracy.0": 0.9, "class_accuracy.3": 0.0}
    aim: dict[str, Given] = {"class_accuracy.0": 0.9, "class_accuracy.3": 0.9}
    assert on("damage", ours, aim)[1].level == "shown"


def test_a_class_of_few_samples_may_look_bad_by_chance():
    found = on("damage", {"class_accuracy.0": (0.8, 0.4, 1.0, 5)}, {"class_accuracy.0": (1.0, 1.0, 1.0, 5)})[
        1
    ]
    assert found.level == "unknown"
    assert "5 samples" in found.text


# -- membership ---------------------------------------------------------------------------------


def test_the_aim_is_the_retrained_value_not_one_half():
    knows: dict[str, Given] = {"mia_loss": (0.8, 0.79, 0.81)}
    aim: dict[str, Given] = {"mia_loss": (0.6, 0.59, 0.61)}
    assert first("membership", aim, aim, knows).level == "shown"
    assert first("membership", {"mia_loss": (0.5, 0.49, 0.51)}, aim, knows).level == "failed"


def test_an_attack_without_a_retrained_model_is_told_but_not_judged():
    found = first("membership", {"mia_loss": (0.9, 0.89, 0.91)})
    assert found.level == "unknown"
    assert "0.900 (95 % interval 0.890 to 0.910)" in found.text
    assert found.next.startswith("audit it beside a model that was retrained")


def test_learned_attacks_are_judged_for_single_samples_alone():
    values: dict[str, Given] = {"mia_svc.confidence": (0.9, 0.88, 0.92)}
    aim: dict[str, Given] = {"mia_svc.confidence": (0.2, 0.18, 0.22)}
    samples = on("membership", values, aim, values, forget_classes=[])
    assert [f.level for f in samples] == ["unknown", "failed"]
    assert len(on("membership", values, aim, values)) == 1


def test_canaries_that_are_still_found_fail_without_a_retrained_model():
    found = on("membership", {"epsilon_canaries.epsilon": 1.5}, None, {"epsilon_canaries.epsilon": 2.6})
    assert [f.level for f in found if "canaries" in f.title] == ["failed"]
    gone = on("membership", {"epsilon_canaries.epsilon": 0.0}, None, {"epsilon_canaries.epsilon": 2.6})
    assert [f.level for f in gone if "canaries" in f.title] == ["shown"]
    never = on("membership", {"epsilon_canaries.epsilon": 0.0}, None, {"epsilon_canaries.epsilon": 0.0})
    assert [f.level for f in never if "canaries" in f.title] == ["unknown"]


# -- robustness ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["bn_recal.after", "relearn_retain.after", "noise.5pct", "prune.50", "quantise.int8"]
)
def test_what_comes_back_was_not_forgotten(name):
    aim, knows = {**FORGOT, name: (0.0, 0.0, 0.02)}, {**KNEW, name: (0.9, 0.88, 0.92)}
    assert on("robustness", {**FORGOT, name: (0.4, 0.38, 0.42)}, aim, knows)[0].level == "failed"
    assert on("robustness", {**FORGOT, name: (0.0, 0.0, 0.02)}, aim, knows)[0].level == "shown"
    assert on("robustness", {**FORGOT, name: (0.1, 0.05, 0.2)}, aim, knows)[0].level == "unknown"


def test_a_model_that_never_forgot_is_not_called_robust():
    values = {**KNEW, "bn_recal.after": (0.9, 0.88, 0.92)}
    (found,) = on("robustness", values, {**FORGOT, "bn_recal.after": 0.0}, values)
    assert found.level == "unknown"
    assert "no forgetting that could last" in found.title


def test_treatments_judged_by_classes_say_nothing_about_single_samples():
    (found,) = on("robustness", {"bn_recal.after": 0.9}, {"bn_recal.after": 0.9}, forget_classes=[])
    assert found.level == "unknown"
    assert "single samples" in found.title


def test_attacks_that_were_asked_for_and_could_not_run_say_why():
    values: dict[str, Given] = {**FORGOT, "bn_recal": "the model has no BatchNorm statistics to recalibrate"}
    (found,) = on("robustness", values, FORGOT)
    assert "could not be run: the model has no BatchNorm statistics" in found.text


@pytest.mark.parametrize(
    ("ratio", "level"),
    [((0.4, 0.3, 0.5), "failed"), ((1.0, 0.9, 1.1), "shown"), ((0.8, 0.7, 0.9), "unknown"),
     ((2.0, 1.8, 2.2), "shown")],
)  # fmt: skip
def test_relearning_is_compared_with_the_retrained(ratio, level):
    (found,) = on(
        "robustness", {**FORGOT, "relearn_ratio": ratio}, FORGOT, {"relearn_ratio": (0.5, 0.4, 0.6)}
    )
    assert found.level == level


@pytest.mark.parametrize(
    ("note", "level"),
    [("at least this: the model had not recovered within 50 steps", "failed"),
     ("at most this: the retrained model had not recovered within 50 steps", "unknown"),
     ("neither model had recovered within 50 steps", "unknown")],
)  # fmt: skip
def test_a_model_that_cannot_relearn_earns_nothing(note, level):
    report = made({**FORGOT, "relearn_ratio": (3.0, 2.9, 3.1)}, FORGOT, {"relearn_ratio": (0.5, 0.4, 0.6)})
    report["values"]["relearn_ratio"]["why"] = note
    (found,) = [f for f in verdict(report) if f.topic == "robustness"]
    assert found.level == level
    assert note in found.text


@pytest.mark.parametrize("name", ["probe_gap", "head_refit_gap"])
def test_inner_layers_are_compared_with_the_retrained(name):
    before: dict[str, Given] = {name: (0.2, 0.18, 0.22)}
    for gap, level in (
        ((0.02, 0.0, 0.04), "shown"),
        ((0.2, 0.18, 0.22), "failed"),
        ((0.04, 0.0, 0.1), "unknown"),
    ):
        assert on("robustness", {**FORGOT, name: gap}, FORGOT, before)[-1].level == level


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
    ],
)
def test_as_close_as_another_retraining_or_not(name, ours, floor, level):
    far: Given = (0.01, 0.0, 0.02) if name == "agreement" else (9.0, 8.9, 9.1)
    (found,) = on("distance", {name: ours}, {"ra": 1.0}, {name: far}, {name: floor})
    assert found.level == level
    assert "another retraining" in found.text
    assert found.text.endswith("1 of 1 distances tell the original.")


def test_a_distance_that_does_not_tell_the_original_shows_nothing():
    same: dict[str, Given] = {"kl_retrain": (0.5, 0.4, 0.6)}
    (found,) = on("distance", same, {"ra": 1.0}, same, {"kl_retrain": (1.0, 0.9, 1.1)})
    assert found.level == "unknown"
    assert found.text.endswith("None of 1 distances tell the original.")


def test_a_genuine_retraining_is_not_called_further_than_another():
    x, y, one = blobs()
    kept = y != 0
    genuine = [fitted(seed, x[kept], y[kept]) for seed in range(1, 9)]
    original = fitted(0, x, y)
    asked = ["agreement", "agreement_test", "kl_retrain", "js_retrain", "feature_cosine", "feature_l2",
             "fid_feat", "cka", "tow"]  # fmt: skip
    auditor = Auditor((x[~kept], y[~kept]), (x[kept], y[kept]), one, original=original, retrained=genuine[:2])

    def closeness(model: nn.Module) -> str:
        found = verdict(auditor.audit(model, metrics=asked, progress=False).to_dict())
        return next(f.level for f in found if f.topic == "distance")

    assert "failed" not in {closeness(model) for model in genuine[2:]}
    assert closeness(original) == "failed"


def blobs() -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Five overlapping clouds: training data, and test data of the same kind."""
    g = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(5, 8, generator=g)
    y, yt = torch.arange(400) % 5, torch.arange(500) % 5
    x, xt = (centres[t] + 2 * torch.randn(len(t), 8, generator=g) for t in (y, yt))
    return x, y, (xt, yt)


def fitted(seed: int, x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


def test_without_a_second_retraining_closeness_is_not_judged():
    (found,) = on("distance", {"agreement": 0.99, "kl_retrain": 0.0}, {"ra": 1.0})
    assert found.level == "unknown"
    assert "99.0 %" in found.text
    assert "two retrained models" in found.next
    assert on("distance", {"agreement": "no retrained model was given to compare with"}) == []


def test_the_distances_that_are_too_large_are_named():
    ours: dict[str, Given] = {"agreement": 0.9, "kl_retrain": 3.0, "js_retrain": 0.1}
    floor: dict[str, Given] = {"agreement": 0.8, "kl_retrain": 1.0, "js_retrain": 0.2}
    (found,) = on("distance", ours, {"ra": 1.0}, {}, floor)
    assert "1 of 3 distances: kl_retrain 3.000, another retraining 1.000." in found.text


# -- what was not checked -----------------------------------------------------------------------


def titles(*args: Any) -> set[str]:
    return {f.title for f in on("limits", *args)}


def test_a_verdict_says_what_was_not_given():
    assert "There was nothing to compare with" in titles({})
    assert "There was nothing to compare with" not in titles({}, {"ra": 1.0})
    assert "Attacks with shadow models were not run" in titles({"mia_loss": 0.5})
    assert "Attacks with shadow models were not run" not in titles({"lira.auroc": 0.5})


def test_data_that_changes_when_it_is_read_is_told():
    (found,) = [f for f in verdict(made({}, augmented="retain is flipped at random")) if "random" in f.title]
    assert found.text == "retain is flipped at random."


def test_reasons_for_missing_numbers_are_given_once():
    values: dict[str, Given] = {
        "ta": "no test data was given",
        "fa_test": "no test data was given",
        "ra": 1.0,
    }
    (found,) = [f for f in on("limits", values) if "could not be computed" in f.title]
    assert found.text == "ta, fa_test: no test data was given."


# -- the tables beside it -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [("fa_test", "25.0 %"), ("class_change.3", "25.0 %"), ("lira.tpr_1pct", "25.0 %"),
     ("lira.auroc", "0.250"), ("kl_retrain", "0.250"), ("relearn_few.steps", "0.2"),
     ("relearn_few.after", "25.0 %"), ("worst_class.class", "0"), ("worst_class.accuracy", "25.0 %")],
)  # fmt: skip
def test_shares_are_percent_and_the_rest_is_not(name, text):
    assert number(name, 0.25) == text


def test_with_very_many_classes_a_table_shows_only_the_forgotten_ones():
    values: dict[str, Given] = {f"class_accuracy.{k}": 0.5 for k in range(100)}
    few, many = made(values, classes=MANY), made(values, classes=100)
    assert ordered(few) == list(values)
    assert ordered(many) == ["class_accuracy.3"]
    assert "class_accuracy.99" not in as_text(audit_table(many))


def test_a_table_names_classes_and_has_the_floor_where_there_is_one():
    values: dict[str, Given] = {"class_accuracy.1": 0.5, "agreement": 0.5}
    report = made(values, {"ra": 1.0}, {}, {"agreement": 0.7}, names=["a", "owl", "c", "d"])
    text = as_text(audit_table(report))
    assert "class_accuracy.1 (owl)" in text
    assert "floor" in text
    assert "70.0 %" in text
    assert "floor" not in as_text(audit_table(made({"ra": 0.5})))
    for name in ("class_accuracy.7", "class_accuracy.x", "cka.1", "ra"):  # no such class, or no class at all
        assert value_words(made({}, names=["a", "owl"]), name) == name


# -- on real models -----------------------------------------------------------------------------


def test_the_verdict_on_real_models(base, retrained, digits):
    asked = ["fa_train", "fa_test", "ta_retain", "ra", "mia_loss", "agreement"]
    data = (digits.forget, digits.retain, digits.test)
    never = purge.audit(base, *data, retrained=retrained, metrics=asked, progress=False).verdict()
    assert never[0].startswith("✘ Failed: It still recognises what was to be forgotten.")
    models = {"original": base, "retrained": retrained}
    ideal = purge.audit(retrained, *data, **models, metrics=asked, progress=False, check=False)
    assert ideal.verdict()[0].startswith("✔ Shown: It no longer recognises")
    assert not [line for line in ideal.verdict() if line.startswith("✘")]
