"""The shapes of what figures are drawn from, for curves out of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from purge.core.errors import FileError
from purge.core.schema import build


class Columns:
    """Lists of one length."""

    def __post_init__(self) -> None:
        """Refuse lists that do not go together."""
        columns = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        lengths = {name: len(column) for name, column in columns.items() if isinstance(column, list)}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{n} of {name}" for name, n in lengths.items())
            raise FileError("curves with as many numbers on each axis", got, "audit again")


@dataclass(frozen=True)
class Roc(Columns):
    """Samples found at each share of false alarms."""

    fpr: list[float]
    tpr: list[float]


@dataclass(frozen=True)
class Relearning(Columns):
    """Accuracy on what was forgotten while a model is trained further."""

    step: list[float]
    forget_accuracy: list[float]
    threshold: float | None = None


@dataclass(frozen=True)
class View(Columns):
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
    for model, own in curves.items():
        build(Curves, own, f"curves of {model} of {where}", ignore_unknown=True)
