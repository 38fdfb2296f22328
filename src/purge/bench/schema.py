"""What the YAML file of a bench may say: one frozen dataclass for each part of it.

The keys of a file are the fields of :class:`Bench` and of :class:`Task`; those of a task may also stand in
``tasks``. See ``configs/`` for examples. What only the jobs can tell, such as whether a column is one of
their metrics, is checked in ``jobs``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
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
from purge.verdict import GoalSide

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
    forget: list[int | list[int]] | None = setting(
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
class Shards:
    """How the model was trained that a method such as SISA begins with, beside the settings of its recipe."""

    shards: int = setting(5, "models that are trained on a part of the data each", low=2)
    slices: int = setting(1, "slices of each shard", low=1)
    vote: Literal["mean", "majority"] = setting("mean", "how shards decide: mean of the softmax, or majority")


@dataclass(frozen=True)
class Variant:
    """A method with its own settings, under a label."""

    method: str
    label: str = ""  # default: the method's name
    set: dict[str, Any] = setting({})
    base: dict[str, Any] = setting({}, "changes to the recipe of its base model, and the fields of Shards")
    search: dict[str, Any] = setting({}, "setting → choices or {low, high, log}")

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.method)


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
    memory: float | None = setting(None, "GB of memory, on a cluster alone; none: not counted", above=0)

    def __post_init__(self) -> None:
        if self.gpus > 1 and self.gpus % 1:
            raise MethodError("a part of one GPU, or a whole number of them", str(self.gpus), "change gpus")


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
        if not (self.rows and self.columns):
            raise FileError(f"rows and columns of {where}", "none", "add one")
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
    written = fit(content.get("tasks") or [{}], list[dict[str, Any]], "tasks", where)
    tasks = [build(Task, task, where) for own in written for task in _tasks(above, own)]
    methods = fit(rest.get("methods") or [], list[str | Variant], "methods", where)
    variants = [Variant(one) if isinstance(one, str) else one for one in methods]
    if not (variants and tasks and all(task.seeds for task in tasks)):
        raise FileError(f"data, methods and seeds in {where}", "none of one kind", "add one")
    if rest.get("presets") is not None:
        variants = _preset(variants, path.parent / fit(rest["presets"], str, "presets", where))
    return build(Bench, {**rest, "tasks": tasks, "methods": variants}, where)


def _tasks(above: dict[str, Any], own: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A task for each data set that is named; the keys of a task replace those above it."""
    requests = {"forget", "fraction", "ids"}
    if requests & own.keys():
        above = {key: value for key, value in above.items() if key not in requests}
    task = {**above, **own}
    for name in task["data"] if isinstance(task.get("data"), list) else [task.get("data")]:
        if isinstance(name, str) and name not in DATASETS:
            if not Path(name).exists():
                raise DataError("the name of a data set, or a path", repr(name), did_you_mean(name, DATASETS))
            name = str(Path(name).absolute())
        yield {**task, "data": name}


def _preset(variants: list[Variant], file: Path) -> list[Variant]:
    """The variants with the settings that a search has written for their labels."""
    rows = fit(read_yaml(file).get("methods"), list[Any], "methods", str(file))
    best = [build(Variant, row, f"methods of {file}", ignore_unknown=True) for row in rows]
    found = {variant.label: variant.set for variant in best}
    check_known("a label of methods in presets", found, [variant.label for variant in variants])
    return [dataclasses.replace(v, set={**found.get(v.label, {}), **v.set}) for v in variants]
