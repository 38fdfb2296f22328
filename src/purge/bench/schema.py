"""What the YAML file of a bench may say: one frozen dataclass for each part of it.

The keys of a file are the fields of :class:`Bench` and of :class:`Task`; those of a task may also stand in
``tasks``. See ``configs/`` for examples. What only the jobs can tell, such as whether a column is one of
their metrics, is checked in ``jobs``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from purge import Metric
from purge.core.errors import DataError, FileError, MethodError, brief, did_you_mean
from purge.core.files import below, read_yaml
from purge.core.schema import build, fit
from purge.core.settings import setting
from purge.data import DATASETS
from purge.metrics import resolve_metrics
from purge.verdict import GoalSide, missed_by

By = Literal["data", "forget", "label"]
Part = Literal["original", "retrained", "floor"]

KEYS: dict[By, str] = {"data": "data", "forget": "forgotten", "label": "method"}  # headings of key columns
PARTS: dict[Part, str] = {"original": "original", "retrained": "retrain", "floor": "floor"}  # labels of rows

# Numbers of a job that are not metrics: the heading, and the unit or format.
NUMBERS = {
    "seconds": ("seconds", ".2f"),
    "first_seconds": ("seconds, first time", ".2f"),
    "retrain_seconds": ("seconds of retraining", ".1f"),
    "speedup": ("speed-up", ".1f"),
    "pflop": ("PFLOP", ".3g"),
    "retrain_pflop": ("PFLOP of retraining", ".3g"),
    "steps": ("steps", ".0f"),
    "projected": ("projected", "share"),
    "gated": ("gated", "share"),
    "raising": ("steps that raise the retain loss", "share"),
    "score": ("score", ".4f"),
}


# -- jobs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Data, a model and what it must forget."""

    data: str
    model: str
    size: int | None = setting(None, "the side of the images; none: the data set's own", low=8, high=1024)
    per_class: int | None = setting(None, "train on this many images of each class, drawn once", low=1)
    holdout: float | None = setting(
        None, "this share of each class is held out and replaces the test images", low=0.01, high=0.5
    )
    recipe: dict[str, Any] = setting({}, "settings of training")
    forget: list[int | list[int]] | Literal["each"] | None = setting(
        None, "a request for each class, or for each list of classes"
    )
    fraction: float | None = setting(None, "or: this share of all samples, drawn", above=0, high=0.999)
    draw: int | None = setting(
        None, "draw the fraction by this seed, the same for all jobs; none: by each job's own",
        low=0, high=2**32 - 1,
    )  # fmt: skip
    ids: list[int] | None = setting(None, "or: these samples", low=0)
    seeds: list[int] = setting([0], "a job for each of them", low=0, high=2**32 - 1)
    retrains: int = setting(
        1, "references; two or more show how far apart they are; seeds share them if they forget the same",
        low=0, high=100,
    )  # fmt: skip
    metrics: str | list[str] = setting("standard", "a panel, or names of metrics")
    repeats: int = setting(1, "times that a job unlearns; the last one is reported", low=1, high=100)
    set: dict[str, dict[str, Any]] = setting({}, "settings on this data, by label")

    def __post_init__(self) -> None:
        if self.per_class == 1 and self.holdout is not None:
            got = "per_class: 1, all of which would be held out"
            raise DataError("two images of each class to hold one out", got, "raise per_class")
        if not self.seeds:
            raise FileError("at least one seed", "none", "write seeds: [0]")
        requests = [key for key in ("forget", "fraction", "ids") if getattr(self, key) is not None]
        if len(requests) != 1 or not getattr(self, requests[0]):
            empty = f"an empty {requests[0]}" if requests else "none"
            got = " and ".join(requests) if len(requests) > 1 else empty
            raise DataError(f"one of forget, fraction and ids for {self.data}", got, "write forget: [0], say")
        if self.draw is not None and self.fraction is None:
            raise DataError("a fraction to draw", f"draw: {self.draw} beside {requests[0]}", "leave draw out")

    @property
    def metric_names(self) -> list[str]:
        """The panel or the metrics, as the file names them."""
        return [self.metrics] if isinstance(self.metrics, str) else self.metrics

    def resolved_metrics(self) -> dict[str, Metric]:
        """The metrics by the names that find them again: their own, or ``module:NAME`` as in the file."""
        own = {resolve_metrics(name)[0].name: name for name in self.metric_names if ":" in name}
        return {own.get(m.name, m.name): m for m in resolve_metrics(self.metric_names)}


@dataclass(frozen=True)
class Base:
    """How the model that a method begins with was trained, beside the settings of its recipe."""

    shards: int = setting(0, "train this many models on a part of the data each; 0: one model", low=0)
    slices: int = setting(1, "slices of each shard", low=1)
    vote: Literal["mean", "majority"] = setting("mean", "how shards decide: mean of the softmax, or majority")
    log_updates: bool = setting(False, "write down the updates that involve forgotten samples")


@dataclass(frozen=True)
class Variant:
    """A method with its own settings, under a label."""

    method: str
    label: str = ""  # default: the method's name
    set: dict[str, Any] = setting({})
    base: dict[str, Any] = setting({}, "the fields of Base, and changes to the recipe of its base model")
    search: dict[str, Any] = setting({}, "setting → choices or {low, high, log}")

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.method)

    def split_base(self, needs: Collection[str]) -> tuple[Base, dict[str, Any]]:
        """The base and the changes to its recipe; a method that ``needs`` a base of its kind must have it."""
        own = {k: v for k, v in self.base.items() if k in Base.__dataclass_fields__}
        base = build(Base, own, f"base of {self.label}")
        for need, key, value in (("shards", "shards", "5"), ("updates", "log_updates", "true")):
            if need in needs and not own.get(key):
                fix = f"write base: {{{key}: {value}}}"
                raise MethodError(f"base: {{{key}: …}} for {self.method}", "none", fix)
            if need not in needs and own.get(key):
                got = f"{key} for a method that has no use for it"
                raise MethodError("another base", got, "leave it out")
        if base.shards == 1:
            raise MethodError("shards from 2", "1", "change base")
        if alone := [key for key in ("slices", "vote") if key in own and not base.shards]:
            raise MethodError(f"shards beside {alone[0]} in base", "none", f"leave {alone[0]} out")
        return base, {k: v for k, v in self.base.items() if k not in own}


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
class Resources:
    """What a worker needs; on a cluster, a node gets as many workers as it has room for."""

    cpus: int | None = setting(
        None, "threads of each worker, everywhere; on a cluster 1 by default", low=1, high=1024
    )
    gpus: float = setting(0.0, "GPUs, on a cluster alone: 0.25 lets four workers share one", low=0, high=64)
    memory: str | int | None = setting(None, "memory, on a cluster alone: bytes, or 4GB; none: not counted")

    def __post_init__(self) -> None:
        if self.gpus > 1 and self.gpus % 1:
            raise MethodError("a part of one GPU, or a whole number of them", str(self.gpus), "change gpus")
        _ = self.memory_bytes

    @property
    def memory_bytes(self) -> int | None:
        """The memory as a number.

        >>> Resources(memory="4GB").memory_bytes, Resources(memory="1.5 GiB").memory_bytes
        (4000000000, 1610612736)
        """
        if self.memory is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]i?)?B?", str(self.memory))
        unit = (match[2] or "") if match else ""
        factor = (1024 if unit.endswith("i") else 1000) ** (" kMGT".index(unit[0]) if unit else 0)
        if not match or float(match[1]) * factor < 1:
            raise MethodError("an amount of memory in resources", repr(self.memory), "write memory: 4GB, say")
        return int(float(match[1]) * factor)


# -- tables and figures -------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """What a column should be: at least, at most or near a number, or near the value of another model."""

    column: str
    least: float | Part | None = None
    most: float | Part | None = None
    near: float | Part | None = None
    times: float = 1.0  # the value of the other model is multiplied by this; the slack is not
    slack: float = 0.0

    def __post_init__(self) -> None:
        sides = sum(v is not None for v in (self.least, self.most, self.near))
        if sides != 1:
            raise FileError(f"one of least, most and near for {self.column}", str(sides), "give one")
        if self.times != 1 and not isinstance(self.aim, str):
            got, fix = f"{self.side}: {self.aim}", f"write the product as {self.side}"
            raise FileError(f"times beside {' or '.join(PARTS)} in the goal for {self.column}", got, fix)

    @property
    def side(self) -> GoalSide:
        """Which of the three it has."""
        return next(side for side in get_args(GoalSide) if getattr(self, side) is not None)

    @property
    def aim(self) -> float | Part:
        """The number, or the model whose value it is."""
        aim: float | Part = getattr(self, self.side)
        return aim

    def missed_by(self, value: float, aim: float) -> float:
        """How far a value misses the goal; 0 if it meets it."""
        return missed_by(value, self.side, aim, self.slack)


@dataclass(frozen=True)
class Table:
    """A table to make: a row for each value of ``rows`` among the jobs, a column for each metric."""

    name: str
    columns: list[str]
    rows: list[By] = setting(["label"])
    title: str = ""
    paper: str | None = None  # the table of paper.json or paper_later.json with the paper's numbers
    also: list[Part] = setting([], "other models that get rows of their own")
    only: dict[By, list[str]] = setting({}, "leave out all other jobs")
    goals: list[Goal] = setting([])

    def __post_init__(self) -> None:
        where = f"table {check_name(self.name, 'tables')}"
        if twice := repeated(self.rows):
            raise FileError(f"different rows in {where}", f"{twice!r} twice", "leave one out")
        if twice := repeated([goal.column for goal in self.goals]):
            raise FileError(f"one goal for {twice} in {where}", "two", "leave one out")


@dataclass(frozen=True)
class Drawing:
    """A figure to draw: some columns of a table, a panel each."""

    name: str
    table: str
    columns: list[str] = setting([], "default: all")
    only: dict[By, list[str]] = setting({}, "leave out all other rows")
    kind: Literal["bars", "lines"] = "bars"

    def __post_init__(self) -> None:
        check_name(self.name, "figures")

    def check(self, tables: Iterable[Table]) -> None:
        """Refuse a figure of a table, columns or rows that are not there."""
        by_name = {table.name: table for table in tables}
        if self.table not in by_name:
            refuse(f"a table for figure {self.name}", self.table, by_name)
        table = by_name[self.table]
        for column in self.columns:
            if column not in table.columns:
                refuse(f"a column of table {self.table}", column, table.columns)
        for by in self.only:
            if by not in table.rows:
                got, fix = f"only: {{{by}: …}}", f"add {by} to the rows of table {self.table}"
                raise FileError(f"a choice of rows of table {self.table}", got, fix)


def check_name(name: str, what: str) -> str:
    """A name that is part of a file's, and of a label in LaTeX."""
    if not re.fullmatch(r"[\w-]+", name):
        raise FileError(f"{what} of plain names", brief(name), "use letters, digits, - and _")
    below(Path(), name)
    return name


def repeated(names: Sequence[str]) -> str | None:
    """The first name that appears more than once."""
    return next((name for name in names if names.count(name) > 1), None)


def refuse(what: str, word: str, known: Iterable[str]) -> None:
    """Say that a word is none of the known ones."""
    raise FileError(what, brief(word), did_you_mean(word, known))


# -- the file -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """A whole file: every task and every method written out."""

    tasks: list[Task]
    methods: list[Variant]
    about: str = ""
    search: Search | None = None
    presets: str | None = setting(None, "a file that a search wrote")
    tables: list[Table] = setting([])
    figures: list[Drawing] = setting([])
    resources: Resources = Resources()

    def __post_init__(self) -> None:
        labels = [variant.label for variant in self.methods]
        if twice := repeated(labels):
            raise MethodError("methods of different labels", f"{twice!r} twice", "add label: …")
        taken = [label for label in labels if label in PARTS.values()]
        if taken and self.search is None:  # trials have labels of their own
            raise MethodError(
                f"labels other than {', '.join(PARTS.values())}", repr(taken[0]), "add label: …"
            )
        for what, wanted in (("tables", self.tables), ("figures", self.figures)):
            if twice := repeated([one.name for one in wanted]):
                raise FileError(f"{what} of different plain names", repr(twice), "rename one")
        for drawing in self.figures:
            drawing.check(self.tables)


def read_bench(path: Path) -> Bench:
    """The content of a file; keys of tasks that stand beside ``tasks`` hold for all of them."""
    content, where = read_yaml(path), path.name
    of_task, of_bench = ({f.name for f in dataclasses.fields(cls)} for cls in (Task, Bench))
    for key in content:
        if key not in of_task | of_bench:
            refuse(f"a key of {where}", key, of_task | of_bench)
    if "methods" not in content:
        raise FileError(f"methods in {where}", "none", "write methods: [purge]")
    above = {key: value for key, value in content.items() if key in of_task}
    rest = {key: value for key, value in content.items() if key not in of_task}
    tasks = fit(content.get("tasks") or [{}], list[dict[str, Any]], "tasks", where)
    rest["tasks"] = [build(Task, task, where) for own in tasks for task in _tasks(above, own, where)]
    presets = {}
    if rest.get("presets") is not None:
        presets = _presets(path.parent / fit(rest["presets"], str, "presets", where))
    rest["methods"] = _variants(rest["methods"], presets, where)
    return build(Bench, rest, where)


def _tasks(above: Mapping[str, Any], own: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """A task for each data set that is named; the keys of a task replace those above it."""
    if {"forget", "fraction", "ids"} & own.keys():
        above = {k: v for k, v in above.items() if k not in ("forget", "fraction", "ids")}
    merged = {**above, **own}
    if "data" not in merged:
        return [merged]  # which is refused
    names = merged["data"] if isinstance(merged["data"], list) else [merged["data"]]
    if not names:
        raise FileError(f"at least one data set in {where}", "none", "write data: digits, say")
    tasks = []
    for name in names:
        if isinstance(name, str) and name not in DATASETS:
            if not Path(name).exists():
                raise DataError("the name of a data set, or a path", repr(name), did_you_mean(name, DATASETS))
            name = str(Path(name).absolute())
        tasks.append({**merged, "data": name})
    return tasks


def _variants(methods: Any, presets: Mapping[str, dict[str, Any]], where: str) -> list[Variant]:
    """The methods, whichever way they are written, with the settings that a search found for their labels."""
    methods = fit(methods, list[str | Variant] | dict[str, dict[str, Any] | None], "methods", where)
    if not methods:
        raise FileError(f"at least one method in {where}", "none", "write methods: [purge]")
    if isinstance(methods, dict):
        variants = [Variant(name, set=settings or {}) for name, settings in methods.items()]
    else:
        variants = [Variant(one) if isinstance(one, str) else one for one in methods]
    labels = [variant.label for variant in variants]
    for label in presets:
        if label not in labels:
            raise MethodError("a label of methods in presets", repr(label), did_you_mean(label, labels))
    return [dataclasses.replace(one, set={**presets.get(one.label, {}), **one.set}) for one in variants]


def _presets(path: Path) -> dict[str, dict[str, Any]]:
    """Settings by label, as a search writes them."""
    rows = fit(read_yaml(path).get("methods"), list[Any], "methods", str(path))
    presets = [build(Variant, row, f"methods of {path}", ignore_unknown=True) for row in rows]
    return {preset.label: preset.set for preset in presets}
