"""Notebooks executed in a real kernel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

SCRIPT = Path(__file__).parents[1] / "scripts" / "notebooks.py"


def executed(path: Path, folder: Path, *, seconds: int) -> Any:
    """A notebook after it was run in ``folder``; an error in a cell is one of the test.

    It runs in a process of its own: sockets of a kernel that are closed late would be warnings here.
    """
    out = folder / "executed.ipynb"
    command = [sys.executable, str(SCRIPT), "run", str(path), str(out), str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * seconds)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return nbformat.read(out, as_version=4)


def written(cells: Sequence[str], path: Path) -> Path:
    """A notebook of these cells of code, as a file."""
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    return path


def texts(cell: Any) -> list[str]:
    """Everything that a cell shows, as text: printed, displayed or returned."""
    return [
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in cell.outputs
    ]
