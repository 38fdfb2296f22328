"""The notebooks of examples/: without outputs in the repository, executed by the tests.

uv run python scripts/notebooks.py strip                            # all of examples/
uv run python scripts/notebooks.py run FILE OUT [SECONDS PER CELL]  # in the folder of OUT, which is made
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat

EXAMPLES = Path(__file__).parents[1] / "examples"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def stripped(book: Any) -> Any:
    """A notebook without outputs, counts and what editors leave behind; its cells are numbered."""
    for i, cell in enumerate(book.cells):
        cell.metadata, cell.id = {}, f"cell-{i}"
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    book.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return book


def as_text(book: Any) -> str:
    """A notebook as the file that is committed."""
    return nbformat.writes(nbformat.from_dict(book), version=4, indent=1) + "\n"


def run(book: Any, folder: Path, seconds: int) -> Any:
    """Execute a notebook in a folder, with the kernel of this Python and nothing of the user's."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    folder.mkdir(parents=True, exist_ok=True)
    places = {
        "PURGE_CACHE": "cache", "PURGE_DATA": "data", "IPYTHONDIR": "ipython", "MPLCONFIGDIR": "matplotlib",
        "JUPYTER_RUNTIME_DIR": "jupyter",
    }  # fmt: skip
    env = {**os.environ, **{name: str(folder / place) for name, place in places.items()}}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # for !purge
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    manager.connection_file = str(folder / "kernel.json")
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(book, km=manager, timeout=seconds, resources=where).execute(env=env)
    return book


def main() -> None:
    """Strip or run, as the arguments say."""
    match sys.argv[1:]:
        case ["strip", *files]:
            for path in map(Path, files) if files else sorted(EXAMPLES.glob("*.ipynb")):
                path.write_text(as_text(stripped(nbformat.read(path, as_version=4))), encoding="utf-8")
        case ["run", file, out, *rest] if len(rest) <= 1:
            book = nbformat.read(file, as_version=4)
            nbformat.write(run(book, Path(out).resolve().parent, int(rest[0]) if rest else 300), out)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
