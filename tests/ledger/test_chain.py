"""Whoever touches a ledger is found out, and the first entry that was touched is named."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from contextlib import closing, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purge.core.errors import FileError, LedgerError, PurgeError
from purge.ledger.batches import add_audit, add_version, finish_batch, start_batch
from purge.ledger.chain import TABLES, Kind, Link, write_witness
from purge.ledger.journal import record
from purge.ledger.ledger import Ledger, verify_export
from purge.ledger.sql import TRIGGERS

FIELDS = ("at", "kind", "payload", "previous", "hash")
LAST = 11  # entries of what `filled` writes


def filled(place, **options):
    """A ledger in which everything has happened."""
    with Ledger(place, **options) as ledger:
        ledger.add(ids=["ada", "bob"], received="2026-01-31", note="by letter")
        ledger.add_many(
            [{"classes": ["cat"], "received": "2026-02-01"}, {"ids": ["eve"], "received": "2026-02-02"}]
        )
        ledger.hold(2, "court")
        add_version(ledger, "/models/0", "d0", None, kind="base")
        start_batch(ledger, [1], {"method": "purge"})
        with ledger.together():
            add_version(ledger, "/models/1", "d1", "d0", batch=1)
            record(
                ledger, Kind.RUN, {"run": 1, "folder": "/models/1", "about": {}}
            )  # as older ledgers have it
            add_audit(ledger, "d1", requests=[1], passed=True, found={"mia": 0.5}, batch=1)
            finish_batch(ledger, 1, version="d1")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    place = tmp_path_factory.mktemp("ledger") / "requests.db"
    filled(place)
    return place


@pytest.fixture
def copy(original, tmp_path):
    return shutil.copy(original, tmp_path / "requests.db")


def sql(place, *statements):
    """What somebody does with the file by hand, having removed what keeps entries from being changed."""
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for name in TRIGGERS["sqlite"]:
            connection.execute(f"DROP TRIGGER IF EXISTS {name}")
        for one in statements:
            connection.execute(*([one] if isinstance(one, str) else one))
        for statement in TRIGGERS["sqlite"].values():
            connection.execute(statement)
        connection.commit()


def rows(place, query, *values):
    with closing(sqlite3.connect(place)) as connection:
        return connection.execute(query, values).fetchall()


def verdict(place, **options):
    with Ledger(place, must_exist=True) as ledger:
        return ledger.verify(**options)


def dump(place):
    """All that the database says."""
    return [rows(place, f"SELECT * FROM purge_{name} ORDER BY 1, 2") for name in ("head", "entries", *TABLES)]


def test_an_untouched_ledger_is_right_and_the_hash_is_what_the_page_says(original):
    """The hash is computed by hand, from the documentation alone."""
    found = verdict(original)
    assert (found.ok, found.entries, found.first_bad, found.why) == (True, LAST, None, None)
    before = "0" * 64
    for seq, at, kind, payload, previous, digest in rows(
        original, "SELECT seq, at, kind, payload, previous, hash FROM purge_entries ORDER BY seq"
    ):
        assert previous == before
        entry = {"seq": seq, "at": at, "kind": kind, "payload": json.loads(payload), "previous": previous}
        before = hashlib.sha256(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        assert digest == before


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_change_of_any_field_is_found_and_named(original, tmp_path_factory, data):
    place = shutil.copy(original, tmp_path_factory.mktemp("touched") / "requests.db")
    seq, field = data.draw(st.integers(1, LAST), "entry"), data.draw(st.sampled_from(FIELDS), "field")
    ((value,),) = rows(place, f"SELECT CAST({field} AS BLOB) FROM purge_entries WHERE seq = ?", seq)
    at = data.draw(st.integers(0, len(value) - 1), "byte")
    new = data.draw(st.integers(0, 255).filter(lambda byte: byte != value[at]), "value")
    changed = value[:at] + bytes([new]) + value[at + 1 :]
    sql(place, (f"UPDATE purge_entries SET {field} = CAST(? AS TEXT) WHERE seq = ?", (changed, seq)))
    found = verdict(place)
    assert (found.ok, found.first_bad) == (False, seq)
    assert f"entry {seq}:" in found.why


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_byte_of_the_file_is_found_or_means_nothing(original, tmp_path_factory, data):
    """A file has bytes that say nothing, in free space. Any other is found: by the chain, or by SQLite."""
    content = bytearray(original.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1), "byte")
    content[at] ^= data.draw(st.integers(1, 255), "change")
    place = tmp_path_factory.mktemp("touched") / "requests.db"
    place.write_bytes(content)
    untouched = False
    with suppress(PurgeError):  # one line, where the file cannot be opened at all
        untouched = verdict(place).ok
    if untouched:
        assert dump(place) == dump(original)


@pytest.mark.parametrize("value", [None, 5, 5.5, b"\xff\x00"])
@pytest.mark.parametrize("field", ["at", "payload", "hash"])
def test_a_field_of_another_type_is_found(copy, field, value):
    if value is None:
        with closing(sqlite3.connect(copy)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
            connection.commit()
    sql(copy, (f"UPDATE purge_entries SET {field} = ? WHERE seq = 4", (value,)))
    assert verdict(copy).first_bad == 4


@pytest.mark.parametrize(
    ("seq", "old", "new", "first_bad"),
    [
        (3, "2026-03-01", "2030-03-01", 4),  # with its right hash: the next one does not carry it
        (LAST, '"batch":1', '"batch":2,"batch":1', LAST),  # one way to write it: no key stands there twice
    ],
)
def test_an_entry_that_was_written_anew_with_care(copy, seq, old, new, first_bad):
    query = "SELECT at, kind, payload, previous FROM purge_entries WHERE seq = ?"
    ((at, kind, payload, previous),) = rows(copy, query, seq)
    changed = payload.replace(old, new)
    assert changed != payload
    digest = Link(seq, at, kind, changed, previous, "").right_hash()
    sql(copy, ("UPDATE purge_entries SET payload = ?, hash = ? WHERE seq = ?", (changed, digest, seq)))
    if seq == LAST:
        sql(copy, ("UPDATE purge_head SET hash = ?", (digest,)))
    assert verdict(copy).first_bad == first_bad


def test_a_hash_is_found_wherever_it_was_touched(original, tmp_path):
    """In its entry, in the table of subjects, and in the index that searches it."""
    with Ledger(original) as ledger:
        needle = ledger.hashes(["eve"])[0].encode()
    content = original.read_bytes()
    places = [found.start() for found in re.finditer(needle, content)]
    assert len(places) >= 3
    for at in places:
        touched = bytearray(content)
        touched[at + 40] ^= 1
        (tmp_path / "requests.db").write_bytes(touched)
        assert not verdict(tmp_path / "requests.db").ok


@pytest.mark.parametrize(
    ("statements", "first_bad", "why"),
    [
        (["DELETE FROM purge_entries WHERE seq = 1"], 1, "missing"),
        (["DELETE FROM purge_entries WHERE seq = 5"], 5, "missing"),
        (["DELETE FROM purge_entries WHERE seq = 11"], 11, "10 of 11 entries"),
        ([f"UPDATE purge_entries SET seq = {b} WHERE seq = {a}" for a, b in ((3, 99), (4, 3), (99, 4))],
         3, "hash of the one before"),
        ([f"INSERT INTO purge_subjects VALUES ('{'ab' * 32}', 1)"], None, "a subject of request 1 is not in"),
        *[([f"UPDATE purge_head SET {change}"], bad, "end")
          for change, bad in (("entries = 10", None), ("entries = 12", 12), ("hash = 'x'", None),
                              ("signer = 'x'", None), ("entries = 'x'", None))],
    ],
)  # fmt: skip
def test_what_was_removed_moved_or_slipped_in_is_named(copy, statements, first_bad, why):
    sql(copy, *statements)
    touched = verdict(copy)
    assert (touched.ok, touched.first_bad) == (False, first_bad)
    assert why in touched.why


def test_a_missing_head_is_refused(copy):
    sql(copy, "DELETE FROM purge_head")
    with pytest.raises(FileError, match=r"^Expected .* Fix: "):
        verdict(copy)


def test_a_head_that_was_kept_tells_what_was_cut_off_with_care_or_written_anew(original, copy, tmp_path):
    """The head, the chain and the tables all agree: only what was kept elsewhere tells."""
    with Ledger(original) as ledger:
        end, older = ledger.head(), f"5:{ledger.entries(start=5)[0].hash}"
    assert verdict(original, head=older).ok, "an older end is right, too"
    sql(
        copy,
        "DELETE FROM purge_entries WHERE seq > 4",
        "UPDATE purge_head SET entries = 4, hash = (SELECT hash FROM purge_entries WHERE seq = 4)",
        *(f"DELETE FROM purge_{name}" for name in ("batches", "versions", "audits")),
        "UPDATE purge_requests SET state = 'open', hold = NULL, batch = NULL, done = NULL",
    )
    assert verdict(copy).ok
    found = verdict(copy, head=str(end))
    assert found.first_bad == 5
    assert "4 of 11" in found.why
    filled(tmp_path / "anew.db")
    assert verdict(tmp_path / "anew.db").ok
    assert verdict(tmp_path / "anew.db", head=end).first_bad == LAST


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_compared_with_the_chain(original, tmp_path, name):
    place = tmp_path / "requests.db"
    for column in [row[1] for row in rows(original, f"PRAGMA table_info(purge_{name})")]:
        shutil.copy(original, place)
        first = f"SELECT MIN(rowid) FROM purge_{name}"
        sql(place, f"UPDATE purge_{name} SET {column} = 77 WHERE rowid = ({first})")
        assert f"the table of {name}" in verdict(place).why, column
    shutil.copy(original, place)
    sql(place, f"DELETE FROM purge_{name} WHERE {'request' if name == 'subjects' else 'number'} = 1")
    assert "missing" in verdict(place).why


# -- the database itself refuses --------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE purge_entries SET kind = 'x' WHERE seq = 2",
        "DELETE FROM purge_entries WHERE seq = 11",
        "INSERT OR REPLACE INTO purge_entries SELECT seq, at, 'x', payload, previous, hash, signature "
        "FROM purge_entries WHERE seq = 3",
        "INSERT INTO purge_entries SELECT 99, at, kind, payload, previous, hash, signature "
        "FROM purge_entries WHERE seq = 3",
    ],
)
def test_the_database_refuses_to_change_an_entry(copy, statement):
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        rows(copy, statement)
    assert verdict(copy).ok


@pytest.mark.parametrize("name", TRIGGERS["sqlite"])
def test_a_trigger_that_is_missing_or_does_nothing_is_told(copy, name):
    rows(copy, f"DROP TRIGGER {name}")
    assert name in verdict(copy).why
    rows(copy, f"CREATE TRIGGER {name} BEFORE UPDATE ON purge_entries WHEN 0 BEGIN SELECT 1; END")
    assert name in verdict(copy).why


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["CREATE TRIGGER ours AFTER INSERT ON purge_requests BEGIN DELETE FROM purge_requests; END"],
         "the trigger ours is not of the ledger"),
        (["ALTER TABLE purge_audits RENAME TO kept", "CREATE VIEW purge_audits AS SELECT * FROM kept"],
         "the table purge_audits is missing"),
        (["CREATE VIEW purge_more AS SELECT 1"], "the view purge_more is not of the ledger"),
        (["ALTER TABLE purge_worker ADD COLUMN x TEXT"], "the table purge_worker is missing, or not as"),
        (["DROP INDEX purge_requests_by_deadline"], "the index purge_requests_by_deadline is missing"),
    ],
)  # fmt: skip
def test_a_database_that_is_made_otherwise_is_told(copy, statements, words):
    for statement in statements:
        rows(copy, statement)
    assert words in verdict(copy).why


# -- a witness elsewhere ----------------------------------------------------------------------


def test_a_witness_tells_that_entries_were_cut_off_or_others_put_in_their_place(copy, tmp_path):
    witness, before = tmp_path / "witness.txt", tmp_path / "before.db"
    shutil.copy(copy, before)
    with Ledger(copy) as ledger:
        write_witness(witness, ledger.head())
        ledger.append("note", {"n": 1})
        write_witness(witness, ledger.head())
        assert ledger.verify(witness=witness).ok
        ledger.append("note", {"n": 2})  # it may have grown since
        assert ledger.verify(witness=witness).ok
        end = ledger.export(tmp_path / "chain.jsonl")
    assert verify_export(tmp_path / "chain.jsonl", witness=witness).ok
    with Ledger(before) as ledger:  # a backup, put back
        found = ledger.verify(witness=witness)
        assert "the chain ends after" in found.why
        ledger.append("note", {"n": 3})  # and gone on with: a fork
        assert "its hash is not the one that was kept" in ledger.verify(witness=witness).why
        write_witness(witness, ledger.head())
        with pytest.raises(FileError, match="two hashes of one entry"):
            ledger.verify(witness=witness)
    for content, words in (("12:abc", "the end of a chain"), (b"\xff", "a witness of the chain")):
        witness.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises((FileError, LedgerError), match=words):
            verify_export(tmp_path / "chain.jsonl", witness=witness)
    assert end.entries > 3


# -- signatures -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signed")
    filled(folder / "requests.db", sign=folder / "sign.pem")
    return folder


@pytest.fixture
def signed_copy(signed, tmp_path):
    return shutil.copytree(signed, tmp_path / "signed")


def test_signatures_are_checked_with_the_public_key(signed, original, tmp_path):
    found = verdict(signed / "requests.db", public=signed / "sign.pem.pub")
    assert (found.ok, found.signed, found.entries) == (True, True, LAST + 1)
    assert verdict(signed / "requests.db", public=signed / "sign.pem").ok
    without = verdict(signed / "requests.db")
    assert (without.ok, without.signed) == (True, False)  # the key that the ledger names is no proof
    assert (signed / "sign.pem").stat().st_mode & 0o077 == 0
    filled(tmp_path / "other.db", sign=tmp_path / "other.pem")
    for place, key in ((signed / "requests.db", tmp_path / "other.pem.pub"),
                       (tmp_path / "other.db", signed / "sign.pem.pub")):  # fmt: skip
        assert verdict(place, public=key).first_bad == 2
    assert not verdict(original, public=signed / "sign.pem.pub").ok, "unsigned does not pass for signed"


@pytest.mark.parametrize("change", ["NULL", "''", f"'{'00' * 64}'", "upper(signature)"])
def test_a_signature_that_was_touched_is_named(signed_copy, change):
    sql(signed_copy / "requests.db", f"UPDATE purge_entries SET signature = {change} WHERE seq = 7")
    assert verdict(signed_copy / "requests.db").first_bad == 7


def test_a_signed_ledger_takes_no_entry_without_the_key(signed_copy, tmp_path):
    place = signed_copy / "requests.db"
    with Ledger(place) as ledger, pytest.raises(LedgerError, match="which is signed"):
        ledger.release(2)
    Ledger(tmp_path / "other.db", sign=tmp_path / "other.pem").close()
    with pytest.raises(LedgerError, match="key that signs"):
        Ledger(place, sign=tmp_path / "other.pem")
    with pytest.raises(FileError, match="nothing there"):
        Ledger(place, sign=signed_copy / "typo.pem")
    assert not (signed_copy / "typo.pem").exists()
    with Ledger(place, sign=signed_copy / "sign.pem") as ledger:
        ledger.release(2)
        assert ledger.verify().signed
        assert ledger.verify().ok


def test_an_older_ledger_can_be_signed_from_now_on(copy, tmp_path):
    with Ledger(copy, sign=tmp_path / "sign.pem") as ledger:
        assert ledger.verify().signed
    sql(copy, "UPDATE purge_entries SET signature = 'x' WHERE seq = 3")
    assert verdict(copy).first_bad == 3


@pytest.mark.parametrize(
    "content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"]
)
def test_a_file_that_holds_no_key(copy, tmp_path, content):
    (tmp_path / "sign.pem").write_bytes(content)
    for use in (
        lambda: Ledger(copy, sign=tmp_path / "sign.pem"),
        lambda: Ledger(tmp_path / "new.db", sign=tmp_path / "sign.pem"),
        lambda: verdict(copy, public=tmp_path / "sign.pem"),
    ):
        with pytest.raises(FileError, match="Ed25519"):
            use()
    assert not (tmp_path / "new.db").exists()


# -- exports ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(signed):
    with Ledger(signed / "requests.db") as ledger:
        end = ledger.export(signed / "export.jsonl")
    found = verify_export(signed / "export.jsonl", public=signed / "sign.pem.pub", head=end)
    assert (found.ok, found.entries, found.signed, found.head) == (True, LAST + 1, True, str(end))
    return signed / "export.jsonl"


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_byte_of_an_export_is_found_and_named(exported, tmp_path_factory, data):
    content = bytearray(exported.read_bytes())
    at = data.draw(st.integers(0, len(content) - 2), "byte")  # but for the last line break: it says nothing
    line = content[:at].count(b"\n") + 1
    content[at] ^= data.draw(st.integers(1, 255), "change")
    place = tmp_path_factory.mktemp("touched") / "export.jsonl"
    place.write_bytes(content)
    found = verify_export(place)
    assert (found.ok, found.first_bad) == (False, line)


@pytest.mark.parametrize("keep", [0, 1, 5, 12])
def test_an_export_that_ends_early_or_goes_on(exported, tmp_path, keep):
    lines = exported.read_text().splitlines(keepends=True)
    (tmp_path / "x").write_text("".join(lines[:keep]))
    assert verify_export(tmp_path / "x").first_bad == keep + 1
    for odd in ([*lines, lines[keep]], [lines[-1], *lines[:-1]], [*lines, "\n"]):
        (tmp_path / "x").write_text("".join(odd))
        assert not verify_export(tmp_path / "x").ok


def test_an_export_replaces_no_file(copy, tmp_path):
    with Ledger(copy) as ledger:
        with pytest.raises(FileError, match="with force"):
            ledger.export(copy)
        with pytest.raises(FileError, match="ledger itself"):
            ledger.export(copy, force=True)
        ledger.export(tmp_path / "x")
        ledger.append("more", {})
        ledger.export(tmp_path / "x", force=True)
        assert verify_export(tmp_path / "x", head=ledger.head()).ok
    with pytest.raises(FileError):
        verify_export(tmp_path / "nowhere")
