"""Reports with planted numbers."""

from __future__ import annotations

from typing import Any

from purge.metrics.registry import METRICS
from purge.verdict.findings import Finding
from purge.verdict.judge import verdict_of

Given = float | tuple[float, float, float] | tuple[float, float, float, int] | str

FORGOT: dict[str, Given] = {"fa_train": (0.0, 0.0, 0.01)}
KNEW: dict[str, Given] = {"fa_train": (1.0, 0.99, 1.0)}


def value(given: Given) -> dict[str, Any]:
    """A number, a number with its interval (and count), or the reason why there is none."""
    if isinstance(given, str):
        return {"value": None, "low": None, "high": None, "n": None, "why": given}
    if isinstance(given, tuple):
        v, low, high, *n = given
        return {"value": v, "low": low, "high": high, "n": n[0] if n else 1000, "why": ""}
    return {"value": given, "low": given, "high": given, "n": 1000, "why": ""}


def made(
    values: dict[str, Given],
    retrained: dict[str, Given] | None = None,
    original: dict[str, Given] | None = None,
    floor: dict[str, Given] | None = None,
    **info: Any,
) -> dict[str, Any]:
    """A report as plain values; one on class 3 unless ``info`` says otherwise."""
    parts = {"values": values, "retrained": retrained, "original": original, "floor": floor}
    found: dict[str, Any] = {p: {k: value(v) for k, v in (given or {}).items()} for p, given in parts.items()}
    known = {"classes": 10, "forget_classes": [3], "names": [], "forget_samples": 100, "retain_samples": 900}
    metrics = {name: metric.describe() for name, metric in METRICS.items()}
    return {**found, "info": {**known, **info}, "curves": {}, "metrics": metrics}


def on(topic: str, *args: Any, **more: Any) -> list[Finding]:
    """The findings of one kind of evidence."""
    return [f for f in verdict_of(made(*args, **more)).findings if f.topic == topic]


def by_rule(*args: Any, **more: Any) -> dict[str, str]:
    """The level of each rule."""
    return {f.rule.name: f.level for f in verdict_of(made(*args, **more)).findings}
