"""Was anything in a ledger touched? Walks the chain, derives every table anew, names what differs first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, text

from purge.core.errors import FileError, LedgerError
from purge.ledger import schema
from purge.ledger.chain import START, Link, canonical, changes
from purge.ledger.keys import checker
from purge.ledger.records import Head, Verification

HEAD = "head"  # the key of the last line of an export
Tables = dict[str, dict[tuple[Any, ...], dict[str, Any]]]


class Walk:
    """Goes along a chain and stops at the first entry that was touched.

    Args:
        public: the key that signatures are checked with, from outside of the ledger; without one, they are
            checked with the key that the ledger itself names, which somebody who forges all of it replaces.
        anchor: an end of the chain that was kept elsewhere.
    """

    def __init__(self, public: str | None = None, anchor: Head | None = None) -> None:
        self.public, self.anchor = public, anchor
        self.signer: str | None = None  # the key that the ledger names
        self.count, self.last = 0, START
        self.tables: Tables = {name: {} for name in schema.DERIVED}
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
        if self.anchor and self.count < self.anchor.entries:
            got = f"the chain ends after {self.count} of {self.anchor.entries} entries that it once had"
            self.bad = self.count + 1, got
        elif self.public and not self.signer:
            self.bad = 1, "no entry is signed"

    def _wrong(self, link: Link) -> str | None:
        """What is wrong with the next entry, if anything."""
        texts = (link.at, link.kind, link.payload, link.previous, link.hash)
        if not all(isinstance(one, str) for one in texts) or not isinstance(link.seq, int):
            return "a field is not text"
        if link.seq != self.count + 1:
            return f"it is missing; number {link.seq} comes next"
        if link.previous != self.last:
            return "it does not carry the hash of the one before"
        if link.right_hash() != link.hash:
            return "its content does not have its hash"
        if self.anchor and link.seq == self.anchor.entries and link.hash != self.anchor.hash:
            return "its hash is not the one that was kept"
        try:
            content = json.loads(link.payload)
            if canonical(content) != link.payload:
                return "it is not written as entries are"
            if link.kind == "signer" and self.signer is None:
                self._sign(content["public"])
            self._apply(link, content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "its content is not that of its kind"
        if self._right is None:
            return "it has a signature before any was promised" if link.signature is not None else None
        if not isinstance(link.signature, str):
            return "it is not signed, as every entry is since the key was named"
        return None if self._right(link.hash, link.signature) else "its signature is not by the right key"

    def _sign(self, public: str) -> None:
        self.signer = public
        self._right = checker(self.public or public)

    def _apply(self, link: Link, content: dict[str, Any]) -> None:
        for change in changes(link.kind, link.at, content):
            rows = self.tables[change.table]
            if change.new:
                rows[change.key] = dict(change.values)
            else:
                rows[change.key].update(change.values)

    def verdict(self, why: str | None = None) -> Verification:
        """What was found; ``why`` is something wrong beside the chain."""
        signed = self._right is not None and self.public is not None
        head = str(Head(self.count, self.last))
        if self.bad:
            return Verification(
                False, self.count, self.bad[0], f"entry {self.bad[0]}: {self.bad[1]}", head, signed
            )
        return Verification(why is None, self.count, None, why, head, signed)


def verify_database(connection: Connection, public: str | None, anchor: Head | None) -> Verification:
    """Check the chain in a database, its head, the tables that follow from it, and its triggers."""
    walk = Walk(public, anchor)
    rows = connection.execute(select(*schema.entries.c).order_by(schema.entries.c.seq))
    walk.along(Link(*row) for row in rows)
    if walk.bad:
        return walk.verdict()
    missing, why = _cut(connection, walk)
    if missing:
        walk.bad = missing, str(why)
    return walk.verdict(why or _differs(connection, walk) or _unsafe(connection))


def _cut(connection: Connection, walk: Walk) -> tuple[int | None, str | None]:
    """The first entry that the head tells of and that is not there; or what else is wrong with the head."""
    head = connection.execute(select(*schema.head.c)).first()
    if head is None:
        return None, "the record of the end of the chain is missing"
    if isinstance(head.entries, int) and head.entries > walk.count:
        return walk.count + 1, f"the chain ends after {walk.count} of {head.entries} entries"
    if (head.entries, head.hash, head.signer) != (walk.count, walk.last, walk.signer):
        return None, "the record of the end of the chain tells of another end"
    return None, None


def _differs(connection: Connection, walk: Walk) -> str | None:
    """The first row of a table that does not follow from the chain."""
    for name, table in schema.DERIVED.items():
        keys = [column.name for column in table.primary_key]
        derived = walk.tables[name]
        seen = 0
        for row in connection.execute(select(*table.c)).mappings():
            key = tuple(row[part] for part in keys)
            if derived.get(key) != dict(row):
                got = "is not in the chain" if key not in derived else "differs from the chain"
                return f"the table of {name}: {_which(name, key)} {got}"
            seen += 1
        if seen != len(derived):
            return f"the table of {name}: {len(derived) - seen} of {len(derived)} rows are missing"
    return None


def _which(name: str, key: tuple[Any, ...]) -> str:
    return f"a subject of request {key[1]}" if name == "subjects" else f"row {key[0]}"


def _unsafe(connection: Connection) -> str | None:
    if missing := schema.unprotected(connection):
        return f"the trigger {missing[0]}, which keeps entries from being changed, is missing or changed"
    if connection.dialect.name == "sqlite":
        found = connection.execute(text("PRAGMA integrity_check(1)")).scalar()
        if found != "ok":
            return "the file is damaged: SQLite finds its pages or indexes wrong"
    return None


# -- exports ----------------------------------------------------------------------------------


def export_lines(links: Iterable[Link]) -> Iterable[str]:
    """The entries as JSON, one a line, and the end of the chain as the last line."""
    last = Head(0, START)
    for link in links:
        yield canonical({**link._asdict(), "payload": link.content()})
        last = Head(link.seq, link.hash)
    yield canonical({HEAD: str(last)})


def verify_export(path: Path, public: str | None = None, anchor: Head | None = None) -> Verification:
    """Check a file that a ledger was exported to, without the ledger."""
    walk = Walk(public, anchor)
    ends: list[str] = []
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            walk.along(_links(file, ends))
    except OSError as error:
        raise FileError(f"an export at {path}", error.strerror or "an error", "check the path") from None
    if walk.bad is None and ends != [str(Head(walk.count, walk.last))]:
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
            elif HEAD in content:
                ends.append(content[HEAD])
            else:
                yield Link(**{**content, "payload": canonical(content["payload"])})
        except (ValueError, TypeError, KeyError, RecursionError, LedgerError):
            yield broken
