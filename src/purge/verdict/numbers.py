"""The numbers of a report as findings need them: with intervals, by name and by model, and compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist
from typing import Any

Report = Mapping[str, Any]  # what Report.to_dict() returns; it describes its metrics itself

Z = 1.96  # the 97.5 % point of the normal distribution
ROUNDING = 1e-9  # below this a difference is one of floating point


def beyond(value: float, bound: float) -> float:
    """How far a value lies above a bound; 0 where it does not, or by rounding alone.

    >>> beyond(3.0, 1.0), beyond(1.0, 3.0), beyond(0.1 + 0.2, 0.3)
    (2.0, 0.0, 0.0)
    """
    off = value - bound
    return off if off > ROUNDING else 0.0


def described(report: Report, name: str) -> Mapping[str, Any]:
    """What a report says about the metric of a value; empty if it says nothing."""
    about: Mapping[str, Any] = (report.get("metrics") or {}).get(name.partition(".")[0]) or {}
    return about


def unit_of(report: Report, name: str) -> str:
    """The unit of a value; parts of a metric may have units of their own."""
    return unit_in(described(report, name), name)


def unit_in(metric: Mapping[str, Any], name: str) -> str:
    """The unit of a value by the description of its metric."""
    unit: str = metric.get("units", {}).get(name.partition(".")[2]) or metric.get("unit", "number")
    return unit


def scaled(value: float, unit: str) -> float:
    """A value as people read and write it: shares in percent, everything else as it is."""
    return 100 * value if unit == "share" else value


class Role(StrEnum):
    """What a model is in an audit."""

    AUDITED = "audited"
    RETRAINED = "retrained"
    ORIGINAL = "original"


@dataclass(frozen=True)
class Slot:
    """The place of a model in an audit; of several retrained ones, 0 is the one to compare with."""

    role: Role
    number: int = 0

    @property
    def name(self) -> str:
        """The name that files have for it: retrained, retrained 1, …"""
        return f"{self.role} {self.number}" if self.number else str(self.role)


@dataclass(frozen=True)
class Number:
    """A value that was measured; without an interval, low and high are the value itself."""

    name: str
    value: float
    low: float
    high: float
    n: int | None
    sure: bool  # does it have an interval?
    unit: str  # of the metric; "change": a difference of two shares; "difference": of two other numbers

    @property
    def wide(self) -> Number:
        """With an interval that allows for few samples: resampling equal samples gives a point."""
        if self.low < self.high or self.unit != "share" or not self.n:
            return self
        reach = Z**2 / (self.n + Z**2)  # Wilson's interval of a share of 0 or 1
        return replace(self, low=max(self.low - reach, 0.0), high=min(self.high + reach, 1.0))

    def minus(self, other: Number) -> Number:
        """The difference, with an interval made of both (Newcombe's square-and-add; MOVER).

        It takes the two as independent. Two models measured on the same samples are not: the true interval
        over samples is narrower, and the rest allows for chance in training.
        """
        a, b = self.wide, other.wide
        value = self.value - other.value
        below = math.hypot(self.value - a.low, b.high - other.value)
        above = math.hypot(a.high - self.value, other.value - b.low)
        unit = "change" if self.unit == "share" else "difference"
        return replace(self, value=value, low=value - below, high=value + above, unit=unit)

    def one_of(self, many: int) -> Number:
        """With an interval that holds for all of so many numbers at once (Bonferroni)."""
        wider = NormalDist().inv_cdf(1 - 0.025 / many) / Z
        low, high = (self.value + wider * (end - self.value) for end in (self.low, self.high))
        return replace(self, low=low, high=high)

    def exactly(self, value: float) -> Number:
        """A number of the same kind that is known, without an interval."""
        return replace(self, value=value, low=value, high=value, n=None)


class Numbers:
    """The numbers of a report, by name and by the model that they belong to."""

    def __init__(self, report: Report) -> None:
        self.report, self.info, self.values = report, report["info"], report["values"]
        self.chance = 1 / max(1, self.info.get("classes") or 1)  # the accuracy of guessing

    def get(self, name: str, part: str = "values") -> Number | None:
        """A number of the model itself, or of another part of the report; None if it was not measured."""
        stored = (self.report.get(part) or {}).get(name)
        if stored is None or stored["value"] is None:
            return None
        value, low, high = stored["value"], stored["low"], stored["high"]
        sure = low is not None and high is not None
        low, high = (low, high) if sure else (value, value)
        return Number(name, value, low, high, stored["n"], sure, unit_of(self.report, name))

    def beside(self, names: Iterable[str], part: str = "retrained") -> dict[Number, Number | None]:
        """Those of the named numbers that were measured, and the same of another model."""
        return {v: self.get(name, part) for name in names if (v := self.get(name))}

    def by_class(self, part: str, metric: str = "class_accuracy") -> dict[int, Number]:
        """The numbers of a metric by class."""
        names = {name: name.removeprefix(f"{metric}.") for name in self.report[part] or {}}
        which = {name: int(k) for name, k in names.items() if k != name and k.isdecimal()}
        return {k: v for name, k in which.items() if (v := self.get(name, part))}

    def curve(self, model: str, name: str) -> Mapping[str, Any]:
        """What a figure of a model is drawn from; empty if there is nothing."""
        return ((self.report.get("curves") or {}).get(model) or {}).get(name) or {}

    def raw(self, name: str) -> Mapping[str, Any]:
        """A value as the report has it, or that of its whole metric; empty if there is neither."""
        return self.values.get(name) or self.values.get(name.partition(".")[0]) or {}
