"""Limits that an audit must keep, for pipelines: ``purge audit RUN --fail-if "fa_test>2"``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from purge.errors import MetricError, did_you_mean, expected
from purge.metrics import METRICS
from purge.tables import number, percent

COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


class Limit(NamedTuple):
    """A comparison that must not be true of an audit."""

    name: str
    sign: str
    bound: float  # as tables print it: accuracies in percent

    def broken(self, report: Mapping[str, Any]) -> str:
        """What is wrong, in a line; empty if the limit is kept. What was not measured is not kept."""
        values = report["values"]
        kind = self.name.split(".")[0]
        found = values.get(self.name) or values.get(kind)  # a part of what is missing is missing as well
        if found is None:
            got = "none of it in this audit"
            known = [name for name in values if name.split(".")[0] == kind] or list(values)
            raise MetricError(expected(f"{self.name} to be measured", got, did_you_mean(self.name, known)))
        asked = f"{self.name}{self.sign}{self.bound:g}"
        if found["value"] is None:
            return f"Failed: {asked} cannot be ruled out, {self.name} was not measured ({found['why']})."
        value = found["value"] * (100 if percent(self.name) else 1)
        if not COMPARE[self.sign](value, self.bound):
            return ""
        return f"Failed: {asked}, it is {number(self.name, found['value'])}."


def as_limit(text: str) -> Limit:
    """Read ``fa_test>2``.

    >>> as_limit("bn_recal.delta >= 2")
    Limit(name='bn_recal.delta', sign='>=', bound=2.0)
    """
    found = re.fullmatch(r"\s*([\w./-]+)\s*(>=|<=|>|<)\s*([-+.\w]+)\s*%?\s*", text)
    try:
        bound = float(found[3]) if found else math.nan
    except ValueError:
        bound = math.nan
    if found is None or math.isnan(bound):
        raise MetricError(expected("a limit such as 'fa_test>2'", repr(text), "write NAME>NUMBER"))
    if found[1].split(".")[0] not in METRICS:
        fix = did_you_mean(found[1].split(".")[0], METRICS)
        raise MetricError(expected("the name of a metric in a limit", repr(found[1]), fix))
    return Limit(found[1], found[2], bound)
