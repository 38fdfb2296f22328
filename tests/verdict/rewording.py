"""Other words for everything that a verdict says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from purge.ledger import words as policy
from purge.metrics.metric import Words
from purge.metrics.registry import METRICS
from purge.report import words


def tables() -> list[dict[Any, Any]]:
    """Every table of words of a verdict and of a policy, those within others too."""
    named = [pair for module in (words, policy) for pair in vars(module).items()]
    found = [table for name, table in named if isinstance(table, dict) and name.isupper() and name != "UNITS"]
    return [*found, *(inner for table in found for inner in table.values() if isinstance(inner, dict))]


def reword(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace every entry by x, and what metrics say about their numbers."""
    for name, metric in METRICS.items():
        said = {"": metric.words} if isinstance(metric.words, Words) else metric.words
        other = {part: replace(words, sentence="x" * bool(words.sentence)) for part, words in said.items()}
        monkeypatch.setitem(METRICS, name, replace(metric, about="x", words=other.get("", other)))
    for table in tables():
        for key, entry in list(table.items()):
            if isinstance(entry, str):
                monkeypatch.setitem(table, key, "x")
