"""The database of a ledger: opening it, its transactions, and the lock of the one worker that it may have."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, SQLAlchemyError

from purge.core.errors import BusyError, FileError, LedgerError, PurgeError, brief
from purge.core.files import file_errors
from purge.ledger import tables
from purge.ledger.chain import now

WAIT = 60  # seconds for another process that writes
LOCK = 0x7075726765  # "purge": the number of our advisory locks in a PostgreSQL database
WRITES = "purge_writes"
POLL = 0.2  # seconds between two looks at a lock on a server


class Database:
    """The database of one ledger."""

    def __init__(self, url: Any, patience: float = WAIT) -> None:
        self.url = parse(url)
        self.file = Path(str(self.url.database)) if self.url.get_backend_name() == "sqlite" else None
        shown = self.url.difference_update_query(["password", "sslpassword"])
        self.name = str(self.file) if self.file else shown.render_as_string(hide_password=True)
        try:
            self.engine = _engine(self.url, patience)
        except ImportError:
            fix = "pip install 'purge-unlearning[postgres]'"
            raise LedgerError("the package psycopg, for PostgreSQL", "none", fix) from None

    def exists(self) -> bool:
        """Is there a ledger? A file is not made by asking."""
        if self.file and not self.file.exists():
            return False
        with self.reading() as connection:
            return tables.version_of(connection) is not None

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

    def prepare(self, connection: Connection) -> bool:
        """Make the tables of a ledger; False if another process was first."""
        if connection.dialect.name == "postgresql":  # two processes would make the same tables
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        if tables.version_of(connection) is not None:
            return False
        if self.file and inspect(connection).get_table_names():
            raise LedgerError(f"a ledger at {self.name}", "another database", "choose another file")
        tables.create(connection)
        return True

    def known(self, version: int) -> None:
        """Refuse the tables of a version that is not known here."""
        if version != tables.VERSION:
            fix = "use the version of purge that wrote it"
            raise LedgerError(
                f"a ledger of version {tables.VERSION} at {self.name}", f"one of {version}", fix
            )

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
            first = " ".join((str(cause) or type(cause).__name__).splitlines()[:1])
            if isinstance(error, DatabaseError) and tables.REFUSAL in str(cause):
                raise LedgerError("entries to be added", "a change of an entry", tables.REFUSAL) from None
            fix = "check the path, the permissions and whether the file is whole"
            if self.file is None:
                fix = "check that the server runs and who may use it"
            raise FileError(f"a ledger at {self.name}", first.rstrip("."), fix) from None


def parse(url: Any) -> URL:
    """The URL of a database; a path is that of an SQLite file."""
    if not isinstance(url, (str, os.PathLike)) or not os.fspath(url):
        raise FileError("the path or URL of a ledger", brief(url), "pass requests.db, say")
    place = os.fspath(url)
    if "://" not in place and place != ":memory:":
        return URL.create("sqlite", database=place)
    scheme, _, rest = place.partition("://")
    try:
        if scheme in ("postgres", "postgresql", "postgresql+psycopg"):
            return make_url(f"postgresql+psycopg://{rest}")
        parsed = make_url(place)
    except (ArgumentError, ValueError):  # the text may hold a password
        raise FileError("the URL of a ledger", "something else", "postgresql://user@host/name, say") from None
    if parsed.get_backend_name() != "sqlite":
        raise FileError("an SQLite or PostgreSQL database", f"{scheme}://", "sqlite:///requests.db, say")
    if parsed.database in (None, "", ":memory:"):
        raise FileError("a file for the ledger", "none", "sqlite:///requests.db, say")
    return parsed


def _engine(url: URL, patience: float) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, hide_parameters=True, pool_pre_ping=True)
    # No pool: between two transactions nobody has the file open, so that it can be copied or moved.
    engine = create_engine(url, hide_parameters=True, poolclass=NullPool, connect_args={"timeout": patience})

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin below, not where the driver guesses
        # A text that was damaged is still read, so that its entry can be named.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


# -- one worker at a time: locks are those of the system or the server, so a kill releases them -


@contextmanager
def working(database: Database, wait: float | None) -> Iterator[None]:
    """The ledger is this worker's until the block ends.

    Another one waits for ``wait`` seconds, or not at all, and is then told who works since when.
    """
    patience = max(0.0, wait or 0.0)
    file = database.file
    took = _file_lock(database, file, patience) if file else _server_lock(database, patience)
    with took:
        row = {
            "one": 1,
            "who": f"process {os.getpid()} on {platform.node() or 'this machine'}",
            "since": now(),
        }
        with database.writing() as connection:
            connection.execute(tables.worker.delete())
            connection.execute(tables.worker.insert().values(row))
        try:
            yield
        finally:
            with (
                suppress(PurgeError),
                database.writing() as connection,
            ):  # the row is only what is told to others
                connection.execute(tables.worker.delete())


@contextmanager
def _file_lock(database: Database, file: Path, wait: float) -> Iterator[None]:
    # The resolved path: two ways to name the same ledger must not be two locks.
    path = file.resolve()
    lock = FileLock(path.with_name(path.name + ".lock"), timeout=wait)
    with file_errors(path):
        try:
            lock.acquire()
        except Timeout:  # an OSError too
            raise _busy(database) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _server_lock(database: Database, wait: float) -> Iterator[None]:
    # A number per schema: several ledgers may share a database.
    ask, release = (
        text(f"SELECT {function}({LOCK % 2**31}, hashtext(current_schema()))")
        for function in ("pg_try_advisory_lock", "pg_advisory_unlock")
    )
    end = time.monotonic() + wait
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.execute(ask).scalar_one():
            if time.monotonic() >= end:
                raise _busy(database)
            time.sleep(POLL)
        try:
            yield
        finally:
            try:
                connection.execute(release)
            except SQLAlchemyError:  # a server that went away has released it
                connection.invalidate()


def _busy(database: Database) -> BusyError:
    with database.reading() as connection:
        row = connection.execute(select(tables.worker.c.who, tables.worker.c.since)).first()
    got = f"{row.who}, at work since {row.since}" if row else "another that is just beginning or ending"
    return BusyError(f"{database.name} for this worker alone", got, "wait for it to end, or pass wait")
