"""The shelf of audits: one entry per name, and panels of them."""

from __future__ import annotations

from collections.abc import Sequence

from purge.core.errors import MetricError, did_you_mean
from purge.metrics.accuracy import ACCURACY
from purge.metrics.damage import DAMAGE
from purge.metrics.distance import DISTANCE
from purge.metrics.membership import MEMBERSHIP
from purge.metrics.metric import Metric
from purge.metrics.probing import PROBING
from purge.metrics.robustness import ROBUSTNESS
from purge.metrics.shadow import SHADOW
from purge.metrics.subject import Subject
from purge.metrics.untrained import UNTRAINED

METRICS: dict[str, Metric] = {
    m.name: m
    for m in [*ACCURACY, *MEMBERSHIP, *DISTANCE, *UNTRAINED, *DAMAGE, *ROBUSTNESS, *PROBING, *SHADOW]
}

PANELS: dict[str, tuple[str, ...]] = {
    "quick": tuple(name for name, m in METRICS.items() if m.cost == "forward"),
    "standard": tuple(name for name, m in METRICS.items() if m.cost != "shadow"),
    "full": tuple(METRICS),
}


def resolve_metrics(metrics: str | Metric | Sequence[str | Metric]) -> list[Metric]:
    """A panel's name, a metric's name, a Metric, or a list of names and Metrics."""
    if not isinstance(metrics, (str, Metric, list, tuple)):
        raise MetricError("metrics by name or as Metric", type(metrics).__name__, "see purge.list_metrics()")
    given = [metrics] if isinstance(metrics, (str, Metric)) else list(metrics)
    wanted = [name for m in given for name in (PANELS.get(m, (m,)) if isinstance(m, str) else (m,))]
    found: list[Metric] = []
    for m in dict.fromkeys(wanted):
        if isinstance(m, str) and m not in METRICS:
            known = [*METRICS, *PANELS]
            raise MetricError("the name of a metric or panel", repr(m), did_you_mean(m, known))
        if not isinstance(m, (str, Metric)):
            raise MetricError("metrics by name or as Metric", type(m).__name__, "see purge.list_metrics()")
        found.append(METRICS[m] if isinstance(m, str) else m)
    names = [m.name for m in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise MetricError("metrics of different names", f"{twice[0]!r} twice", "rename yours")
    if not found:
        raise MetricError("at least one metric", "none", "pass metrics='standard'")
    return found


__all__ = ["METRICS", "PANELS", "Metric", "Subject", "resolve_metrics"]
