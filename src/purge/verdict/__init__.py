"""What the numbers of an audit show, typed: rules and thresholds, findings, and one comparator."""

from __future__ import annotations

from purge.verdict.compare import Broken, Condition, GoalSide, Sign, broken, missed_by, read_condition
from purge.verdict.numbers import scaled
from purge.verdict.rules import FEWEST, FORGOTTEN, Level, Part, Topic

__all__ = [
    "FEWEST", "FORGOTTEN", "Broken", "Condition", "GoalSide", "Level", "Part", "Sign", "Topic", "broken",
    "missed_by", "read_condition", "scaled",
]  # fmt: skip
