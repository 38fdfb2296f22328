"""purge demo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from typer import Option

from purge.cli import ending
from purge.cli import options as opt
from purge.cli.printing import notes, say, show


def demo(
    out: Annotated[Path | None, opt.place("Folder for the runs; default: runs/demo.")] = None,
    quick: Annotated[bool, Option("--quick", help="Train less, for a first look.")] = False,
    seed: opt.Seed = 0,
    force: opt.Force = False,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Watch a model forget a digit, with the proof.

    Trains a small ResNet on real digits, makes it forget the 0 in three ways, retrains without the 0 as the
    reference, attacks all of them and prints one table.
    """
    from purge import demo
    from purge.core.files import out_folder

    demo.check_seed(seed)
    folder = demo.free_folder(Path("runs/demo")) if out is None else out
    out_folder(folder, force=force)
    ending.keeps(lambda: demo.kept(folder))
    started = time.perf_counter()
    rows = demo.run_demo(
        out=folder, quick=quick, seed=seed, force=force, progress=not quiet, say=notes(not quiet)
    )
    seconds = time.perf_counter() - started
    words = demo.sentences(rows)
    found = {"rows": [demo.as_record(row) for row in rows], "sentences": words, "folder": str(folder)}
    show({**found, "seconds": seconds}, demo.table(rows), json_)
    if not json_:
        say("\n".join(words))
        say(f"\nRun folders (weights, history, audits) in {folder}; the demo took {seconds:.0f} s.")
