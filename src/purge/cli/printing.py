"""What commands print: tables and sentences for people, JSON for programs.

Everything that a command prints goes through here or through :func:`purge.core.errors.expected`: names from
files and folders must not be obeyed by the terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from purge.core.errors import printable
from purge.report import WIDTH, as_text, fitted


def show(content: Any, text: str | Table, as_json: bool) -> None:
    """Print the content as JSON, or the text or table."""
    if as_json:
        print(json.dumps(content, indent=2, allow_nan=False))  # ASCII
        return
    if isinstance(text, Table):  # styled on a terminal or with FORCE_COLOR, as wide as that or COLUMNS
        sized = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
        console = Console(width=None if sized else WIDTH, highlight=False, force_jupyter=False)
        table = fitted(text, console.width)
        if isinstance(table, Table) and console.color_system and not console.no_color:
            console.print(table)
            return
        text = as_text(text, console.width)
    say(text)


def notes(shown: bool) -> Callable[[str], None]:
    """A function that prints a line to stderr, or does nothing."""
    return lambda line: complain(line) if shown else None


def say(text: str) -> None:
    """Print text to stdout."""
    print(printable(text))


def complain(text: str) -> None:
    """Print text to stderr."""
    print(printable(text), file=sys.stderr)


def open_streams() -> None:
    """Give a program that was started without stdin, stdout or stderr (``>&-``) one that leads nowhere.

    Otherwise the next file that is opened takes its number, and libraries write their messages into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
