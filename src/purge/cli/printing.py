"""What commands print: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from purge.report.tables import as_text


def show(content: Any, text: str, as_json: bool) -> None:
    """Print the content as JSON, or the text."""
    print(json.dumps(content, indent=2, allow_nan=False) if as_json else text)


def show_table(content: Any, table: Table, as_json: bool) -> None:
    """Print the content as JSON, or the table."""
    console = Console(highlight=False)
    if console.is_terminal and not as_json:
        console.print(table)
    else:
        show(content, as_text(table), as_json)


def notes(shown: bool) -> Callable[[str], None]:
    """A function that prints a line to stderr, or does nothing."""
    return lambda line: print(line, file=sys.stderr) if shown else None
