"""The numbers of a report as findings need them: with intervals, compared, and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from purge.report.tables import Report, shown, unit_of

Level = Literal["shown", "failed", "unknown"]

Z = 1.96  # the 97.5 % point of the normal distribution


class Number(NamedTuple):
    """A value that was measured; without an interval, low and high are the value itself."""

    name: str
    value: float
    low: float
    high: float
    n: int | None
    sure: bool  # does it have an interval?
    unit: str  # of the metric; "change": a difference of two shares; "difference": of two other numbers

    def _shown(self, value: float) -> str:
        if self.unit not in ("change", "difference"):
            return shown(value, self.unit)
        words = (f"{100 * value:+.1f}" if self.unit == "change" else f"{value:+.3f}").replace("-", "−")
        return words[1:] if set(words[1:]) <= {"0", "."} else words

    @property
    def words(self) -> str:
        """The value as text."""
        return self._shown(self.value) + (" points" if self.unit == "change" else "")

    @property
    def range(self) -> str:
        """Its interval as text."""
        return f"{self._shown(self.low)} to {self._shown(self.high)}" + self.words.partition(" points")[1]

    @property
    def spread(self) -> str:
        """The interval in brackets; empty if there is none or if it is a point."""
        if self.low == self.high:
            return ""
        return f" (95 % interval {self._shown(self.low)} to {self._shown(self.high)})"

    @property
    def samples(self) -> str:
        """How many samples it was measured on."""
        return "one sample" if self.n == 1 else f"{self.n or 0} samples"

    @property
    def wide(self) -> Number:
        """With an interval that allows for few samples: resampling equal samples gives a point."""
        if self.low < self.high or self.unit != "share" or not self.n:
            return self
        reach = Z**2 / (self.n + Z**2)  # Wilson's interval of a share of 0 or 1
        return self._replace(low=max(self.low - reach, 0.0), high=min(self.high + reach, 1.0))

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
        return self._replace(value=value, low=value - below, high=value + above, unit=unit)

    def one_of(self, many: int) -> Number:
        """With an interval that holds for all of so many numbers at once (Bonferroni)."""
        wider = NormalDist().inv_cdf(1 - 0.025 / many) / Z
        return self._replace(
            low=self.value - wider * (self.value - self.low),
            high=self.value + wider * (self.high - self.value),
        )


class Numbers:
    """The numbers of a report, by name and by the model that they belong to."""

    def __init__(self, report: Report) -> None:
        self.report, self.info, self.values = report, report["info"], report["values"]
        self.chance = 1 / max(1, self.info.get("classes") or 1)  # the accuracy of guessing

    def get(self, name: str, part: str = "values") -> Number | None:
        """A number of the model itself, or of another part of the report; None if it was not measured."""
        found = (self.report.get(part) or {}).get(name)
        if found is None or found["value"] is None:
            return None
        value, low, high = found["value"], found["low"], found["high"]
        sure = low is not None and high is not None
        low, high = (low, high) if sure else (value, value)
        return Number(name, value, low, high, found["n"], sure, unit_of(self.report, name))

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

    def why(self, name: str) -> str:
        """Why a value is missing, as a sentence."""
        reason = self.raw(name).get("why") or f"{name} was not asked for"
        metrics = {other.partition(".")[0] for other in (name, *self.values)}
        named = reason.split(maxsplit=1)[0].rstrip(":") in {name, *metrics}  # these keep their small letters
        return (reason if named else reason[:1].upper() + reason[1:]) + "."

    def others(self, name: str) -> str:
        """The other models' values of the same name in words, or what stands in for them."""
        theirs = {part: v for part in ("retrained", "original") if (v := self.get(name, part))}
        words = [f"the {part} model in {v.words}" for part, v in theirs.items()]
        if "retrained" not in theirs and name in ("fa_test", "fa_train"):
            words.append(f"guessing would be right in {shown(self.chance, 'share')}")
        return ", ".join(words) or "there was no other model to compare with"
