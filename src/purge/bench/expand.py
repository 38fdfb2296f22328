"""What a bench is to do: a YAML file becomes trainings and jobs, checked as a whole before anything runs.

A job is a data set, a request to forget, a variant of a method and a seed. The models that jobs begin
with and are compared with are trainings, which jobs share. See ``configs/`` for examples; the keys of a
file are the fields of :class:`Bench`, those of a task, :class:`Task`, may stand in either place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from purge.bench.search import Search, drawn, needs_retrained, read_search
from purge.bench.tables import NUMBERS, PARTS, By, Drawing, Goal, Table, check_name, paper
from purge.core.errors import DataError, FileError, MethodError, did_you_mean
from purge.core.files import read_yaml
from purge.core.schema import build, fit
from purge.core.settings import as_dict, checked_seed, flat_fields, replace
from purge.data.catalog import DATASETS
from purge.engine.trainer import Recipe
from purge.methods.registry import resolve_method
from purge.metrics.registry import resolve_metrics
from purge.models.zoo import known_name

Forget = dict[str, Any]  # {"classes": […]}, {"ids": […]} or {"fraction": …, "seed": …}; empty: nothing


# -- what a file may say ----------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Data, a model and what it is to forget."""

    data: str
    model: str
    size: int | None = None  # side of the images; none: the data set's own
    per_class: int | None = None  # train with this many images of each class, drawn once
    holdout: float | None = None  # this share of each class is not trained on and stands for the test images
    recipe: dict[str, Any] = field(default_factory=dict)  # settings of training
    forget: list[int | list[int]] | Literal["each"] | None = None  # a request for each class, or list of them
    fraction: float | None = None  # or: this share of all samples, drawn by the seed
    ids: list[int] | None = None  # or: these samples
    seeds: list[int] = field(default_factory=lambda: [0])
    retrains: int = 1  # references; from the second on they tell how far apart two of them are
    metrics: str | list[str] = "standard"
    repeats: int = 1  # times that a job unlearns; the last time is the one that is reported
    set: dict[str, dict[str, Any]] = field(default_factory=dict)  # label → settings on this data


@dataclass(frozen=True)
class Variant:
    """A method with settings of its own, under a label."""

    method: str
    label: str = ""  # none: the method's name
    set: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=dict)  # changes to its base model: see BASE
    search: dict[str, Any] = field(default_factory=dict)  # setting → choices, or {low, high, log}; in a
    # trial: what was drawn


@dataclass(frozen=True)
class Bench:
    """The keys of a file beside those of a task."""

    methods: list[Any] | dict[str, Any]
    about: str = ""
    tasks: list[dict[str, Any]] = field(default_factory=list)  # none: one, of the keys beside it
    search: dict[str, Any] | None = None
    presets: str | None = None  # a file that a search wrote: settings by label
    tables: list[dict[str, Any]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)


BASE = ("shards", "slices", "log_updates")  # beside the settings of a recipe
LONGEST = 200  # bytes of the name of a file; most file systems take 255


# -- what is to be done -----------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Which images: a data set, their size, and the part that is trained with."""

    name: str
    size: int | None = None
    per_class: int | None = None
    holdout: float | None = None


@dataclass(frozen=True)
class Training:
    """A model to be trained, or found where it was."""

    data: Data
    model: str
    recipe: dict[str, Any]
    seed: int
    forget: Forget = field(default_factory=dict)  # what it is trained without
    shards: int = 0  # 0: one model
    slices: int = 1
    logged: Forget = field(default_factory=dict)  # whose updates are written down

    @cached_property
    def spec(self) -> str:
        """A digest of all that the model depends on, but for the images themselves."""
        return digest_of(dataclasses.asdict(self))[:12]

    def __str__(self) -> str:
        gone = f" without {forget_words(self.forget)}" if self.forget else ""
        kind = f", {self.shards} shards" if self.shards else ", with a log" if self.logged else ""
        return f"{self.model} on {short(self.data)}{gone}, seed {self.seed}{kind}"


@dataclass(frozen=True)
class Job:
    """A model that is made to forget, and audited."""

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
    trial_of: str = ""  # the label of the variant that is searched for

    @cached_property
    def id(self) -> str:
        """The name of its file: readable, with a digest of all that the result depends on."""
        settings = as_dict(resolve_method(self.method, self.changes))
        specs = [self.base.spec, *(t.spec for t in self.retrained)]
        own = [self.forget, self.method, settings, self.seed, self.metrics, self.repeats, self.score]
        digest = digest_of([dataclasses.asdict(self.data), *own, specs])[:8]
        words = f"{short(self.data)} {forget_words(self.forget)} {self.label} s{self.seed}"
        plain = re.sub(r"[^\w.+-]+", "-", words).strip("-.").encode()
        return plain[: LONGEST - len(f"-{digest}.json")].decode(errors="ignore") + f"-{digest}"

    @property
    def keys(self) -> dict[str, Any]:
        """How its result is found in tables."""
        forget = forget_words(self.forget)
        return {
            "id": self.id, "data": short(self.data), "forget": forget, "label": self.label, "seed": self.seed,
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.label}: {short(self.data)} {forget_words(self.forget)}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """All that a file asks for."""

    name: str
    about: str
    jobs: list[Job]
    tables: list[Table]
    figures: list[Drawing]

    def only(self, labels: Sequence[str]) -> Plan:
        """The part of it that has to do with these methods; with none named, all."""
        known = {job.trial_of or job.label for job in self.jobs}
        if unknown := [label for label in labels if label not in known]:
            fix = did_you_mean(unknown[0], known)
            raise MethodError(f"a label of methods in {self.name}", repr(unknown[0]), fix)
        jobs = [job for job in self.jobs if not labels or (job.trial_of or job.label) in labels]
        return dataclasses.replace(self, jobs=jobs)

    def trainings(self, jobs: list[Job] | None = None) -> list[Training]:
        """The models that jobs need, each once, in the order in which they are needed."""
        wanted = [t for job in (self.jobs if jobs is None else jobs) for t in (job.base, *job.retrained)]
        return list({t.spec: t for t in wanted}.values())


def digest_of(content: Any) -> str:
    """SHA-256 of JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=list).encode()).hexdigest()


def short(data: Data) -> str:
    """What a data set is called in tables."""
    name = Path(data.name).name if data.name not in DATASETS else data.name
    return name if data.per_class is None else f"{name} {data.per_class}/class"


def forget_words(forget: Forget) -> str:
    """A request in a word.

    >>> forget_words({"classes": [0, 3]}), forget_words({"fraction": 0.1, "seed": 0})
    ('0+3', '10%')
    """
    if "classes" in forget:
        return "+".join(map(str, forget["classes"]))
    return f"{100 * forget['fraction']:.4g}%" if "fraction" in forget else f"{len(forget['ids'])} samples"


# -- from the file to the plan ----------------------------------------------------------------


def read_plan(path: Path) -> Plan:
    """The plan of a file; whatever is wrong with it is said now."""
    content = read_yaml(path)
    shared = {f.name for f in dataclasses.fields(Task)}
    known = {f.name for f in dataclasses.fields(Bench)} | shared
    if wrong := [key for key in content if key not in known]:
        raise FileError(f"a key of {path.name}", repr(wrong[0]), did_you_mean(str(wrong[0]), known))
    bench = build(Bench, {k: v for k, v in content.items() if k not in shared}, path.name)
    tasks = [
        task for given in bench.tasks or [{}]
        for task in _tasks({k: v for k, v in content.items() if k in shared}, given, path.name)
    ]  # fmt: skip
    _check_rows(tasks)
    search = None if bench.search is None else read_search(bench.search)
    presets = {} if bench.presets is None else _presets(path.parent / bench.presets)
    variants = _variants(bench.methods, presets, search)
    if not variants:
        raise FileError(f"at least one method in {path.name}", "none", "write methods: [purge]")
    labels = [v.label for v, _ in variants]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise MethodError("methods of different labels", f"{twice[0]!r} twice", "add label: …")
    if taken := [label for label in labels if label in PARTS.values()]:
        raise MethodError(f"labels other than {', '.join(PARTS.values())}", repr(taken[0]), "add label: …")
    if search is not None:
        _check_settings(tasks, [of for _, of in variants])
    jobs = _by_id(job for task in tasks for job in _jobs(task, variants, search))
    tables = [build(Table, given, f"tables of {path.name}") for given in bench.tables]
    figures = [build(Drawing, given, f"figures of {path.name}") for given in bench.figures]
    plan = Plan(path.stem, bench.about, [*jobs.values()], tables, figures)
    _check_evidence(plan)
    return plan


def _tasks(above: dict[str, Any], given: dict[str, Any], where: str) -> list[Task]:
    """A task for each data set that is named; what a task says goes before what stands above it."""
    if {"forget", "fraction", "ids"} & given.keys():
        above = {k: v for k, v in above.items() if k not in ("forget", "fraction", "ids")}
    merged = {**above, **given}
    names = merged.get("data")
    if names == []:
        raise FileError(f"at least one data set in {where}", "none", "write data: digits, say")
    found = []
    for name in names if isinstance(names, list) else [names]:
        task = build(Task, {**merged, **({} if name is None else {"data": name})}, where)
        if task.data not in DATASETS:
            if not Path(task.data).exists():
                fix = did_you_mean(task.data, DATASETS)
                raise DataError("the name of a data set, or a path", repr(task.data), fix)
            task = dataclasses.replace(task, data=str(Path(task.data).absolute()))
        known_name(task.model)
        resolve_metrics(task.metrics)
        limits = {
            "size": (8, 1024), "per_class": (1, math.inf), "holdout": (0.01, 0.5), "retrains": (0, 100),
            "repeats": (1, 100), "fraction": (1e-9, 1 - 1e-9),
        }  # fmt: skip
        for key, (low, high) in limits.items():
            value = getattr(task, key)
            if value is not None and not low <= value <= high:
                raise DataError(f"{key} from {low:g} to {high:g} in {where}", str(value), "change it")
        if task.per_class == 1 and task.holdout is not None:
            got = "per_class: 1, all of which would be held out"
            raise DataError("two images of each class to hold one out", got, "raise per_class")
        if not task.seeds:
            raise FileError(f"at least one seed in {where}", "none", "write seeds: [0]")
        found.append(task)
    return found


def _check_rows(tasks: list[Task]) -> None:
    """Tasks that share the rows of tables are of one kind, since a mean over several kinds says nothing."""
    kinds: dict[str, dict[str, Any]] = {}
    for task in tasks:
        kind = {key: getattr(task, key) for key in ("data", "model", "size", "holdout")} | _recipe(task, {})
        name = short(_data(task))
        first = kinds.setdefault(name, kind)
        if apart := [key for key in kind if kind[key] != first[key]]:
            got = f"{first[apart[0]]} and {kind[apart[0]]}"
            raise DataError(f"one {apart[0]} for all tasks of {name}", got, "write two files, one for each")


def _check_settings(tasks: list[Task], labels: Iterable[str]) -> None:
    """A search finds settings for all of its tasks, so none may have its own."""
    for label in labels:
        given = [task.set.get(label, {}) for task in tasks]
        if other := [one for one in given if one != given[0]]:
            got = f"{given[0]} and {other[0]}"
            raise MethodError(f"one set of {label} for all tasks of a search", got, "search in two files")


def _by_id(jobs: Iterable[Job]) -> dict[str, Job]:
    """Each job once; labels that cannot be told apart in the names of files are refused."""
    found: dict[str, Job] = {}
    for job in jobs:
        if job.label != (other := found.get(job.id, job).label):
            got = f"{other!r} and {job.label!r} for the same settings"
            raise MethodError("labels that differ in the names of files", got, "leave one out, or rename it")
        found[job.id] = job
    return found


def _data(task: Task) -> Data:
    return Data(task.data, task.size, task.per_class, task.holdout)


def _requests(task: Task, seed: int) -> list[Forget]:
    """What a model is to forget, one request after the other."""
    given = [k for k in ("forget", "fraction", "ids") if getattr(task, k) is not None]
    if len(given) != 1 or not getattr(task, given[0]):
        got = " and ".join(given) if len(given) > 1 else f"an empty {given[0]}" if given else "none"
        raise DataError(f"one of forget, fraction and ids for {task.data}", got, "write forget: [0], say")
    if task.fraction is not None:
        return [{"fraction": task.fraction, "seed": seed}]
    if task.ids is not None:
        if min(task.ids) < 0:
            raise DataError("ids from 0", str(min(task.ids)), "change ids")
        return [{"ids": sorted(set(task.ids))}]
    entry = DATASETS.get(task.data)
    names = () if entry is None else entry.names
    if task.forget == "each" and not names:
        raise DataError(f"the classes of {task.data} by number", "'each'", "write forget: [0, 1, 2], say")
    asked = list(range(len(names))) if task.forget == "each" else typing.cast(list[Any], task.forget)
    requests = [sorted(set(one)) if isinstance(one, list) else [one] for one in asked]
    upto = f" to {len(names) - 1}" if names else ""
    if wrong := [c for one in requests for c in one if c < 0 or (names and c >= len(names))]:
        raise DataError(f"classes from 0{upto} of {task.data}", str(wrong[0]), "change forget")
    if wrong := [one for one in requests if not one or len(one) == len(names)]:
        got = "all of them" if wrong[0] else "none"
        raise DataError(f"some classes of {task.data} to forget", got, "change forget")
    return [{"classes": one} for one in requests]


def _variants(
    methods: list[Any] | dict[str, Any], presets: dict[str, dict[str, Any]], search: Search | None
) -> list[tuple[Variant, str]]:
    """The methods with their settings, trials of a search in their place, and what they are trials of."""
    if isinstance(methods, dict):
        methods = [{"method": name, "set": settings or {}} for name, settings in methods.items()]
    found = []
    for given in methods:
        one = build(Variant, {"method": given} if isinstance(given, str) else given, "methods")
        one = dataclasses.replace(one, label=one.label or one.method)
        one = dataclasses.replace(one, set={**presets.get(one.label, {}), **one.set})
        method = resolve_method(one.method, one.set)
        if one.search and search is None:
            raise MethodError("search: {trials: …, score: …}", "none", "add it beside methods")
        settings = dict.fromkeys(as_dict(method), "") | {f.name: str(f.type) for f, _ in flat_fields(method)}
        if wrong := [key for key in one.search if key not in settings]:
            fix = did_you_mean(wrong[0], settings)
            raise MethodError(f"a setting of {one.method} in search", repr(wrong[0]), fix)
        if search is None:
            found.append((one, ""))
            continue
        fractions = [key for key, kind in settings.items() if kind.startswith("float")]
        for i in range(search.trials if one.search else 1):
            trial = drawn(one.search, search.seed, one.label, i, fractions)
            found.append((dataclasses.replace(one, label=f"{one.label} #{i}", search=trial), one.label))
    labels = {of or v.label for v, of in found}
    if strange := presets.keys() - labels:
        name = min(strange)
        fix = did_you_mean(name, labels)
        raise MethodError("a label of methods in presets", repr(name), fix)
    return found


@dataclass(frozen=True)
class Preset:
    """A method's settings as a search writes them; its other keys are for people."""

    label: str
    set: dict[str, Any]


def _presets(path: Path) -> dict[str, dict[str, Any]]:
    """Settings by label."""
    rows = fit(read_yaml(path).get("methods"), list[Any], "methods", str(path))
    presets = [build(Preset, row, f"methods of {path}", ignore_unknown=True) for row in rows]
    return {preset.label: preset.set for preset in presets}


def _jobs(task: Task, variants: list[tuple[Variant, str]], search: Search | None) -> list[Job]:
    known = {of or v.label for v, of in variants}
    if wrong := [label for label in task.set if label not in known]:
        raise MethodError("a label of methods in set", repr(wrong[0]), did_you_mean(wrong[0], known))
    data = _data(task)
    metrics = [m.name for m in resolve_metrics(task.metrics)]
    score = {} if search is None else search.score
    if search is not None and task.holdout is None:
        raise DataError(
            f"held-out training data of {task.data} to search on",
            "none, which leaves the test images",
            "add holdout: 0.1",
        )
    if absent := [name for name in score if name.partition(".")[0] not in metrics]:
        raise MethodError("metrics that the score can use", f"no {absent[0]}", "add it to metrics")
    if alone := [name for name in score if not task.retrains and needs_retrained(name)]:
        got = "retrains: 0"
        raise MethodError(f"a retrained model for {alone[0]} in the score", got, "write retrains: 1")
    jobs = []
    seeds = list(dict.fromkeys(map(checked_seed, task.seeds)))
    for at, seed in enumerate(seeds):
        others = _other_seeds(seeds, at, task.retrains)
        for forget in _requests(task, seed):
            recipe = _recipe(task, {})
            retrained = [Training(data, task.model, recipe, other, forget) for other in others]
            for variant, of in variants:
                changes = {**variant.set, **task.set.get(of or variant.label, {})}
                changes |= variant.search if of else {}
                needs = resolve_method(variant.method, changes).needs
                jobs.append(
                    Job(data, forget, variant.label, variant.method, changes, seed, metrics,
                        _base(task, data, seed, forget, variant, needs), retrained, task.repeats, score, of)
                )  # fmt: skip
    return jobs


def _other_seeds(seeds: list[int], at: int, count: int) -> list[int]:
    """The seeds of the retrained models for one seed, all different from it and from each other.

    The second retraining of a seed is the first of the next one: fewer models to train.
    """
    n, found = len(seeds), [seeds[at]]
    for i in itertools.count():
        if len(found) > count:
            break
        other = 1000 * (1 + i // n) + seeds[(at + i) % n]
        found += [other] if other not in found else []
    if max(found) >= 2**32:
        most = 2**32 - 1 - (max(found) - max(seeds))
        raise FileError(
            f"seeds up to {most}, retrained models have larger ones", str(max(seeds)), "change seeds"
        )
    return found[1:]


def _base(
    task: Task, data: Data, seed: int, forget: Forget, variant: Variant, needs: frozenset[str]
) -> Training:
    """The model that a variant begins with; some methods need one that was trained in their way."""
    own = {k: v for k, v in variant.base.items() if k in BASE}
    for need, key, fix in (("shards", "shards", "5"), ("updates", "log_updates", "true")):
        if (need in needs) != bool(own.get(key)):
            got = "none" if need in needs else f"{key} for a method that has no use for it"
            wanted = f"base: {{{key}: …}} for {variant.method}" if need in needs else "another base"
            raise MethodError(
                wanted, got, f"write base: {{{key}: {fix}}}" if need in needs else "leave it out"
            )
    shards = fit(own.get("shards", 0), int, "shards", "base")
    slices = fit(own.get("slices", 1), int, "slices", "base")
    if slices < 1 or shards < 0 or shards == 1:
        raise MethodError("shards from 2 and slices from 1", f"{shards}, {slices}", "change base")
    if "slices" in own and not shards:
        raise MethodError("shards beside slices in base", "none", "leave slices out")
    recipe = _recipe(task, {k: v for k, v in variant.base.items() if k not in BASE})
    logged = forget if own.get("log_updates") else {}
    return Training(data, task.model, recipe, seed, {}, shards, slices, logged)


def _recipe(task: Task, changes: dict[str, Any]) -> dict[str, Any]:
    of_data = DATASETS[task.data].recipe if task.data in DATASETS else {}
    return as_dict(replace(Recipe(), {**of_data, **task.recipe, **changes}))


def _check_evidence(plan: Plan) -> None:
    """Tables and figures can only ask for what the jobs will have."""
    metrics = {name for job in plan.jobs for name in job.metrics}
    words: dict[By, set[str]] = {"data": set(), "forget": set(), "label": set(PARTS.values())}
    for job in plan.jobs:
        for by, known in words.items():
            known.add(job.keys[by])
    tables = {table.name: table for table in plan.tables}
    for table in plan.tables:
        _check_table(table, metrics)
        _check_only(table.only, words, f"table {table.name}")
    for drawing in plan.figures:
        _check_drawing(drawing, tables)
        _check_only(drawing.only, words, f"figure {drawing.name}")
    named = {"tables": [t.name for t in plan.tables], "figures": [f.name for f in plan.figures]}
    for what, names in named.items():
        if bad := [n for n in names if names.count(n) > 1 or not re.fullmatch(r"[\w-]+", n)]:
            raise FileError(f"{what} of different plain names", repr(bad[0]), "rename one")


def _check_table(table: Table, metrics: set[str]) -> None:
    where = f"table {table.name}"
    for key in ("rows", "columns"):
        if not getattr(table, key):
            raise FileError(f"at least one word in {key} of {where}", "none", f"add to {key}")
    for column in table.columns:
        if column in NUMBERS:
            continue
        if column.partition(".")[0] not in metrics:
            fix = did_you_mean(column, [*NUMBERS, *metrics])
            raise FileError(f"a metric of the jobs in {where}", repr(column), fix)
        check_name(column, where)
    aims = [build(Goal, given, f"goals of {where}").column for given in table.goals]
    if wrong := [column for column in aims if column not in table.columns]:
        fix = did_you_mean(wrong[0], table.columns)
        raise FileError(f"a goal for a column of {table.name}", repr(wrong[0]), fix)
    if twice := [column for column in aims if aims.count(column) > 1]:
        raise FileError(f"one goal for {twice[0]} in {where}", "two", "leave one out")
    if table.paper is not None and table.paper not in paper():
        fix = did_you_mean(table.paper, paper())
        raise FileError("a table of the paper", repr(table.paper), fix)
    if table.also and "label" not in table.rows:
        raise FileError(f"rows by label in {where}", "also", "add label to its rows")


def _check_drawing(drawing: Drawing, tables: Mapping[str, Table]) -> None:
    if drawing.kind != "pipeline" and drawing.table not in tables:
        fix = did_you_mean(drawing.table, tables)
        raise FileError(f"a table for figure {drawing.name}", repr(drawing.table), fix)
    table = tables.get(drawing.table, Table(drawing.table, [], []))
    if wrong := [c for c in drawing.columns if c not in table.columns]:
        fix = did_you_mean(wrong[0], table.columns)
        raise FileError(f"a column of table {table.name}", repr(wrong[0]), fix)
    if strange := [by for by in drawing.only if by not in table.rows]:
        got, fix = f"only: {{{strange[0]}: …}}", f"add {strange[0]} to the rows of table {table.name}"
        raise FileError(f"a choice of rows of table {table.name}", got, fix)


def _check_only(only: Mapping[By, Sequence[str]], words: Mapping[By, Iterable[str]], where: str) -> None:
    for by, wanted in only.items():
        if wrong := [word for word in wanted if word not in words[by]]:
            fix = did_you_mean(wrong[0], words[by])
            raise FileError(f"a {by} of the jobs in {where}", repr(wrong[0]), fix)
