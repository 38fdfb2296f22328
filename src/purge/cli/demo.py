"""purge demo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from purge.cli import options as opt
from purge.cli.ending import running_in
from purge.cli.printing import notes, say, show
from purge.core.files import out_folder
from purge.core.folders import free_folder


def demo(
    context: typer.Context,
    out: Annotated[Path | None, opt.place("Folder for the runs; default: runs/demo.")] = None,
    quick: Annotated[bool, Option("--quick", help="Train less, for a first look.")] = False,
    seed: Annotated[int, Option(help="Seed for everything random.", min=0, max=2**32 - 3)] = 0,
    force: opt.Force = False,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Watch a model forget a digit, with the proof.

    Trains a small ResNet on real digits, makes it forget the 0 in three ways, retrains without the 0 as the
    reference, attacks all of them, prints one table and writes a report.

    It writes to the folder --out alone.
    """
    running = running_in(context)
    from purge import demo

    folder = free_folder(Path("runs/demo")) if out is None else out
    out_folder(folder, force=force)
    running.kept = lambda: demo.kept(folder)
    tell = notes(not quiet)
    tell(f"Six models, their audits and a report will be written to {folder}, nothing elsewhere.")
    started = time.perf_counter()
    rows = demo.run_demo(out=folder, quick=quick, seed=seed, force=force, progress=not quiet, say=tell)
    seconds = time.perf_counter() - started
    words = demo.sentences(rows)
    page = folder / demo.REPORT
    facts = {"rows": [demo.as_record(row) for row in rows], "sentences": words, "folder": str(folder)}
    show({**facts, "seconds": seconds, "report": str(page)}, demo.table(rows), json_)
    if not json_:
        say("\n".join(words))
        say(f"\nRun folders (weights, history, audits) in {folder}; the demo took {seconds:.0f} s.")
        say(f"The report of purge is {page}; open {page.absolute().as_uri()} in a browser.")
