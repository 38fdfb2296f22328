"""What a bench would do: what is there, what is missing, and how long that takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from purge.bench.jobs import Job, Plan, forget_words
from purge.bench.models import Place, sound
from purge.bench.results import result_in
from purge.runs import read_facts


class Step(NamedTuple):
    """A model to train, or the jobs of a method on a data set."""

    what: str
    jobs: int
    done: int
    seconds: float | None  # still needed; None if nothing like it was measured in this folder


def steps_of(plan: Plan, place: Place) -> list[Step]:
    """What a plan asks for and what is there already; nothing is written."""
    measured: dict[Any, list[float]] = defaultdict(list)  # seconds of an epoch of a training, or of a job
    ready = [folder for folder in sorted(place.models.glob("*-*")) if sound(folder)]
    for facts in map(read_facts, ready):
        if facts.data and facts.seconds is not None and (epochs := facts.settings.get("epochs")):
            like = Path(facts.data).name, facts.model, facts.size, facts.get("per_class")
            measured[like].append(facts.seconds / epochs)
    steps = []
    for training in plan.trainings():
        data = training.data
        took = measured[Path(data.name).name, training.model, data.size, data.per_class]
        done = any(folder.name.startswith(f"{training.spec}-") for folder in ready)
        left = 0.0 if done else training.recipe["epochs"] * fmean(took) if took else None
        steps.append(Step(f"train {training}", 1, int(done), left))
    groups: dict[str, list[Job]] = defaultdict(list)
    there: dict[str, int] = defaultdict(int)  # also trials that had no seconds left
    for job in plan.jobs:
        what = f"{job.data} {forget_words(job.forget)}: {job.label}"
        groups[what].append(job)
        if (result := result_in(place.file(job))) and not result.error:
            there[what] += 1
            if result.wall_seconds is not None:
                measured[job.data, job.group].append(result.wall_seconds)
    for what, jobs in groups.items():
        took, count = measured[jobs[0].data, jobs[0].group], len(jobs) - there[what]
        left = 0.0 if not count else count * fmean(took) if took else None
        steps.append(Step(what, len(jobs), there[what], left))
    return steps


def as_table(steps: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """The steps and their sum as text."""
    seconds = [step.seconds for step in steps]
    known = [s for s in seconds if s is not None]
    total = sum(known) if len(known) == len(steps) else None
    jobs, done = sum(step.jobs for step in steps), sum(step.done for step in steps)
    rows = [
        [step.what, str(step.jobs), str(step.done), "unknown" if s is None else f"{s / 60:.1f} min"]
        for step, s in zip([*steps, Step("all", jobs, done, total)], [*seconds, total], strict=True)
    ]
    return ["what", "number", "there", "time left"], rows
