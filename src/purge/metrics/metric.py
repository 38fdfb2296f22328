"""What a metric is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from purge.core.errors import MetricError, did_you_mean
from purge.metrics.value import Value

if TYPE_CHECKING:
    from purge.metrics.subject import Subject


NEEDS = ("retrained", "original", "test", "same_class_test", "kept_class_test", "shadows")


@dataclass(frozen=True)
class Metric:
    """A number about a model. ``needs`` names what must be given for it to exist."""

    name: str
    symbol: str
    about: str
    fn: Callable[[Subject], Value | dict[str, Value]]
    ideal: float | Literal["retrain"] = "retrain"
    cost: Literal["forward", "train", "shadow"] = "forward"
    needs: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for need in self.needs:
            if need not in NEEDS:
                raise MetricError("needs that are known", repr(need), did_you_mean(need, NEEDS))
