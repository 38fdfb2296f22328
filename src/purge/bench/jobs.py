"""From the YAML file of a bench to its jobs, checked as a whole before anything runs.

A job is a data set, a request to forget, a variant of a method and a seed. The models that jobs begin
with and are compared with are trainings, which jobs share.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from purge import Metric
from purge.bench.schema import (
    KEYS,
    NUMBERS,
    PARTS,
    Bench,
    Drawing,
    Resources,
    Search,
    Shards,
    Table,
    Task,
    check_known,
    read_bench,
)  # fmt: skip
from purge.bench.search import Trial, check_search, trials_of
from purge.core.errors import DataError, MethodError, brief
from purge.core.files import LONGEST
from purge.core.plugins import trusted
from purge.core.schema import build
from purge.core.settings import as_dict, replace
from purge.core.store import digest_of
from purge.data import DATASETS
from purge.engine import Recipe
from purge.methods import resolve_method, source_digest
from purge.metrics import check_value_name
from purge.models import known_name

Forget = dict[str, Any]  # {"classes": […]}, {"ids": […]} or {"fraction": …, "seed": …}; empty: nothing


# -- jobs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Which images: a data set, their size, and the part that is used for training."""

    name: str
    size: int | None = None
    per_class: int | None = None
    holdout: float | None = None

    def __str__(self) -> str:
        """What tables call it."""
        name = self.name if self.name in DATASETS else Path(self.name).name
        return name if self.per_class is None else f"{name} {self.per_class}/class"


@dataclass(frozen=True)
class Training:
    """A model to train, or to find where it was trained before."""

    data: Data
    model: str
    recipe: dict[str, Any]
    seed: int
    forget: Forget = field(default_factory=dict)  # it is trained without this
    shards: int = 0  # 0: one model
    slices: int = 1
    logged: Forget = field(default_factory=dict)  # updates that involve this are written down
    vote: Literal["mean", "majority"] = "mean"  # of the shards

    @cached_property
    def spec(self) -> str:
        """A digest of everything that the model depends on except the images themselves."""
        return digest_of(dataclasses.asdict(self))[:12]

    def __str__(self) -> str:
        without = f" without {forget_words(self.forget)}" if self.forget else ""
        kind = f", {self.shards} shards" if self.shards else ", with a log" if self.logged else ""
        return f"{self.model} on {self.data}{without}, seed {self.seed}{kind}"


@dataclass(frozen=True)
class Job:
    """A model that unlearns and is audited."""

    data: Data
    forget: Forget
    label: str
    method: str
    changes: dict[str, Any]  # settings other than the method's own
    seed: int
    metrics: list[str]
    base: Training
    retrained: list[Training]
    repeats: int = 1
    score: dict[str, float] = field(default_factory=dict)
    trial_of: str = ""  # the label that is searched for
    trial: int = 0  # its number in the search

    @cached_property
    def id(self) -> str:
        """The name of its file: readable, with a digest of everything that the result depends on."""
        method = resolve_method(self.method, self.changes)
        specs = [t.spec for t in self.trainings]
        own = [self.forget, self.method, as_dict(method), source_digest(method), self.seed]
        own += [self.metrics, self.repeats, self.score]
        digest = digest_of([dataclasses.asdict(self.data), *own, specs])[:8]
        words = f"{self.data} {forget_words(self.forget)} {self.label} s{self.seed}"
        plain = re.sub(r"[^\w.+-]+", "-", words).strip("-.").encode()
        return plain[: LONGEST - len(f"-{digest}.json")].decode(errors="ignore") + f"-{digest}"

    @property
    def trainings(self) -> list[Training]:
        """The model that it begins with, then those that it is compared with."""
        return [self.base, *self.retrained]

    @property
    def group(self) -> str:
        """What its times and trials are counted under: the label, of which a trial has a number more."""
        return self.trial_of or self.label

    @property
    def keys(self) -> dict[str, Any]:
        """What tables find its result by."""
        words = {"data": str(self.data), "forget": forget_words(self.forget), "label": self.label}
        return {"id": self.id, **words, "seed": self.seed}

    def __str__(self) -> str:
        return f"{self.label}: {self.data} {forget_words(self.forget)}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """Everything that a file asks for."""

    name: str
    about: str
    jobs: list[Job]
    tables: list[Table]
    figures: list[Drawing]
    seconds: float | None = None  # of unlearning, for all trials of a method
    resources: Resources = Resources()

    def only(self, labels: Sequence[str]) -> Plan:
        """The jobs of these labels; of all if none is named."""
        check_known(f"a label of methods in {self.name}", labels, {job.group for job in self.jobs})
        return dataclasses.replace(self, jobs=[j for j in self.jobs if not labels or j.group in labels])

    def trainings(self, jobs: Iterable[Job] | None = None) -> list[Training]:
        """The models that jobs need, each once, in the order they are needed."""
        wanted = [t for job in (self.jobs if jobs is None else jobs) for t in job.trainings]
        return list({t.spec: t for t in wanted}.values())


def forget_words(forget: Forget) -> str:
    """A request in one word.

    >>> forget_words({"classes": [0, 3]}), forget_words({"fraction": 0.1, "seed": 0})
    ('0+3', '10%')
    """
    if "classes" in forget:
        return "+".join(map(str, forget["classes"]))
    return f"{100 * forget['fraction']:.4g}%" if "fraction" in forget else f"{len(forget['ids'])} samples"


# -- from the file to the plan ----------------------------------------------------------------


def read_plan(path: Path, trust: bool = False) -> Plan:
    """Read the plan of a file; everything that is wrong with it is reported now, before anything runs.

    Methods, metrics and models of the form ``module:name`` are refused unless ``trust`` is true.
    """
    bench = read_bench(path)
    names = [variant.method for variant in bench.methods] + [*(bench.search.score if bench.search else ())]
    names += [name for task in bench.tasks for name in (task.model, *task.metric_names)]
    for name in names:
        trusted(name, path.name, trust)
    _check_tasks(bench)
    check_search(bench)
    trials = [trial for variant in bench.methods for trial in trials_of(variant, bench.search)]
    jobs: dict[str, Job] = {}
    for job in (job for task in bench.tasks for job in _jobs(task, trials, bench.search)):
        if job.label != (other := jobs.setdefault(job.id, job).label):
            got = f"{other!r} and {job.label!r} for the same settings"
            raise MethodError("labels that differ in the names of files", got, "leave one out, or rename it")
    plan = Plan(
        path.stem, bench.about, [*jobs.values()], bench.tables, bench.figures,
        bench.search.seconds if bench.search else None, bench.resources,
    )  # fmt: skip
    _check_tables(plan, {m.name: m for task in bench.tasks for m in task.resolved_metrics().values()})
    return plan


def _check_tasks(bench: Bench) -> None:
    """Refuse tasks that do not fit the methods, or each other."""
    for variant in bench.methods:
        resolve_method(variant.method, variant.set)
    kinds: dict[str, dict[str, Any]] = {}
    for task in bench.tasks:
        known_name(task.model)
        check_known("a label of methods in set", task.set, [variant.label for variant in bench.methods])
        # Tasks that share rows of tables must be of one kind: a mean over several kinds says nothing.
        kind = {key: getattr(task, key) for key in ("data", "model", "size", "holdout")} | _recipe(task, {})
        name = str(Data(task.data, task.size, task.per_class, task.holdout))
        first = kinds.setdefault(name, kind)
        if apart := [key for key in kind if kind[key] != first[key]]:
            got = f"{first[apart[0]]} and {kind[apart[0]]}"
            raise DataError(f"one {apart[0]} for all tasks of {name}", got, "write two files, one for each")


def _jobs(task: Task, trials: Sequence[Trial], search: Search | None) -> Iterator[Job]:
    """A job for each seed, request and variant of a task."""
    data = Data(task.data, task.size, task.per_class, task.holdout)
    recipe, metrics = _recipe(task, {}), [*task.resolved_metrics()]
    seeds = list(dict.fromkeys(task.seeds))
    for seed in seeds:
        # The second retrained model of a seed is the first of the next one, so that fewer are trained.
        n, at = len(seeds), seeds.index(seed)
        candidates = (1000 * (1 + i // n) + seeds[(at + i) % n] for i in itertools.count())
        others: list[int] = []
        while len(others) < task.retrains:
            others.append(next(other for other in candidates if other not in (seed, *others)))
        for forget in _requests(task, seed):
            retrained = [Training(data, task.model, recipe, other, forget) for other in others]
            for trial in trials:
                variant = trial.variant
                changes = {**variant.set, **task.set.get(variant.label, {}), **trial.drawn}
                needs = resolve_method(variant.method, changes).needs
                # What is not about shards is about the recipe, which refuses what it does not know.
                own = {f.name for f in dataclasses.fields(Shards)} if "shards" in needs else set()
                parts = {key: value for key, value in variant.base.items() if key in own}
                shards = build(Shards, parts, f"base of {variant.label}")
                begin = Training(
                    data, task.model, _recipe(task, {k: v for k, v in variant.base.items() if k not in own}),
                    seed, {}, shards.shards if own else 0, shards.slices,
                    forget if "updates" in needs else {}, shards.vote,
                )  # fmt: skip
                yield Job(
                    data, forget, trial.label, variant.method, changes, seed, metrics, begin, retrained,
                    task.repeats, search.score if search else {}, variant.label if search else "",
                    trial.number,
                )  # fmt: skip


def _recipe(task: Task, changes: dict[str, Any]) -> dict[str, Any]:
    of_data = DATASETS[task.data].recipe if task.data in DATASETS else {}
    return as_dict(replace(Recipe(), {**of_data, **task.recipe, **changes}))


def _requests(task: Task, seed: int) -> list[Forget]:
    """The requests of a task, each of which becomes jobs of its own."""
    if task.fraction is not None:
        return [{"fraction": task.fraction, "seed": seed if task.draw is None else task.draw}]
    if task.ids is not None:
        return [{"ids": sorted(set(task.ids))}]
    count = len(DATASETS[task.data].names) if task.data in DATASETS else 0  # 0: not known yet
    requests: list[Forget] = []
    for one in task.forget or ():
        classes = sorted(set(one)) if isinstance(one, list) else [one]
        if len(classes) in (0, count) or classes[0] < 0 or 0 < count <= classes[-1]:
            wanted = f"some classes, but not all, from 0{f' to {count - 1}' if count else ''} of {task.data}"
            raise DataError(wanted, brief(classes), "change forget")
        requests.append({"classes": classes})
    return requests


def _check_tables(plan: Plan, metrics: Mapping[str, Metric]) -> None:
    """Refuse tables and figures of other metrics, data, requests or labels than the jobs have."""
    words = {by: {job.keys[by] for job in plan.jobs} for by in KEYS}
    words["label"] |= set(PARTS.values())
    for only in [*(table.only for table in plan.tables), *(drawing.only for drawing in plan.figures)]:
        for by, wanted in only.items():
            check_known(f"a {by} of the jobs in only", wanted, words[by])
    for table in plan.tables:
        for column in (c for c in table.columns if c not in NUMBERS):
            kind = column.partition(".")[0]
            check_known(f"a metric of the jobs in table {table.name}", [kind], [*NUMBERS, *metrics])
            check_value_name(column, f"table {table.name}", metrics[kind])
