"""What a metric is: a function of a model under audit, and everything others need to know about it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from purge.core.errors import MetricError, did_you_mean
from purge.core.plugins import named
from purge.metrics.value import Value

if TYPE_CHECKING:
    from purge.metrics.audited import AuditedModel

Measured = Value | dict[str, Value]
Function = Callable[["AuditedModel"], Measured]
Unit = Literal["share", "number", "steps", "class"]  # a share is printed in percent
Section = Literal["forgetting", "damage", "membership", "robustness", "distance", "other"]
Direction = Literal["higher", "lower", "retrain"]  # which way is better; retrain: nearer to that model
Cost = Literal["forward", "train", "shadow"]
Need = Literal[
    "retrained", "original", "test", "same_class_test", "kept_class_test", "truth", "triggered", "shadows"
]  # fmt: skip


Figure = Literal["forgotten", "stays", "membership", "robustness", "runs"]  # whose rows are numbers
Limits = tuple[float | None, float | None]


@dataclass(frozen=True)
class Words:
    """What people read about one number.

    Args:
        sentence: what a finding calls it; empty: as ``about`` of its metric.
        rows: the figures that it is a row of, and what it is called there.
        main: whether it is among the first numbers of a report.
    """

    sentence: str = ""
    rows: dict[Figure, str] = field(default_factory=dict, hash=False)
    main: bool = False


@dataclass(frozen=True)
class Metric:
    """A number about a model, or several under one name; everything about it is said here.

    Args:
        name: what it is called in code, as ``ra``.
        symbol: what tables call it.
        about: one line.
        fn: a function of an :class:`AuditedModel` that returns a :class:`Value`, or a dict of them by part.
            It may be given as ``"module:function"``, which is imported when it is first called.
        parts: the names after the dot; empty: a single number. ``classes`` or ``layers``: as many as the
            model has.
        unit: ``share`` (printed in percent), ``number``, ``steps`` or ``class``.
        units: of parts that have another unit.
        section: of the report: forgetting, damage, membership, robustness, distance or other.
        direction: which way is better: higher, lower, or nearer to the retrained model.
        slack: how far apart two retrained models are anyway, if it is a distance to one.
        ideal: the value to aim at; ``retrain``: that of the retrained model.
        cost: ``forward``, ``train`` or ``shadow``: what it takes to measure it.
        needs: what must be given to the audit: retrained, original, test, …
        docs: what it measures and what it cannot tell; default: the docstring of ``fn``.
        limits: the least and the largest value of all its parts; None: there is no such end.
        words: what people read about it: :class:`Words`, or a dict of them by part.
        curve: the key that its ROC curve has among ``curves["roc"]`` of a model, if it leaves one.

    Example:
        >>> sure = Metric("sure", "sure", "share of samples answered surely", "own:sure", unit="share")
        >>> sure.names(), sure.unit_of("sure")
        (['sure'], 'share')
    """

    name: str
    symbol: str
    about: str
    fn: Function | str
    parts: tuple[str, ...] | Literal["classes", "layers"] = ()
    unit: Unit = "number"
    units: Mapping[str, Unit] = field(default_factory=dict, hash=False)
    section: Section = "other"
    direction: Direction = "retrain"
    slack: float = 0.0
    ideal: float | Literal["retrain"] = "retrain"
    cost: Cost = "forward"
    needs: Collection[Need] = frozenset()
    docs: str = ""
    limits: Limits = (None, None)
    words: Words | Mapping[str, Words] = field(default_factory=Words, hash=False)
    curve: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", frozenset(self.needs))
        if not isinstance(self.parts, str):
            object.__setattr__(self, "parts", tuple(self.parts))
        if not re.fullmatch(r"\w+", self.name):
            raise MetricError("letters, digits and _ in the name of a metric", repr(self.name), "rename it")
        if not callable(self.fn) and not re.fullmatch(r"[\w.]+:\w+", str(self.fn)):
            raise MetricError(f"a function for {self.name}", repr(self.fn), "pass it, or 'module:function'")
        parts = [self.parts] if isinstance(self.parts, str) else []
        words: dict[str, tuple[Collection[str], Collection[str]]] = {
            "parts": (parts, ("classes", "layers")),
            "unit": ([self.unit, *self.units.values()], get_args(Unit)),
            "section": ([self.section], get_args(Section)),
            "direction": ([self.direction], get_args(Direction)),
            "cost": ([self.cost], get_args(Cost)),
            "needs": (self.needs, get_args(Need)),
        }
        for what, (chosen, known) in words.items():
            for word in chosen:
                if word not in known:
                    fix = did_you_mean(str(word), known)
                    raise MetricError(f"a known word for {what} of {self.name}", repr(word), fix)

    def compute(self, audited: AuditedModel) -> Measured:
        """Measure it.

        Args:
            audited: the model under audit.

        Returns:
            The value, or a dict of values by part.

        Raises:
            MetricError: its function returned something else.
        """
        fn: Function = named(self.fn, MetricError) if isinstance(self.fn, str) else self.fn
        measured = fn(audited)
        values = [*measured.values()] if isinstance(measured, dict) else [measured]
        strange = [type(v).__name__ for v in values if not isinstance(v, Value)]
        if strange or not values:
            fix = "return purge.Value(number), or purge.Value.missing(reason)"
            got = strange[0] if strange else "an empty dict"
            raise MetricError(f"a Value or a dict of Values from {self.name}", got, fix)
        parts = tuple(measured) if isinstance(measured, dict) else ()
        one_reason_for_all = not parts and values[0].value is None
        fits = bool(parts) if isinstance(self.parts, str) else {*parts} == {*self.parts}
        if not (fits or one_reason_for_all):
            fix = f"say parts={parts!r} in Metric({self.name!r}, …), or return those parts"
            raise MetricError(f"parts {self.parts!r} from {self.name}", repr(parts), fix)
        return measured

    def explain(self) -> str:
        """What it measures and what it cannot tell: ``docs``, the docstring of ``fn``, or ``about``."""
        if self.docs or not isinstance(self.fn, str):
            return self.docs or inspect.getdoc(getattr(self.fn, "func", self.fn)) or self.about
        module, _, name = self.fn.partition(":")
        return _docstring(module, name) or self.about

    def unit_of(self, name: str) -> Unit:
        """The unit of one of its values.

        Args:
            name: the full name of the value, such as ``worst_class.accuracy``.

        Returns:
            The unit.
        """
        return self.units.get(name.partition(".")[2], self.unit)

    def names(self) -> list[str]:
        """The full names of its values; for classes and layers, an example."""
        if isinstance(self.parts, str):
            return [f"{self.name}.{'0' if self.parts == 'classes' else 'penultimate'}"]
        return [f"{self.name}.{part}" for part in self.parts] or [self.name]

    def describe(self) -> dict[str, Any]:
        """Everything but the function, as plain JSON values, for a report that can be read on its own."""
        words = {"": self.words} if isinstance(self.words, Words) else self.words
        return {
            "symbol": self.symbol, "about": self.about, "unit": self.unit, "units": dict(self.units),
            "parts": list(self.parts) if isinstance(self.parts, tuple) else self.parts,
            "section": self.section, "direction": self.direction, "slack": self.slack,
            "ideal": self.ideal, "cost": self.cost, "needs": sorted(self.needs),
            "words": {part: asdict(said) for part, said in words.items()}, "curve": self.curve,
        }  # fmt: skip


def _docstring(module: str, name: str) -> str | None:
    """The docstring of a function, or of what it is a partial of; read from the source, without torch."""
    spec = importlib.util.find_spec(module)
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else "").body
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node).startswith(f"{name} = partial("):
            name = ast.unparse(node).partition("(")[2].partition(",")[0]
    functions = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == name]
    return ast.get_docstring(functions[0]) if functions else None
