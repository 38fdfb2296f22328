"""Files: written completely or not at all; a file that cannot be read is explained in one line."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from purge.core.errors import FileError


def atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write to a temporary name beside ``path`` and rename: never a half-written file."""
    if not path.parent.is_dir():
        raise FileError(f"a folder at {path.parent}", "none", "make it first")
    if path.exists() and not path.is_file():  # a device would be replaced
        got = "a folder" if path.is_dir() else "something else"
        raise FileError(f"a file or nothing at {path}", got, "choose another name")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:  # opened here, so that the user's umask decides who may read it
        opened = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        mode = stat.S_IMODE(os.fstat(opened).st_mode)
        os.close(opened)
    except OSError as error:
        got = str(error.strerror)
        raise FileError(f"a folder that can be written, {path.parent}", got, "choose another") from None
    try:
        write(temporary)
        if stat.S_IMODE(temporary.stat().st_mode) != mode:  # safetensors puts a private file in its place
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn an OSError into one line that says which file could not be written, and why."""
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
    """Numbers of NumPy and torch as numbers, paths as text."""
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
    except (ValueError, RecursionError):  # not text, not JSON, or a number with too many digits
        raise FileError(f"JSON in {path}", "something else", "write the file again") from None
    if not isinstance(content, dict):
        raise FileError(f"a JSON object in {path}", type(content).__name__, "check the file")
    return content


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML that reads 5e-4 as a number and refuses a key that appears twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A mapping of different keys; one that came with ``<<: *other`` may be changed."""
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in own]
        if twice := [key for key in keys if keys.count(key) > 1]:
            problem = f"{twice[0]!r} appears twice"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file, or say what is wrong with the file."""
    if not path.is_file():
        raise FileError(f"a file at {path}", "nothing there", "check the path")
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or an impossible date
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        got = f"{getattr(error, 'problem', None) or error}{line}"
        raise FileError(f"YAML in {path}", got, "correct the file") from None
    if not isinstance(found, dict):
        raise FileError(f"keys and values in {path}", type(found).__name__, "see configs/smoke.yaml")
    return found


def out_folder(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Check that a folder can be written and is empty, or may be overwritten; it is not created yet."""
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
