"""Running a bench: the models that are missing are trained, and every job leaves one JSON file.

``OUT/jobs/<id>.json`` is written whole when a job ends, well or not, so a bench that was killed loses the
job that was running, no more; a file that cannot be read counts as missing. ``OUT/models`` has the trained
models as run folders, named by what they depend on: another bench that is given the folder finds them.
Tables and figures are made from the files.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import nn

from purge.api import Auditor, unlearn
from purge.bench import tables as evidence
from purge.bench.expand import Job, Plan, Training, digest_of
from purge.bench.pool import Item, workers
from purge.bench.search import score_of, winners
from purge.bench.store import Place, cached, images, is_done, request_of, trained
from purge.bench.tables import FORMS, Drawing, result_in
from purge.core.errors import FileError
from purge.core.files import out_folder, write_json, write_text
from purge.core.progress import progress_line
from purge.data.images import Images
from purge.engine.precision import choose_device
from purge.engine.seeding import seeded
from purge.methods.registry import resolve_method
from purge.result import Result, environment
from purge.runs.folder import RunFile, build_for, cut, read_facts, read_model

Say = Callable[[str], None]


class Summary(NamedTuple):
    """What a bench did."""

    ran: int
    skipped: int  # jobs whose results were there
    left: int  # jobs that were not asked for
    trained: int
    failed: dict[str, str]  # job → what went wrong
    files: list[Path]  # tables, figures and presets
    unread: int = 0  # of those left: files that cannot be read


def bench(
    plan: Plan, place: Place, *, only: Sequence[str] = (), at_once: int = 1, resume: bool = False,
    progress: bool = True, say: Say = lambda _: None,
) -> Summary:  # fmt: skip
    """Do all that is not done yet, of some methods only or of all, then make the tables and figures."""
    asked = plan.only(only)
    choose_device(place.device, torch.nn.Identity())
    out_folder(place.out, force=True)
    if not resume and place.out.is_dir() and any(place.out.iterdir()):
        fix = "go on with --resume, or choose another"
        raise FileError(f"an empty folder at {place.out}", "one with files in it", fix)
    for folder in (place.out / "jobs", place.models):
        folder.mkdir(parents=True, exist_ok=True)
    place = dataclasses.replace(place, at_once=at_once)
    _write_manifest(plan, place)
    todo = [job for job in asked.jobs if not is_done(place.file(job))]
    wanted = plan.trainings(todo)
    missing = [t for t in wanted if not cached(t, place.models)]
    say(f"{len(todo)} of {len(plan.jobs)} jobs to run; {len(missing)} of {len(wanted)} models to train.")
    broken = set()
    with workers(at_once) as each, progress_line("bench", len(wanted) + len(todo), progress) as advance:
        told = _counted(len(wanted) + len(todo), advance, say)
        for done in each(partial(_attempt, place=place), _items(todo, place)):
            if done.error and isinstance(done.what, Training):
                broken.add(done.what.spec)
            elif done.killed or not done.tried:
                kind = "process ended" if done.killed else "no model"
                _write(done.what, place, {"error": done.error, "kind": kind})
            told(str(done.what), done.error)
    results = [(job, found) for job in plan.jobs if (found := result_in(place.file(job))) is not None]
    unread = sum(place.file(job).is_file() for job in plan.jobs) - len(results)
    failed = {str(job): str(found["error"]) for job, found in results if "error" in found}
    files = [*_write_presets(place.out, [found for _, found in results]), *make(place.out)]
    made = sum(m.spec not in broken for m in missing)
    there, left = len(asked.jobs) - len(todo), len(plan.jobs) - len(asked.jobs)
    return Summary(len(todo), there, left, made, failed, files, unread)


def locate(
    plan: Plan, out: Path | None, models: Path | None, device: str | None, data_dir: Path | None
) -> Place:
    """Where a plan is carried out, unless it is said otherwise."""
    folder = out or Path("runs") / plan.name
    where = None if data_dir is None else str(data_dir.absolute())
    return Place(folder, models or folder / "models", device, where, commit())


def in_words(done: Summary, place: Place) -> list[str]:
    """What a bench did, for people: failures first, as they are what to look at."""
    lines = [f"Failed: {job}: {error}" for job, error in done.failed.items()]
    unread = f" ({done.unread} with a file that cannot be read)" if done.unread else ""
    rest = f", {done.left} left out{unread}" if done.left else ""
    here = f"{done.ran} jobs run, {done.skipped} were there{rest}, {done.trained} models trained"
    again = " Run what failed again with --resume." if done.failed else ""
    files = f"{len(done.files)} tables and figures in {place.out}."
    return [*lines, f"{here}, {len(done.failed)} failed; {files}{again}"]


def _counted(total: int, advance: Callable[[int, str], None], say: Say) -> Callable[[str, str], None]:
    """A function that tells of everything that is done, on the progress line or as a line of its own."""
    count = 0
    began = time.perf_counter()

    def done(what: str, error: str) -> None:
        nonlocal count
        count += 1
        advance(1, what)
        say(f"[{count}/{total}] {time.perf_counter() - began:6.0f} s  {what}{': ' + error if error else ''}")

    return done


def _write_manifest(plan: Plan, place: Place) -> None:
    """What tables are made from, beside the results."""
    about = {"name": plan.name, "about": plan.about, "jobs": [job.keys for job in plan.jobs]}
    wanted = {"tables": plan.tables, "figures": plan.figures}
    specs = {k: [dataclasses.asdict(one) for one in v] for k, v in wanted.items()}  # type: ignore[attr-defined]
    write_json(place.out / "bench.json", {**about, **specs})


def _write_presets(out: Path, results: list[dict[str, Any]]) -> list[Path]:
    """The best settings that a search found, in a form that a later bench can read."""
    found = winners(results)
    if not found:
        return []
    text = yaml.safe_dump({"methods": found}, sort_keys=False, allow_unicode=True)
    write_text(out / "presets.yaml", text)
    return [out / "presets.yaml"]


def commit() -> str:
    """The commit of the code: $PURGE_COMMIT, or what git says where the code is a checkout."""
    if given := os.environ.get("PURGE_COMMIT"):
        return given
    here = Path(__file__).parent
    if not (here.parents[1] / ".git").exists():  # installed, perhaps inside a checkout of something else
        return "unknown"
    git = ["git", "--no-optional-locks", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, cwd=here, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def _items(todo: list[Job], place: Place) -> list[Item]:
    """Every model before the first job that needs it; a model that is there is only found."""
    items: dict[str, Item] = {}
    for job in todo:
        models = {t.spec: t for t in (job.base, *job.retrained)}
        items |= {spec: Item(t, spec) for spec, t in models.items() if spec not in items}
        items[job.id] = Item(job, _scene_key(job, place), frozenset(models))
    return list(items.values())


def _attempt(what: Training | Job, place: Place) -> str:
    """Train a model or run a job; what went wrong is returned."""
    return _attempt_job(what, place) if isinstance(what, Job) else _attempt_training(what, place)


def _attempt_training(training: Training, place: Place) -> str:
    """Train a model; what went wrong is returned."""
    try:
        trained(training, place)
    except Exception as error:  # whatever it is, the other jobs go on
        return _in_a_line(error)
    return ""


def _attempt_job(job: Job, place: Place) -> str:
    """Run a job and write its result, which may be that it failed; what went wrong is returned."""
    began = time.perf_counter()
    try:
        found = run_job(job, place)
        _write(job, place, {**found, "wall_seconds": time.perf_counter() - began})
    except Exception as error:  # a failure is a result
        _write(job, place, {"error": _in_a_line(error), "kind": type(error).__name__})
        return _in_a_line(error)
    return ""


def _in_a_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:500]


def _write(job: Job, place: Place, found: dict[str, Any]) -> None:
    about = {
        **job.keys, "method": job.method, "changes": job.changes, "trial_of": job.trial_of,
        "size": job.data.size, "per_class": job.data.per_class, "holdout": job.data.holdout,
        "request": job.forget, "model": job.base.model, "recipe": job.base.recipe, "metrics": job.metrics,
    }  # fmt: skip
    write_json(
        place.file(job), {**about, **found, **environment(), "commit": place.commit, "at_once": place.at_once}
    )


# -- one job ----------------------------------------------------------------------------------


def run_job(job: Job, place: Place) -> dict[str, Any]:
    """Unlearn and audit: all that is to be kept of it, as plain JSON."""
    forget, retain, test, folders, facts, base, auditor = _scene(job, place)
    changes = {**job.changes, **({"log": str(folders[0] / "updates")} if job.base.logged else {})}
    needs = resolve_method(job.method, job.changes).needs
    with seeded(job.seed, torch.device("cpu")):
        fresh = build_for(job.base.model, retain) if "fresh" in needs else None
    seconds = []
    for _ in range(job.repeats):
        result = unlearn(
            base, forget, retain, test=test, method=job.method, seed=job.seed, device=place.device,
            progress=False, fresh=fresh, **changes,
        )  # fmt: skip
        seconds.append(result.seconds)
    report = auditor.audit(result, metrics=job.metrics, progress=False).to_dict()
    twice = ("method", "versions", "hardware", "seconds", "steps", "seed")  # which are told elsewhere
    found = {k: v for k, v in result.to_dict().items() if k not in twice}
    if job.base.logged:  # not where it is on this machine
        found["settings"]["log"] = f"{folders[0].name}/updates"
    # Trainings beside each other take longer: such seconds say nothing about the cost of retraining.
    retraining = facts[1]["seconds"] if job.retrained and facts[1].get("at_once") == 1 else None
    numbers = {
        "seconds": seconds[-1],
        "first_seconds": seconds[0],
        "steps": result.steps,
        "retrain_seconds": retraining,
        "speedup": None if retraining is None else retraining / seconds[-1],
        **_shares(result),
        "score": score_of(job.score, report) if job.score else None,
    }
    values = {part: report[part] for part in ("values", "retrained", "original", "floor")}
    kept = ("digest", "seconds", "seed", "test_accuracy", "source")
    models = [
        {"folder": f.name, **{k: fact.get(k) for k in kept}} for f, fact in zip(folders, facts, strict=True)
    ]
    return {**found, "numbers": numbers, "checks": _checks(result), **values, "models": models}


class Scene(NamedTuple):
    """What jobs share that forget the same of the same model, and are compared with the same others."""

    forget: Images
    retain: Images
    test: Images
    folders: list[Path]  # of the base model, then of the retrained ones
    facts: list[RunFile]  # about them, as they were when they were read
    base: nn.Module
    auditor: Auditor


_SCENES: dict[str, Scene] = {}  # of this process, the last two: jobs come in order


def _scene(job: Job, place: Place) -> Scene:
    """Made once for all jobs of a process that share it: reading and auditing the others takes long."""
    key = _scene_key(job, place)
    if key not in _SCENES:
        for old in [*_SCENES][:-1]:
            del _SCENES[old]
        data, test = images(job.data, place.data_dir, place.device)
        forget, retain = cut(data, request_of(job.forget, data))
        folders = [trained(t, place) for t in (job.base, *job.retrained)]
        facts = [read_facts(folder) for folder in folders]
        base, *references = [read_model(folder, None, data) for folder in folders]
        auditor = Auditor(
            forget, retain, test, original=base, retrained=references, seed=job.seed, device=place.device
        )
        _SCENES[key] = Scene(forget, retain, test, folders, facts, base, auditor)
    return _SCENES[key]


def _scene_key(job: Job, place: Place) -> str:
    specs = [t.spec for t in (job.base, *job.retrained)]
    return digest_of([dataclasses.asdict(job.data), job.forget, job.seed, specs, repr(place)])


def _shares(result: Result) -> dict[str, float | None]:
    """Of the steps of a run: those projected, gated, and that raise the retain loss to first order."""
    columns = {k: [r[k] for r in result.history if r.get(k) is not None] for k in (
        "projected", "gated", "displacement_cosine")}  # fmt: skip
    raising = [cosine < -1e-6 for cosine in columns.pop("displacement_cosine")]
    return {k: statistics.fmean(v) if v else None for k, v in {**columns, "raising": raising}.items()}


def _checks(result: Result) -> list[dict[str, Any]]:
    """Forget accuracy and retain loss at every check of a run."""
    names = ("step", "check_forget_accuracy", "check_retain_loss")
    rows = [row for row in result.history if row.get("check_forget_accuracy") is not None]
    return [{name.removeprefix("check_"): row.get(name) for name in names} for row in rows]


# -- tables and figures -----------------------------------------------------------------------


def make(out: Path) -> list[Path]:
    """Write all tables and figures of a bench from its results; the files are returned."""
    sheets = evidence.sheets(out)
    written = []
    for name, sheet in sheets.items():
        (out / "tables").mkdir(exist_ok=True)
        for ending, form in FORMS.items():
            written.append(out / "tables" / f"{name}.{ending}")
            write_text(written[-1], form(sheet))
    for drawing in [Drawing(**given) for given in evidence.manifest(out)["figures"]]:
        from purge.bench import figures as charts
        from purge.report import theme as style

        (out / "figures").mkdir(exist_ok=True)
        written += style.save(charts.draw(drawing, sheets), out / "figures", drawing.name)
    return written
