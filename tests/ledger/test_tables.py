"""Ledgers of other versions, and files that are none."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from purge.core.errors import FileError, LedgerError
from purge.ledger import tables
from purge.ledger.chain import START, link
from purge.ledger.keys import IdKey
from purge.ledger.ledger import Ledger

# The tables of version 1, as they were written then.
VERSION_1 = """
CREATE TABLE purge_head (one INTEGER NOT NULL, version INTEGER NOT NULL, entries INTEGER NOT NULL,
    hash TEXT NOT NULL, signer TEXT, PRIMARY KEY (one));
CREATE TABLE purge_entries (seq INTEGER NOT NULL, at TEXT NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
    previous TEXT NOT NULL, hash TEXT NOT NULL, signature TEXT, PRIMARY KEY (seq));
CREATE TABLE purge_requests (number INTEGER NOT NULL, added TEXT NOT NULL, received TEXT NOT NULL,
    due TEXT NOT NULL, basis TEXT NOT NULL, state TEXT NOT NULL, subjects INTEGER NOT NULL,
    classes TEXT NOT NULL, hold TEXT, note TEXT, why TEXT, batch INTEGER, done TEXT, PRIMARY KEY (number));
CREATE TABLE purge_subjects (hash TEXT NOT NULL, request INTEGER NOT NULL, PRIMARY KEY (hash, request));
CREATE TABLE purge_batches (number INTEGER NOT NULL, requests TEXT NOT NULL, state TEXT NOT NULL,
    started TEXT NOT NULL, ended TEXT, why TEXT, version TEXT, about TEXT NOT NULL, PRIMARY KEY (number));
CREATE TABLE purge_runs (number INTEGER NOT NULL, folder TEXT NOT NULL, kind TEXT NOT NULL, batch INTEGER,
    added TEXT NOT NULL, about TEXT NOT NULL, PRIMARY KEY (number));
CREATE TABLE purge_versions (number INTEGER NOT NULL, folder TEXT NOT NULL, digest TEXT NOT NULL, parent TEXT,
    kind TEXT NOT NULL, batch INTEGER, added TEXT NOT NULL, about TEXT NOT NULL, PRIMARY KEY (number));
CREATE TABLE purge_audits (number INTEGER NOT NULL, version TEXT NOT NULL, passed INTEGER,
    requests TEXT NOT NULL, batch INTEGER, folder TEXT, added TEXT NOT NULL, found TEXT NOT NULL,
    PRIMARY KEY (number));
CREATE TRIGGER purge_entries_no_update BEFORE UPDATE ON purge_entries BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never changed'); END;
CREATE TRIGGER purge_entries_no_delete BEFORE DELETE ON purge_entries BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never changed'); END;
CREATE TRIGGER purge_entries_no_gap BEFORE INSERT ON purge_entries WHEN NEW.seq <> (SELECT COALESCE(MAX(seq), 0) + 1 FROM purge_entries) BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never changed'); END;
"""  # noqa: E501


@pytest.fixture
def old(tmp_path):
    """A file of version 1 with one request, of ada."""
    key = IdKey.made(tmp_path / "old.db.key")
    ada = key.hashes(["ada"])[0]
    at, due = "2026-02-01T09:00:00.000Z", "2026-02-28"
    about = {"ledger": "0011223344556677", "ids": "hmac-sha256", "check": key.check()}
    asked = {
        "request": 1,
        "received": "2026-01-31",
        "due": due,
        "basis": "x",
        "classes": [],
        "subjects": [ada],
    }
    first = link(1, at, "ledger", about, START)
    second = link(2, at, "request", asked, first.hash)
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.executescript(VERSION_1)
        connection.executemany("INSERT INTO purge_entries VALUES (?, ?, ?, ?, ?, ?, ?)", [first, second])
        connection.execute("INSERT INTO purge_head VALUES (1, 1, 2, ?, NULL)", (second.hash,))
        row = (1, at, "2026-01-31", due, "x", "open", 1, "[]", None, None, None, None, None)
        connection.execute(f"INSERT INTO purge_requests VALUES ({', '.join('?' * 13)})", row)
        connection.execute("INSERT INTO purge_subjects VALUES (?, 1)", (ada,))
        connection.commit()
    return tmp_path / "old.db"


def shape(place):
    """Tables with their columns, and indexes."""
    with closing(sqlite3.connect(place)) as connection:
        names = connection.execute("SELECT type, name FROM sqlite_master ORDER BY name").fetchall()
        return names, {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for _, name in names}


def version_of(place):
    with closing(sqlite3.connect(place)) as connection:
        return connection.execute("SELECT version FROM purge_head").fetchone()[0]


def test_a_ledger_of_version_1_is_brought_up_to_date(old, tmp_path):
    with Ledger(old) as ledger:
        assert ledger.verify().ok
        assert ledger.suppressed(["ada", "bob"]) == [True, False]
        ledger.add(ids=["bob"], received="2026-02-02")
        with ledger.working():
            ledger.start_batch([1, 2])
        assert ledger.verify().ok
    assert version_of(old) == tables.VERSION
    Ledger(tmp_path / "new.db").close()
    assert shape(old) == shape(tmp_path / "new.db")
    with Ledger(old) as again:
        assert len(again.requests()) == 2


def test_there_is_a_step_for_every_version():
    assert len(tables.STEPS) == tables.VERSION - 1


def test_a_migration_that_breaks_leaves_the_old_ledger(old, monkeypatch):
    before = old.read_bytes()

    def breaks(connection):
        tables._to_2(connection)
        raise ZeroDivisionError

    monkeypatch.setattr(tables, "STEPS", (breaks,))
    with pytest.raises(ZeroDivisionError):
        Ledger(old)
    assert version_of(old) == 1
    monkeypatch.undo()
    assert old.read_bytes() == before
    with Ledger(old) as ledger:
        assert ledger.verify().ok


@pytest.mark.parametrize("version", [0, 3, 99, "x"])
def test_a_newer_ledger_is_refused_and_not_touched(tmp_path, version):
    place = tmp_path / "requests.db"
    Ledger(place).close()
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("UPDATE purge_head SET version = ?", (version,))
        connection.commit()
    before = place.read_bytes()
    with pytest.raises(LedgerError, match=r"^Expected a ledger of version 1 to 2 .* Fix: update purge\.$"):
        Ledger(place)
    assert place.read_bytes() == before


def test_another_database_is_not_taken_over(tmp_path):
    place = tmp_path / "other.db"
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
        connection.commit()
    before = place.read_bytes()
    with pytest.raises(LedgerError, match="another database"):
        Ledger(place)
    assert place.read_bytes() == before
    assert not (tmp_path / "other.db.key").exists()


@pytest.mark.parametrize("content", [b"hello, this is text and no database", b"\0" * 4096])
def test_a_file_that_is_no_database(tmp_path, content):
    place = tmp_path / "notes.txt"
    place.write_bytes(content)
    with pytest.raises(FileError, match=r"^Expected a ledger at .* Fix: "):
        Ledger(place)
    assert place.read_bytes() == content


def test_a_folder_and_an_empty_file(tmp_path):
    with pytest.raises(FileError):
        Ledger(tmp_path)
    (tmp_path / "empty.db").touch()
    with Ledger(tmp_path / "empty.db") as ledger:
        assert ledger.verify().ok
