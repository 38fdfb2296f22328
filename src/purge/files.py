"""Files: written whole or not at all, read with a word about what is wrong."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from purge.errors import FileError, expected


def atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write to a temporary name beside ``path`` and rename: never a half-written file."""
    if not path.parent.is_dir():
        raise FileError(expected(f"a folder at {path.parent}", "none", "make it first"))
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FileError(
            expected(f"a folder that can be written, {path.parent}", str(error.strerror), "choose another")
        ) from None
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
        raise FileError(expected(f"a file at {path}", "nothing there", "check the path"))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise FileError(expected(f"JSON in {path}", "something else", "write the file again")) from None
    if not isinstance(content, dict):
        raise FileError(expected(f"a JSON object in {path}", type(content).__name__, "check the file"))
    return content
