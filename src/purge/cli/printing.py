"""What commands print: tables and sentences for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from purge.report.tables import as_text


def show(content: Any, text: str | Table, as_json: bool) -> None:
    """Print the content as JSON, or the text or table."""
    console = Console(highlight=False)
    if as_json:
        print(json.dumps(content, indent=2, allow_nan=False))
    elif isinstance(text, Table) and console.is_terminal:
        console.print(text)
    else:
        print(as_text(text) if isinstance(text, Table) else text)


def notes(shown: bool) -> Callable[[str], None]:
    """A function that prints a line to stderr, or does nothing."""
    return lambda line: print(line, file=sys.stderr) if shown else None
