"""What the numbers of a report are called: in sentences and in figures, as their metrics say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purge.report.tables import in_order
from purge.verdict.numbers import Report, described


def words_of(report: Report, name: str) -> Mapping[str, Any]:
    """What the metric of a value says about it to people; empty if it says nothing."""
    words: Mapping[str, Any] = described(report, name).get("words") or {}
    return words.get(name.partition(".")[2]) or {}


def in_a_sentence(report: Report, name: str) -> str:
    """What a sentence calls a value."""
    return words_of(report, name).get("sentence") or described(report, name).get("about") or name


def rows_of(report: Report, figure: str) -> dict[str, str]:
    """The values that are rows of a figure, and what they are called there."""
    every = {name: words_of(report, name).get("rows") or {} for name in _names(report)}
    return {name: rows[figure] for name, rows in every.items() if figure in rows}


def main_values(report: Report) -> list[str]:
    """The values that a reader looks at first."""
    return [name for name in _names(report) if words_of(report, name).get("main")]


def curves(report: Report) -> dict[str, str]:
    """The ROC curves that attacks leave, by their keys, and what the attacks are called."""
    rows = {name.partition(".")[0]: words for name, words in rows_of(report, "membership").items()}
    keys = {name: metric.get("curve") for name, metric in (report.get("metrics") or {}).items()}
    return {key: rows.get(name, key) for name, key in keys.items() if key}


def _names(report: Report) -> list[str]:
    """Every value about which its metric says something, in reading order."""
    metrics = (report.get("metrics") or {}).items()
    said = [(kind, part) for kind, metric in metrics for part in metric.get("words") or {}]
    return in_order(report, [f"{kind}.{part}" if part else kind for kind, part in said])
