"""The database of a ledger and the chain in it: opening, appending, verifying, exporting."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Table, select
from sqlalchemy.exc import DatabaseError

from purge.core.errors import FileError, LedgerError, brief
from purge.core.files import atomically, file_errors
from purge.ledger import chain, sql
from purge.ledger.chain import Kind
from purge.ledger.database import WAIT, Database, Note
from purge.ledger.intake import text
from purge.ledger.keys import IdKey, Signer, public_key
from purge.ledger.records import ChainHead, Entry, Verification, Working

KEY = "PURGE_LEDGER_KEY"  # names the file of the key
Where = str | os.PathLike[str]
T = TypeVar("T")


# The columns that are kept as text, and how each is read.
READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("about", "found"), json.loads),
    **dict.fromkeys(("requests", "classes"), lambda text: tuple(json.loads(text))),
    **dict.fromkeys(("received", "due"), date.fromisoformat),
}


class Journal:
    """A chain of entries in a database, and the tables that follow from it."""

    def __init__(
        self, url: Where, key: Where | None = None, *, sign: Where | None = None, must_exist: bool = False,
        patience: float = WAIT,
    ) -> None:  # fmt: skip
        self._db = Database(url, patience)
        self.name = self._db.name  # without a password
        place = key or os.environ.get(KEY) or (f"{self._db.file}.key" if self._db.file else None)
        self._key_file = None if place is None else Path(place)
        self._key: IdKey | None = None
        self._signer: Signer | None = None
        self._thread = threading.local()  # its `connection` is the transaction that is open
        if sign is not None:
            Signer.possible(Path(sign))  # before a ledger is made that would not be signed
        try:
            self._open(must_exist)
            if key:
                self._id_key()  # a wrong one is refused now, not when it is first needed
            if sign is not None:
                self._sign_with(Path(sign))
        except BaseException:
            self.close()
            raise

    def _open(self, must_exist: bool) -> None:
        """Make the ledger and its key, if there is none."""
        version = self._db.version()
        if version is not None:
            if version != sql.VERSION:
                what, got = f"a ledger of version {sql.VERSION} at {self.name}", f"one of {version}"
                raise LedgerError(what, got, "use the version of purge that wrote it")
            return
        if must_exist:
            raise FileError(f"a ledger at {self.name}", "none", "check the path; purge request add makes one")
        if self._key_file is None:
            what, fix = "a file for the key that hashes ids", f"pass key, or set ${KEY}"
            raise LedgerError(what, "none, and PostgreSQL has no place beside it", fix)
        if self._key_file.exists():
            IdKey(self._key_file)  # refused here, no file of a database is left behind
        with self._db.writing() as connection:
            if not self._db.make(connection):
                return
            key = IdKey.made(self._key_file)
            start = {"one": 1, "version": sql.VERSION, "entries": 0, "hash": chain.START, "signer": None}
            connection.execute(sql.head.insert().values(start))
            about = {"ledger": secrets.token_hex(8), "ids": "hmac-sha256", "check": key.check()}
            self._append(connection, [(Kind.LEDGER, about)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the database."""
        self._db.engine.dispose()

    @property
    def identity(self) -> str:
        """The random name that the ledger was given when it was made; a copy of it has the same."""
        return str(self.entries(Kind.LEDGER)[0].payload["ledger"])

    # -- keys -------------------------------------------------------------------------------

    def _id_key(self) -> IdKey:
        if self._key is None:
            if self._key_file is None:
                raise LedgerError("the key of the ledger", "none", f"pass key, or set ${KEY}")
            key = IdKey(self._key_file)
            query = select(*sql.entries.c).where(sql.entries.c.seq == 1)
            first = chain.Link(*self._rows(lambda c: c.execute(query).one()))
            if first.right_hash() != first.hash:
                fix = "see purge request verify; restore the ledger from a backup"
                raise LedgerError(f"the first entry of {self.name} as it was", "one that was touched", fix)
            if json.loads(first.payload).get("check") != key.check():
                got, fix = f"another one in {self._key_file}", "name the file that was made with the ledger"
                raise LedgerError(f"the key of {self.name}", got, fix)
            self._key = key
        return self._key

    def _sign_with(self, file: Path) -> None:
        query = select(sql.head.c.signer)
        known = self._rows(lambda c: c.execute(query).scalar_one())
        signer = Signer(file) if known else Signer.made(file)
        if known is None:
            with self._writing() as connection:  # another process may be about to sign it, too
                known = connection.execute(query).scalar_one()
                if known is None:
                    self._signer = signer
                    connection.execute(sql.head.update().values(signer=signer.public))
                    self._append(connection, [(Kind.SIGNER, {"public": signer.public})])
                    known = signer.public
        if known != signer.public:
            got = f"another one in {file}"
            raise LedgerError(f"the key that signs {self.name}", got, "name the file that was used before")
        self._signer = signer

    # -- transactions -----------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is written in the block is written at its end, all of it or nothing."""
        with self._writing():
            yield

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if (outer := getattr(self._thread, "connection", None)) is not None:
            yield outer
            return
        with self._db.writing() as connection:
            # The row of the head first: on a server, it keeps other writers waiting until this one ends.
            connection.execute(select(sql.head.c.entries).with_for_update()).scalar_one()
            self._thread.connection = connection
            try:
                yield connection
            finally:
                self._thread.connection = None

    def _rows(self, read: Callable[[Connection], T]) -> T:
        if (outer := getattr(self._thread, "connection", None)) is not None:
            return read(outer)
        with self._db.reading() as connection:
            return read(connection)

    def _append(self, connection: Connection, new: Sequence[tuple[str, Mapping[str, Any]]]) -> ChainHead:
        """Add entries to the chain, and what follows from them to the tables."""
        head = connection.execute(select(*sql.head.c)).one()
        if head.signer and (self._signer is None or self._signer.public != head.signer):
            got = "one without the key that signs"
            raise LedgerError(f"a writer of {self.name}, which is signed", got, "pass sign with its key")
        last, at = head.hash, chain.now()
        links: list[dict[str, Any]] = []
        rows: list[chain.Change] = []
        for seq, (kind, payload) in enumerate(new, head.entries + 1):
            link = chain.link(seq, at, str(kind), payload, last)
            signature = self._signer.sign(link.hash) if self._signer and head.signer else None
            links.append(link._replace(signature=signature)._asdict())
            rows.extend(chain.changes(kind, at, payload))
            last = link.hash
        connection.execute(sql.entries.insert(), links)
        sql.apply(connection, rows)
        connection.execute(sql.head.update().values(entries=seq, hash=last))
        return ChainHead(seq, last)

    def append(self, kind: str, payload: Mapping[str, Any]) -> Entry:
        """Add an entry of a kind of your own: it stands in the chain and changes no request.

        Args:
            kind: its name.
            payload: what it says, plain JSON values. Put in no id and no sample: entries are never removed.

        Returns:
            The entry.
        """
        if text(kind, "kind") in chain.BY_NAME or not isinstance(payload, Mapping):
            got, fix = (
                f"{brief(kind)} with a {type(payload).__name__}",
                "choose another name, and name the values",
            )
            raise LedgerError("a kind of entry of your own with a dict as payload", got, fix)
        return record(self, kind, payload)

    def entries(self, kind: str | None = None, *, start: int = 1, end: int | None = None) -> list[Entry]:
        """The entries of the chain.

        Args:
            kind: only those of this kind.
            start: from this number on.
            end: up to this number.

        Returns:
            The entries in their order.
        """
        t = sql.entries.c
        query = select(t.seq, t.at, t.kind, t.payload, t.hash).where(t.seq >= start).order_by(t.seq)
        query = query if kind is None else query.where(t.kind == str(kind))
        query = query if end is None else query.where(t.seq <= end)
        rows = self._rows(lambda c: c.execute(query).all())
        return [
            Entry(seq, at, kind, self._sound(json.loads, said), hash_) for seq, at, kind, said, hash_ in rows
        ]

    def head(self) -> ChainHead:
        """The end of the chain. Keep it elsewhere: ``verify(head=…)`` then finds what was cut off."""
        h = sql.head.c
        return ChainHead(*self._rows(lambda c: c.execute(select(h.entries, h.hash)).one()))

    def mark(self) -> tuple[Any, ...] | None:
        """Equal to an earlier one if nothing was written in between; None: ask the ledger itself."""
        return self._db.mark()

    # -- one worker, and whether all is as it was written -----------------------------------

    def working(self, wait: float | None = None) -> AbstractContextManager[None]:
        """Within ``with ledger.working():`` no other worker has the ledger; requests can still be added.

        A worker that was killed no longer has it.

        Args:
            wait: another worker waits for at most so many seconds, and is then refused with a BusyError that
                says who works since when.

        Returns:
            A context for ``with``.
        """
        return self._db.working(wait)

    def worker(self) -> Working | None:
        """Who carries requests out at this moment, and how far that is; None: nobody does."""
        notes = self._db.notes()
        if Note.WORKER not in notes or not self._db.busy():
            return None
        far = json.loads(notes[Note.PROGRESS][0]) if Note.PROGRESS in notes else {}
        return Working(*notes[Note.WORKER], Note.STOP in notes, **far)

    def stop(self, wait: float | None = None) -> Working:
        """Ask the worker to end at its next step: its batch is given up, and its requests are open again.

        Args:
            wait: seconds to wait until it has ended; then a BusyError says that it has not.

        Returns:
            The worker.
        """
        worker = self.worker()
        if worker is None:
            raise LedgerError(f"a worker of {self.name}", "none", "there is nothing to stop")
        self._db.note(Note.STOP, worker.who)
        if wait:
            with self.working(wait):
                pass
        return worker

    def verify(
        self, *, public: Where | None = None, head: ChainHead | str | None = None,
        witness: Where | None = None,
    ) -> Verification:  # fmt: skip
        """Walk the chain and say whether anything was touched since it was written.

        Args:
            public: a PEM file with the public key of a signed ledger; default: that of ``sign``.
            head: an end of the chain that was kept elsewhere, as ``head()`` gives it or as its text.
            witness: a file elsewhere into which runs wrote the ends that the chain had: it shows that
                entries were cut off, or an older ledger put back.

        Returns:
            ``ok``, or the first entry that was touched.
        """
        wanted = public_key(Path(public)) if public else self._signer.public if self._signer else None
        kept = [] if witness is None else chain.read_witness(Path(witness))
        kept += [] if head is None else [chain.read_head(head)]
        with self._db.reading() as connection:
            try:
                return sql.verify_database(connection, wanted, kept)
            except (DatabaseError, UnicodeError):
                return Verification(False, 0, None, "the database is damaged: it cannot be read to its end")

    def export(self, path: Where, *, force: bool = False) -> ChainHead:
        """Write the chain to a file of JSON lines, which :func:`verify_export` checks without the ledger.

        Args:
            path: the file.
            force: overwrite one that is there.

        Returns:
            The end of the chain.
        """
        file = Path(path)
        if file.exists() and not force:
            raise FileError(f"no file at {file}", "one", "choose another name, or overwrite with force")
        if self._db.file and file.exists() and file.samefile(self._db.file):
            raise FileError("another file than the ledger itself", str(file), "choose another name")
        with self._db.reading() as connection, file_errors(file):
            lines = chain.export_lines(sql.links(connection))

            def write(temporary: Path) -> None:
                with temporary.open("w", encoding="utf-8", newline="\n") as out:
                    out.writelines(f"{line}\n" for line in lines)

            atomically(file, write)
        return self.head()

    # -- tables, for Ledger -----------------------------------------------------------------

    def _table(
        self, table: Table, *where: Any, newest: bool = False, skip: int = 0, at_most: int | None = None
    ) -> list[dict[str, Any]]:
        """The rows of a table in their order, or the newest first."""
        number = table.c.number
        query = select(*table.c).where(*where).order_by(number.desc() if newest else number)
        query = query if at_most is None else query.limit(at_most).offset(skip)
        rows = [dict(row) for row in self._rows(lambda c: list(c.execute(query).mappings()))]
        for row in rows:
            for name in READ.keys() & row.keys():
                row[name] = self._sound(READ[name], row[name])
        return rows

    def _sound(self, read: Callable[[Any], T], value: Any) -> T:
        """A value of the database, read; one that was touched may not be readable."""
        try:
            return read(value)
        except (ValueError, TypeError):
            fix = "see purge request verify; restore it from a backup"
            raise LedgerError(f"rows that can be read in {self.name}", "others", fix) from None


def record(journal: Journal, kind: str, payload: Mapping[str, Any]) -> Entry:
    """Add an entry, also of the ledger's own kinds, as its parts do. Others call :meth:`Journal.append`."""
    with journal._writing() as connection:
        head = journal._append(connection, [(kind, dict(payload))])
    return journal.entries(start=head.entries)[0]


def progress(journal: Journal, far: Mapping[str, Any]) -> bool:
    """Write down how far the worker is, for others to see; has somebody asked it to stop?"""
    journal._db.note(Note.PROGRESS, chain.canonical(far))
    return Note.STOP in journal._db.notes()


def verify_export(
    path: Where, *, public: Where | None = None, head: ChainHead | str | None = None,
    witness: Where | None = None,
) -> Verification:  # fmt: skip
    """Check a file that a ledger was exported to: nothing was touched, and it is whole."""
    kept = [] if witness is None else chain.read_witness(Path(witness))
    kept += [] if head is None else [chain.read_head(head)]
    return chain.check_export(Path(path), public_key(Path(public)) if public else None, kept)
