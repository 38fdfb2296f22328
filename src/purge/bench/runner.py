"""Running a bench: missing models are trained, and every job leaves one JSON file.

``OUT/jobs/<id>.json`` is written whole when a job ends or fails, so an interruption loses only the jobs that
were running; a file that cannot be read counts as missing. ``OUT/models`` has the trained models as run
folders, named by what they depend on, so that another bench can share them.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from torch import nn

import purge
from purge import Result
from purge.bench.jobs import Job, Plan, Training
from purge.bench.layout import FORMS
from purge.bench.models import Place, images, missing, request_of, trained
from purge.bench.results import is_done, manifest, result_in, sheets
from purge.bench.schema import PARTS
from purge.bench.search import score_of, winners
from purge.bench.workers import PROCESSES, Done, Worker, WorkItem, each, workers_on
from purge.core.errors import FileError
from purge.core.files import below, out_folder, own_folder, write_json, write_text
from purge.core.progress import progress_line
from purge.core.store import digest_of
from purge.data import Samples
from purge.metrics import METRICS, find_metric
from purge.runs import Auditor, RunFile, cut, environment, read_facts, read_model, unlearn_run


class Summary(NamedTuple):
    """What a bench did."""

    ran: int
    skipped: int  # jobs that had results
    left: int  # jobs that --only leaves out
    trained: int
    failed: dict[str, str]  # job → what went wrong
    files: list[Path]  # tables, figures and presets
    over: int = 0  # jobs of trials that did not begin: the seconds of their search were used up


def bench(
    plan: Plan, place: Place, *, only: Sequence[str] = (), at_once: int | None = None, on: str = PROCESSES,
    resume: bool = False, progress: bool = True, say: Callable[[str], None] = lambda _: None,
) -> Summary:  # fmt: skip
    """Run the jobs that have no result, all or those of some methods, then make the tables and figures.

    ``on``: where they run, see :func:`workers_on`; ``at_once``: how many of them at the same time.
    """
    part = plan.only(only)
    for folder in (place.out, place.models):
        out_folder(folder, force=True)
    if not resume and place.out.is_dir() and any(place.out.iterdir()):
        fix = "continue with --resume, or choose another"
        raise FileError(f"an empty folder at {place.out}", "one with files in it", fix)
    todo = [job for job in part.jobs if not is_done(place.file(job))]
    wanted = plan.trainings(todo)
    absent = missing(wanted, place)
    broken, over, total = set(), 0, len(wanted) + len(todo)
    where = on if todo else PROCESSES  # a cluster takes seconds to start
    with workers_on(where, at_once, total, plan.resources, place.device) as workers:
        own_folder(place.out, "jobs")
        place.models.mkdir(parents=True, exist_ok=True)
        place = dataclasses.replace(place, at_once=len(workers), models=place.models.absolute())
        write_manifest(plan, place.out)
        say(f"{len(todo)} of {len(plan.jobs)} jobs to run; {len(absent)} of {len(wanted)} models to train.")
        began = time.perf_counter()
        with progress_line("bench", total, progress) as advance:
            for count, done in enumerate(_outcomes(workers, part, place), 1):
                if isinstance(done.what, Job):
                    write_json(place.file(done.what), done.result)
                    over += "skipped" in done.result
                elif done.error:
                    broken.add(done.what.spec)
                advance(1, str(done.what))
                note = f": {done.error}" if done.error else ""
                say(f"[{count}/{total}] {time.perf_counter() - began:6.0f} s  {done.what}{note}")
    results = [(job, result_in(place.file(job))) for job in plan.jobs]
    presets = []
    if best := winners(results, plan.seconds):
        presets = [place.out / "presets.yaml"]
        write_text(presets[0], yaml.safe_dump({"methods": best}, sort_keys=False, allow_unicode=True))
    return Summary(
        ran=len(todo) - over,
        skipped=len(part.jobs) - len(todo),
        left=len(plan.jobs) - len(part.jobs),
        trained=sum(t.spec not in broken for t in absent),
        failed={str(job): result.error for job, result in results if result and result.error},
        files=[*presets, *make(place.out)],
        over=over,
    )


def locate(
    plan: Plan, out: Path | None, models: Path | None, device: str | None, data_dir: Path | None
) -> Place:
    """Where a plan runs; by default in runs/NAME."""
    folder = out or below(Path("runs"), plan.name)
    where = None if data_dir is None else str(data_dir.absolute())
    return Place(folder, models or folder / "models", device, where, commit())


def in_words(done: Summary, place: Place) -> list[str]:
    """What a bench did as text, failures first."""
    lines = [f"Failed: {job}: {error}" for job, error in done.failed.items()]
    rest = f", {done.left} left out" if done.left else ""
    rest += f", {done.over} not begun, as their search has no seconds left" if done.over else ""
    here = f"{done.ran} jobs run, {done.skipped} were there{rest}, {done.trained} models trained"
    again = " Run what failed again with --resume." if done.failed else ""
    files = f"{len(done.files)} tables and figures in {place.out}."
    return [*lines, f"{here}, {len(done.failed)} failed; {files}{again}"]


def kept(plan: Plan, place: Place) -> str:
    """After an interruption: what is done, and how to go on."""
    done = sum(is_done(place.file(job)) for job in plan.jobs)
    here = f"{done} of {len(plan.jobs)} jobs are done in {place.out}; --resume runs the rest."
    return here if place.out.is_dir() else "Nothing was written."


def commit() -> str:
    """The commit of the code: $PURGE_COMMIT, or what git says if the code is a checkout."""
    if stated := os.environ.get("PURGE_COMMIT"):
        return stated
    root = Path(purge.__file__).parents[2]
    if not (root / ".git").exists():  # installed, perhaps inside the checkout of another project
        return "unknown"
    git = ["git", "--no-optional-locks", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, cwd=root, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


# -- files ------------------------------------------------------------------------------------


def write_manifest(plan: Plan, out: Path) -> None:
    """Write bench.json: what tables and figures need beside the results."""
    about = {"name": plan.name, "about": plan.about, "jobs": [job.keys for job in plan.jobs]}
    wanted = {
        "tables": [dataclasses.asdict(table) for table in plan.tables],
        "figures": [dataclasses.asdict(drawing) for drawing in plan.figures],
    }
    used = {name for job in plan.jobs for name in job.metrics}
    own = {m.name: m.describe() for name in sorted(used - METRICS.keys()) for m in [find_metric(name)]}
    write_json(out / "bench.json", {**about, "metrics": own, **wanted})


def _record(job: Job, place: Place, outcome: dict[str, Any]) -> dict[str, Any]:
    """The result of a job, with what it was and where it ran."""
    about = {
        **job.keys, "method": job.method, "changes": job.changes, "trial_of": job.trial_of,
        "size": job.data.size, "per_class": job.data.per_class, "holdout": job.data.holdout,
        "request": job.forget, "model": job.base.model, "recipe": job.base.recipe, "metrics": job.metrics,
    }  # fmt: skip
    made = {**environment(), "commit": place.commit, "at_once": place.at_once}
    return {**about, **outcome, **made}


def make(out: Path) -> list[Path]:
    """Write all tables and figures of a bench from its results, and return the files."""
    made = sheets(out)
    written = []
    for name, sheet in made.items():
        tables = own_folder(out, "tables")
        for ending, form in FORMS.items():
            written.append(below(tables, name, ending=f".{ending}"))
            write_text(written[-1], form(sheet))
    for drawing in manifest(out).figures:
        from purge.bench import figures  # matplotlib takes long to import
        from purge.report import theme

        drawn = figures.draw(drawing, made)
        written += theme.save(drawn, own_folder(out, "figures"), drawing.name)
    return written


# -- one item of work -------------------------------------------------------------------------


def _outcomes(workers: Sequence[Worker], plan: Plan, place: Place) -> Iterator[Done]:
    """Do all that has no result yet, models first, and yield what was done, failed or did not begin.

    In a search with a limit of seconds, a method's trials follow one another: only when the jobs of one have
    ended is it known whether there is time for the next. The first always begins.
    """
    limit = math.inf if plan.seconds is None else plan.seconds
    spent: dict[str, float] = defaultdict(float)
    tried: dict[str, str] = {}  # what went wrong with each model, if anything
    waves = [plan.jobs]
    if plan.seconds is not None:
        trials = sorted({job.trial for job in plan.jobs})
        waves = [[job for job in plan.jobs if job.trial == number] for number in trials]
    for wave in waves:
        todo = []
        for job in wave:
            if is_done(place.file(job)):
                continue
            if job.trial and spent[job.trial_of] >= limit:
                why = f"{job.trial} trials took {spent[job.trial_of]:.1f} s; the search allows {limit:g} s"
                yield Done(job, "no seconds left", _record(job, place, {"skipped": why}))
            else:
                todo.append(job)
        yield from _wave(workers, todo, plan.trainings(todo), tried, place)
        for job in wave if limit < math.inf else ():
            result = result_in(place.file(job))
            spent[job.trial_of] += result.spent_seconds if result else 0.0


def _wave(
    workers: Sequence[Worker], jobs: list[Job], models: list[Training], tried: dict[str, str], place: Place
) -> Iterator[Done]:
    """Models, then jobs. ``tried`` learns what went wrong with each model, if anything."""
    attempt = partial(_attempt, place=place)
    for done in each(workers, attempt, [WorkItem(t, t.spec) for t in models if t.spec not in tried]):
        tried[done.what.spec] = done.error
        yield done
    ready = []
    for job in jobs:
        if error := next(filter(None, (tried[t.spec] for t in job.trainings)), ""):
            yield Done(job, error, _record(job, place, {"error": error, "kind": "no model"}))
        else:
            ready.append(WorkItem(job, _scene_key(job, place)))
    for done in each(workers, attempt, ready):
        if done.killed:
            failure = {"error": done.error, "kind": "process ended"}
            done = done._replace(result=_record(done.what, place, failure))
        yield done


def _attempt(what: Training | Job, place: Place) -> Done:
    """Train a model, or run a job; return its result, or what went wrong."""
    began = ready = time.perf_counter()
    try:
        if isinstance(what, Training):
            trained(what, place)
            return Done(what)
        _scene(what, place)
        ready = time.perf_counter()
        outcome = run_job(what, place)
        outcome["wall_seconds"] = time.perf_counter() - began
        return Done(what, "", _record(what, place, outcome))
    except (Exception, SystemExit) as error:  # whatever it is, the other jobs go on
        words = " ".join((str(error) or type(error).__name__).split())[:500]
        if isinstance(what, Training):
            return Done(what, words)
        spent = time.perf_counter() - ready if ready > began else 0.0  # a trial that failed took its time too
        failure = {"error": words, "kind": type(error).__name__, "spent_seconds": spent}
        return Done(what, words, _record(what, place, failure))


class Scene(NamedTuple):
    """What jobs share that forget the same of the same model and are compared with the same others."""

    forget: Samples
    retain: Samples
    test: Samples
    folders: list[Path]  # of the base model, then of the retrained ones
    facts: list[RunFile]  # their run.json when they were read
    base: nn.Module
    auditor: Auditor


_SCENES: dict[str, Scene] = {}  # the last two of this process, since reading and auditing takes long


def _scene(job: Job, place: Place) -> Scene:
    key = _scene_key(job, place)
    if key not in _SCENES:
        for old in [*_SCENES][:-1]:
            del _SCENES[old]
        data, test = images(job.data, place.data_dir, place.device)
        forget, retain = cut(data, request_of(job.forget, data))
        folders = [trained(t, place) for t in job.trainings]
        facts = [read_facts(folder) for folder in folders]
        base, *references = [read_model(folder, job.base.model, data) for folder in folders]
        auditor = Auditor(
            forget, retain, test, original=base, retrained=references, seed=job.seed, device=place.device,
            check=False,
        )  # fmt: skip
        _SCENES[key] = Scene(forget, retain, test, folders, facts, base, auditor)
    return _SCENES[key]


def _scene_key(job: Job, place: Place) -> str:
    specs = [t.spec for t in job.trainings]
    return digest_of([dataclasses.asdict(job.data), job.forget, job.seed, specs, repr(place)])


# Of a result, what stands elsewhere in the file of a job, and what is for the record of a run alone.
LEFT_OUT = (
    "method", "versions", "hardware", "seconds", "steps", "seed",
    "request", "forget_rows", "deletion_request", "finished", "cache",
)  # fmt: skip


def run_job(job: Job, place: Place) -> dict[str, Any]:
    """Unlearn and audit; everything to keep, as plain JSON."""
    scene = _scene(job, place)
    changes = {**job.changes, **({"log": str(scene.folders[0] / "updates")} if job.base.logged else {})}
    seconds = []
    for _ in range(job.repeats):
        result = unlearn_run(
            scene.base, job.base.model, scene.forget, scene.retain, facts=scene.facts[0], method=job.method,
            settings=changes, test=scene.test, seed=job.seed, device=place.device, progress=False,
            check=False, checkpoint=scene.folders[0],
        )  # fmt: skip
        seconds.append(result.seconds)
    report = scene.auditor.audit(result, metrics=job.metrics, progress=False).to_dict()
    kept = {key: value for key, value in result.to_dict().items() if key not in LEFT_OUT}
    if job.base.logged:  # no path of this machine
        kept["settings"]["log"] = f"{scene.folders[0].name}/updates"

    numbers = _numbers(result, seconds, scene.facts[1] if job.retrained else None)
    kept["numbers"] = {**numbers, "score": score_of(job.score, report) if job.score else None}
    kept["spent_seconds"] = sum(seconds)
    checks = ("step", "check_forget_accuracy", "check_retain_loss")
    kept["checks"] = [
        {name.removeprefix("check_"): row.get(name) for name in checks}
        for row in result.history if row.get("check_forget_accuracy") is not None
    ]  # fmt: skip
    about = ("digest", "seconds", "seed", "test_accuracy", "source")
    kept["models"] = [
        {"folder": folder.name, **{key: facts.get(key) for key in about}}
        for folder, facts in zip(scene.folders, scene.facts, strict=True)
    ]
    return {**kept, **{part: report[part] for part in ("values", *PARTS)}}


def _numbers(result: Result, seconds: Sequence[float], retraining: RunFile | None) -> dict[str, Any]:
    """Seconds, operations, and shares of steps: projected, gated, and those that raise the retain loss."""
    took = flop = None
    if retraining is not None:  # which took longer if it ran side by side with others
        took, flop = retraining["seconds"] if retraining.get("at_once") == 1 else None, retraining.flop
    flops = {"pflop": result.info["flop"], "retrain_pflop": flop}
    names = {"projected": "projected", "gated": "gated", "raising": "displacement_cosine"}
    of = {k: [row[name] for row in result.history if row.get(name) is not None] for k, name in names.items()}
    of["raising"] = [cosine < -1e-6 for cosine in of["raising"]]
    return {
        "seconds": seconds[-1],
        "first_seconds": seconds[0],
        "steps": result.steps,
        "retrain_seconds": took,
        "speedup": None if took is None else took / seconds[-1],
        **{name: None if number is None else number / 1e15 for name, number in flops.items()},
        **{name: statistics.fmean(values) if values else None for name, values in of.items()},
    }
