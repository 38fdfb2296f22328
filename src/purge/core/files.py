"""Files: written completely or not at all; a file that cannot be read is explained in one line."""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from purge.core.errors import FileError, brief, first_line

LONGEST = 200  # bytes of a name; most file systems take 255, and temporary names are longer
RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{port}{i}" for port in ("COM", "LPT") for i in range(1, 10))}
DEEPEST = 100  # levels of lists and dicts within each other in a file
MOST_NODES = 100_000  # values in a YAML file, where an alias counts as all that it stands for


def below(folder: Path, *names: Any, ending: str = "") -> Path:
    """The path of something in a folder, by names that came from a file or a caller.

    Every such name becomes a path here and nowhere else. It must be a plain one, on any system, so that
    nothing outside of the folder is read or written.

    >>> below(Path("runs"), "smoke", "table", ending=".csv").as_posix()
    'runs/smoke/table.csv'
    """
    for name in names:
        plain = isinstance(name, str) and name.isprintable() and not set(name) & set('/\\:*?"<>|')
        if (
            not plain
            or not name.strip(" .")
            or name[0] == "."
            or name[-1] in " ."
            or len(name.encode()) > LONGEST
            or name.partition(".")[0].upper() in RESERVED
        ):
            what = f"a plain name for a file or folder in {folder}, of at most {LONGEST} bytes"
            raise FileError(what, brief(name), "use letters, digits, - and _")
    *folders, last = names
    return folder.joinpath(*folders, f"{last}{ending}")


def writes() -> bool:
    """Does this process write, and speak? Of the ranks of torch.distributed the first one does."""
    dist = sys.modules.get("torch.distributed")  # who has not imported it has not initialised it
    return dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0


_HOST = f"{zlib.crc32(platform.node().encode()):08x}"  # in temporary names, since folders may be shared


def own_folder(folder: Path, name: str) -> Path:
    """A folder in another one, made if it is missing; a link, which leads elsewhere, is refused."""
    path = below(folder, name)
    if path.is_symlink():
        raise FileError(f"a folder at {path}", "a link to another place", "remove it")
    path.mkdir(parents=True, exist_ok=True)
    return path


LOCK, STAGE = ".purge.lock", ".saving-"  # what a killed process may leave in a folder, see core/folders.py


def atomically(path: Path, write: Callable[[Path], Any], *, private: bool = False) -> None:
    """Write to a temporary name beside ``path`` and rename: never a half-written file.

    ``private``: only its owner may read it.
    """
    if not path.parent.is_dir():
        raise FileError(f"a folder at {path.parent}", "none", "make it first")
    if path.exists() and not path.is_file():  # a device would be replaced
        got = "a folder" if path.is_dir() else "something else"
        raise FileError(f"a file or nothing at {path}", got, "choose another name")
    _sweep(path)
    temporary = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}")
    try:  # opened here, so that the user's umask decides who may read it
        opened = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666)
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


def _sweep(path: Path) -> None:
    """Remove temporary files for ``path`` whose process, on this machine, was killed before it could."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{_HOST}-*-*"):
        pid = left.name.split("-")[-2]
        if os.name != "posix" or not pid.isdigit():  # elsewhere, to ask would be a signal
            continue
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):
            with suppress(OSError):
                left.unlink()
        except OSError:  # it is somebody else's
            pass


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into one line that says which file could not be written, and why."""
    try:
        yield
    except OSError as error:
        got, fix = error.strerror or str(error), "make room, or choose another place"
        raise FileError(f"to be able to write {path}", got, fix) from None


def write_text(path: Path, text: str) -> None:
    """Write text to a temporary name and rename."""
    # A path that is not text, as Linux allows, may be part of it.
    atomically(path, lambda p: p.write_text(text, encoding="utf-8", errors="backslashreplace"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON to a temporary name and rename; NaN is refused."""
    write_text(path, as_json(content) + "\n")


def as_json(content: Mapping[str, Any]) -> str:
    """The content as JSON, or a FileError that says what in it JSON does not have."""
    try:
        return json.dumps(content, indent=2, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # too deep is a RuntimeError
        fix = "use text, finite numbers, true, false, None, and lists and dicts of them"
        raise FileError("values that JSON has", first_line(error), fix) from None


def _plain(value: Any) -> Any:
    """Numbers of NumPy and torch as numbers, paths as text."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _text_of(path: Path) -> str:
    if not path.is_file():
        raise FileError(f"a file at {path}", "nothing there", "check the path")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FileError(f"text in {path}", "bytes that are not UTF-8", "write the file again") from None
    except OSError as error:
        got = error.strerror or str(error)
        raise FileError(f"a file that can be read, {path}", got, "check its permissions") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or say what is wrong with the file."""
    text = _text_of(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or a number with too many digits
        content = None
    level: list[Any] = [content] if isinstance(content, dict) else []
    for _ in range(DEEPEST):
        inner = (v for part in level for v in (part.values() if isinstance(part, dict) else part))
        level = [v for v in inner if isinstance(v, (dict, list))]
    if level or not isinstance(content, dict):
        what = f"a JSON object of at most {DEEPEST} levels in {path}"
        raise FileError(what, "something else", "write the file again")
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
        content: dict[Any, Any] = super().construct_mapping(node, deep)
        return content


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file, or say what is wrong with the file."""
    text, nodes = _text_of(path), 0
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        nodes = 0 if node is None else _nodes(node, {})
        content = loader.construct_document(node) if 0 < nodes <= MOST_NODES else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also: an impossible date
        mark = getattr(error, "problem_mark", None)
        got = getattr(error, "problem", None) or str(error)
        got = "lists or keys nested too deeply" if isinstance(error, RecursionError) else got
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise FileError(f"YAML in {path}", f"{got}{line}", "correct the file") from None
    if nodes > MOST_NODES:
        raise FileError(f"at most {MOST_NODES} values in {path}", "more, by aliases", "write them out")
    if not isinstance(content, dict):
        raise FileError(f"keys and values in {path}", type(content).__name__, "see configs/smoke.yaml")
    return content


def _nodes(node: Any, counted: dict[int, int]) -> int:
    """How many values a YAML node stands for; one that is part of itself is refused."""
    if id(node) not in counted:
        counted[id(node)] = MOST_NODES + 1  # until it is known: an alias in here is to itself
        value = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for one in value for part in (one if isinstance(one, tuple) else (one,))]
        counted[id(node)] = 1 + sum(_nodes(part, counted) for part in parts)
    return counted[id(node)]


def out_folder(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Check that a folder can be written and is empty, or may be overwritten; it is not created yet."""
    try:
        folder = Path(path)
        if not os.fspath(path) or b"\0" in os.fsencode(folder):
            raise ValueError
    except (TypeError, ValueError):  # also half a character
        got = "an empty text" if path == "" else f"{brief(path)} ({type(path).__name__})"
        raise FileError("the path of a folder as out", got, "pass a path that can be written") from None
    try:
        parent = next(p for p in [folder, *folder.absolute().parents] if p.exists())
        taken = folder.is_dir() and any(not p.name.startswith((LOCK, STAGE)) for p in folder.iterdir())
        writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
        got = "no permission" if parent.is_dir() else "a file"
    except OSError as error:  # a name that is too long, say, and so none to print
        got = error.strerror or str(error)
        raise FileError("a folder that can be written", got, "choose another") from None
    if taken and not force:
        fix = "choose another, or overwrite with force"
        raise FileError(f"an empty folder at {folder}", "one with files in it", fix)
    if not writable:
        raise FileError(f"a folder at {str(parent)[:300]} that can be written", got, "choose another")
    return folder
