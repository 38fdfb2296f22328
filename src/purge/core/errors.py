"""Every error that purge raises on purpose; all are a PurgeError, which is a ValueError.

Each message is one line: "Expected …, got …. Fix: …". What a command exits with is said by the class.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

# What a terminal obeys instead of showing: control characters, marks that turn the direction of text, and
# halves of characters, which cannot be written at all. Line breaks and tabs stay.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_SHOWN = 200  # characters of a value in a message


def printable(text: str) -> str:
    """Text that is safe on a terminal, whoever wrote it: what a terminal would obey is spelled out.

    >>> print(printable("\x1b[31mred"))
    \\x1b[31mred
    """
    return OBEYED.sub(lambda mark: ascii(mark[0])[1:-1], text)


def brief(value: Any) -> str:
    """A value in a message: how Python writes it, cut where it is long; its type where it cannot be written.

    >>> brief("three"), brief(10**5000)
    ("'three'", 'an int that is too long to write')
    """
    try:
        text = repr(value)
    except Exception:  # whatever __repr__ may raise; an int of more than 4,300 digits raises ValueError
        return f"an {type(value).__name__} that is too long to write"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _spelled_out(record: logging.LogRecord) -> bool:
    """What purge logs may hold names from files, and a log is shown on terminals."""
    record.msg, record.args = printable(record.getMessage()), None
    return True


logging.getLogger("purge").addFilter(_spelled_out)


class Exit(IntEnum):
    """What a command exits with."""

    DONE = 0
    MISSED = 1  # the audit missed what was asked for
    REFUSED = 2  # a bad request
    BROKE = 3  # something broke, or jobs of a bench failed


class PurgeError(ValueError):
    """Base of every error that purge raises on purpose.

    Args:
        message: what was expected; without ``got``, the whole message.
        got: what came instead.
        fix: what to do.

    Example:
        >>> print(PurgeError("a positive number for lr", "-1", "pass lr=0.01, say"))
        Expected a positive number for lr, got -1. Fix: pass lr=0.01, say.
    """

    exit_code = Exit.REFUSED

    def __init__(self, message: str, got: str | None = None, fix: str = "") -> None:
        super().__init__(printable(message) if got is None else expected(message, got, fix))


class DataError(PurgeError):
    """The forget, retain or test data is not what it should be."""


class ModelError(PurgeError):
    """The model, or what it returns, is not what it should be."""


class BrokenModelError(ModelError):
    """A model in which something broke that is not about the request, such as a file that it misses."""

    exit_code = Exit.BROKE


class MethodError(PurgeError):
    """An unknown method, or a setting it does not have or cannot take."""


class MetricError(PurgeError):
    """An unknown metric or panel of metrics."""


class DeviceError(PurgeError):
    """A device that is not there."""


class FileError(PurgeError):
    """A checkpoint or folder that cannot be read or written."""


class LedgerError(PurgeError):
    """A ledger of deletion requests that is not what it should be, or a step that a request may not take."""


class BusyError(LedgerError):
    """Another worker has the ledger."""


class NumberError(LedgerError):
    """A request or batch that the ledger does not have."""


class RunError(PurgeError):
    """A run that had to be given up part of the way."""


def expected(what: str, got: str, fix: str) -> str:
    """The one sentence pattern of every message.

    >>> expected("a positive number for lr", "-1", "pass lr=0.01, say")
    'Expected a positive number for lr, got -1. Fix: pass lr=0.01, say.'
    """
    return printable(" ".join(f"Expected {what}, got {got}. Fix: {fix}.".split()))


def did_you_mean(word: str, known: Iterable[str], command: str = "") -> str:
    """The fix for a mistyped name: the nearest known one, and all of them or the command that lists them.

    >>> did_you_mean("purg", ["purge", "finetune"])
    "did you mean 'purge'? Known: finetune, purge"
    >>> did_you_mean("x", ["purge", "finetune"], "purge list methods")
    'use one that purge list methods shows'
    """
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if command:
        return f"did you mean {near[0]!r}? All: {command}" if near else f"use one that {command} shows"
    listing = "Known: " + ", ".join(names)
    return f"did you mean {near[0]!r}? {listing}" if near else f"use one of these. {listing}"


def first_line(error: BaseException) -> str:
    """What somebody else's code raised, as a part of a sentence.

    >>> first_line(KeyError(0))
    'KeyError: 0'
    """
    return f"{type(error).__name__}: {(str(error) or '?').splitlines()[0]}".rstrip(".")
