"""A random search over settings: the same trials and seconds for each method, scored on held-out data.

The first trial is the method unchanged. The score is the weighted sum of the metrics' distances to their
aims: to the retrained model's value, or to the ideal that a metric names. With ``seconds``, a method gets no
further trial once its trials have unlearned for that long: time cannot buy a slow method more attempts.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from purge.core.errors import MethodError
from purge.core.schema import build
from purge.core.settings import setting
from purge.metrics.metric import Metric
from purge.metrics.registry import check_value_name, find_metric

if TYPE_CHECKING:
    from purge.bench.expand import Job


@dataclass(frozen=True)
class Search:
    """A random search over the settings of each method, with the same budget for all."""

    trials: int = setting(help="trials for each method, at most", low=1)
    score: dict[str, float] = setting(help="metric → weight of its distance to the aim; lower is better")
    seed: int = setting(0, low=0, high=2**32 - 1)
    seconds: float | None = setting(
        None, "seconds of unlearning for each method; once its trials have used them up, no other begins",
        above=0,
    )  # fmt: skip


@dataclass(frozen=True)
class Range:
    """The numbers that a setting is drawn from."""

    low: int | float
    high: int | float
    log: bool = False  # draw the logarithm uniformly


def drawn(
    ranges: dict[str, Any], seed: int, label: str, trial: int, fractions: Collection[str] = ()
) -> dict[str, Any]:
    """The settings of a trial; those in ``fractions`` may be any number. The first trial changes nothing."""
    rng = np.random.default_rng([seed, zlib.crc32(label.encode()), trial])
    return {key: _draw(rng, key, given, key in fractions) for key, given in ranges.items()} if trial else {}


def _draw(rng: np.random.Generator, key: str, given: Any, fraction: bool) -> Any:
    """A choice from a list, or a number between low and high.

    Between whole numbers it is a whole number, unless the setting takes any number (``fraction``).
    """
    if isinstance(given, list) and given:
        return given[int(rng.integers(len(given)))]
    between = build(Range, given, f"search of {key}")
    low, high = between.low, between.high
    if not (0 if between.log else -math.inf) < low < high:
        raise MethodError(f"choices or {{low, high}} for {key}", repr(given), "write {low: 0.001, high: 0.1}")
    if between.log:
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.4g}")
    if isinstance(low, int) and isinstance(high, int) and not fraction:
        return int(rng.integers(low, high, endpoint=True))
    return float(f"{rng.uniform(low, high):.4g}")


def check_search(search: Search) -> None:
    """Refuse a score that cannot be computed for every trial."""
    if not search.score:
        raise MethodError("a score in search", "none", "write score: {fa_test: 1}, say")
    for name in search.score:
        check_value_name(name, "the score")
        if "shadows" in _metric(name).needs:
            raise MethodError("a score without shadow models", repr(name), "leave it out")


def score_of(weights: Mapping[str, float], report: Mapping[str, Any]) -> float | None:
    """The weighted distance of a model to the aims; None if a value is missing."""
    total = 0.0
    for name, weight in weights.items():
        ideal = _metric(name).ideal
        ours = report["values"].get(name, {}).get("value")
        aim = report["retrained"].get(name, {}).get("value") if isinstance(ideal, str) else ideal
        if ours is None or aim is None:
            return None
        total += weight * abs(ours - aim)
    return total


def needs_retrained(name: str) -> bool:
    """Does a score by this metric need a retrained model?"""
    metric = _metric(name)
    return isinstance(metric.ideal, str) or "retrained" in metric.needs


def _metric(name: str) -> Metric:
    return find_metric(name.partition(".")[0])


Results = Iterable[tuple["Job", Mapping[str, Any] | None]]


def waves(jobs: Sequence[Job], seconds: float | None) -> list[list[Job]]:
    """The jobs in the order of their trials, if the time of each trial decides about the next one."""
    if seconds is None:
        return [[*jobs]]
    numbers = sorted({job.trial for job in jobs})
    return [[job for job in jobs if job.trial == number] for number in numbers]


def spent_in(result: Mapping[str, Any] | None) -> float:
    """The seconds that a job unlearned, also if it failed then."""
    found = (result or {}).get("spent_seconds")
    return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else 0.0


def winners(results: Results, seconds: float | None = None) -> list[dict[str, Any]]:
    """For each label that was searched for, the trial with the lowest mean score over its jobs.

    A trial with a job that failed, that could not be scored, or whose result is missing or cannot be read
    (None) does not win: the mean over its other jobs is not comparable. Nor does one that began after the
    ``seconds`` had been used up, perhaps because they were more when it ran.
    """
    trials: dict[str, dict[int, list[tuple[Job, Mapping[str, Any] | None]]]] = {}
    for job, result in results:
        if job.trial_of:
            trials.setdefault(job.trial_of, {}).setdefault(job.trial, []).append((job, result))
    found = []
    for label, planned in trials.items():
        of, spent = _within(planned, seconds)
        each = {trial: [s for _, r in jobs if (s := _score_in(r)) is not None] for trial, jobs in of.items()}
        scored = {t: statistics.fmean(scores) for t, scores in each.items() if len(scores) == len(of[t])}
        if scored:
            best = min(scored, key=lambda trial: scored[trial])
            first = of[best][0][0]
            found.append(
                {"method": first.method, "label": label, "set": first.changes, "trial": first.label,
                 "score": scored[best], "trials": len(of), "first_score": scored.get(0), "seconds": spent,
                 "ended": "trials" if len(of) == len(planned) else "seconds"}
            )  # fmt: skip
    return found


def _within(
    planned: Mapping[int, list[tuple[Job, Mapping[str, Any] | None]]], seconds: float | None
) -> tuple[dict[int, list[tuple[Job, Mapping[str, Any] | None]]], float]:
    """The trials that began before the seconds were used up, and the seconds that they took."""
    of, spent = {}, 0.0
    for trial in sorted(planned):
        if seconds is not None and spent >= seconds:
            break
        of[trial] = planned[trial]
        spent += sum(spent_in(result) for _, result in planned[trial])
    return of, spent


def _score_in(result: Mapping[str, Any] | None) -> float | None:
    """The score that a result has, if it is a number."""
    score = (result or {}).get("numbers", {}).get("score")
    return score if isinstance(score, (int, float)) and math.isfinite(score) else None
