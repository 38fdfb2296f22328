"""The shapes of what figures are drawn from, for curves out of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from purge.core.errors import FileError
from purge.core.schema import build


@dataclass(frozen=True)
class Roc:
    """Samples found at each share of false alarms."""

    fpr: list[float]
    tpr: list[float]


@dataclass(frozen=True)
class Relearning:
    """Accuracy on what was forgotten while a model is trained further."""

    step: list[float]
    forget_accuracy: list[float]
    threshold: float | None = None


@dataclass(frozen=True)
class View:
    """Hidden features in two dimensions."""

    x: list[float]
    y: list[float]
    label: list[int]
    forgotten: list[int | bool]


@dataclass(frozen=True)
class Curves:
    """The curves of one model that are drawn; others may be there."""

    roc: dict[str, Roc] = field(default_factory=dict)
    relearn: dict[str, Relearning] = field(default_factory=dict)
    features: View | None = None
    history: dict[str, list[Any]] = field(default_factory=dict)


def check_curves(curves: Mapping[str, Any], where: str) -> None:
    """Refuse curves that cannot be drawn; ``where`` names their file."""
    for model, content in curves.items():
        own = build(Curves, content, f"curves of {model} of {where}", ignore_unknown=True)
        for curve in (*own.roc.values(), *own.relearn.values(), *([own.features] if own.features else [])):
            lengths = {name: len(axis) for name, axis in vars(curve).items() if isinstance(axis, list)}
            if len(set(lengths.values())) > 1:
                got = ", ".join(f"{n} of {name}" for name, n in lengths.items())
                raise FileError("curves with as many numbers on each axis", got, "audit again")
