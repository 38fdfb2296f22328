"""The one comparator of --fail-if, Report.check, gates and policies of a ledger, and goals of a bench."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from purge.core.errors import MetricError, did_you_mean
from purge.verdict.findings import Finding, Verdict
from purge.verdict.numbers import Report, beyond, scaled, unit_in

NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


class Sign(StrEnum):
    """How a value is compared with a bound."""

    ABOVE, AT_LEAST, BELOW, AT_MOST = ">", ">=", "<", "<="

    def holds(self, value: float, bound: float) -> bool:
        """Does the comparison hold, but for rounding?"""
        above, below = beyond(value, bound) > 0, beyond(bound, value) > 0
        return {">": above, ">=": not below, "<": below, "<=": not above}[self]


GoalSide = Literal["least", "most", "near"]


def missed_by(value: float, side: GoalSide, aim: float, slack: float = 0.0) -> float:
    """How far a value misses a goal: at least, at most or near an aim; 0 if it meets it.

    >>> missed_by(0.5, "least", 0.75), missed_by(0.5, "near", 0.75, slack=0.25)
    (0.25, 0.0)
    """
    return beyond({"least": aim - value, "most": value - aim, "near": abs(value - aim)}[side], slack)


# -- conditions on an audit ------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """A comparison that must not hold for an audit; without a sign: none of its findings may fail."""

    name: str
    sign: Sign | None = None
    bound: float = 0.0  # as tables show it: shares in percent
    unit: str = ""
    by_class: bool = False

    @property
    def metric(self) -> str:
        """The name of the metric that the value belongs to."""
        return self.name.partition(".")[0]

    def check_class(self, classes: int) -> None:
        """Refuse a condition on a class that is not there."""
        part = self.name.partition(".")[2]
        if self.by_class and part not in map(str, range(classes)):
            fix = f"name one of 0 to {classes - 1}"
            raise MetricError(f"a class of the data in a condition on {self.metric}", repr(part), fix)


@dataclass(frozen=True)
class Broken:
    """A condition that an audit does not pass: by its value, for lack of one, or by findings that failed."""

    condition: Condition
    value: float | None = None
    why: str = ""  # of a missing value
    findings: tuple[Finding, ...] = ()


def read_condition(text: str, about: Callable[[str], Mapping[str, Any]]) -> Condition:
    """Read ``fa_test>2`` or ``failed``; ``about`` describes a metric, as ``Metric.describe()`` does."""
    if text.strip() == "failed":
        return Condition("failed")
    parsed = re.fullmatch(rf"\s*([\w./-]+)\s*(>=|<=|>|<)\s*({NUMBER})\s*(%?)\s*", text)
    if parsed is None or not math.isfinite(float(parsed[3])):
        raise MetricError("a condition such as 'fa_test>2'", repr(text), "write NAME>NUMBER, or failed")
    name, sign, bound, percent = parsed.groups()
    metric = about(name.partition(".")[0])
    unit = unit_in(metric, name)
    if percent and unit != "share":
        fix = "leave out the % and write the number as the table does"
        raise MetricError(f"a plain number for {name}, which is not in percent", repr(text), fix)
    return Condition(name, Sign(sign), float(bound), unit, metric.get("parts") == "classes")


def broken(conditions: Iterable[Condition], report: Report, verdict: Verdict) -> list[Broken]:
    """The conditions that an audit does not pass. A value that was not measured does not pass."""
    failures, values = [], report["values"]
    for condition in conditions:
        name, kind = condition.name, condition.metric
        if condition.sign is None:
            failures += [Broken(condition, findings=verdict.failed)] if verdict.failed else []
            continue
        value = values.get(name)
        if value is None and kind in values and values[kind]["value"] is None:
            value = values[kind]  # if a metric is missing, so are its parts
        if value is None:
            known = [other for other in values if other.partition(".")[0] == kind] or list(values)
            raise MetricError(f"{name} to be measured", "none of it in this audit", did_you_mean(name, known))
        if value["value"] is None:
            failures.append(Broken(condition, why=value["why"]))
        elif condition.sign.holds(scaled(value["value"], condition.unit), condition.bound):
            failures.append(Broken(condition, value["value"]))
    return failures
