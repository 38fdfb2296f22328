"""One worker at a time. Locks are those of the system or the server: a kill releases them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from purge.core.errors import BusyError, PurgeError
from purge.core.files import told
from purge.ledger import schema
from purge.ledger.database import LOCK, Database
from purge.ledger.dates import now

POLL = 0.2  # seconds between two looks at a lock on a server


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
            connection.execute(schema.worker.delete())
            connection.execute(schema.worker.insert().values(row))
        try:
            yield
        finally:
            with (
                suppress(PurgeError),
                database.writing() as connection,
            ):  # the row is only what is told to others
                connection.execute(schema.worker.delete())


@contextmanager
def _file_lock(database: Database, file: Path, wait: float) -> Iterator[None]:
    # The resolved path: two ways to name the same ledger must not be two locks.
    path = file.resolve()
    lock = FileLock(path.with_name(path.name + ".lock"), timeout=wait)
    with told(path):
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
        row = connection.execute(select(schema.worker.c.who, schema.worker.c.since)).first()
    got = f"{row.who}, at work since {row.since}" if row else "another that is just beginning or ending"
    return BusyError(f"{database.name} for this worker alone", got, "wait for it to end, or pass wait")
