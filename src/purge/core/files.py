"""Files: written whole or not at all, read with a word about what is wrong."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from purge.core.errors import FileError


def atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write to a temporary name beside ``path`` and rename: never a half-written file."""
    if not path.parent.is_dir():
        raise FileError(f"a folder at {path.parent}", "none", "make it first")
    if path.exists() and not path.is_file():  # a device would be replaced
        got = "a folder" if path.is_dir() else "something else"
        raise FileError(f"a file or nothing at {path}", got, "choose another name")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FileError(
            f"a folder that can be written, {path.parent}", str(error.strerror), "choose another"
        ) from None
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Say in one line that a file could not be written, and why."""
    try:
        yield
    except OSError as error:
        got, fix = error.strerror or str(error), "make room, or choose another place"
        raise FileError(f"to be able to write {path}", got, fix) from None


def write_text(path: Path, text: str) -> None:
    """Write text to a temporary name and rename."""
    atomically(path, lambda p: p.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON to a temporary name and rename; NaN is refused."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as numbers, paths as text."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or say what is wrong with the file."""
    if not path.is_file():
        raise FileError(f"a file at {path}", "nothing there", "check the path")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        got = error.strerror or str(error)
        raise FileError(f"a file that can be read, {path}", got, "check its permissions") from None
    except (ValueError, RecursionError):  # not text, not JSON, or a number without end
        raise FileError(f"JSON in {path}", "something else", "write the file again") from None
    if not isinstance(content, dict):
        raise FileError(f"a JSON object in {path}", type(content).__name__, "check the file")
    return content


def out_folder(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """A folder that can be written to and is empty (or may be overwritten); it is not made yet."""
    if not isinstance(path, (str, os.PathLike)):
        raise FileError("a folder as out", f"{path!r} ({type(path).__name__})", "pass a path")
    folder = Path(path)
    try:
        parent = next(p for p in [folder, *folder.absolute().parents] if p.exists())
        taken = folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise FileError(
            "a folder that can be written", error.strerror or str(error), "choose another"
        ) from None
    if not parent.is_dir():
        raise FileError(f"a folder at {parent}", "a file", "choose another folder")
    if taken and not force:
        raise FileError(
            f"an empty folder at {folder}", "one with files in it", "choose another, or overwrite with force"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise FileError(f"a folder that can be written, {parent}", "no permission", "choose another")
    return folder
