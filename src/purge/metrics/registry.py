"""All metrics by name, the panels made of them, and those of your own."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from purge.core.errors import FileError, MetricError, did_you_mean
from purge.core.plugins import installed, loaded, named
from purge.metrics.index import METRICS
from purge.metrics.metric import Metric, Need, Unit
from purge.report.tables import shown
from purge.verdict.compare import Condition, read_condition

GROUP = "purge.metrics"  # entry points of installed packages: name = "package.module:METRIC"

# About bad data: metrics that need them join a panel if they are given.
EXTRA: frozenset[Need] = frozenset({"truth", "triggered"})


_ALWAYS = {name: m for name, m in METRICS.items() if EXTRA.isdisjoint(m.needs)}
PANELS: dict[str, tuple[str, ...]] = {
    "quick": tuple(name for name, m in _ALWAYS.items() if m.cost == "forward"),
    "standard": tuple(name for name, m in _ALWAYS.items() if m.cost != "shadow"),
    "full": tuple(_ALWAYS),
}


def all_metrics() -> dict[str, Metric]:
    """The metrics of purge and of installed packages, by name; a package that does not load is left out."""
    metrics = dict(METRICS)
    for name in installed(GROUP):
        try:
            metrics.setdefault(name, find_metric(name))
        except MetricError as error:
            logging.getLogger("purge").warning("%s", error)
    return metrics


def list_metrics() -> dict[str, str]:
    """The metrics of the audit, also those of installed packages.

    Returns:
        Name → one line about it.

    Example:
        >>> list_metrics()["ra"]
        'accuracy on the retain set'
    """
    return {name: metric.about for name, metric in all_metrics().items()}


def find_metric(name: str) -> Metric:
    """A metric by name, of purge or of an installed package, or your own as ``module:NAME``."""
    if name in METRICS:
        return METRICS[name]
    if ":" in name:
        return _as_metric(named(name, MetricError), name)
    outside = installed(GROUP)
    if name not in outside:
        known = [*METRICS, *outside, *PANELS]
        fix = did_you_mean(name, known, "purge list metrics")
        raise MetricError("the name of a metric or panel", repr(name), fix)
    metric = _as_metric(loaded(outside[name], MetricError), name)
    if metric.name != name:
        fix = "give the entry point the name of its metric"
        raise MetricError(f"a metric named {name!r} from its entry point", repr(metric.name), fix)
    return metric


def _as_metric(candidate: Any, name: str) -> Metric:
    if not isinstance(candidate, Metric):
        fix = f"write {name.rpartition(':')[2]} = purge.Metric(name, symbol, about, function)"
        raise MetricError(f"a purge.Metric as {name}", type(candidate).__name__, fix)
    return candidate


def unit_of(name: str) -> Unit:
    """The unit of a value by its name, as ``relearn_few.steps``; "number" if the metric is not known."""
    metric = METRICS.get(name.partition(".")[0])
    return "number" if metric is None else metric.unit_of(name)


def number(name: str, value: float | None) -> str:
    """A value as text, by the unit of its metric: ``number("fa_test", 0.25)`` is 25.0 %."""
    return shown(value, unit_of(name))


def resolve_metrics(
    metrics: str | Metric | Sequence[str | Metric], extra: Collection[Need] = ()
) -> list[Metric]:
    """The metrics that are meant by a name, a panel, a Metric, or a list of these.

    ``extra``: which of EXTRA were given; a panel then has the metrics that need them too.
    """
    requested: Sequence[Any] = metrics if isinstance(metrics, (list, tuple)) else [metrics]
    found: dict[Metric, None] = {}  # in order, each once
    for one in requested:
        if isinstance(one, Metric):
            found[one] = None
        elif isinstance(one, str):
            more = [name for name, m in METRICS.items() if EXTRA & {*extra} & {*m.needs}]
            found |= dict.fromkeys(map(find_metric, [*PANELS[one], *more] if one in PANELS else [one]))
        else:
            raise MetricError("metrics by name or as Metric", type(one).__name__, "see purge.list_metrics()")
    resolved = [*found]
    names = [m.name for m in resolved]
    if twice := [name for name in names if names.count(name) > 1]:
        raise MetricError("metrics of different names", f"{twice[0]!r} twice", "rename yours")
    if not resolved:
        raise MetricError("at least one metric", "none", "pass metrics='standard'")
    return resolved


def check_value_name(name: str, where: str, metric: Metric | None = None) -> None:
    """Refuse a name that no value of its metric has: a wrong part, or no part where there are several.

    ``where`` says in the message who asked for the value; ``metric`` is found by name if it is not given.
    """
    kind, _, part = name.partition(".")
    metric = metric or find_metric(kind)
    open_ended = {"classes": part.isdecimal(), "layers": bool(part)}  # known only once there is a model
    good = open_ended[metric.parts] if isinstance(metric.parts, str) else name in metric.names()
    if not good:
        raise FileError(f"a number of {kind} in {where}", repr(name), did_you_mean(name, metric.names()))


def read_conditions(texts: Sequence[str], wanted: Sequence[Metric]) -> list[Condition]:
    """The conditions of ``--fail-if`` for an audit of these metrics; one that can never hold is refused."""
    own = {metric.name: metric for metric in wanted}
    conditions = [read_condition(text, lambda n: (own.get(n) or find_metric(n)).describe()) for text in texts]
    for condition in conditions:
        if condition.sign is None:  # whatever is measured, there are findings
            continue
        check_value_name(condition.name, "--fail-if", own.get(condition.metric))
        if condition.metric not in own:
            fix = f"add {condition.metric} to --metrics"
            raise MetricError(f"{condition.name} to be measured", "none of it in this audit", fix)
    return conditions


__all__ = ["METRICS", "PANELS", "Metric", "number", "resolve_metrics", "unit_of"]
