"""Folders that one process writes at a time, and run folders whose files are replaced together.

Locks are those of the operating system: they end with the process that holds them, however it ends.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from filelock import FileLock, Timeout

from purge.core.errors import FileError
from purge.core.files import LOCK, STAGE, file_errors, out_folder, writes

P = ParamSpec("P")
T = TypeVar("T")

WEIGHTS = "model.safetensors"
RUN = "run.json"  # goes first and comes last: a folder without it is not finished
PARTS = ("audit.json", "report.html", "history.parquet", "sisa.json", "sisa-*.safetensors")
SAVED = ".saved"  # a whole run on its way into the folder


def free_folder(base: Path) -> Path:
    """``base``, or base-2, base-3 … if it is taken."""
    candidate, i = base, 1
    while candidate.is_file() or (candidate.is_dir() and any(candidate.iterdir())):
        i += 1
        candidate = base.with_name(f"{base.name}-{i}")
    return candidate


_held: set[tuple[int, Path]] = set()  # the folders that a thread has claimed


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Within the block no other process may write to a folder, which is made if it is missing.

    A second process is refused. Check only now that the folder is empty: another may have had it before.
    """
    me = threading.get_ident(), folder.resolve()
    if me in _held or not writes():  # of several ranks, the first one writes for all
        yield
        return
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            fix = "wait for it to end, or choose another folder"
            raise FileError(f"{folder} for this process alone", "another that writes to it", fix) from None
    _held.add(me)
    try:
        yield
    finally:
        _held.remove(me)
        with suppress(OSError):  # some systems remove it when it is released
            (folder / LOCK).unlink()
        lock.release()
        with suppress(OSError):  # a folder with something in it stays
            for made in missing:
                made.rmdir()


def claims_out(door: Callable[P, T]) -> Callable[P, T]:
    """A function that has the folder ``out``, if it is given one, to itself until it returns."""

    @functools.wraps(door)
    def claiming(*args: P.args, **options: P.kwargs) -> T:
        out: Any = options.get("out")
        own: AbstractContextManager[None] = nullcontext()
        with suppress(FileError):  # the door refuses a folder that is taken, and does not touch it
            if out is not None:
                own = claimed(out_folder(out, force=bool(options.get("force") or options.get("resume"))))
        with own:
            return door(*args, **options)

    return claiming


# -- the files of a run -------------------------------------------------------------------------


@contextmanager
def replacing_run(folder: Path) -> Iterator[Path]:
    """A folder for the files of a run, which take the place of those of the old run when the block ends.

    Until all of the new ones are written, the old ones stay. After a kill while they are exchanged,
    :func:`recover` finishes it.
    """
    _swap(folder)
    for old in folder.glob(f"{STAGE}*"):  # of a process that was killed
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=STAGE) as private:
        new = Path(private) / "run"
        new.mkdir()  # the umask decides who may read it
        yield new
        for file in [*_old(folder), *(folder / file.name for file in new.iterdir())]:
            if file.is_dir():
                raise FileError(
                    f"a folder that can be written at {folder}", f"a folder {file.name}", "move it"
                )
        new.rename(folder / SAVED)
    _swap(folder)


def recover(folder: Path) -> None:
    """Put a run in its place that a killed process had written whole."""
    if _own(folder / SAVED):
        with suppress(FileError, OSError), claimed(folder):
            _swap(folder)


def _swap(folder: Path) -> None:
    """Exchange the files of the old run for those in SAVED; may be interrupted anywhere and called again."""
    saved = folder / SAVED
    if not _own(saved):
        return
    if (saved / RUN).exists() and (folder / RUN).exists():  # nothing was moved yet
        for old in [*_old(folder), folder / RUN]:
            old.unlink(missing_ok=True)
    for file in sorted(saved.iterdir(), key=lambda file: (file.name == RUN, file.name)):
        os.replace(file, folder / file.name)
    saved.rmdir()


def _own(saved: Path) -> bool:
    """Is this a run that a process of ours has written? What else has its name, a link say, is left alone."""
    known = (RUN, WEIGHTS, *PARTS)
    return (
        saved.is_dir()
        and not saved.is_symlink()
        and all(file.is_file() and not file.is_symlink() for file in saved.iterdir())
        and all(any(fnmatch(file.name, part) for part in known) for file in saved.iterdir())
    )


def _old(folder: Path) -> list[Path]:
    """What belongs to the run in a folder, but for run.json and the weights."""
    return [file for part in PARTS for file in sorted(folder.glob(part))]
