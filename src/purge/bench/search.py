"""A random search over settings: the same number of trials for each method, scored on held-out data.

The first trial is the method as it is. The score is the weighted sum of distances to the aims of the
metrics: to the retrained model's value, or to the number that a metric names as its ideal.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from purge.bench.tables import check_name
from purge.core.errors import MethodError
from purge.core.schema import build
from purge.core.settings import checked_seed
from purge.metrics.registry import METRICS, resolve_metrics


@dataclass(frozen=True)
class Search:
    """A random search over the settings of each method, with the same number of trials for all."""

    trials: int
    score: dict[str, float]  # metric → weight of its distance to the aim; the sum is to be small
    seed: int = 0


@dataclass(frozen=True)
class Range:
    """The numbers that a setting is drawn from."""

    low: int | float
    high: int | float
    log: bool = False  # draw the logarithm uniformly


def drawn(
    ranges: dict[str, Any], seed: int, label: str, trial: int, fractions: Collection[str] = ()
) -> dict[str, Any]:
    """The settings of a trial, those of ``fractions`` any number; the first trial is the method as it is."""
    rng = np.random.default_rng([seed, zlib.crc32(label.encode()), trial])
    return {key: _draw(rng, key, given, key in fractions) for key, given in ranges.items()} if trial else {}


def _draw(rng: np.random.Generator, key: str, given: Any, fraction: bool) -> Any:
    """A choice from a list, or a number between low and high, by its logarithm with ``log: true``.

    Between whole numbers it is a whole one, unless the setting can be any (``fraction``).
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


def read_search(given: dict[str, Any]) -> Search:
    """The search that a file asks for."""
    search = build(Search, given, "search")
    for name in search.score:
        resolve_metrics([name.partition(".")[0]])
        check_name(name, "the score")
        if "shadows" in METRICS[name.partition(".")[0]].needs:
            raise MethodError("a score without shadow models", repr(name), "leave it out")
    if search.trials < 1 or not search.score:
        raise MethodError("trials and a score in search", "none", "write trials: 16, score: {…}")
    checked_seed(search.seed)
    return search


def score_of(weights: Mapping[str, float], report: Mapping[str, Any]) -> float | None:
    """How far a model is from the aims, weighted; None where a value is missing."""
    total = 0.0
    for name, weight in weights.items():
        ideal = METRICS[name.partition(".")[0]].ideal
        ours = report["values"].get(name, {}).get("value")
        aim = report["retrained"].get(name, {}).get("value") if isinstance(ideal, str) else ideal
        if ours is None or aim is None:
            return None
        total += weight * abs(ours - aim)
    return total


def needs_retrained(name: str) -> bool:
    """Does a score by this metric ask for a retrained model?"""
    metric = METRICS[name.partition(".")[0]]
    return isinstance(metric.ideal, str) or "retrained" in metric.needs


def winners(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each variant that was searched for, the trial of the lowest mean score over all of its jobs.

    A trial that failed somewhere, or could not be scored, does not win.
    """
    trials: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for result in results:
        if result["trial_of"]:
            trials.setdefault(result["trial_of"], {}).setdefault(result["label"], []).append(result)
    found = []
    for label, of in trials.items():
        scored = {
            trial: statistics.fmean(r["numbers"]["score"] for r in jobs)
            for trial, jobs in of.items()
            if all(r.get("numbers", {}).get("score") is not None for r in jobs)
        }
        if scored:
            best = min(scored, key=lambda trial: scored[trial])
            first = of[best][0]
            found.append(
                {"method": first["method"], "label": label, "set": first["changes"], "trial": best,
                 "score": scored[best], "trials": len(of), "first_score": scored.get(f"{label} #0")}
            )  # fmt: skip
    return found
