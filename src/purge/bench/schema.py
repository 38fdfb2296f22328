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
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from purge import Metric
from purge.core.errors import DataError, FileError, MethodError, brief, did_you_mean
from purge.core.files import below, read_json, read_yaml
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


def check_known(what: str, words: Iterable[str], known: Iterable[str]) -> None:
    """Refuse the first of the words that is none of the known ones."""
    if unknown := [word for word in words if word not in known]:
        raise FileError(what, brief(unknown[0]), did_you_mean(str(unknown[0]), known))


def check_distinct(what: str, names: Sequence[str]) -> None:
    """Refuse a name that appears twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise FileError(f"different {what}", f"{twice[0]!r} twice", "rename one, or leave it out")


def check_some(what: str, values: Collection[Any]) -> None:
    """Refuse an empty list."""
    if not values:
        raise FileError(f"at least one of {what}", "none", "add one")


# -- jobs ---------------------------------------------------------------------------------------

REQUESTS = (["forget"], ["fraction"], ["fraction", "draw"], ["ids"])  # the keys that make one


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
    seeds: list[int] = setting(
        [0], "a job for each; retrained models have larger ones", low=0, high=4 * 10**9
    )
    retrains: int = setting(
        1, "references; two or more show how far apart they are; seeds share them if they forget the same",
        low=0, high=100,
    )  # fmt: skip
    metrics: str | list[str] = setting("standard", "a panel, or names of metrics")
    repeats: int = setting(1, "times that a job unlearns; the last one is reported", low=1, high=100)
    set: dict[str, dict[str, Any]] = setting({}, "settings on this data, by label")

    def __post_init__(self) -> None:
        check_some("seeds", self.seeds)
        keys = ("forget", "fraction", "draw", "ids")
        request = {key: value for key in keys if (value := getattr(self, key)) is not None}
        if [*request] not in REQUESTS or not all(request[key] for key in request if key != "draw"):
            got = ", ".join(f"{key}: {value}" for key, value in request.items()) or "none"
            wanted = f"one of forget, fraction (and draw) and ids for {self.data}"
            raise DataError(wanted, got, "write forget: [0], say")

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

    shards: int = setting(0, "train this many models on a part of the data each; 0: one model", low=2)
    slices: int = setting(1, "slices of each shard", low=1)
    vote: Literal["mean", "majority"] = setting("mean", "how shards decide: mean of the softmax, or majority")
    log_updates: bool = setting(False, "write down the updates that involve forgotten samples")


SERVES = {"shards": "shards", "slices": "shards", "vote": "shards", "log_updates": "updates"}  # what needs it


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
        own = {k: v for k, v in self.base.items() if k in SERVES}
        base = build(Base, own, f"base of {self.label}")
        for key, need in SERVES.items():
            if key in own and need not in needs:
                raise MethodError(f"no {key} in base of {self.label}", f"{key}: {own[key]}", "leave it out")
        for key, need, usual in (("shards", "shards", "5"), ("log_updates", "updates", "true")):
            if need in needs and not own.get(key):
                raise MethodError(f"{key} in base of {self.label}", "none", f"write base: {{{key}: {usual}}}")
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

    def __post_init__(self) -> None:
        check_some("score in search", self.score)


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
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B?", str(self.memory))
        number = 0.0
        if match:
            number = float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " ")
        if number < 1:
            raise MethodError("an amount of memory in resources", repr(self.memory), "write memory: 4GB, say")
        return int(number)


# -- tables and figures -------------------------------------------------------------------------


@cache
def paper() -> dict[str, Any]:
    """The paper's tables as it prints them, by name, and those that its authors published later."""
    files = [Path(__file__).with_name(name) for name in ("paper.json", "paper_later.json")]
    return {name: table for file in files for name, table in read_json(file)["tables"].items()}


@dataclass(frozen=True)
class Goal:
    """What a column should be: at least, at most or near a number, or near the value of another model."""

    column: str
    least: float | Part | None = None
    most: float | Part | None = None
    near: float | Part | None = None
    times: float = 1.0  # the number, or the value of the other model, is multiplied by this; the slack is not
    slack: float = 0.0

    def __post_init__(self) -> None:
        sides = sum(v is not None for v in (self.least, self.most, self.near))
        if sides != 1:
            raise FileError(f"one of least, most and near for {self.column}", str(sides), "give one")

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
        check_some(f"rows of {where}", self.rows)
        check_some(f"columns of {where}", self.columns)
        check_distinct(f"rows in {where}", self.rows)
        check_distinct(f"columns of goals in {where}", [goal.column for goal in self.goals])
        check_known(f"a goal for a column of {where}", [goal.column for goal in self.goals], self.columns)
        if self.paper is not None:
            check_known("a table of the paper", [self.paper], paper())
        if self.also and "label" not in self.rows:
            raise FileError(f"rows by label in {where}", "also", "add label to its rows")


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
        check_known(f"a table for figure {self.name}", [self.table], by_name)
        table = by_name[self.table]
        check_known(f"a column of table {self.table}", self.columns, table.columns)
        check_known(f"only rows of table {self.table} in figure {self.name}", self.only, table.rows)


def check_name(name: str, what: str) -> str:
    """A name that is part of a file's, and of a label in LaTeX."""
    if not re.fullmatch(r"[\w-]+", name):
        raise FileError(f"{what} of plain names", brief(name), "use letters, digits, - and _")
    below(Path(), name)
    return name


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
        others = [] if self.search else [*PARTS.values()]  # trials have labels of their own
        check_distinct(f"labels, which are not {', '.join(PARTS.values())}", [*labels, *others])
        check_distinct("names of tables", [table.name for table in self.tables])
        check_distinct("names of figures", [drawing.name for drawing in self.figures])
        for drawing in self.figures:
            drawing.check(self.tables)


def read_bench(path: Path) -> Bench:
    """The content of a file; keys of tasks that stand beside ``tasks`` hold for all of them."""
    content, where = read_yaml(path), path.name
    of_task, of_bench = ({f.name for f in dataclasses.fields(cls)} for cls in (Task, Bench))
    check_known(f"a key of {where}", content, of_task | of_bench)
    above = {key: value for key, value in content.items() if key in of_task}
    rest = {key: value for key, value in content.items() if key not in of_task}
    tasks = fit(content.get("tasks") or [{}], list[dict[str, Any]], "tasks", where)
    rest["tasks"] = [build(Task, task, where) for own in tasks for task in _tasks(above, own, where)]
    rest["methods"] = _variants(rest.get("methods"), where)
    if rest.get("presets") is not None:
        rest["methods"] = _preset(rest["methods"], path.parent / fit(rest["presets"], str, "presets", where))
    return build(Bench, rest, where)


def _tasks(above: Mapping[str, Any], own: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """A task for each data set that is named; the keys of a task replace those above it."""
    if {"forget", "fraction", "ids"} & own.keys():
        above = {k: v for k, v in above.items() if k not in ("forget", "fraction", "ids")}
    merged = {**above, **own}
    names = merged["data"] if isinstance(merged.get("data"), list) else [merged.get("data")]
    check_some(f"data in {where}", names)
    tasks = []
    for name in names:
        if isinstance(name, str) and name not in DATASETS:
            if not Path(name).exists():
                raise DataError("the name of a data set, or a path", repr(name), did_you_mean(name, DATASETS))
            name = str(Path(name).absolute())
        tasks.append({**merged, "data": name})
    return tasks


def _variants(content: Any, where: str) -> list[Variant]:
    """The methods, whichever way they are written."""
    methods = fit(content or [], list[str | Variant] | dict[str, dict[str, Any] | None], "methods", where)
    check_some(f"methods in {where}", methods)
    if isinstance(methods, dict):
        return [Variant(name, set=settings or {}) for name, settings in methods.items()]
    return [Variant(one) if isinstance(one, str) else one for one in methods]


def _preset(variants: list[Variant], path: Path) -> list[Variant]:
    """The variants with the settings that a search has written for their labels."""
    rows = fit(read_yaml(path).get("methods"), list[Any], "methods", str(path))
    best = [build(Variant, row, f"methods of {path}", ignore_unknown=True) for row in rows]
    presets = {variant.label: variant.set for variant in best}
    check_known("a label of methods in presets", presets, [variant.label for variant in variants])
    return [dataclasses.replace(one, set={**presets.get(one.label, {}), **one.set}) for one in variants]
