"""A random search over settings: the same trials and seconds for each method, scored on held-out data.

The first trial is the method unchanged. The score is the weighted sum of the metrics' distances to their
aims: to the retrained model's value, or to the ideal that a metric names. With ``seconds``, a method gets no
further trial once its trials have unlearned for that long: time cannot buy a slow method more attempts.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from purge import Metric
from purge.bench.schema import Bench, Search, Variant, check_known
from purge.core.errors import DataError, MethodError
from purge.core.schema import build
from purge.core.settings import as_dict, flat_fields
from purge.methods import resolve_method
from purge.metrics import check_value_name, find_metric

if TYPE_CHECKING:
    from purge.bench.jobs import Job
    from purge.bench.results import JobResult


# -- before it runs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A method with settings; in a search with those that were drawn."""

    variant: Variant
    label: str
    number: int = 0
    drawn: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Range:
    """The numbers that a setting is drawn from."""

    low: int | float
    high: int | float
    log: bool = False  # draw the logarithm uniformly


def trials_of(variant: Variant, search: Search | None) -> Iterator[Trial]:
    """The trials of a method in a search: the first changes nothing, the others draw their settings."""
    if search is None:
        yield Trial(variant, variant.label)
        return
    method = resolve_method(variant.method, variant.set)
    fields = [f for f, _ in flat_fields(method)]
    settings = {*as_dict(method), *(f.name for f in fields)}
    check_known(f"a setting of {variant.method} in search", variant.search, settings)
    fractions = [f.name for f in fields if "float" in str(f.type)]
    for i in range(search.trials if variant.search else 1):
        rng = np.random.default_rng([search.seed, zlib.crc32(variant.label.encode()), i])
        drawn = {key: _draw(rng, key, among, key in fractions) for key, among in variant.search.items()}
        yield Trial(variant, f"{variant.label} #{i}", i, drawn if i else {})


def _draw(rng: np.random.Generator, key: str, among: Any, fraction: bool) -> Any:
    """A choice from a list, or a number between low and high.

    Between whole numbers it is a whole number, unless the setting takes any number (``fraction``).
    """
    if isinstance(among, list) and among:
        return among[int(rng.integers(len(among)))]
    between = build(Range, among, f"search of {key}")
    low, high = between.low, between.high
    if not (0 if between.log else -math.inf) < low < high:
        raise MethodError(f"choices or {{low, high}} for {key}", repr(among), "write {low: 0.001, high: 0.1}")
    if between.log:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")
    if type(low) is type(high) is int and not fraction:
        return int(rng.integers(low, high, endpoint=True))
    return float(f"{rng.uniform(low, high):.4g}")


def check_search(bench: Bench) -> None:
    """Refuse a search whose score cannot be computed for every trial, and ranges without a search."""
    if bench.search is None:
        if any(variant.search for variant in bench.methods):
            raise MethodError("search: {trials: …, score: …}", "none", "add it beside methods")
        return
    first = bench.tasks[0]
    for task in bench.tasks:
        if task.set != first.set:  # a search finds settings for all of its tasks, so no task may have its own
            raise MethodError("one set for all tasks of a search", "different ones", "search in two files")
        if task.holdout is None:
            wanted = f"held-out training data of {task.data} to search on"
            raise DataError(wanted, "none, which leaves the test images", "add holdout: 0.1")
        for name in bench.search.score:
            metric = metric_of(name)
            check_value_name(name, "the score", metric)
            if "shadows" in metric.needs:
                raise MethodError("a score without shadow models", repr(name), "leave it out")
            if metric.name not in [one.name for one in task.resolved_metrics().values()]:
                raise MethodError("metrics that the score can use", f"no {name}", "add it to metrics")
            if not task.retrains and (isinstance(metric.ideal, str) or "retrained" in metric.needs):
                what = f"a retrained model for {name} in the score"
                raise MethodError(what, "retrains: 0", "write retrains: 1")


def metric_of(name: str) -> Metric:
    """The metric that a number such as ``bn_recal.after`` is from."""
    return find_metric(name.partition(".")[0])


# -- what its trials came to ---------------------------------------------------------------------


def score_of(weights: Mapping[str, float], report: Mapping[str, Any]) -> float | None:
    """The weighted distance of a model to the aims; None if a value is missing."""
    total = 0.0
    for name, weight in weights.items():
        ideal = metric_of(name).ideal
        ours = report["values"].get(name, {}).get("value")
        aim = report["retrained"].get(name, {}).get("value") if isinstance(ideal, str) else ideal
        if ours is None or aim is None:
            return None
        total += weight * abs(ours - aim)
    return total


def winners(
    results: Iterable[tuple[Job, JobResult | None]], seconds: float | None = None
) -> list[dict[str, Any]]:
    """For each label that was searched for, the trial with the lowest mean score over its jobs.

    A trial with a job that failed, that could not be scored, or whose result is missing or cannot be read
    (None) does not win: the mean over its other jobs is not comparable. Nor does one that began after the
    ``seconds`` had been used up, perhaps because they were more when it ran.
    """
    by_label: dict[str, dict[int, list[tuple[Job, JobResult | None]]]] = {}
    for job, result in results:
        if job.trial_of:
            by_label.setdefault(job.trial_of, {}).setdefault(job.trial, []).append((job, result))
    rows = []
    for label, trials in by_label.items():
        scores, spent, tried = dict[int, float](), 0.0, 0
        for number in sorted(trials):
            if seconds is not None and spent >= seconds:
                break
            tried += 1
            spent += sum(result.spent_seconds for _, result in trials[number] if result)
            each = [result.numbers.get("score") if result else None for _, result in trials[number]]
            known = [score for score in each if score is not None]
            if len(known) == len(each):
                scores[number] = statistics.fmean(known)
        if scores:
            best = min(scores, key=lambda number: scores[number])
            job = trials[best][0][0]
            rows.append(
                {"method": job.method, "label": label, "set": job.changes, "trial": job.label,
                 "score": scores[best], "trials": tried, "first_score": scores.get(0), "seconds": spent,
                 "ended": "trials" if tried == len(trials) else "seconds"}
            )  # fmt: skip
    return rows
