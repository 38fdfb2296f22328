"""Findings in sentences, and the tables beside them."""

from __future__ import annotations

from typing import Any

import pytest

from purge.metrics.registry import number
from purge.report.sentences import Sentence, headline_of, sentence_of
from purge.report.tables import MANY, as_text, audit_table, ordered, value_words
from purge.verdict.judge import verdict_of
from purge.verdict.rules import Level
from tests.report.test_figures import full_report
from tests.verdict.reports import FORGOT, KNEW, Given, made


def said(rule: str, *args: Any, **more: Any) -> Sentence:
    report = made(*args, **more)
    return next(sentence_of(f, report) for f in verdict_of(report).findings if f.rule.name == rule)


def headline(*args: Any, **more: Any) -> str:
    return str(headline_of(verdict_of(made(*args, **more))))


def test_a_finding_reads_as_a_sentence_without_colour():
    found = Sentence(Level.FAILED, "It broke", "Accuracy fell.", "measure more")
    assert str(found) == "✘ Failed: It broke. Accuracy fell. To decide it: measure more."


def test_every_text_ends_as_a_sentence():
    for report in (full_report(), made({}), made(KNEW)):
        for finding in verdict_of(report).findings:
            found = sentence_of(finding, report)
            assert found.text.endswith((".", "?"))
            assert not found.title.endswith(".")
            assert not found.next.endswith(".")


def test_margin_sample_size_and_power_are_said():
    aim: dict[str, Given] = {"fa_test": (0.5, 0.49, 0.51)}
    knows: dict[str, Given] = {"fa_test": (0.9, 0.88, 0.92)}
    start = "Accuracy on unseen samples of their class: 50.0 %, in the retrained model 50.0 %"
    off = "The difference is −1.4 to +1.4 points (95 % interval, 1000 samples); the margin is 5 points. "
    assert said("recognised", aim, aim, knows).text == (
        f"{start}, in the original 90.0 %. {off}The original's is +37.8 to +42.2 points, so this test can "
        "tell."
    )
    assert said("recognised", aim, aim, aim).text == (
        f"{start}, in the original 50.0 %. {off}The original's is −1.4 to +1.4 points: these 1000 samples "
        "are too few, or there is nothing to tell: the test does not tell the original either."
    )
    alone = said("recognised", aim, aim)
    assert alone.text == f"{start}. {off}Without the original, nothing shows that this test can tell."
    assert alone.next == "audit it beside the original model (--original RUN)"
    assert "by guessing 10.0 %" in said("recognised", aim).text


RATIO: dict[str, Given] = {"relearn_ratio": (3.0, 2.9, 3.1)}


@pytest.mark.parametrize(
    ("rule", "sides", "info", "words"),
    [
        ("recognised", ({"fa_train": "fa_train is missing"},), {}, "fa_train is missing."),
        ("attacked", ({"mia_loss": (0.9, 0.89, 0.91)},), {}, "0.900 (95 % interval 0.890 to 0.910)"),
        ("kept", ({"ra": 0.9}, None, {"ra": 1.0}), {}, "90.0 %, in the original 100.0 %. The"),
        ("worst_class", ({"class_accuracy.1": (0.6, 0.57, 0.63)}, {"class_accuracy.1": 0.95}),
         {"names": ["cat", "dog"]}, "class 1 (dog) lost most: 60.0 %, retrained model 95.0 %"),
        ("distance", ({"agreement": 0.9, "kl_retrain": 3.0}, {"ra": 1.0}, {},
                      {"agreement": 0.8, "kl_retrain": 1.0}), {},
         "1 of 2 distances: kl_retrain 3.000, another retraining 1.000."),
        ("distance", ({"agreement": 0.99}, {"ra": 1.0}), {}, "on 99.0 % of the forget set"),
        ("lasts", ({**FORGOT, "bn_recal": "the model has no BatchNorm"}, FORGOT), {},
         "could not be run: the model has no BatchNorm."),
        ("moved", ({"hidden_change": 0.01}, {"hidden_change": 0.3}), {},
         "its hidden layers moved by 3 % of that (below 5 % counts as unchanged)"),
        ("augmented", ({},), {"augmented": "retain is flipped at random"}, "retain is flipped at random."),
        ("not_computed", ({"ta": "no test data", "ua": "no test data", "ra": 1.0},), {},
         "ta, ua: no test data."),
    ],
)  # fmt: skip
def test_what_each_finding_says(rule, sides, info, words):
    assert words in said(rule, *sides, **info).text


def test_a_number_that_was_cut_off_is_said_to_be():
    report = made({**FORGOT, **RATIO}, FORGOT, {"relearn_ratio": (0.5, 0.4, 0.6)})
    report["values"]["relearn_ratio"] |= {"why": "at least this: it had not recovered", "bound": "least"}
    (found,) = [sentence_of(f, report) for f in verdict_of(report).findings if f.rule.name == "blocked"]
    assert found.title == "It cannot be relearned, while a model that never knew it can be"
    assert found.text.endswith(" It is at least this: it had not recovered.")


def test_the_headline_in_words():
    assert headline(FORGOT, FORGOT, KNEW).startswith(
        "✔ Shown: No test of this audit contradicts the deletion. It no longer recognises what was to be "
        "forgotten, within the margins stated; open questions: "
    )
    broken: dict[str, Given] = {"ra": (0.5, 0.49, 0.51)}
    found = headline({**FORGOT, **broken}, {**FORGOT, "ra": 0.9}, KNEW)
    assert found == "✘ Failed: The model was damaged. What was to stay has suffered."
    found = headline({**KNEW, **broken}, {**FORGOT, "ra": 0.9}, KNEW)
    assert found.endswith("It still recognises what was to be forgotten, and one more finding failed.")
    assert "cannot say whether the samples were forgotten" in headline(FORGOT)


def test_the_parts_of_a_mixed_request_are_named():
    samples = made(FORGOT, FORGOT, FORGOT, forget_classes=[])
    report = {
        **made(FORGOT, FORGOT, KNEW),
        "parts": {"classes": made(FORGOT, FORGOT, KNEW), "samples": samples},
    }
    found = verdict_of(report)
    titles = [sentence_of(f, report).title for f in found.findings if f.topic == "forgetting"]
    assert titles[0] == "The classes: it no longer recognises what was to be forgotten"
    assert titles[-1].startswith("The single samples: ")
    assert "cannot say whether the single samples were forgotten" in headline_of(found).title


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
