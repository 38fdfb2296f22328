"""The chain: each entry carries the hash of the one before, and everything else in a ledger follows from it.

    hash = SHA-256 of the canonical JSON of {"at", "kind", "payload", "previous", "seq"}

Canonical JSON: keys sorted, no spaces, ASCII. A :class:`Kind` says what its entries mean for the tables: the
ledger applies that when it appends, and :class:`Walk` applies it again to nothing, to be compared. Nothing
here reads or writes a database.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from purge.core.errors import FileError, LedgerError, brief, first_line
from purge.core.files import file_errors
from purge.ledger.keys import checker
from purge.ledger.records import ChainHead, Verification

START = "0" * 64  # what the first entry carries as the hash of the one before
TABLES = ("requests", "subjects", "batches", "versions", "audits")  # that follow from the chain
LAST_LINE = "head"  # the key of the last line of an export


def now() -> str:
    """The time in UTC, as entries carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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


def link(seq: int, at: str, kind: str, payload: Mapping[str, Any], previous: str) -> Link:
    """A new entry, with its hash."""
    bare = Link(seq, at, kind, canonical(payload), previous, "")
    return bare._replace(hash=bare.right_hash())


# -- what an entry means ----------------------------------------------------------------------


class Change(NamedTuple):
    """A row that an entry adds to a table, or values that it gives to a row that is there."""

    table: str
    key: tuple[Any, ...]
    values: dict[str, Any]
    new: bool = False


Payload = Mapping[str, Any]
Effect = Callable[[str, Payload], Iterable[Change]]  # of an entry's time and payload


def _of(payload: Payload, **values: Any) -> Iterator[Change]:
    """The same values for each request that an entry is about."""
    for number in payload.get("requests") or [payload["request"]]:
        yield Change("requests", (number,), values)


def _no_effect(at: str, payload: Payload) -> Iterable[Change]:
    return ()


def _request(at: str, payload: Payload) -> Iterator[Change]:
    number, subjects = payload["request"], payload["subjects"]
    row = {
        "number": number, "added": at, "received": payload["received"], "due": payload["due"],
        "basis": payload["basis"], "state": "open", "subjects": len(subjects),
        "classes": canonical(payload["classes"]), "hold": None, "note": payload.get("note"), "why": None,
        "batch": None, "done": None,
    }  # fmt: skip
    yield Change("requests", (number,), row, new=True)
    for one in subjects:
        yield Change("subjects", (one, number), {"hash": one, "request": number}, new=True)


def _batch(at: str, payload: Payload) -> Iterator[Change]:
    row = {
        "number": payload["batch"], "requests": canonical(payload["requests"]), "state": "running",
        "started": at, "ended": None, "why": None, "version": None, "about": canonical(payload["about"]),
    }  # fmt: skip
    yield Change("batches", (payload["batch"],), row, new=True)
    yield from _of(payload, state="running", batch=payload["batch"])


def _batch_done(at: str, payload: Payload) -> Iterator[Change]:
    about = canonical(payload["about"])
    row = {"state": "done", "ended": at, "version": payload.get("version"), "about": about}
    yield Change("batches", (payload["batch"],), row)
    yield from _of(payload, state="done", done=at, why=None)


def _batch_failed(at: str, payload: Payload) -> Iterator[Change]:
    why = payload["reason"]
    row = {"state": "failed", "ended": at, "why": why, "about": canonical(payload["about"])}
    yield Change("batches", (payload["batch"],), row)
    yield from _of(payload, state="open", why=why)


def _version(at: str, payload: Payload) -> Iterator[Change]:
    row = {key: payload.get(key) for key in ("folder", "kind", "batch", "parent")}
    row |= {"number": payload["version"], "added": at, "about": canonical(payload["about"])}
    yield Change("versions", (payload["version"],), row | {"digest": payload["digest"]}, new=True)


def _audit(at: str, payload: Payload) -> Iterator[Change]:
    row = {key: payload.get(key) for key in ("version", "batch", "folder")}
    row |= {"number": payload["audit"], "added": at, "requests": canonical(payload["requests"])}
    passed = payload.get("passed")
    row |= {"passed": None if passed is None else int(passed), "found": canonical(payload["found"])}
    yield Change("audits", (payload["audit"],), row, new=True)


def _recover(at: str, payload: Payload) -> Iterator[Change]:
    for number in payload["requests"]:
        values = {"state": "open", "done": None, "why": payload["reason"]}
        yield Change("requests", (number,), values)
    for number in payload["versions"]:
        yield Change("versions", (number,), {"kind": "lost"})


class Kind(StrEnum):
    """What an entry says, with its effect on the tables.

    The ledger writes these itself; entries of any other kind are somebody's own and have no effect.
    """

    LEDGER = "ledger", _no_effect  # the first: its random name, and what its key is checked by
    SIGNER = "signer", _no_effect  # the key that signs from now on
    SETTINGS = "settings", _no_effect  # where versions are, and what audits may use
    DELIVERY = "delivery", _no_effect  # the training data is another one from now on
    TAKEN = "taken", _no_effect  # a request file was taken in
    RETRAINING_DUE = "retraining-due", _no_effect  # a policy is used up
    REQUEST = "request", _request
    HOLD = "hold", lambda at, p: _of(p, state="held", hold=p.get("reason"))
    RELEASE = "release", lambda at, p: _of(p, state="open", hold=None)
    WITHDRAW = "withdraw", lambda at, p: _of(p, state="withdrawn", hold=None, why=p.get("reason"))
    NOT_FOUND = "not-found", lambda at, p: _of(p, why=p["reason"])  # it stays open: its ids are in no data
    ACCEPT = "accept-unknown", lambda at, p: _of(p, why=f"accepted by {p['by']}: {p['reason']}")
    BATCH = "batch", _batch
    BATCH_DONE = "batch-done", _batch_done
    BATCH_FAILED = "batch-failed", _batch_failed
    RUN = "run", _no_effect  # a run folder; ledgers before 0.3 may have some
    RECOVER = "recovery", _recover  # what is not of this chain, or lost, does not count any more
    VERSION = "version", _version
    AUDIT = "audit", _audit

    effect: Effect

    def __new__(cls, name: str, effect: Effect) -> Kind:
        """The name in the chain, and the effect beside it."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.effect = effect
        return kind


BY_NAME: dict[str, Kind] = {kind.value: kind for kind in Kind}


def changes(kind: str, at: str, payload: Payload) -> Iterable[Change]:
    """What an entry means for the tables; one of somebody's own kind means nothing."""
    return BY_NAME[kind].effect(at, payload) if kind in BY_NAME else ()


# -- was anything touched? --------------------------------------------------------------------

Tables = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


class Walk:
    """Goes along a chain and stops at the first entry that was touched.

    Args:
        public: the key that signatures are checked with, from outside of the ledger; without one, they are
            checked with the key that the ledger itself names, which somebody who forges all of it replaces.
        kept: ends of the chain that were kept elsewhere.
    """

    def __init__(self, public: str | None = None, kept: Iterable[ChainHead] = ()) -> None:
        self.public, self.kept = public, {head.entries: head.hash for head in kept}
        self.signer: str | None = None  # the key that the ledger names
        self.count, self.last = 0, START
        self.tables: Tables = {name: {} for name in TABLES}
        self.bad: tuple[int, str] | None = None
        self._right: Callable[[str, str], bool] | None = None

    def along(self, links: Iterable[Link]) -> None:
        """Check entries in their order."""
        for link in links:
            why = self._wrong(link)
            if why:
                self.bad = self.count + 1, why
                return
            self.count, self.last = self.count + 1, link.hash
        if self.kept and self.count < (once := max(self.kept)):
            self.bad = self.count + 1, f"the chain ends after {self.count} of {once} entries that it once had"
        elif self.public and not self.signer:
            self.bad = 1, "no entry is signed"

    def _wrong(self, link: Link) -> str | None:
        """What is wrong with the next entry, if anything."""
        texts = (link.at, link.kind, link.payload, link.previous, link.hash)
        if not all(isinstance(one, str) for one in texts) or not isinstance(link.seq, int):
            return "a field is not text"
        kept = self.kept.get(link.seq, link.hash)
        for right, why in (
            (link.seq == self.count + 1, f"it is missing; number {link.seq} comes next"),
            (link.previous == self.last, "it does not carry the hash of the one before"),
            (link.right_hash() == link.hash, "its content does not have its hash"),
            (link.hash == kept, "its hash is not the one that was kept"),
        ):
            if not right:
                return why
        try:
            content = json.loads(link.payload)
            if canonical(content) != link.payload:
                return "it is not written as entries are"
            if link.kind == Kind.SIGNER and self.signer is None:
                self.signer = content["public"]
                self._right = checker(self.public or content["public"])
            self._apply(link, content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "its content is not that of its kind"
        return self._signature_wrong(link)

    def _apply(self, link: Link, content: Payload) -> None:
        for change in changes(link.kind, link.at, content):
            rows = self.tables[change.table]
            if change.new:
                rows[change.key] = change.values
            else:
                rows[change.key].update(change.values)

    def _signature_wrong(self, link: Link) -> str | None:
        if self._right is None:
            return "it has a signature before any was promised" if link.signature is not None else None
        if not isinstance(link.signature, str):
            return "it is not signed, as every entry is since the key was named"
        return None if self._right(link.hash, link.signature) else "its signature is not by the right key"

    def verdict(self, why: str | None = None) -> Verification:
        """What was found; ``why`` is something wrong beside the chain."""
        signed = self._right is not None and self.public is not None
        first, why = (self.bad[0], f"entry {self.bad[0]}: {self.bad[1]}") if self.bad else (None, why)
        return Verification(
            why is None, self.count, first, why, str(ChainHead(self.count, self.last)), signed
        )


# -- exports ----------------------------------------------------------------------------------


def export_lines(links: Iterable[Link]) -> Iterable[str]:
    """The entries as JSON, one a line, and the end of the chain as the last line."""
    last = ChainHead(0, START)
    for link in links:
        yield canonical({**link._asdict(), "payload": json.loads(link.payload)})
        last = ChainHead(link.seq, link.hash)
    yield canonical({LAST_LINE: str(last)})


def check_export(path: Path, public: str | None = None, kept: Iterable[ChainHead] = ()) -> Verification:
    """Check a file that a ledger was exported to, without the ledger."""
    walk = Walk(public, kept)
    ends: list[str] = []
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            walk.along(_links(file, ends))
    except OSError as error:
        raise FileError(f"an export at {path}", error.strerror or "an error", "check the path") from None
    if walk.bad is None and ends != [str(ChainHead(walk.count, walk.last))]:
        walk.bad = walk.count + 1, "the file ends without a last line that names the end of the chain"
    return walk.verdict()


def _links(lines: Iterable[str], ends: list[str]) -> Iterable[Link]:
    """The entries in an export; what its last line says goes to ``ends``."""
    broken = Link(0, "", "", "", "", "")
    for line in lines:
        try:
            content = json.loads(line)
            if canonical(content) != line.removesuffix("\n") or ends:
                yield broken  # not as it was written, or behind the end
            elif LAST_LINE in content:
                ends.append(content[LAST_LINE])
            else:
                yield Link(**{**content, "payload": canonical(content["payload"])})
        except (ValueError, TypeError, KeyError, RecursionError, LedgerError):
            yield broken


def read_head(head: ChainHead | str) -> ChainHead:
    """The end of a chain from its text, ``COUNT:HASH``."""
    if isinstance(head, ChainHead):
        return head
    count, _, digest = str(head).strip().partition(":")
    if not count.isdecimal() or len(digest) != len(START):
        fix = "pass what verify or export has told, COUNT:HASH"
        raise LedgerError("the end of a chain as head", brief(head), fix)
    return ChainHead(int(count), digest)


# -- a witness: a file elsewhere, with a line for each end that the chain once had -------------


def read_witness(path: Path) -> list[ChainHead]:
    """The ends of a chain in a file of witness; two that cannot both be true are refused."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        got = getattr(error, "strerror", None) or "something else"
        fix = "name the file that purge request run --witness writes"
        raise FileError(f"a witness of the chain at {path}", got, fix) from None
    heads = [read_head(line.rpartition(" ")[2]) for line in lines if line.strip()]
    if len({head.entries for head in heads}) < len({(head.entries, head.hash) for head in heads}):
        got, fix = f"two hashes of one entry in {path.name}", "find out which ledgers wrote into it"
        raise FileError("the ends of one chain in a witness", got, fix)
    return heads


def write_witness(path: Path, head: ChainHead) -> None:
    """Add a line with the time and the end of the chain, on the disk before this returns."""
    with file_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(f"{now()} {head}\n")
        file.flush()
        os.fsync(file.fileno())
