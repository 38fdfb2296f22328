"""What is made once and found again by its key: trained models, shadow models, shards, decoded images."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from purge.core.errors import FileError

T = TypeVar("T")


@dataclass(frozen=True)
class Store:
    """A folder in which each thing lies under its key; ``fix`` tells the user how to choose another folder.

    Nothing in it is trusted because it is there: whoever reads a thing says whether it is whole. A process
    that is killed therefore leaves nothing worse than something that is made again.
    """

    root: Path
    fix: str = "choose another folder"

    def path(self, key: str) -> Path:
        """Where the file or folder of a key is, or will be."""
        return self.root / key

    def get(self, key: str, read: Callable[[Path], T | None], make: Callable[[Path], object]) -> T:
        """What ``read`` returns for the path of the key; if that is None, ``make`` writes there first.

        ``read`` returns None where there is nothing, or something unfinished or damaged. ``make`` is
        called by one process at a time: others wait, and then read what it has made. Whatever tells ``read``
        that the thing is whole must be written last.
        """
        path = self.path(key)
        if (value := read(path)) is None:
            locks = self.root / ".locks"
            try:
                locks.mkdir(parents=True, exist_ok=True)
                lock = FileLock(locks / key).acquire()
            except OSError as error:
                got = error.strerror or str(error)
                raise FileError(f"to be able to write {self.root}", got, self.fix) from None
            with lock:
                if (value := read(path)) is None:  # the process that had the lock before may have made it
                    make(path)
                    value = read(path)
        if value is None:
            raise FileError(f"something complete at {path}", "a damaged one, just written", self.fix)
        return value


def digest_of(*facts: Any) -> str:
    """A key: sixteen hexadecimal digits that depend on all of the facts; memory addresses do not count.

    >>> digest_of(1, {"a": 2, "b": 3}) == digest_of(1, {"b": 3, "a": 2}) != digest_of(1, {"a": 2})
    True
    """
    text = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(facts, sort_keys=True, default=repr))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
