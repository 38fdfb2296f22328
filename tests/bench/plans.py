"""Plans and results of a bench made by hand, for tests that train nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from purge.bench import runner as suite
from purge.bench.jobs import Job, Plan, read_plan
from purge.bench.models import Place
from purge.bench.results import JobResult, ModelNumbers, Sheet, result_in, sheet
from purge.bench.results import numbers_of as numbers_of_results
from purge.bench.schema import NUMBERS, Table
from purge.core.files import write_json

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
NAMES = [path.stem for path in CONFIGS]

SMALL: dict[str, Any] = {
    "data": "digits",
    "model": "small-resnet",
    "forget": [0],
    "metrics": ["fa_test", "ra", "mia"],
    "methods": ["purge", "finetune"],
}


def plan_of(tmp_path: Path, *, trust: bool = False, **changes: Any) -> Plan:
    """The plan of a small file with some keys changed; None takes a key out."""
    content = {k: v for k, v in {**SMALL, **changes}.items() if v is not None}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    return read_plan(tmp_path / "small.yaml", trust)


def place_of(folder: Path) -> Place:
    return Place(folder, folder / "models")


def result_of(job: Job, values: dict[str, float | None], **numbers: float) -> dict[str, Any]:
    """A result as a job leaves it, with numbers of our choice for the model and its references."""

    def part(shift: float) -> dict[str, Any]:
        return {k: {"value": None if v is None else v + shift, "why": ""} for k, v in values.items()}

    return {
        **job.keys, "values": part(0), "retrained": part(0.25), "original": part(0.5), "floor": part(0.125),
        "numbers": {"seconds": 2.0, "retrain_seconds": 8.0, **numbers}, "trial_of": "",
        "hardware": {"gpu": "G1", "machine": "m", "cpus": 1}, "commit": "abc",
    }  # fmt: skip


def numbers_of(results: Iterable[Mapping[str, Any]]) -> list[ModelNumbers]:
    """The numbers of results, each read from its file."""
    read: list[JobResult | None] = []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        for result in results:
            write_json(file, result)
            read.append(result_in(file))
    return numbers_of_results(result for result in read if result is not None)


def sheet_of(
    tmp_path: Path, table: Table, values: Mapping[str, Mapping[str, Sequence[float | None]]], note: str = ""
) -> Sheet:
    """A table of methods with the values of ours, one for each seed; their references are as in result_of."""
    seeds = range(len(next(iter(next(iter(values.values())).values()))))
    results = []
    for job in plan_of(tmp_path, methods=[*values], seeds=[*seeds]).jobs:
        own = {name: of_seeds[job.seed] for name, of_seeds in values[job.label].items()}
        numbers = {name: own.pop(name) or 0.0 for name in [*own] if name in NUMBERS}
        results.append(result_of(job, own, **numbers))
    return sheet(table, numbers_of(results), note)


def finished(path: Path, out: Path) -> Plan:
    """The results that a file asks for, invented."""
    plan = read_plan(path)
    place = place_of(out)
    (out / "jobs").mkdir(parents=True)
    suite.write_manifest(plan, out)
    for i, job in enumerate(plan.jobs):
        names = {c for t in plan.tables for c in t.columns}
        values: dict[str, float | None] = {name: ((7 * i + len(name)) % 10) / 20 for name in sorted(names)}
        write_json(place.file(job), result_of(job, values, steps=i, speedup=4.0, gated=0.5, score=0.1 * i))
    return plan


# -- processes of a bench -------------------------------------------------------------------------


def processes_of(session: int) -> list[tuple[int, str]]:
    """The living processes of a session and their commands: a bench, its workers, what tracks them, Ray."""
    living = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
            name = (stat.parent / "cmdline").read_bytes().decode().replace("\0", " ")
        except OSError:  # it has just ended
            continue
        if int(of) == session and state != "Z":
            living.append((int(stat.parent.name), name))
    return living


def until(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value
