"""The purge command and its subcommands; how they end is in ending.py.

Results go to stdout, everything else to stderr. Modules of commands import torch only when they run, so that
``--help`` and ``list`` answer at once.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer
from typer import Option

import purge
from purge.cli import ending, several
from purge.cli import options as opt
from purge.cli.audit import audit
from purge.cli.bench import bench
from purge.cli.cache import cache
from purge.cli.demo import demo
from purge.cli.list import list_
from purge.cli.printing import open_streams
from purge.cli.report import report
from purge.cli.request_run import app as request
from purge.cli.serve import serve
from purge.cli.train import train
from purge.cli.unlearn import unlearn
from purge.core.plugins import ignore_matplotlibrc

app = typer.Typer(
    name="purge",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo, "train": train, "unlearn": unlearn, "audit": audit, "report": report,
    "bench": bench, "list": list_, "cache": cache, "serve": serve,
}  # fmt: skip
COMPLETING = "_PURGE_COMPLETE"  # a shell sets it to ask what may come next

for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(request, name="request")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"purge {purge.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: opt.Debug = False,
) -> None:
    """Make a trained classifier forget, and prove it. Start with: purge demo.

    Exits 0 if done, 1 if a threshold was missed, 2 for a bad request, 3 if something broke: then one line
    names a file with the traceback, which --debug shows. After Ctrl-C it exits 130, after SIGTERM 143.
    """


def main() -> None:
    """Run the command line and exit: 0 done, 1 a threshold was missed, 2 a bad request, 3 something broke."""
    if COMPLETING in os.environ or {"--show-completion", "--install-completion"} & {*sys.argv}:
        app(prog_name="purge")  # answers the shell, and exits
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal does not have
    ignore_matplotlibrc()
    names, running = {*COMMANDS, "request"}, ending.Running()
    command = partial(app, sys.argv[1:] or ["--help"], standalone_mode=False, obj=running)
    code = ending.run(several.shared(command, names), names, running)
    several.leave(code)
    sys.exit(code)
