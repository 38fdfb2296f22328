"""Limits that an audit must keep, for pipelines: ``purge audit RUN --fail-if "fa_test>2"``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from purge.core.errors import MetricError
from purge.core.errors import did_you_mean
from purge.core.errors import expected
from purge.metrics.registry import METRICS, number, unit_of
from purge.report.tables import scaled

COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


class Limit(NamedTuple):
    """A comparison that must not be true of an audit."""

    name: str
    sign: str
    bound: float  # as tables print it: accuracies in percent

    def check(self, wanted: Collection[str]) -> None:
        """Refuse a limit on a metric that is not among those to be measured."""
        kind = self.name.partition(".")[0]
        if kind not in wanted:
            what, got = f"{self.name} to be measured", "none of it in this audit"
            raise MetricError(what, got, f"add {kind} to --metrics")

    def check_class(self, classes: int) -> None:
        """Refuse a limit on a class that is not there."""
        kind, _, part = self.name.partition(".")
        if METRICS[kind].parts == "classes" and part not in map(str, range(classes)):
            fix = f"name one of 0 to {classes - 1}"
            raise MetricError(f"a class of the data in a limit on {kind}", repr(part), fix)

    def broken(self, report: Mapping[str, Any]) -> str:
        """What is wrong, in a line; empty if the limit is kept. What was not measured is not kept."""
        values = report["values"]
        kind = self.name.partition(".")[0]
        found = values.get(self.name)
        if found is None and kind in values and values[kind]["value"] is None:
            found = values[kind]  # a part of what is missing is missing as well
        if found is None:
            got = "none of it in this audit"
            known = [name for name in values if name.split(".")[0] == kind] or list(values)
            raise MetricError(f"{self.name} to be measured", got, did_you_mean(self.name, known))
        asked = f"{self.name}{self.sign}{self.bound:g}"
        if found["value"] is None:
            return f"Failed: {asked} cannot be ruled out, {self.name} was not measured ({found['why']})."
        unit = unit_of(self.name)
        value = round(scaled(found["value"], unit), 9) if unit == "share" else found["value"]
        if not COMPARE[self.sign](value, self.bound):
            return ""
        return f"Failed: {asked}, it is {number(self.name, found['value'])}."


def as_limit(text: str) -> Limit:
    """Read ``fa_test>2``.

    >>> as_limit("bn_recal.delta >= 2")
    Limit(name='bn_recal.delta', sign='>=', bound=2.0)
    """
    found = re.fullmatch(rf"\s*([\w./-]+)\s*(>=|<=|>|<)\s*({NUMBER})\s*(%?)\s*", text)
    if found is None or not math.isfinite(float(found[3])):
        raise MetricError("a limit such as 'fa_test>2'", repr(text), "write NAME>NUMBER")
    name, sign, bound, share = found.groups()
    kind = name.partition(".")[0]
    if kind not in METRICS:
        raise MetricError("the name of a metric in a limit", repr(name), did_you_mean(kind, METRICS))
    if share and unit_of(name) != "share":
        fix = "leave out the % and write the number as the table does"
        raise MetricError(f"a plain number for {name}, which is not in percent", repr(text), fix)
    return Limit(name, sign, float(bound))
