"""What a metric is: a function of a model under audit, and all that others need to know about it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from purge.core.errors import MetricError, did_you_mean

if TYPE_CHECKING:
    from purge.metrics.subject import Subject
    from purge.metrics.value import Value

Function = Callable[["Subject"], "Value | dict[str, Value]"]
Unit = Literal["share", "number", "steps", "class"]  # a share is printed in percent
Section = Literal["forgetting", "damage", "membership", "robustness", "distance", "other"]

NEEDS = ("retrained", "original", "test", "same_class_test", "kept_class_test", "shadows")


@dataclass(frozen=True)
class Metric:
    """A number about a model, or several under one name; everything about it is said here.

    ``fn`` is a function of a :class:`Subject`, or ``"module:function"``, which is imported when it is
    first used.
    """

    name: str
    symbol: str
    about: str  # one line
    fn: Function | str
    parts: tuple[str, ...] | Literal["classes", "layers"] = ()  # after the dot; empty: a single number
    unit: Unit = "number"
    units: Mapping[str, Unit] = field(default_factory=dict, hash=False)  # of parts that have another unit
    section: Section = "other"
    direction: Literal["higher", "lower", "retrain"] = "retrain"  # which way is better
    slack: float = 0.0  # what two retrained models differ by anyway, if it is a distance to one
    ideal: float | Literal["retrain"] = "retrain"
    cost: Literal["forward", "train", "shadow"] = "forward"
    needs: Collection[str] = frozenset()
    docs: str = ""  # what it measures and what it cannot tell; default: the docstring of ``fn``

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", frozenset(self.needs))
        for need in self.needs:
            if need not in NEEDS:
                raise MetricError("needs that are known", repr(need), did_you_mean(need, NEEDS))

    def compute(self, subject: Subject) -> Value | dict[str, Value]:
        """The value for a model, or a dict of values by part."""
        if not isinstance(self.fn, str):
            return self.fn(subject)
        module, _, name = self.fn.partition(":")
        return cast(Function, getattr(importlib.import_module(module), name))(subject)

    def unit_of(self, name: str) -> Unit:
        """The unit of a value by its whole name, as ``worst_class.accuracy``."""
        return self.units.get(name.partition(".")[2], self.unit)

    def names(self) -> list[str]:
        """The whole names of its values; those of classes and layers are shown by an example."""
        if isinstance(self.parts, str):
            return [f"{self.name}.{'0' if self.parts == 'classes' else 'penultimate'}"]
        return [f"{self.name}.{part}" for part in self.parts] or [self.name]

    def describe(self) -> dict[str, Any]:
        """All but the function, as plain JSON values; a report carries it, so that it can be read alone."""
        return {
            "symbol": self.symbol, "about": self.about, "unit": self.unit, "units": dict(self.units),
            "parts": list(self.parts) if isinstance(self.parts, tuple) else self.parts,
            "section": self.section, "direction": self.direction, "slack": self.slack,
            "ideal": self.ideal, "cost": self.cost,
        }  # fmt: skip
