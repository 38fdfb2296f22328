"""What the YAML file of a bench may say.

The keys of a file are the fields of :class:`Bench` and of :class:`Task`; those of a task may also stand in
``tasks``. See ``configs/`` for examples.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from purge.bench.search import Search
from purge.bench.tables import NUMBERS, By, Drawing, Goal, Table, check_drawing, paper
from purge.core.errors import DataError, FileError, MethodError, did_you_mean
from purge.core.schema import build
from purge.core.settings import setting
from purge.metrics.metric import Metric
from purge.metrics.registry import check_value_name, resolve_metrics


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
        given = [k for k in ("forget", "fraction", "ids") if getattr(self, k) is not None]
        if len(given) != 1 or not getattr(self, given[0]):
            got = " and ".join(given) if len(given) > 1 else f"an empty {given[0]}" if given else "none"
            raise DataError(f"one of forget, fraction and ids for {self.data}", got, "write forget: [0], say")
        if self.draw is not None and self.fraction is None:
            raise DataError("a fraction to draw", f"draw: {self.draw} beside {given[0]}", "leave draw out")

    def found_metrics(self) -> dict[str, Metric]:
        """The metrics by what finds them again: their names, or ``module:NAME`` as the file has it."""
        given = [self.metrics] if isinstance(self.metrics, str) else self.metrics
        own = {resolve_metrics(name)[0].name: name for name in given if ":" in name}
        return {own.get(m.name, m.name): m for m in resolve_metrics(given)}


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
    search: dict[str, Any] = setting({}, "setting → choices or {low, high, log}; in a trial: what was drawn")

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
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]i?)?B?", str(self.memory))
        unit = (found[2] or "") if found else ""
        factor = (1024 if unit.endswith("i") else 1000) ** (" kMGT".index(unit[0]) if unit else 0)
        if not found or float(found[1]) * factor < 1:
            raise MethodError("an amount of memory in resources", repr(self.memory), "write memory: 4GB, say")
        return int(float(found[1]) * factor)


@dataclass(frozen=True)
class Bench:
    """The keys of a file beside those of a task."""

    methods: list[str | Variant] | dict[str, dict[str, Any] | None]
    about: str = ""
    tasks: list[dict[str, Any]] = setting([], "default: one task, of the keys beside it")
    search: Search | None = None
    presets: str | None = setting(None, "a file that a search wrote")
    tables: list[Table] = setting([])
    figures: list[Drawing] = setting([])
    resources: Resources = Resources()

    def variants(self) -> list[Variant]:
        """The methods, whichever way they are written."""
        if isinstance(self.methods, dict):
            return [Variant(name, name, settings or {}) for name, settings in self.methods.items()]
        found = [Variant(one) if isinstance(one, str) else one for one in self.methods]
        return [Variant(v.method, v.label or v.method, v.set, v.base, v.search) for v in found]


# -- tables and figures ask only for what the jobs will have ------------------------------------


def check_tables(bench: Bench, metrics: Mapping[str, Metric], words: Mapping[By, Collection[str]]) -> None:
    """Refuse tables and figures of other metrics, data, requests or labels than the jobs have."""
    tables = {table.name: table for table in bench.tables}
    for table in bench.tables:
        _check_table(table, metrics, f"table {table.name}")
        _check_only(table.only, words, f"table {table.name}")
    for drawing in bench.figures:
        check_drawing(drawing, tables)
        _check_only(drawing.only, words, f"figure {drawing.name}")
    for what, wanted in (("tables", bench.tables), ("figures", bench.figures)):
        names = [one.name for one in wanted]
        if bad := [n for n in names if names.count(n) > 1 or not re.fullmatch(r"[\w-]+", n)]:
            raise FileError(f"{what} of different plain names", repr(bad[0]), "rename one")


def _check_table(table: Table, metrics: Mapping[str, Metric], where: str) -> None:
    for key in ("rows", "columns"):
        if not getattr(table, key):
            raise FileError(f"at least one word in {key} of {where}", "none", f"add to {key}")
    for column in [c for c in table.columns if c not in NUMBERS]:
        if (metric := metrics.get(column.partition(".")[0])) is None:
            _refuse(f"a metric of the jobs in {where}", column, [*NUMBERS, *metrics])
        check_value_name(column, where, metric)
    goals = [build(Goal, given, f"goals of {where}").column for given in table.goals]
    if wrong := [column for column in goals if column not in table.columns]:
        _refuse(f"a goal for a column of {table.name}", wrong[0], table.columns)
    if twice := [column for column in goals if goals.count(column) > 1]:
        raise FileError(f"one goal for {twice[0]} in {where}", "two", "leave one out")
    if table.paper is not None and table.paper not in paper():
        _refuse("a table of the paper", table.paper, paper())
    if table.also and "label" not in table.rows:
        raise FileError(f"rows by label in {where}", "also", "add label to its rows")


def _check_only(only: Mapping[By, Sequence[str]], words: Mapping[By, Collection[str]], where: str) -> None:
    for by, wanted in only.items():
        if wrong := [word for word in wanted if word not in words[by]]:
            _refuse(f"a {by} of the jobs in {where}", wrong[0], words[by])


def _refuse(what: str, word: str, known: Collection[str]) -> None:
    raise FileError(what, repr(word), did_you_mean(word, known))
