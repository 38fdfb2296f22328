"""What is no ledger, or one of another version, is refused and left as it was."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from purge.core.errors import FileError, LedgerError
from purge.ledger.ledger import Ledger


@pytest.mark.parametrize("version", [0, 1, 3, "x"])
def test_a_ledger_of_another_version_is_refused_and_not_touched(tmp_path, version):
    place = tmp_path / "requests.db"
    Ledger(place).close()
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("UPDATE purge_head SET version = ?", (version,))
        connection.commit()
    before = place.read_bytes()
    with pytest.raises(
        LedgerError, match=r"^Expected a ledger of version 2 .* Fix: use the version of purge"
    ):
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
