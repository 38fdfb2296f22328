"""The key is outside of the database, the right one is needed, and no id is ever written."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re

import pytest

from purge.core.errors import FileError, LedgerError, PurgeError
from purge.ledger.batches import finish_batch, start_batch
from purge.ledger.ledger import Ledger

PLANTED = ["planted-ada@example.org", "planted-Zoë-ø", "PLANTED 0042"]


def test_the_key_is_made_with_the_ledger_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        Ledger(tmp_path / "requests.db").close()
    finally:
        os.umask(before)
    key = tmp_path / "requests.db.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}\n", key.read_text())
    assert key.read_text().strip().encode() not in (tmp_path / "requests.db").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"requests.db", "requests.db.key"}


def test_hashes_are_hmac_sha256_under_the_key(tmp_path):
    with Ledger(tmp_path / "requests.db") as ledger:
        found = ledger.hashes(["ada"])
    key = bytes.fromhex((tmp_path / "requests.db.key").read_text())
    assert found == [hmac.new(key, b"id:ada", hashlib.sha256).hexdigest()]


def test_two_ledgers_have_two_keys(tmp_path):
    with Ledger(tmp_path / "a.db") as a, Ledger(tmp_path / "b.db") as b:
        assert a.hashes(["ada"]) != b.hashes(["ada"])


def test_the_key_may_be_elsewhere(tmp_path, monkeypatch):
    with Ledger(tmp_path / "a.db", tmp_path / "safe" / "a.key") as ledger:
        ledger.add(ids=["ada"], received="2026-01-31")
    assert (tmp_path / "safe" / "a.key").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "a.db.key").exists()
    monkeypatch.setenv("PURGE_LEDGER_KEY", str(tmp_path / "safe" / "a.key"))
    with Ledger(tmp_path / "a.db") as ledger:
        assert ledger.suppressed(["ada"]) == [True]
    monkeypatch.setenv("PURGE_LEDGER_KEY", str(tmp_path / "elsewhere"))
    with Ledger(tmp_path / "a.db", tmp_path / "safe" / "a.key") as ledger:  # what is passed comes first
        assert ledger.suppressed(["ada"]) == [True]


def test_a_wrong_key_is_refused(tmp_path):
    Ledger(tmp_path / "a.db").close()
    Ledger(tmp_path / "b.db").close()
    with pytest.raises(LedgerError, match="another one in"):
        Ledger(tmp_path / "a.db", tmp_path / "b.db.key")
    (tmp_path / "a.db.key").write_text((tmp_path / "b.db.key").read_text())
    with Ledger(tmp_path / "a.db") as ledger:
        for step in (
            ledger.hashes,
            ledger.suppressed,
            lambda ids: ledger.add(ids=ids, received="2026-01-31"),
        ):
            with pytest.raises(LedgerError, match="another one in"):
                step(["ada"])
        assert ledger.head().entries == 1


def test_a_lost_key_is_not_made_anew(tmp_path):
    """With a new one the ledger would know nobody again, and say nothing."""
    with Ledger(tmp_path / "a.db") as ledger:
        ledger.add(ids=["ada"], received="2026-01-31")
    (tmp_path / "a.db.key").unlink()
    with Ledger(tmp_path / "a.db") as ledger:
        assert len(ledger.requests()) == 1
        assert ledger.verify().ok
        with pytest.raises(FileError, match="nothing there"):
            ledger.suppressed(["ada"])
    with pytest.raises(FileError, match="nothing there"):
        Ledger(tmp_path / "a.db", tmp_path / "new.key")
    assert {path.name for path in tmp_path.iterdir()} == {"a.db"}


def test_a_new_ledger_takes_a_key_that_is_there(tmp_path):
    """A ledger that begins anew with the old key still knows the old ids."""
    (tmp_path / "key").write_text("ab" * 32)
    with Ledger(tmp_path / "a.db", tmp_path / "key") as a, Ledger(tmp_path / "b.db", tmp_path / "key") as b:
        assert a.hashes(["ada"]) == b.hashes(["ada"])
    assert (tmp_path / "key").read_text() == "ab" * 32


@pytest.mark.parametrize("content", [b"", b"secret", b"ab" * 31, b"\xff" * 64, b"ab" * 33])
def test_a_file_that_holds_no_key_is_refused_and_not_quoted(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(FileError, match="64 hexadecimal digits") as caught:
        Ledger(tmp_path / "a.db", tmp_path / "key")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "a.db").exists()


def errors_of(ledger):
    """Everything that can go wrong while there are ids."""
    for step in (
        lambda: ledger.add(ids=[*PLANTED, None], received="2026-01-31"),
        lambda: ledger.add(ids=PLANTED, received="tomorrow"),
        lambda: ledger.add(ids=PLANTED, received="2026-01-31", due="2025-01-01"),
        lambda: ledger.add(ids=PLANTED, classes=["x"], received="2026-01-31"),
        lambda: ledger.add(ids=PLANTED[0], received="2026-01-31"),
        lambda: ledger.add(ids=PLANTED, received="2026-01-31", note=""),
        lambda: ledger.add(ids=[PLANTED[0] + "\ud800"], received="2026-01-31"),
        lambda: ledger.add_many([{"ids": PLANTED, "recieved": "2026-01-31"}]),
        lambda: ledger.match([99], PLANTED),
        lambda: ledger.match([1], [*PLANTED, 1.5]),
        lambda: ledger.suppressed([*PLANTED, b"x"]),
    ):
        with pytest.raises(PurgeError) as caught:
            step()
        yield str(caught.value)


def test_no_id_and_no_key_in_any_file_log_or_error(tmp_path, caplog, capfd):
    """Planted ids are looked for, as they are and in usual encodings, in every file that was written."""
    home, safe = tmp_path / "home", tmp_path / "safe"
    home.mkdir()
    said = []
    with caplog.at_level(logging.DEBUG), Ledger(home / "requests.db", safe / "key") as ledger:
        ledger.add(ids=PLANTED, received="2026-01-31")
        ledger.hold(1, "court")
        ledger.release(1)
        said.extend(errors_of(ledger))
        said.append(repr(ledger) + repr(ledger.requests()) + repr(vars(ledger)))
        start_batch(ledger, [1])
        ledger.match([1], tuple(PLANTED))
        ledger.suppressed(PLANTED)
        with ledger.working():
            kept = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
        finish_batch(ledger, 1)
        said.append(repr(ledger.verify()))
        ledger.export(home / "export.jsonl")
        ledger.add(ids=PLANTED[:1], received="2026-01-31")
        key = (safe / "key").read_text().strip()
    kept += [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    out = "".join(capfd.readouterr()) + caplog.text + "".join(said)
    for secret in (*PLANTED, key):
        raw = secret.encode()
        forms = [raw, raw.hex().encode(), secret.encode("utf-16-le"), secret.encode("unicode-escape")]
        forms.append(hashlib.sha256(raw).hexdigest().encode())  # without the key, anybody could try ids out
        assert secret not in out
        assert not any(form in content for form in forms for content in kept)
    assert len(kept) >= 4  # the database twice, the lock, the export
    keyed = hmac.new(bytes.fromhex(key), b"id:" + PLANTED[0].encode(), "sha256").hexdigest()
    assert any(keyed.encode() in content for content in kept)  # the search would find it
