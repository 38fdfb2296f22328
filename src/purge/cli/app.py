"""The purge command: its subcommands, exit codes and one-line errors.

Results go to stdout, everything else to stderr. Modules of commands import torch only when they run, so that
``--help`` and ``list`` answer at once.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from typer import Option

import purge
from purge.cli.audit import audit
from purge.cli.bench import bench
from purge.cli.cache import cache
from purge.cli.demo import demo
from purge.cli.list import list_
from purge.cli.report import report
from purge.cli.train import train
from purge.cli.unlearn import unlearn
from purge.core.errors import PurgeError, expected

app = typer.Typer(
    name="purge",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo, "train": train, "unlearn": unlearn, "audit": audit, "report": report, "bench": bench,
    "list": list_, "cache": cache,
}  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name)(command)

ParserError: Any = typer.BadParameter.__mro__[2]  # the base of every error of the parser
PIPE = 141  # the exit code of a program whose reader has gone away


def _version(wanted: bool) -> None:
    if wanted:
        print(f"purge {purge.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make a trained classifier forget, and prove it. Start with: purge demo."""


def main() -> None:
    """Run the command line: exit 0 if done, 1 if a threshold is missed, 2 for a bad request (one line)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal does not have
    code = 0
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except PurgeError as error:
        _fail(re.sub(r"\b(by|with) (force|resume)\b", r"\1 --\2", str(error)))  # arguments as options
    except ParserError as error:
        said = error.format_message().rstrip(".")
        asked = f"purge {sys.argv[1]}" if sys.argv[1:2] and sys.argv[1] in COMMANDS else "purge"
        _fail(f"{said}{'' if said.endswith('?') else '.'} Fix: see {asked} --help.")
    except typer.Abort:
        sys.exit(130)
    except (BrokenPipeError, SystemExit):  # the parser also exits this way
        _drop_output()
        sys.exit(code or PIPE)
    except OSError as error:
        fix = "make room, check permissions, or choose another place"
        _fail(expected("reading and writing to work", str(error), fix))
    sys.exit(code or 0)


def _fail(message: str) -> NoReturn:
    _drop_output()
    print(f"Error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _drop_output() -> None:
    """If stdout no longer works, write nothing more to it, not even what is buffered at exit."""
    with suppress(OSError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
