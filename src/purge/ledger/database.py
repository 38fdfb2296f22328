"""The database of a ledger: opening it, its transactions, and the lock of the one worker that it may have."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import Connection, NullPool, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, SQLAlchemyError

from purge.core.errors import BusyError, FileError, LedgerError, PurgeError
from purge.core.files import file_errors
from purge.ledger import sql
from purge.ledger.chain import now

WAIT = 60  # seconds for another process that writes
LOCK = 0x7075726765  # "purge": the number of our advisory locks in a PostgreSQL database
WRITES = "purge_writes"
POLL = 0.2  # seconds between two looks at a lock on a server


class Note(IntEnum):
    """What a row about the worker of this moment says."""

    WORKER = 1  # who it is
    STOP = 2  # who wants it to stop
    PROGRESS = 3  # how far it is, as JSON


class Database:
    """The database of one ledger."""

    def __init__(self, url: Any, patience: float = WAIT) -> None:
        place = parse(url)
        self.file = Path(str(place.database)) if place.get_backend_name() == "sqlite" else None
        shown = place.difference_update_query(["password", "sslpassword"])
        self.name = str(self.file) if self.file else shown.render_as_string(hide_password=True)
        if self.file is None:
            try:
                self.engine = create_engine(place, hide_parameters=True, pool_pre_ping=True)
            except ImportError:
                fix = "pip install 'purge-unlearning[postgres]'"
                raise LedgerError("the package psycopg, for PostgreSQL", "none", fix) from None
            return
        # No pool: between two transactions nobody has the file open, so that it can be copied or moved.
        waits = {"timeout": patience}
        self.engine = create_engine(place, hide_parameters=True, poolclass=NullPool, connect_args=waits)

        @event.listens_for(self.engine, "connect")
        def connected(connection: Any, _record: Any) -> None:
            connection.isolation_level = None  # transactions begin below, not where the driver guesses
            # A text that was damaged is still read, so that its entry can be named.
            connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")

        @event.listens_for(self.engine, "begin")
        def begun(connection: Connection) -> None:
            writes = connection.get_execution_options().get(WRITES)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    def version(self) -> int | None:
        """The version of the tables; None if there is no ledger. A file is not made by asking."""
        if self.file and not self.file.exists():
            return None
        with self.reading() as connection:
            return sql.version_of(connection)

    def make(self, connection: Connection) -> bool:
        """Make the tables of a ledger; False if another process was first."""
        if self.file is None:  # two processes would make the same tables
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        if sql.version_of(connection) is not None:
            return False
        if self.file and inspect(connection).get_table_names():
            raise LedgerError(f"a ledger at {self.name}", "another database", "choose another file")
        sql.create(connection)
        return True

    def mark(self) -> tuple[Any, ...] | None:
        """Changes with every transaction that has written; None: this database has no such thing."""
        if self.file is None:
            return None
        try:
            with self.file.open("rb") as file:
                counter = file.read(28)[24:]  # SQLite counts its transactions here
            wal = self.file.with_name(f"{self.file.name}-wal")
            stats = [path.stat() for path in (self.file, wal) if path.exists()]
        except OSError:
            return None
        return (counter, *((one.st_ino, one.st_size, one.st_mtime_ns) for one in stats))

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the ledger."""
        with self._in_one_line(), self.engine.connect() as connection:
            if self.file is None:  # SQLite has no other way
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction for one process at a time; nothing is written if it raises."""
        if self.file and not os.access(self.file.parent, os.W_OK):
            raise FileError(f"a folder that can be written, {self.file.parent}", "none", "choose another")
        with self._in_one_line(), self.engine.connect().execution_options(**{WRITES: True}) as connection:
            with connection.begin():
                yield connection

    @contextmanager
    def _in_one_line(self) -> Iterator[None]:
        """Turn an error of the database into one line. It quotes no row: rows hold what users wrote."""
        try:
            yield
        except UnicodeError:  # in the names of a damaged file
            fix = "restore it from a backup"
            raise FileError(f"a ledger at {self.name}", "a damaged file", fix) from None
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            if isinstance(error, DatabaseError) and sql.REFUSAL in str(cause):
                raise LedgerError("entries to be added", "a change of an entry", sql.REFUSAL) from None
            first = (str(cause) or type(cause).__name__).partition("\n")[0].rstrip(".")
            fix = "check the path, the permissions and whether the file is whole"
            if self.file is None:
                fix = "check that the server runs and who may use it"
            raise FileError(f"a ledger at {self.name}", first, fix) from None

    # -- one worker at a time: locks are those of the system or the server, so a kill releases them --

    @contextmanager
    def working(self, wait: float | None) -> Iterator[None]:
        """The ledger is this worker's until the block ends; ``wait``: seconds to wait for another one."""
        with self._lock(max(0.0, wait or 0.0)):
            with self.writing() as connection:
                connection.execute(sql.worker.delete())
            self.note(Note.WORKER, f"process {os.getpid()} on {platform.node() or 'this machine'}")
            try:
                yield
            finally:
                with suppress(PurgeError), self.writing() as connection:  # the rows only tell others
                    connection.execute(sql.worker.delete())

    def note(self, about: Note, what: str) -> None:
        """Write down something about the worker of this moment, in place of what was said before."""
        with self.writing() as connection:
            connection.execute(sql.worker.delete().where(sql.worker.c.one == about))
            connection.execute(sql.worker.insert().values(one=int(about), who=what, since=now()))

    def notes(self) -> dict[Note, tuple[str, str]]:
        """What was said about the worker, with the time; of one that was killed, it stays until the next."""
        with self.reading() as connection:
            return {Note(row.one): (row.who, row.since) for row in connection.execute(select(sql.worker))}

    def busy(self) -> bool:
        """Does a worker have the ledger?"""
        try:
            with self._lock(0.0):
                return False
        except BusyError:
            return True

    def _lock(self, patience: float) -> AbstractContextManager[None]:
        return self._file_lock(self.file, patience) if self.file else self._server_lock(patience)

    @contextmanager
    def _file_lock(self, file: Path, wait: float) -> Iterator[None]:
        # The resolved path: two ways to name the same ledger must not be two locks.
        path = file.resolve()
        lock = FileLock(path.with_name(path.name + ".lock"), timeout=wait)
        with file_errors(path):
            try:
                lock.acquire()
            except Timeout:  # an OSError too
                raise self._busy() from None
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _server_lock(self, wait: float) -> Iterator[None]:
        # A number per schema: several ledgers may share a database.
        ask, release = (
            text(f"SELECT {function}({LOCK % 2**31}, hashtext(current_schema()))")
            for function in ("pg_try_advisory_lock", "pg_advisory_unlock")
        )
        end = time.monotonic() + wait
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not connection.execute(ask).scalar_one():
                if time.monotonic() >= end:
                    raise self._busy()
                time.sleep(POLL)
            try:
                yield
            finally:
                try:
                    connection.execute(release)
                except SQLAlchemyError:  # a server that went away has released it
                    connection.invalidate()

    def _busy(self) -> BusyError:
        who, since = self.notes().get(Note.WORKER, ("", ""))
        got = f"{who}, at work since {since}" if who else "another that is just beginning or ending"
        return BusyError(f"{self.name} for this worker alone", got, "wait for it to end, or pass wait")


def parse(url: Any) -> URL:
    """The URL of a database; a path is that of an SQLite file."""
    place = os.fspath(url) if isinstance(url, (str, os.PathLike)) else ""
    if place and "://" not in place and place != ":memory:":
        return URL.create("sqlite", database=place)
    scheme, _, rest = place.partition("://")
    try:
        if scheme in ("postgres", "postgresql", "postgresql+psycopg"):
            return make_url(f"postgresql+psycopg://{rest}")
        parsed = make_url(place)
        if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
            return parsed
    except (ArgumentError, ValueError):
        pass
    # The text is not quoted: it may hold a password.
    fix = "pass requests.db, or postgresql://user@host/name, say"
    raise FileError("the path of an SQLite file, or the URL of a PostgreSQL database", "something else", fix)
