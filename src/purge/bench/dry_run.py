"""What a bench would do: what is there, what is missing, and how long that takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from purge.bench.jobs import Job, Plan, forget_words
from purge.bench.models import Place, finished, missing
from purge.bench.results import result_in
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
    measured: dict[Any, list[float]] = defaultdict(list)  # seconds of an epoch of a training, or of a job
    for facts in [read_facts(f) for f in sorted(place.models.glob("*-*")) if finished(f)]:
        if facts.data and facts.seconds is not None and (epochs := facts.settings.get("epochs")):
            like = Path(facts.data).name, facts.model, facts.size, facts.get("per_class")
            measured[like].append(facts.seconds / epochs)
    steps = []
    absent = {training.spec for training in missing(plan.trainings(), place)}
    for training in plan.trainings():
        data = training.data
        took = measured[Path(data.name).name, training.model, data.size, data.per_class]
        done = training.spec not in absent
        left = 0.0 if done else training.recipe["epochs"] * fmean(took) if took else None
        steps.append(Step(f"train {training}", 1, int(done), left, model=True))
    groups: dict[str, list[Job]] = defaultdict(list)
    done_with: dict[str, int] = defaultdict(int)  # also trials that had no seconds left
    for job in plan.jobs:
        what = f"{job.data} {forget_words(job.forget)}: {job.label}"
        groups[what].append(job)
        result = result_in(place.file(job)) or {"error": "missing"}
        done_with[what] += "error" not in result
        if "wall_seconds" in result:
            measured[job.data, job.group].append(result["wall_seconds"])
    for what, jobs in groups.items():
        took, count = measured[jobs[0].data, jobs[0].group], len(jobs) - done_with[what]
        steps.append(
            Step(what, len(jobs), done_with[what], count * fmean(took) if took else None if count else 0.0)
        )
    return steps


def as_table(steps: Sequence[Step]) -> tuple[list[str], list[list[str]]]:
    """The steps and their sum as text."""
    models = sum(step.model for step in steps)
    jobs, done = sum(step.jobs for step in steps), sum(step.done for step in steps)
    known = [step.seconds for step in steps if step.seconds is not None]
    total = Step(
        f"{models} models, {jobs - models} jobs", jobs, done, sum(known) if len(known) == len(steps) else None
    )
    left = ["unknown" if s.seconds is None else f"{s.seconds / 60:.1f} min" for s in (*steps, total)]
    rows = [[s.what, str(s.jobs), str(s.done), time] for s, time in zip((*steps, total), left, strict=True)]
    return ["what", "number", "there", "time left"], rows
