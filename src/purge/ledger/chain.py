"""The chain: each entry carries the hash of the one before, and everything else in a ledger follows from it.

    hash = SHA-256 of the canonical JSON of {"at", "kind", "payload", "previous", "seq"}

Canonical JSON: keys sorted, no spaces, ASCII. :func:`changes` says what an entry means for the tables; the
ledger applies that when it appends, and `verify` applies it again to nothing and compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from purge.core.errors import LedgerError, first_line

START = "0" * 64  # what the first entry carries as the hash of the one before
NOT_FOUND = "not-found"  # the kind of entry that says why a request stays open: its ids are in no data
OWN = ("ledger", "signer", "request", "hold", "release", "withdraw", NOT_FOUND, "batch", "batch-done",
       "batch-failed", "run", "version", "audit")  # fmt: skip


def canonical(content: Any) -> str:
    """The one way to write something as JSON.

    >>> canonical({"b": [1, None], "a": "ü"})
    '{"a":"\\\\u00fc","b":[1,null]}'
    """
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        got = f"something else ({first_line(error)})"
        raise LedgerError("text, numbers, lists and dicts in an entry", got, "leave it out") from None


class Link(NamedTuple):
    """An entry as it is stored; the payload is canonical JSON."""

    seq: int
    at: str
    kind: str
    payload: str
    previous: str
    hash: str
    signature: str | None = None

    def right_hash(self) -> str:
        """The hash that the entry should carry, of the payload as it stands there, byte by byte."""
        at, kind, previous = (json.dumps(text) for text in (self.at, self.kind, self.previous))
        line = f'{{"at":{at},"kind":{kind},"payload":{self.payload},"previous":{previous},"seq":{self.seq}}}'
        return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()

    def content(self) -> dict[str, Any]:
        """The payload, read."""
        found: dict[str, Any] = json.loads(self.payload)
        return found


def link(seq: int, at: str, kind: str, payload: Mapping[str, Any], previous: str) -> Link:
    """A new entry, with its hash."""
    bare = Link(seq, at, kind, canonical(payload), previous, "")
    return bare._replace(hash=bare.right_hash())


# -- what follows from an entry ---------------------------------------------------------------


class Change(NamedTuple):
    """A row that an entry adds to a table, or values that it gives to a row that is there."""

    table: str
    key: tuple[Any, ...]
    values: dict[str, Any]
    new: bool = False


def changes(kind: str, at: str, content: Mapping[str, Any]) -> Iterator[Change]:
    """What an entry means for the tables; nothing, for a kind that only stands in the chain."""
    get = content.get
    if kind == "request":
        number = content["request"]
        row = {key: content[key] for key in ("received", "due", "basis")}
        row |= {
            "number": number,
            "added": at,
            "state": "open",
            "note": get("note"),
            "hold": None,
            "why": None,
        }
        row |= {"subjects": len(content["subjects"]), "classes": canonical(content["classes"])}
        yield Change("requests", (number,), row | {"batch": None, "done": None}, new=True)
        for one in content["subjects"]:
            yield Change("subjects", (one, number), {"hash": one, "request": number}, new=True)
    elif kind in STEPS_OF_A_REQUEST:
        reason = get("reason")
        values = {"state": STEPS_OF_A_REQUEST[kind], "hold": reason if kind == "hold" else None}
        if kind == "withdraw":
            values["why"] = reason
        yield Change("requests", (content["request"],), values)
    elif kind == NOT_FOUND:
        yield Change("requests", (content["request"],), {"why": content["reason"]})
    elif kind == "batch":
        number, members = content["batch"], content["requests"]
        row = {"number": number, "requests": canonical(members), "state": "running", "started": at}
        row |= {"ended": None, "why": None, "version": None, "about": canonical(content["about"])}
        yield Change("batches", (number,), row, new=True)
        yield from _each(members, {"state": "running", "batch": number})
    elif kind == "batch-done":
        values = {
            "state": "done",
            "ended": at,
            "version": get("version"),
            "about": canonical(content["about"]),
        }
        yield Change("batches", (content["batch"],), values)
        yield from _each(content["requests"], {"state": "done", "done": at, "why": None})
    elif kind == "batch-failed":
        values = {
            "state": "failed",
            "ended": at,
            "why": content["reason"],
            "about": canonical(content["about"]),
        }
        yield Change("batches", (content["batch"],), values)
        yield from _each(content["requests"], {"state": "open", "why": content["reason"]})
    elif kind in ("run", "version"):
        row = {key: get(key) for key in ("folder", "kind", "batch")}
        row |= {"number": content[kind], "added": at, "about": canonical(content["about"])}
        if kind == "version":
            row |= {"digest": content["digest"], "parent": get("parent")}
        yield Change(f"{kind}s", (content[kind],), row, new=True)
    elif kind == "audit":
        row = {key: get(key) for key in ("version", "batch", "folder")}
        row |= {"number": content["audit"], "added": at, "requests": canonical(content["requests"])}
        passed = get("passed")
        row |= {"passed": None if passed is None else int(passed), "found": canonical(content["found"])}
        yield Change("audits", (content["audit"],), row, new=True)


STEPS_OF_A_REQUEST = {"hold": "held", "release": "open", "withdraw": "withdrawn"}


def _each(requests: list[int], values: dict[str, Any]) -> Iterator[Change]:
    for number in requests:
        yield Change("requests", (number,), values)
