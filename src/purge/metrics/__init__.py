"""The metrics of an audit, one file for each family; metrics and panels by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use
from purge.metrics.metric import Metric, Unit
from purge.metrics.registry import (
    METRICS,
    PANELS,
    all_metrics,
    check_value_name,
    find_metric,
    number,
    read_conditions,
    resolve_metrics,
)

if TYPE_CHECKING:
    from purge.metrics.bootstrap import mean_value

__all__ = [
    "METRICS", "PANELS", "Metric", "Unit", "all_metrics", "check_value_name", "find_metric", "mean_value",
    "number", "read_conditions", "resolve_metrics",
]  # fmt: skip

__getattr__ = imported_on_use(__name__, {"mean_value": "metrics.bootstrap"})
