"""purge bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from purge.cli import options as opt
from purge.cli.ending import running_in
from purge.cli.printing import notes, show
from purge.core.errors import Exit
from purge.core.plugins import current_folder_importable, processes_without_current_folder
from purge.report import plain_table


def bench(
    context: typer.Context,
    config: Annotated[Path, Argument(help="A YAML file; or a bench's folder, to redo its tables.")],
    out: Annotated[Path | None, opt.place("Folder for the results; default: runs/NAME.")] = None,
    models: Annotated[Path | None, opt.place("Folder of trained models; default: OUT/models.")] = None,
    only: Annotated[list[str] | None, Option(metavar="LABEL", help="Run only this; repeatable.")] = None,
    jobs: Annotated[
        int | None, Option(min=1, help="How many work at once; default: 1, on ray as many as fit.")
    ] = None,
    on: Annotated[
        str, Option(help="Where: processes, ray (a local cluster), ray:HOST:PORT, ray://….")
    ] = "processes",
    resume: Annotated[bool, Option("--resume", help="Run what is missing or failed.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be done, and stop.")] = False,
    device: opt.Device = None,
    data_dir: opt.DataDir = None,
    trust: opt.Trust = False,
    no_cache: opt.NoCache = False,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Run an experiment: all jobs of a file, then its tables and figures.

    For example: purge bench configs/smoke.yaml --out runs/smoke

    After an interruption, the same command with --resume runs what is left. Exits 3 if jobs failed.
    """
    running = running_in(context)
    from purge.bench import dry_run as plans
    from purge.bench import runner
    from purge.bench.jobs import read_plan
    from purge.bench.workers import PROCESSES

    if config.is_dir():
        files = runner.make(config)
        show(list(map(str, files)), f"{len(files)} files made in {config}.", json_)
        return
    with current_folder_importable(trust), processes_without_current_folder():
        plan = read_plan(config, trust)
        chosen = device if on != PROCESSES else opt.pick_device(device)
        place = runner.locate(plan, out, models, chosen, data_dir)
        if dry_run:
            steps = plans.steps_of(plan.only(only or ()), place)
            show([step._asdict() for step in steps], plain_table(*plans.as_table(steps)), json_)
            return
        running.kept = lambda: runner.kept(plan, place)
        say = notes(not quiet and not sys.stderr.isatty())  # a terminal has the progress line
        done = runner.bench(
            plan, place, only=only or (), at_once=jobs, on=on, resume=resume, progress=not quiet, say=say
        )
        facts = {**done._asdict(), "out": str(place.out), "files": list(map(str, done.files))}
        show(facts, "\n".join(runner.in_words(done, place)), json_)
        if done.failed:
            raise typer.Exit(Exit.BROKE)
