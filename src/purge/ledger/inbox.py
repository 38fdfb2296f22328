"""A folder into which request files are dropped: each is taken in once."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purge.core.errors import FileError, PurgeError
from purge.core.files import read_yaml, told

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

TAKEN = "taken"  # the kind of entry that says that a file was taken in
ENDINGS = (".json", ".yaml", ".yml")
KEYS = {"ids", "classes", "received", "due", "basis", "note"}
SETTLE = 2.0  # seconds: a file that changed since then may still be written
LARGEST = 64 << 20  # bytes


@dataclass(frozen=True)
class Taken:
    """What was found in a folder."""

    requests: list[int] = field(default_factory=list)  # that were added
    known: int = 0  # files that had been taken in before
    refused: dict[str, str] = field(default_factory=dict)  # file → why; it stays where it is


def take_in(
    ledger: Ledger, folder: str | os.PathLike[str], *, keep: bool = False, settle: float = SETTLE
) -> Taken:
    """Add the requests in the files of a folder, once each, and remove these files.

    A file is YAML or JSON with the keys ``ids`` or ``classes``, ``received``, and maybe ``due``, ``basis``
    and ``note``. It holds ids: unless ``keep`` is true it is removed once the ledger has it. Write it under
    another name and rename it, or it may be read half written; one that changed in the last ``settle``
    seconds waits.
    """
    place = Path(folder)
    if not place.is_dir():
        raise FileError(f"a folder at {place}", "none", "make it, or check the path")
    found = Taken()
    known, n = {entry.payload["file"] for entry in ledger.entries(TAKEN)}, 0
    for path in sorted(place.iterdir()):
        if path.suffix.lower() not in ENDINGS or path.name.startswith(".") or not path.is_file():
            continue
        if path.is_symlink() or time.time() - path.stat().st_mtime < settle:
            continue
        try:
            content = _read(path)
            mark = ledger.hashes([_mark(path)])[0]  # keyed: nobody can try out what was in it
            if mark in known:
                n += 1
            else:
                with ledger.together():
                    added = ledger.add(**content)
                    ledger.append(TAKEN, {"file": mark, "requests": [added.number]})
                known.add(mark)
                found.requests.append(added.number)
        except PurgeError as error:
            found.refused[path.name] = str(error)
            continue
        if not keep:
            with told(path):
                path.unlink()
    return Taken(found.requests, n, found.refused)


def _mark(path: Path) -> str:
    """A file by its name and content."""
    return f"{path.name}:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _read(path: Path) -> dict[str, Any]:
    """The arguments of ``Ledger.add`` in a file; what is wrong is said without quoting it: it holds ids."""
    what, fix = "a request in the file", "write ids or classes, received, and maybe due, basis and note"
    if path.stat().st_size > LARGEST:
        raise FileError(what, f"more than {LARGEST >> 20} MB", "split it")
    try:
        content = read_yaml(path)  # JSON is YAML
    except PurgeError:
        raise FileError(what, "no keys and values of YAML or JSON", fix) from None
    if not {"received"} <= content.keys() <= KEYS:
        raise FileError(what, "other keys, or none for received", fix)
    return content
