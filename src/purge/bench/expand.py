"""From the YAML file of a bench to its jobs, checked as a whole before anything runs.

A job is a data set, a request to forget, a variant of a method and a seed. The models that jobs begin
with and are compared with are trainings, which jobs share.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from purge.bench.schema import Bench, Resources, Task, Variant, check_tables
from purge.bench.search import Search, check_search, drawn, needs_retrained
from purge.bench.tables import PARTS, By, Drawing, Table
from purge.core.errors import DataError, FileError, MethodError, did_you_mean
from purge.core.files import LONGEST, read_yaml
from purge.core.schema import build, fit
from purge.core.settings import as_dict, flat_fields, replace
from purge.data.catalog import DATASETS
from purge.engine.trainer import Recipe
from purge.methods.registry import resolve_method, source_digest
from purge.models.zoo import known_name
from purge.runs.folder import trusted

Forget = dict[str, Any]  # {"classes": […]}, {"ids": […]} or {"fraction": …, "seed": …}; empty: nothing


# -- jobs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Which images: a data set, their size, and the part that is used for training."""

    name: str
    size: int | None = None
    per_class: int | None = None
    holdout: float | None = None


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
        content = dataclasses.asdict(self)
        if self.vote == "mean":  # so that models from before there was a choice are found
            del content["vote"]
        return digest_of(content)[:12]

    def __str__(self) -> str:
        gone = f" without {forget_words(self.forget)}" if self.forget else ""
        kind = f", {self.shards} shards" if self.shards else ", with a log" if self.logged else ""
        return f"{self.model} on {short(self.data)}{gone}, seed {self.seed}{kind}"


@dataclass(frozen=True)
class Shard:
    """A part of a model that is trained in shards."""

    training: Training
    number: int

    def __str__(self) -> str:
        return f"shard {self.number + 1} of {self.training.shards} of {self.training}"


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

    @cached_property
    def id(self) -> str:
        """The name of its file: readable, with a digest of everything that the result depends on."""
        method = resolve_method(self.method, self.changes)
        specs = [self.base.spec, *(t.spec for t in self.retrained)]
        own = [self.forget, self.method, as_dict(method), source_digest(method), self.seed]
        own += [self.metrics, self.repeats, self.score]
        digest = digest_of([dataclasses.asdict(self.data), *own, specs])[:8]
        words = f"{short(self.data)} {forget_words(self.forget)} {self.label} s{self.seed}"
        plain = re.sub(r"[^\w.+-]+", "-", words).strip("-.").encode()
        return plain[: LONGEST - len(f"-{digest}.json")].decode(errors="ignore") + f"-{digest}"

    @property
    def trial(self) -> int:
        """The number of a trial, with which its label ends; 0 outside a search."""
        return int(self.label.rpartition(" #")[2]) if self.trial_of else 0

    @property
    def keys(self) -> dict[str, Any]:
        """What tables find its result by."""
        forget = forget_words(self.forget)
        return {
            "id": self.id, "data": short(self.data), "forget": forget, "label": self.label, "seed": self.seed,
        }  # fmt: skip

    def __str__(self) -> str:
        return f"{self.label}: {short(self.data)} {forget_words(self.forget)}, seed {self.seed}"


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
        known = {job.trial_of or job.label for job in self.jobs}
        if unknown := [label for label in labels if label not in known]:
            fix = did_you_mean(unknown[0], known)
            raise MethodError(f"a label of methods in {self.name}", repr(unknown[0]), fix)
        jobs = [job for job in self.jobs if not labels or (job.trial_of or job.label) in labels]
        return dataclasses.replace(self, jobs=jobs)

    def trainings(self, jobs: list[Job] | None = None) -> list[Training]:
        """The models that jobs need, each once, in the order they are needed."""
        wanted = [t for job in (self.jobs if jobs is None else jobs) for t in (job.base, *job.retrained)]
        return list({t.spec: t for t in wanted}.values())


def digest_of(content: Any) -> str:
    """SHA-256 of JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=list).encode()).hexdigest()


def short(data: Data) -> str:
    """The name of a data set in tables."""
    name = Path(data.name).name if data.name not in DATASETS else data.name
    return name if data.per_class is None else f"{name} {data.per_class}/class"


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
    content = read_yaml(path)
    shared = {f.name for f in dataclasses.fields(Task)}
    known = {f.name for f in dataclasses.fields(Bench)} | shared
    if wrong := [key for key in content if key not in known]:
        raise FileError(f"a key of {path.name}", repr(wrong[0]), did_you_mean(str(wrong[0]), known))
    bench = build(Bench, {k: v for k, v in content.items() if k not in shared}, path.name)
    above = {k: v for k, v in content.items() if k in shared}
    tasks = [task for given in bench.tasks or [{}] for task in _tasks(above, given, path.name)]
    named = [*(v.method for v in bench.variants()), *(bench.search.score if bench.search else ())]
    for task in tasks:
        named += [task.model, *([task.metrics] if isinstance(task.metrics, str) else task.metrics)]
    for name in named:
        trusted(name, path.name, trust)
    _check_rows(tasks)
    if bench.search is not None:
        check_search(bench.search)
    variants = _variants(bench, {} if bench.presets is None else _presets(path.parent / bench.presets))
    if not variants:
        raise FileError(f"at least one method in {path.name}", "none", "write methods: [purge]")
    labels = [v.label for v, _ in variants]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise MethodError("methods of different labels", f"{twice[0]!r} twice", "add label: …")
    if taken := [label for label in labels if label in PARTS.values()]:
        raise MethodError(f"labels other than {', '.join(PARTS.values())}", repr(taken[0]), "add label: …")
    if bench.search is not None:
        _check_settings(tasks, [of for _, of in variants])
    jobs = _by_id(job for task in tasks for job in _jobs(task, variants, bench.search))
    words: dict[By, set[str]] = {by: {job.keys[by] for job in jobs} for by in ("data", "forget", "label")}
    words["label"] |= set(PARTS.values())
    check_tables(bench, {m.name: m for task in tasks for m in task.found_metrics().values()}, words)
    seconds = None if bench.search is None else bench.search.seconds
    return Plan(path.stem, bench.about, jobs, bench.tables, bench.figures, seconds, bench.resources)


def _tasks(above: dict[str, Any], given: dict[str, Any], where: str) -> list[Task]:
    """A task for each data set that is named; the keys of a task replace those above it."""
    if {"forget", "fraction", "ids"} & given.keys():
        above = {k: v for k, v in above.items() if k not in ("forget", "fraction", "ids")}
    merged = {**above, **given}
    names = merged.pop("data", None)
    if names == []:
        raise FileError(f"at least one data set in {where}", "none", "write data: digits, say")
    found = []
    for name in names if isinstance(names, list) else [names]:
        if isinstance(name, str) and name not in DATASETS:
            if not Path(name).exists():
                fix = did_you_mean(name, DATASETS)
                raise DataError("the name of a data set, or a path", repr(name), fix)
            name = str(Path(name).absolute())
        found.append(build(Task, merged if name is None else {**merged, "data": name}, where))
    return found


def _check_rows(tasks: list[Task]) -> None:
    """Tasks that share rows of tables must be of one kind: a mean over several kinds says nothing."""
    kinds: dict[str, dict[str, Any]] = {}
    for task in tasks:
        kind = {key: getattr(task, key) for key in ("data", "model", "size", "holdout")} | _recipe(task, {})
        name = short(_data(task))
        first = kinds.setdefault(name, kind)
        if apart := [key for key in kind if kind[key] != first[key]]:
            got = f"{first[apart[0]]} and {kind[apart[0]]}"
            raise DataError(f"one {apart[0]} for all tasks of {name}", got, "write two files, one for each")


def _check_settings(tasks: list[Task], labels: Iterable[str]) -> None:
    """A search finds settings for all of its tasks, so no task may have its own."""
    for label in labels:
        given = [task.set.get(label, {}) for task in tasks]
        if other := [one for one in given if one != given[0]]:
            got = f"{given[0]} and {other[0]}"
            raise MethodError(f"one set of {label} for all tasks of a search", got, "search in two files")


def _by_id(jobs: Iterable[Job]) -> list[Job]:
    """Each job once; labels that file names cannot tell apart are refused."""
    found: dict[str, Job] = {}
    for job in jobs:
        if job.label != (other := found.get(job.id, job).label):
            got = f"{other!r} and {job.label!r} for the same settings"
            raise MethodError("labels that differ in the names of files", got, "leave one out, or rename it")
        found[job.id] = job
    return list(found.values())


def _data(task: Task) -> Data:
    return Data(task.data, task.size, task.per_class, task.holdout)


def _requests(task: Task, seed: int) -> list[Forget]:
    """The requests of a task, each of which becomes jobs of its own."""
    if task.fraction is not None:
        return [{"fraction": task.fraction, "seed": seed if task.draw is None else task.draw}]
    if task.ids is not None:
        return [{"ids": sorted(set(task.ids))}]
    entry = DATASETS.get(task.data)
    names = () if entry is None else entry.names
    if task.forget == "each" and not names:
        raise DataError(f"the classes of {task.data} by number", "'each'", "write forget: [0, 1, 2], say")
    asked: Sequence[Any] = range(len(names)) if task.forget == "each" else task.forget or []
    requests = [sorted(set(one)) if isinstance(one, list) else [one] for one in asked]
    upto = f" to {len(names) - 1}" if names else ""
    if wrong := [c for one in requests for c in one if c < 0 or (names and c >= len(names))]:
        raise DataError(f"classes from 0{upto} of {task.data}", str(wrong[0]), "change forget")
    if odd := [one for one in requests if not one or len(one) == len(names)]:
        got = "all of them" if odd[0] else "none"
        raise DataError(f"some classes of {task.data} to forget", got, "change forget")
    return [{"classes": one} for one in requests]


def _variants(bench: Bench, presets: dict[str, dict[str, Any]]) -> list[tuple[Variant, str]]:
    """The methods with their settings; in a search, the trials, each with the label that it is for."""
    found, search = [], bench.search
    for one in bench.variants():
        one = dataclasses.replace(one, set={**presets.get(one.label, {}), **one.set})
        method = resolve_method(one.method, one.set)
        if one.search and search is None:
            raise MethodError("search: {trials: …, score: …}", "none", "add it beside methods")
        fields = [f for f, _ in flat_fields(method)]
        ranges, settings = one.search, {*as_dict(method), *(f.name for f in fields)}
        if wrong := [key for key in ranges if key not in settings]:
            fix = did_you_mean(wrong[0], settings)
            raise MethodError(f"a setting of {one.method} in search", repr(wrong[0]), fix)
        if search is None:
            found.append((one, ""))
            continue
        fractions = [f.name for f in fields if "float" in str(f.type)]
        for i in range(search.trials if ranges else 1):
            trial = drawn(ranges, search.seed, one.label, i, fractions)
            found.append((dataclasses.replace(one, label=f"{one.label} #{i}", search=trial), one.label))
    labels = {of or v.label for v, of in found}
    if strange := presets.keys() - labels:
        name = min(strange)
        raise MethodError("a label of methods in presets", repr(name), did_you_mean(name, labels))
    return found


def _presets(path: Path) -> dict[str, dict[str, Any]]:
    """Settings by label, as a search writes them."""
    rows = fit(read_yaml(path).get("methods"), list[Any], "methods", str(path))
    presets = [build(Variant, row, f"methods of {path}", ignore_unknown=True) for row in rows]
    return {preset.label or preset.method: preset.set for preset in presets}


def _jobs(task: Task, variants: list[tuple[Variant, str]], search: Search | None) -> Iterator[Job]:
    """A job for each seed, request and variant of a task."""
    known_name(task.model)
    known = {of or v.label for v, of in variants}
    if wrong := [label for label in task.set if label not in known]:
        raise MethodError("a label of methods in set", repr(wrong[0]), did_you_mean(wrong[0], known))
    data, recipe = _data(task), _recipe(task, {})
    metrics = task.found_metrics()
    if search is not None:
        _check_score(search, task, [m.name for m in metrics.values()])
    seeds = list(dict.fromkeys(task.seeds))
    for at, seed in enumerate(seeds):
        others = _other_seeds(seeds, at, task.retrains)
        for forget in _requests(task, seed):
            retrained = [Training(data, task.model, recipe, other, forget) for other in others]
            for variant, of in variants:
                changes = {**variant.set, **task.set.get(of or variant.label, {})}
                changes |= variant.search if of else {}
                base, more = variant.split_base(resolve_method(variant.method, changes).needs)
                begin = Training(
                    data, task.model, _recipe(task, more), seed, {}, base.shards, base.slices,
                    forget if base.log_updates else {}, base.vote,
                )  # fmt: skip
                yield Job(
                    data, forget, variant.label, variant.method, changes, seed, list(metrics), begin,
                    retrained, task.repeats, {} if search is None else search.score, of,
                )  # fmt: skip


def _check_score(search: Search, task: Task, metrics: Collection[str]) -> None:
    """A search needs held-out data, and what its score is computed from."""
    if task.holdout is None:
        wanted, got = (
            f"held-out training data of {task.data} to search on",
            "none, which leaves the test images",
        )
        raise DataError(wanted, got, "add holdout: 0.1")
    if absent := [name for name in search.score if name.partition(".")[0] not in metrics]:
        raise MethodError("metrics that the score can use", f"no {absent[0]}", "add it to metrics")
    if alone := [name for name in search.score if not task.retrains and needs_retrained(name)]:
        wanted = f"a retrained model for {alone[0]} in the score"
        raise MethodError(wanted, "retrains: 0", "write retrains: 1")


def _other_seeds(seeds: list[int], at: int, count: int) -> list[int]:
    """The seeds of the retrained models for one seed, all different from it and from each other.

    The second retrained model of a seed is the first of the next one, so that fewer are trained.
    """
    n, found = len(seeds), [seeds[at]]
    candidates = (1000 * (1 + i // n) + seeds[(at + i) % n] for i in itertools.count())
    while len(found) <= count:
        found.append(next(other for other in candidates if other not in found))
    if max(found) >= 2**32:
        wanted = f"seeds up to {2**32 - 1 - (max(found) - max(seeds))}, as retrained models have larger ones"
        raise FileError(wanted, str(max(seeds)), "change seeds")
    return found[1:]


def _recipe(task: Task, changes: dict[str, Any]) -> dict[str, Any]:
    of_data = DATASETS[task.data].recipe if task.data in DATASETS else {}
    return as_dict(replace(Recipe(), {**of_data, **task.recipe, **changes}))
