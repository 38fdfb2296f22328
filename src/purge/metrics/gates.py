"""Gates: conditions that fail an audit, for pipelines: ``purge audit RUN --fail-if "fa_test>2"``.

In Python they are ``report.check("fa_test>2")``.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from purge.core.errors import MetricError, did_you_mean
from purge.metrics.metric import Metric
from purge.metrics.registry import check_value_name, find_metric
from purge.report.findings import verdict
from purge.report.tables import scaled, shown

COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


class Gate(NamedTuple):
    """A comparison that must not hold for an audit."""

    name: str
    sign: str
    bound: float  # as tables show it: shares in percent
    metric: Metric

    def check(self, wanted: Collection[str]) -> None:
        """Refuse a gate on a value that no metric has, or whose metric is not in ``wanted``."""
        check_value_name(self.name, "--fail-if", self.metric)
        if self.metric.name not in wanted:
            fix = f"add {self.metric.name} to --metrics"
            raise MetricError(f"{self.name} to be measured", "none of it in this audit", fix)

    def check_class(self, classes: int) -> None:
        """Refuse a gate on a class that is not there."""
        part = self.name.partition(".")[2]
        if self.metric.parts == "classes" and part not in map(str, range(classes)):
            fix = f"name one of 0 to {classes - 1}"
            raise MetricError(f"a class of the data in a gate on {self.metric.name}", repr(part), fix)

    def broken(self, report: Mapping[str, Any]) -> str:
        """Why the audit fails, in one line; empty if it passes. A value that was not measured fails."""
        values, kind = report["values"], self.metric.name
        found = values.get(self.name)
        if found is None and kind in values and values[kind]["value"] is None:
            found = values[kind]  # if a metric is missing, so are its parts
        if found is None:
            known = [name for name in values if name.split(".")[0] == kind] or list(values)
            fix = did_you_mean(self.name, known)
            raise MetricError(f"{self.name} to be measured", "none of it in this audit", fix)
        asked = f"{self.name}{self.sign}{self.bound:g}"
        if found["value"] is None:
            return f"Failed: {asked} cannot be ruled out, {self.name} was not measured ({found['why']})."
        unit = self.metric.unit_of(self.name)
        if not COMPARE[self.sign](round(scaled(found["value"], unit), 9), self.bound):
            return ""
        return f"Failed: {asked}, it is {shown(found['value'], unit)}."


class NoneFailed(NamedTuple):
    """The gate ``failed``: no finding of the audit may be a failed one."""

    def check(self, wanted: Collection[str]) -> None:
        """Whatever is measured, there are findings."""

    def check_class(self, classes: int) -> None:
        """It names no class."""

    def broken(self, report: Mapping[str, Any]) -> str:
        """What failed, in one line; empty if nothing did."""
        titles = [finding.title for finding in verdict(report) if finding.level == "failed"]
        return f"Failed: {'; '.join(titles)}." if titles else ""


def as_gate(text: str, metrics: Iterable[Metric] = ()) -> Gate | NoneFailed:
    """Read ``fa_test>2`` or ``failed``; ``metrics`` are those that only this audit knows.

    >>> as_gate("bn_recal.delta >= 2")[:3]
    ('bn_recal.delta', '>=', 2.0)
    """
    if text.strip() == "failed":
        return NoneFailed()
    found = re.fullmatch(rf"\s*([\w./-]+)\s*(>=|<=|>|<)\s*({NUMBER})\s*(%?)\s*", text)
    if found is None or not math.isfinite(float(found[3])):
        raise MetricError("a condition such as 'fa_test>2'", repr(text), "write NAME>NUMBER, or failed")
    name, sign, bound, share = found.groups()
    kind = name.partition(".")[0]
    metric = next((m for m in metrics if m.name == kind), None) or find_metric(kind)
    if share and metric.unit_of(name) != "share":
        fix = "leave out the % and write the number as the table does"
        raise MetricError(f"a plain number for {name}, which is not in percent", repr(text), fix)
    return Gate(name, sign, float(bound), metric)
