"""The verdict says what the numbers support, and no more: planted numbers, expected findings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purge
from purge.api import Auditor
from purge.metrics.registry import METRICS, number
from purge.report.findings import verdict
from purge.report.rules import LIMITS, Finding
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


# -- as a whole ---------------------------------------------------------------------------------


def test_nothing_measured_is_nothing_shown():
    found = verdict(made({}))
    assert {f.level for f in found} == {"unknown"}
    assert {f.topic for f in found} == {"forgetting", "damage", "membership", "robustness", "limits"}


def test_a_verdict_ends_with_what_no_audit_can_show():
    for report in (made({}), full_report()):
        assert verdict(report)[-1] == LIMITS
    assert "not that no attack exists" in LIMITS.text


def test_a_finding_reads_as_a_sentence_without_colour():
    text = str(Finding("failed", "damage", "It broke", "By 3 points."))
    assert text == "✘ Failed: It broke. By 3 points."
    assert len({str(Finding(level, "", "", ""))[0] for level in ("shown", "failed", "unknown")}) == 3


def test_every_text_ends_as_a_sentence():
    for f in [*verdict(full_report()), *verdict(made({"ra": "no data"}))]:
        assert f.text.endswith(".")
        assert not f.title.endswith(".")
        assert "  " not in f.text
        assert ".." not in f.text


# -- forgetting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "level"),
    [
        (0.0, "shown"),
        ((0.01, 0.005, 0.02), "shown"),
        ((0.01, 0.0, 0.05), "unknown"),  # its interval reaches beyond the margin
        ((0.10, 0.05, 0.15), "failed"),
        ((0.04, 0.01, 0.09), "unknown"),
        (1.0, "failed"),
    ],
)
def test_forgetting_a_class_is_judged_by_the_whole_interval(ours, level):
    found = first("forgetting", {"fa_test": ours}, {"fa_test": 0.0}, {"fa_test": 1.0})
    assert found.level == level


def test_the_retrained_model_is_the_aim_and_otherwise_chance():
    ours = {"fa_test": (0.09, 0.08, 0.10)}
    assert first("forgetting", ours, {"fa_test": 0.0}).level == "failed"
    assert first("forgetting", ours, {"fa_test": 0.08}).level == "shown"
    alone = first("forgetting", ours)  # ten classes
    assert alone.level == "shown"
    assert "guessing would be right in 10.0 %" in alone.text
    assert first("forgetting", ours, classes=100).level == "failed"


def test_the_numbers_and_the_class_are_named():
    ours, theirs, before = {"fa_test": 0.5}, {"fa_test": 0.125}, {"fa_test": 0.9}
    text = first("forgetting", ours, theirs, before, names=["a", "b", "c", "owl"]).text
    for words in ("class 3 (owl)", "50.0 %", "12.5 %", "90.0 %", "37.5 points more"):
        assert words in text


def test_recognising_none_of_few_samples_proves_little():
    few = first("forgetting", {"fa_test": (0.0, 0.0, 0.0, 36)}, {"fa_test": 0.0})
    assert "With only 36 samples a true share of up to 8 % cannot be ruled out" in few.text
    assert few.level == "shown"
    fewer = first("forgetting", {"fa_test": (0.0, 0.0, 0.0, 28)}, {"fa_test": 0.0})
    assert (fewer.level, fewer.title) == (
        "unknown",
        "It recognises none of the samples, but they are too few",
    )
    one = first("forgetting", {"fa_test": (0.0, 0.0, 0.0, 1)}, {"fa_test": 0.0})
    assert one.level == "unknown"
    assert "With only one sample a true share of up to 95 % cannot be ruled out" in one.text
    many = first("forgetting", {"fa_test": (0.0, 0.0, 0.0, 1000)}, {"fa_test": 0.0})
    assert "ruled out" not in many.text


def test_what_the_original_did_not_know_cannot_be_forgotten():
    found = first("forgetting", {"fa_test": 0.0}, {"fa_test": 0.0}, {"fa_test": 0.01})
    assert (found.level, found.title) == ("unknown", "There was nothing to forget")


def test_a_retrained_model_that_recognises_it_too_is_doubted():
    found = first("forgetting", {"fa_test": 1.0}, {"fa_test": 1.0}, {"fa_test": 1.0})
    assert (found.level, found.title) == ("unknown", "There is nothing to compare forgetting with")
    assert found.text.endswith("check that it was trained without it.")
    assert "did not recognise" not in found.text


def test_names_of_metrics_keep_their_lower_case():
    assert first("membership", {}).text == "mia_loss was not asked for."
    assert first("membership", {"mia_loss": "no test data was given"}).text == "No test data was given."


def test_without_unseen_samples_the_training_samples_are_used_and_the_words_say_so():
    found = first("forgetting", {"fa_test": "no test data was given", "fa_train": 0.0}, {"fa_train": 0.0})
    assert found.level == "shown"
    assert "training samples" in found.text
    assert first("forgetting", {"fa_test": "no test data was given"}).level == "unknown"


@pytest.mark.parametrize(
    ("ours", "level"),
    [((0.93, 0.90, 0.96), "shown"), ((1.0, 1.0, 1.0), "failed"), ((0.2, 0.1, 0.3), "failed"),
     ((0.9, 0.6, 1.0), "unknown")],
)  # fmt: skip
def test_single_samples_must_be_treated_like_unseen_ones_neither_better_nor_worse(ours, level):
    single: dict[str, Any] = {"forget_classes": []}
    with_retrained = first("forgetting", {"fa_train": ours}, {"fa_train": 0.92}, {"fa_train": 1.0}, **single)
    alone = first("forgetting", {"fa_train": ours, "fa_test": 0.92}, {}, {"fa_train": 1.0}, **single)
    assert with_retrained.level == alone.level == level
    assert "never saw" in with_retrained.text
    assert "unseen samples" in alone.text


def test_single_samples_that_the_original_treats_like_unseen_ones_tell_nothing():
    found = first("forgetting", {"fa_train": 0.92}, {"fa_train": 0.92}, {"fa_train": 0.93}, forget_classes=[])
    assert found.level == "unknown"
    assert "cannot tell" in found.text


# -- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "level"),
    [(0.95, "shown"), (0.99, "shown"), ((0.94, 0.90, 0.97), "shown"), ((0.90, 0.88, 0.92), "failed"),
     ((0.92, 0.89, 0.95), "unknown")],
)  # fmt: skip
def test_damage_is_what_is_lost_beyond_two_points(ours, level):
    assert first("damage", {"ta_retain": ours}, {"ta_retain": 0.95}).level == level


def test_damage_is_measured_against_the_retrained_then_the_original():
    ours = {"ta_retain": 0.90}
    assert first("damage", ours, {"ta_retain": 0.90}, {"ta_retain": 0.99}).level == "shown"
    assert first("damage", ours, {}, {"ta_retain": 0.99}).level == "failed"
    assert first("damage", ours).level == "unknown"
    assert first("damage", {"ra": 0.5}, {"ra": 0.99}).level == "failed"  # no test data


def test_one_sample_shows_no_damage_and_no_lack_of_it():
    one: dict[str, Given] = {"ta_retain": (1.0, 1.0, 1.0, 1), "class_accuracy.1": (1.0, 1.0, 1.0, 1)}
    found = on("damage", one, {"ta_retain": 1.0, "class_accuracy.1": 1.0})
    assert [f.level for f in found] == ["unknown", "unknown"]
    assert "With one sample" in found[0].text
    assert first("damage", {"ta_retain": (0.0, 0.0, 0.0, 1)}, {"ta_retain": 0.9}).level == "unknown"


def test_a_mean_does_not_hide_the_class_that_suffered():
    ours = {"ta_retain": 0.95, **{f"class_accuracy.{k}": 0.99 for k in range(10)}, "class_accuracy.7": 0.6}
    theirs = {"ta_retain": 0.95, **{f"class_accuracy.{k}": 0.99 for k in range(10)}}
    mean, worst = on("damage", ours, theirs, names=[*"abcdefg", "owl", *"ij"])
    assert (mean.level, worst.level) == ("shown", "failed")
    assert "class 7 (owl)" in worst.text
    assert "60.0 %, retrained model 99.0 %" in worst.text


def test_the_forgotten_class_does_not_count_as_the_one_that_suffered():
    ours = {"ta_retain": 0.95, **{f"class_accuracy.{k}": 0.99 for k in range(4)}, "class_accuracy.3": 0.0}
    before = {"ta_retain": 0.95, **{f"class_accuracy.{k}": 0.99 for k in range(4)}}
    assert [f.level for f in on("damage", ours, {}, before)] == ["shown", "shown"]


def test_a_class_of_few_samples_may_look_bad_by_chance():
    ours = {"ta_retain": 0.95, "class_accuracy.1": (0.9, 0.8, 1.0, 10)}
    worst = on("damage", ours, {"ta_retain": 0.95, "class_accuracy.1": 1.0})[1]
    assert worst.level == "unknown"
    assert "With 10 samples" in worst.text


# -- membership ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "level"),
    [
        ((0.52, 0.48, 0.56), "shown"),
        ((0.54, 0.53, 0.55), "shown"),  # significant, but as small as between two retrainings
        ((0.70, 0.65, 0.75), "failed"),
        ((0.30, 0.25, 0.35), "failed"),  # forgotten too well is also a mark
        ((0.60, 0.45, 0.75), "unknown"),  # nearly anything would fit
    ],
)
def test_membership_is_judged_by_whether_the_retrained_value_fits(ours, level):
    assert first("membership", {"mia_loss": ours}, {"mia_loss": 0.5}).level == level
    assert first("membership", {"mia_loss": ours}).level == level  # without one: guessing, 0.5


def test_the_aim_is_the_retrained_value_not_one_half():
    ours = {"mia_loss": (0.70, 0.65, 0.75)}
    assert first("membership", ours, {"mia_loss": 0.69}).level == "shown"
    assert first("membership", {"mia_loss": 0.8}, {"mia_loss": 0.69}).level == "failed"


def test_an_attack_that_gains_less_than_against_the_retrained_model_is_no_failure():
    theirs: dict[str, Given] = {"mia_loss": (0.426, 0.335, 0.511)}
    assert first("membership", {"mia_loss": 0.5}, theirs).level == "shown"
    assert first("membership", {"mia_loss": 0.5}, {"mia_loss": 0.69}).level == "shown"
    assert first("membership", {"mia_loss": (0.35, 0.31, 0.39)}, theirs).level == "shown"  # they overlap
    assert first("membership", {"mia_loss": (0.2, 0.15, 0.25)}, theirs).level == "failed"
    assert first("membership", {"mia_loss": 0.0}, {"mia_loss": 1.0}).level == "failed"  # the other side


def test_attacks_on_a_handful_of_samples_tell_nothing():
    ours: dict[str, Given] = {"mia_loss": (0.9, 0.85, 0.95), "fa_test": (0.0, 0.0, 0.0, 1)}
    assert first("membership", ours, {"mia_loss": 0.5}).level == "unknown"
    assert first("membership", {"mia_loss": 0.9}, {"mia_loss": 0.5}, forget_samples=1).level == "unknown"


def test_one_attack_that_succeeds_is_not_averaged_away():
    ours: dict[str, Given] = {
        f"mia_{s}": (0.5, 0.48, 0.52) for s in ("loss", "confidence", "entropy", "margin")
    }
    calm = first("membership", ours, ours)
    assert (calm.level, calm.text[:9]) == ("shown", "4 attacks")
    found = first("membership", {**ours, "u_lira.auroc": (0.8, 0.75, 0.85)}, {**ours, "u_lira.auroc": 0.5})
    assert found.level == "failed"
    assert "U-LiRA: 0.800" in found.text


def test_attacks_with_few_false_alarms():
    def found(ours: Given) -> Finding:
        values: dict[str, Given] = {"mia_loss": (0.5, 0.48, 0.52), "tpr_1pct.loss": ours}
        return on("membership", values, {"mia_loss": 0.5, "tpr_1pct.loss": 0.01})[1]

    assert found((0.02, 0.01, 0.03)).level == "shown"
    assert found((0.30, 0.25, 0.35)).level == "failed"
    assert found((0.05, 0.01, 0.12)).level == "unknown"
    assert "30.0 %" in found((0.30, 0.25, 0.35)).text


def test_an_svc_counts_the_samples_that_it_calls_unseen():
    def found(ours: Given, theirs: Given) -> Finding:
        return on("membership", {"mia_svc.confidence": ours}, {"mia_svc.confidence": theirs})[1]

    leaks = found((0.40, 0.35, 0.45), 0.90)  # 60 % are called members, of the retrained model's 10 %
    assert leaks.level == "failed"
    assert (
        "takes 60.0 % of the forgotten samples for training data (95 % interval 55.0 % to 65.0 %)"
        in leaks.text
    )
    assert found((0.98, 0.97, 0.99), 0.90).level == "shown"
    assert not on("membership", {"mia_svc.confidence": 0.5})[1:]  # nothing to compare with


def test_a_regression_counts_the_samples_that_it_calls_members():
    assert on("membership", {"mia_lr": 0.6}, {"mia_lr": 0.1})[1].level == "failed"
    assert on("membership", {"mia_lr": 0.05}, {"mia_lr": 0.1})[1].level == "shown"


def test_samples_that_all_look_like_training_data_are_only_compared():
    alike = on("membership", {"mia_lr": 1.0}, {"mia_lr": 1.0})[1]
    assert alike.level == "shown"
    assert alike.title == "They look no more like training data than in the retrained model"
    rare = on("membership", {"mia_lr": 0.0}, {"mia_lr": 0.0})[1]
    assert rare.title == "The forgotten samples do not look like training data"


# -- robustness ---------------------------------------------------------------------------------

FORGOT: dict[str, Given] = {"fa_test": 0.0}


def lasts(name: str, ours: Given, theirs: Given | None = None) -> Finding:
    (found,) = on(
        "robustness", {**FORGOT, name: ours}, {**FORGOT, **({} if theirs is None else {name: theirs})}
    )
    return found


@pytest.mark.parametrize("name", ["bn_recal.delta", "relearn_retain.recovered", "noise.delta", "prune.delta",
                                  "quantise.int8_delta", "quantise.bf16_delta"])  # fmt: skip
def test_what_comes_back_was_not_forgotten(name):
    assert lasts(name, 0.0, 0.0).level == "shown"
    found = lasts(name, (0.9, 0.8, 1.0), 0.0)
    assert found.level == "failed"
    assert "by +90.0 points (95 % interval +80.0 to +100.0); in the retrained model 0.0 points." in found.text
    assert lasts(name, (0.03, 0.0, 0.1), 0.0).level == "unknown"
    alike = lasts(name, (0.9, 0.85, 0.95), (0.95, 0.9, 1.0))  # nor is the retrained model immune
    assert alike.level == "shown"
    assert "no more than in a model that never saw it" in alike.title
    assert lasts(name, 0.9).level == "failed"


def test_the_worst_of_several_treatments_counts():
    values: dict[str, Given] = {**FORGOT, "quantise.int8_delta": 0.0, "prune.delta": -0.1, "noise.delta": 0.5}
    (found,) = on("robustness", values, FORGOT)
    assert found.level == "failed"
    assert "+50.0 points" in found.text


def test_a_model_that_never_forgot_is_not_called_robust():
    values: dict[str, Given] = {"fa_test": 1.0, "bn_recal.delta": 0.0, "relearn_ratio": 1.0}
    (found,) = on("robustness", values, FORGOT)
    assert found.level == "unknown"


def test_treatments_judged_by_classes_say_nothing_about_single_samples():
    values: dict[str, Given] = {"fa_train": 0.9, "bn_recal.delta": 0.0, "noise.delta": 0.0}
    (found,) = on("robustness", values, {"fa_train": 0.9}, forget_classes=[])
    assert found.level == "unknown"
    assert "do not tell" in found.text


def test_attacks_that_were_asked_for_and_could_not_run_say_why():
    why = "the test data has no sample of the forgotten classes"
    (found,) = on("robustness", {"fa_train": 0.0, "bn_recal": why, "noise": why, "probe_gap": why})
    assert found.level == "unknown"
    assert found.text == f"The attacks that try to bring it back could not be run: {why}."
    (found,) = on("robustness", {"fa_train": 0.0})
    assert "the panel 'standard' has them" in found.text


@pytest.mark.parametrize(
    ("ratio", "level"),
    [((1.0, 0.9, 1.1), "shown"), ((0.2, 0.1, 0.3), "failed"), ((0.6, 0.4, 0.8), "unknown"), (3.0, "shown")],
)
def test_relearning_is_compared_with_the_retrained(ratio, level):
    assert lasts("relearn_ratio", ratio).level == level


@pytest.mark.parametrize("name", ["probe_gap", "head_refit_gap"])
def test_inner_layers_are_compared_with_the_retrained(name):
    assert lasts(name, (0.01, 0.0, 0.03)).level == "shown"
    assert lasts(name, (0.2, 0.15, 0.25)).level == "failed"
    assert lasts(name, (0.03, 0.0, 0.1)).level == "unknown"


# -- distance -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ours", "floor", "level"),
    [
        ("agreement", (0.7, 0.65, 0.75), (0.72, 0.70, 0.74), "shown"),
        ("agreement", (0.9, 0.85, 0.95), (0.72, 0.70, 0.74), "shown"),  # nearer than another one
        ("agreement", (0.3, 0.25, 0.35), (0.72, 0.70, 0.74), "failed"),
        ("kl_retrain", (0.5, 0.4, 0.6), (1.0, 0.9, 1.1), "shown"),
        ("kl_retrain", (1.5, 1.4, 1.6), (1.0, 0.9, 1.1), "unknown"),  # as chance in training may do
        ("kl_retrain", (2.1, 2.0, 2.2), (1.0, 0.9, 1.1), "failed"),
        ("kl_retrain", (2.1, 2.0, 2.2), (1.0, 1.0, 1.0, 1), "unknown"),  # beside a single one
        ("kl_retrain", (2.3, 2.2, 2.4), (1.0, 1.0, 1.0, 1), "failed"),
        ("destinations_tv", (0.1, 0.075, 0.125), (0.0, 0.0, 0.0, 1), "unknown"),
        ("cka.layer3", (0.9, 0.9, 0.9), (0.5, 0.5, 0.5), "shown"),
        ("cka.layer3", (0.2, 0.2, 0.2), (0.5, 0.5, 0.5), "failed"),
    ],
)
def test_as_close_as_another_retraining_or_not(name, ours, floor, level):
    (found,) = on("distance", {name: ours}, {"ra": 1.0}, {}, {name: floor})
    assert found.level == level
    assert "another retraining" in found.text


def test_distances_without_an_interval_do_not_speak_against_a_model():
    def found(cka: float, **others: Given) -> Finding:
        report = made(others, {"ra": 1.0}, {}, {"cka.1": 0.9, **others})
        report["values"]["cka.1"] = {"value": cka, "low": None, "high": None, "n": 100, "why": ""}
        return next(f for f in verdict(report) if f.topic == "distance")

    assert found(0.3).level == "unknown"
    assert found(0.3, agreement=0.9).level == "shown"


def test_a_genuine_retraining_is_not_called_further_than_another():
    x, y, one = blobs()
    kept = y != 0
    genuine = [fitted(seed, x[kept], y[kept]) for seed in range(1, 9)]
    original = fitted(0, x, y)
    asked = ["agreement", "agreement_test", "kl_retrain", "js_retrain", "feature_cosine", "feature_l2",
             "fid_feat", "cka", "tow"]  # fmt: skip
    auditor = Auditor((x[~kept], y[~kept]), (x[kept], y[kept]), one, retrained=genuine[:2])

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
    assert "two retrained models" in found.text
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
    asked = ["fa_test", "ta_retain", "ra", "mia_loss", "agreement"]
    data = (digits.forget, digits.retain, digits.test)
    never = purge.audit(base, *data, retrained=retrained, metrics=asked, progress=False).verdict()
    assert never[0].startswith("✘ Failed: It still recognises what was to be forgotten.")
    ideal = purge.audit(retrained, *data, original=base, retrained=retrained, metrics=asked, progress=False)
    assert ideal.verdict()[0].startswith("✔ Shown: It no longer recognises")
    assert not [line for line in ideal.verdict() if line.startswith("✘")]
