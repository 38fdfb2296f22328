"""The user's cache: where it is, what it holds, and how it is cleared."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from purge.core.errors import FileError
from purge.core.files import below, read_json

NO_CACHE = "PURGE_NO_CACHE"  # a variable; while a private folder is in use, it is the path of that
Kind = Literal["decoded", "index", "shadows", "models", "data"]
KINDS: dict[Kind, str] = {
    "decoded": "decoded images",
    "index": "where images are in .tar files",
    "shadows": "models that audits have trained",
    "models": "copies of models that a bench has at a URL",
    "data": "downloaded data sets",
}


def user_folder() -> Path:
    """``$PURGE_CACHE``, or ``purge`` in the user's cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PURGE_CACHE") or Path(user) / "purge")


def cache_folder() -> Path:
    """The folder for copies: the user's, or with ``$PURGE_NO_CACHE`` a private one that is not kept."""
    private = os.environ.get(NO_CACHE, "")
    if private in ("", "0"):
        return user_folder()
    if not os.path.isabs(private):  # asked for from outside: one that lives as long as the process
        block = ExitStack()
        block.enter_context(no_cache())
        atexit.register(block.close)
    return Path(os.environ[NO_CACHE])


@contextmanager
def no_cache() -> Iterator[None]:
    """Within the block a private folder takes the place of the cache, also for processes that are started."""
    before = os.environ.get(NO_CACHE)
    with tempfile.TemporaryDirectory(prefix="purge-", ignore_cleanup_errors=True) as folder:
        os.environ[NO_CACHE] = folder
        try:
            yield
        finally:
            os.environ.pop(NO_CACHE)
            os.environ |= {} if before is None else {NO_CACHE: before}


def name_in_cache(folder: Path) -> str:
    """The path of a folder within the user's cache; empty if it is elsewhere and not kept there."""
    inside = cache_folder() == user_folder() and folder.is_relative_to(user_folder())
    return folder.relative_to(user_folder()).as_posix() if inside else ""


def places_of(*kept: Any) -> list[str]:
    """Where in the user's cache there are copies of these images, and these shadow models."""
    return sorted({place for one in kept if (place := getattr(one, "cached", ""))})


class KeptItem(NamedTuple):
    """Something that is kept."""

    kind: Kind
    about: str
    bytes: int
    age_seconds: float  # since something in it was last written
    path: str  # within the cache


def entries(kinds: Collection[Kind] = KINDS) -> list[KeptItem]:
    """What the user's cache holds, kind by kind, the largest first."""
    listed = []
    for kind in (kind for kind in KINDS if kind in kinds):
        folder, of_kind = user_folder() / kind, []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name == ".locks":
                continue
            files = [path, *([] if path.is_symlink() else path.rglob("*"))]
            stats = [file.lstat() for file in files]
            about = path.name
            if kind == "shadows":
                outputs = [file for file in files if file.suffix == ".safetensors"]  # and weights beside some
                about = f"{sum(not file.stem.endswith('-weights') for file in outputs)} models"
            if kind == "decoded":
                try:
                    about = str(read_json(path / "facts.json")["source"])
                except (FileError, KeyError):
                    about = "unfinished"
            size = sum(s.st_size for s in stats if not stat.S_ISDIR(s.st_mode))
            age = max(0.0, time.time() - max(s.st_mtime for s in stats))
            of_kind.append(KeptItem(kind, about, size, age, path.relative_to(user_folder()).as_posix()))
        listed += sorted(of_kind, key=lambda entry: -entry.bytes)
    return listed


def clear(kinds: Collection[Kind]) -> list[KeptItem]:
    """Remove what is kept of these kinds, and return it; other files in the folder are left alone."""
    removed = entries(kinds)
    for entry in removed:
        path = user_folder() / entry.path
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            got = error.strerror or str(error)
            raise FileError(f"to be able to remove {path}", got, "check its permissions") from None
    for kind in kinds:
        shutil.rmtree(user_folder() / kind / ".locks", ignore_errors=True)
    return removed


def copies(*recorded: Sequence[str] | None) -> str:
    """In words, what is left of the copies that a run and its audit recorded."""
    names = sorted({name for part in recorded for name in part or ()})
    if all(part is None for part in recorded):
        return "not recorded"
    left = [name for name in names if below(user_folder(), *name.split("/")).exists()]
    if not left:
        return f"{', '.join(names)}, removed since" if names else "none"
    return f"{', '.join(left)} (purge cache clear removes them)"
