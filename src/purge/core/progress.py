"""The one progress line of long work: on stderr, and in a notebook below its cell.

A notebook gets a display of IPython that is updated in place. Rich and tqdm would need ipywidgets for that,
which many notebooks lack; a display works in all of them, and the saved file keeps the finished line alone.
"""

from __future__ import annotations

import html
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from purge.core.errors import printable
from purge.core.files import writes

Advance = Callable[[int, str], None]
PAUSE = 0.2  # seconds between two updates of a notebook, each of which is a message to the browser


@contextmanager
def progress_line(title: str, total: int, shown: bool) -> Iterator[Advance]:
    """A progress line; the block is given ``advance(by, note)``."""
    shown = shown and writes()
    if shown and in_notebook():
        with _cell_line(printable(title), total) as advance:
            yield advance
        return
    columns = (
        TextColumn("{task.description}", markup=False),  # names may hold brackets
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    console = Console(stderr=True, force_jupyter=False)
    hidden = not (shown and console.is_terminal and console.file.isatty())  # FORCE_COLOR makes no terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(printable(title), total=total, note="")

        def advance(by: int, note: str = "") -> None:
            if note:
                bar.update(task, note=printable(note))
            bar.advance(task, by)

        yield advance


def in_notebook() -> bool:
    """Is this the kernel of a notebook? A terminal with IPython has no kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _cell_line(title: str, total: int) -> Iterator[Advance]:
    """A line below the cell that is being run; what stays of it is one sentence."""
    display: Callable[..., Any] = importlib.import_module("IPython.display").display
    began, done, shown_note, last = time.monotonic(), 0, "", 0.0

    def line(bar: str = "") -> dict[str, str]:
        words = f"{title}: {done} of {total}, {time.monotonic() - began:.1f} s" + (
            f", {shown_note}" if shown_note else ""
        )
        return {"text/plain": words, "text/html": f"<span>{bar}{html.escape(words)}</span>"}

    def running() -> dict[str, str]:
        return line(f'<progress value="{done}" max="{max(1, total)}"></progress> ')

    handle = display(running(), raw=True, display_id=True)

    def advance(by: int, note: str = "") -> None:
        nonlocal done, shown_note, last
        done, shown_note = done + by, printable(note) if note else shown_note
        if time.monotonic() - last >= PAUSE:
            last = time.monotonic()
            handle.update(running(), raw=True)

    try:
        yield advance
    finally:
        handle.update(line(), raw=True)
