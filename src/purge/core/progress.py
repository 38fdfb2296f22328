"""The one progress line of long work, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from purge.core import ranks
from purge.core.errors import printable


@contextmanager
def progress_line(title: str, total: int, shown: bool) -> Iterator[Callable[[int, str], None]]:
    """A progress line on stderr; the block is given ``advance(by, note)``."""
    columns = (
        TextColumn("{task.description}", markup=False),  # names may hold brackets
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal and ranks.rank() == 0)
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(printable(title), total=total, note="")

        def advance(by: int, note: str = "") -> None:
            if note:
                bar.update(task, note=printable(note))
            bar.advance(task, by)

        yield advance
