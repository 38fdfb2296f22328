"""What a bench would do: what is there, what is missing, and how long that takes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from purge.bench.jobs import Data, Job, Plan, forget_words
from purge.bench.store import Place, finished, missing
from purge.bench.tables import result_in
from purge.runs import read_facts


class Step(NamedTuple):
    """A model to train, or the jobs of a method on a data set."""

    what: str
    jobs: int
    done: int
    seconds: float | None  # still needed; None if nothing like it was measured in this folder
    model: bool = False


def steps_of(plan: Plan, place: Place) -> list[Step]:
    """What a plan asks for and what is there already; nothing is written."""
    made = [read_facts(folder) for folder in sorted(place.models.glob("*-*")) if finished(folder)]
    facts = [f for f in made if f.data and f.seconds is not None and f.settings.get("epochs")]
    steps = []
    absent = {training.spec for training in missing(plan.trainings(), place)}
    for training in plan.trainings():
        epochs, data = training.recipe["epochs"], Path(training.data.name).name
        took = [
            epochs * f["seconds"] / max(1, f["settings"]["epochs"]) for f in facts
            if (Path(f["data"]).name, f.get("model"), f.get("size"), f.get("per_class"))
            == (data, training.model, training.data.size, training.data.per_class)
        ]  # fmt: skip
        there = int(training.spec not in absent)
        steps.append(Step(f"train {training}", 1, there, _left(1 - there, took), model=True))
    groups: dict[str, list[Job]] = {}
    measured: dict[tuple[Data, str], list[float]] = {}
    done: set[str] = set()
    for job in plan.jobs:
        groups.setdefault(f"{job.data} {forget_words(job.forget)}: {job.label}", []).append(job)
        result = result_in(place.file(job)) or {"error": "missing"}
        done |= set() if "error" in result else {job.id}  # a trial that had no seconds left is done with
        if "wall_seconds" in result:
            measured.setdefault((job.data, job.group), []).append(result["wall_seconds"])
    for what, jobs in groups.items():
        count = sum(job.id in done for job in jobs)
        left = _left(len(jobs) - count, measured.get((jobs[0].data, jobs[0].group), []))
        steps.append(Step(what, len(jobs), count, left))
    return steps


def _left(count: int, took: Sequence[float]) -> float | None:
    if not count:
        return 0.0
    return count * statistics.fmean(took) if took else None


def as_table(steps: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """The steps and their sum as text."""
    models = sum(step.model for step in steps)
    jobs, done = sum(step.jobs for step in steps), sum(step.done for step in steps)
    known = [step.seconds for step in steps if step.seconds is not None]
    left = sum(known) if len(known) == len(steps) else None
    total = Step(f"{models} models, {jobs - models} jobs", jobs, done, left)
    rows = [[s.what, str(s.jobs), str(s.done), _minutes(s.seconds)] for s in (*steps, total)]
    return ["what", "number", "there", "time left"], rows


def _minutes(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds / 60:.1f} min"
