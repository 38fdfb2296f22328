"""What a bench will take: what is there, what is missing, and how long that may last."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from purge.bench import tables as evidence
from purge.bench.expand import Data, Job, Plan, forget_words, short
from purge.bench.store import Place, cached, finished, is_done
from purge.data.catalog import DATASETS
from purge.runs.folder import RunFile, read_facts

# Where nothing was measured yet: ResNet-18 at 32×32 on one H200, results/base_models.json.
VISIT_SECONDS, LARGE_VISIT_SECONDS = 2e-5, 8e-5  # per image and pass; larger than 64×64
IMAGES, PASSES = 50_000, 12  # of a data set; of a job: unlearning and audit

ASSUMED = (
    "Times are those of earlier jobs and trainings in the folder. Where there are none, they are guesses: "
    f"{VISIT_SECONDS:.0e} s per image and pass ({LARGE_VISIT_SECONDS:.0e} above 64×64), as ResNet-18 takes "
    f"on an H200, {IMAGES:,} images in a data set, {PASSES} passes in a job."
)


class Step(NamedTuple):
    """A row of the plan: a model to train, or the jobs of a method on a data set."""

    what: str
    jobs: int
    done: int
    seconds: float  # what is left, estimated


def outlook(plan: Plan, place: Place) -> list[Step]:
    """What is to be done, what is there already, and how long the rest will take; nothing is written."""
    facts = [read_facts(f) for f in sorted(place.models.glob("*-*")) if finished(f)]
    rates = _by_data([(Path(f["data"]).name, f["seconds"] / _visits(f)) for f in facts])
    steps = []
    for training in plan.trainings():
        there = cached(training, place.models) is not None
        rate = rates(short(training.data), _visit(training.data))
        left = 0.0 if there else training.recipe["epochs"] * _images(training.data) * rate
        steps.append(Step(f"train {training}", 1, int(there), left))
    found = evidence.results(place.out, [job.keys for job in plan.jobs])
    took = _by_data([(r["data"], r["wall_seconds"]) for r in found if "wall_seconds" in r])
    groups: dict[str, list[Job]] = {}
    for job in plan.jobs:
        groups.setdefault(f"{short(job.data)} {forget_words(job.forget)}: {job.label}", []).append(job)
    for what, jobs in groups.items():
        done = sum(is_done(place.file(job)) for job in jobs)
        data = jobs[0].data
        each = took(short(data), PASSES * _images(data) * _visit(data))
        steps.append(Step(what, len(jobs), done, (len(jobs) - done) * each))
    return steps


def as_table(steps: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """The rows of an outlook as text, with their sum."""
    rows = [[s.what, str(s.jobs), str(s.done), f"{s.seconds / 60:.1f} min"] for s in steps]
    models = [s for s in steps if s.what.startswith("train ")]
    total = f"{len(models)} models, {sum(s.jobs for s in steps) - len(models)} jobs"
    there, left = sum(s.done for s in steps), sum(s.seconds for s in steps) / 60
    heads = ["what", "number", "there", "estimated"]
    return heads, [*rows, [total, str(sum(s.jobs for s in steps)), str(there), f"{left:.1f} min"]]


def _by_data(measured: Sequence[tuple[str, float]]) -> Callable[[str, float], float]:
    """The mean of what was measured with a data set; of none, of all; of nothing, a guess."""

    def mean(name: str, guess: float) -> float:
        same = [v for data, v in measured if data == name] or [v for _, v in measured]
        return statistics.fmean(same) if same else guess

    return mean


def _visits(facts: RunFile) -> float:
    return max(1.0, float(facts["settings"]["epochs"]) * float(facts["samples"]))


def _visit(data: Data) -> float:
    entry = DATASETS.get(data.name)
    size = data.size or (entry.size if entry is not None else None) or 32
    return VISIT_SECONDS if size <= 64 else LARGE_VISIT_SECONDS


def _images(data: Data) -> int:
    """How many training images there are, as far as that is known without them."""
    entry = DATASETS.get(data.name)
    classes = len(entry.names) if entry is not None and entry.names else 10
    return IMAGES if data.per_class is None else data.per_class * classes
