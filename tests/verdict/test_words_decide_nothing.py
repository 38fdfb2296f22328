"""Reword every sentence, and no verdict, exit code, check, gate or goal changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purge.audit_report import Report
from purge.bench.schema import Goal
from purge.ledger.policy import Policy, Spent
from purge.metrics.value import Value
from purge.report import words
from purge.report.tables import words_of
from purge.verdict import missed_by, rules
from purge.verdict.judge import verdict_of
from purge.verdict.rules import Rule
from tests.cli.commands import command, good
from tests.verdict.reports import FORGOT, KNEW, made
from tests.verdict.rewording import reword, tables


def report(forgotten: float) -> Report:
    """The audit of a model that is right about so many of 1000 images of a forgotten class."""
    info = {"classes": 10, "names": [], "forget_classes": [3], "forget_samples": 1000}
    after = Value(forgotten, forgotten - 0.01, forgotten + 0.01, 1000)
    before, retrained = Value(0.99, 0.98, 1.0, 1000), Value(0.0, 0.0, 0.003, 1000)
    return Report({"fa_test": after}, {"fa_test": retrained}, {"fa_test": before}, info)


def decided() -> list[Any]:
    """Verdicts, checks, bounds of a policy and goals of a bench."""
    reports = [made(*sides) for sides in ((FORGOT, FORGOT, KNEW), (KNEW, FORGOT, KNEW), (FORGOT,), ({},))]
    mixed = {**reports[0], "parts": {"classes": reports[0], "samples": made(KNEW, FORGOT, forget_classes=[])}}
    good_one, bad = report(0.01), report(0.9)
    goal = Goal("ra", least=0.9)
    return [
        *(verdict_of(one).to_dict() for one in (*reports, mixed)),
        *(len(one.check("failed", "fa_test>2")) for one in (good_one, bad)),
        *([f.to_dict() for f in one.failed] for one in (good_one, bad)),
        Policy(max_requests=1).exceeded(Spent(requests=2, share=0.5)),
        len(Policy(max_requests=1).reasons(Spent(requests=2, share=0.5))),
        *(missed_by(value, goal.side, 0.9, goal.slack) for value in (0.8, 0.95)),
    ]


def test_no_decision_depends_on_a_word(monkeypatch):
    before, sentences = decided(), report(0.9).sentences()
    assert len(tables()) > 15
    reword(monkeypatch)
    assert decided() == before
    assert report(0.9).sentences() != sentences
    assert report(0.9).headline == "x x: x. x."


@pytest.mark.slow
def test_no_exit_code_depends_on_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train = ("train", "--data", "digits", "--model", "small-resnet", "--set", "epochs=1", "--quiet")
    good(command(*train, "--out", "base"))
    good(
        command(
            "unlearn", "base", "--forget-class", 3, "--method", "retrain", "--out", "retrained", "--quiet"
        )
    )
    beside = ("--forget-class", 3, "--retrained", "retrained", "--metrics", "fa_test,fa_train", "--quiet")
    audits = [
        ("audit", "base", *beside, *gates)
        for gates in ((), ("--fail-if", "failed"), ("--fail-if", "fa_test>2"), ("--fail-if", "fa_test>100"))
    ]

    def codes() -> list[int]:
        return [command(*argv).code for argv in audits]

    before = codes()
    assert set(before) == {0, 1}
    reword(monkeypatch)
    assert codes() == before


def test_every_rule_has_words():
    known = {rule.name for rule in (*vars(rules).values(), *rules.TREATMENTS) if isinstance(rule, Rule)}
    assert known == words.TITLES.keys()
    numbers = {n for rule in (*vars(rules).values(), *rules.TREATMENTS) if isinstance(rule, Rule)
               for n in rule.numbers}  # fmt: skip
    every = made({})
    assert {n for n in numbers if not words_of(every, n).get("sentence")} == {"epsilon_canaries.epsilon"}
