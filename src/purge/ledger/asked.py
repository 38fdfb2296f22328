"""What may stand in a request: checked here, once, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from purge.core.errors import DataError, brief, did_you_mean
from purge.ledger.dates import period

LONGEST = 1000  # characters of a basis, note or reason
FIELDS = ("ids", "classes", "received", "due", "basis", "note")  # of a request that is added


def asked(given: Mapping[str, Any], hashes: Callable[[Any], list[str]]) -> dict[str, Any]:
    """What the chain keeps of a new request, but for its number; ``hashes`` makes keyed hashes of ids."""
    for name in given:
        if name not in FIELDS:
            raise DataError("a field of a request", brief(name), did_you_mean(str(name), FIELDS))
    ids, classes = given.get("ids"), given.get("classes")
    if (ids is None) == (classes is None):
        got = "neither" if ids is None else "both"
        raise DataError("ids or classes of a request", got, "pass one of the two")
    subjects = sorted(set(hashes(ids))) if ids is not None else []  # their order tells nothing
    names = [] if classes is None else list(dict.fromkeys(text(one, "a class") for one in _listed(classes)))
    if not subjects and not names:
        raise DataError("at least one id or class in a request", "none", "leave the request out")
    received, due = period(given.get("received"), given.get("due"))
    found = {"received": received.isoformat(), "due": due.isoformat(), "classes": names, "subjects": subjects}
    found["basis"] = text(given.get("basis", "erasure request"), "basis")
    if given.get("note") is not None:
        found["note"] = text(given["note"], "note")
    return found


def _listed(classes: Any) -> list[Any]:
    if isinstance(classes, (str, bytes)) or not isinstance(classes, Iterable):
        raise DataError("a list of classes", brief(classes), "pass a list")
    return [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in classes]


def text(value: Any, name: str) -> str:
    """Text that any database can keep."""
    good = isinstance(value, str) and value.strip() and len(value) <= LONGEST and "\0" not in value
    if not good or any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"text as {name}, of at most {LONGEST} characters", brief(value), "write a sentence")
    return str(value)
