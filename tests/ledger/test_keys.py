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
CAME = "2026-01-31"


def test_the_key_is_made_with_the_ledger_for_its_owner_alone(tmp_path):
    """Hashes are HMAC-SHA256 under it, so that another ledger has others."""
    before = os.umask(0)
    try:
        with Ledger(tmp_path / "a.db") as ledger, Ledger(tmp_path / "b.db") as other:
            hashes = ledger.hashes(["ada"])
            assert other.hashes(["ada"]) != hashes
    finally:
        os.umask(before)
    key = tmp_path / "a.db.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}\n", key.read_text())
    assert key.read_text().strip().encode() not in (tmp_path / "a.db").read_bytes()
    assert {path.name for path in tmp_path.glob("a*")} == {"a.db", "a.db.key"}
    assert hashes == [hmac.new(bytes.fromhex(key.read_text()), b"id:ada", hashlib.sha256).hexdigest()]


def test_the_key_may_be_elsewhere_and_be_there_before(tmp_path, monkeypatch):
    key = tmp_path / "safe" / "a.key"
    with Ledger(tmp_path / "a.db", key) as ledger:
        ledger.add(ids=["ada"], received=CAME)
    assert key.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "a.db.key").exists()
    monkeypatch.setenv("PURGE_LEDGER_KEY", str(key))
    text = key.read_text()
    with Ledger(tmp_path / "a.db") as ledger, Ledger(tmp_path / "b.db") as begun_anew:
        assert ledger.suppressed(["ada"]) == [True]
        assert begun_anew.hashes(["ada"]) == ledger.hashes(["ada"])
    assert key.read_text() == text
    monkeypatch.setenv("PURGE_LEDGER_KEY", str(tmp_path / "elsewhere"))
    with Ledger(tmp_path / "a.db", key) as ledger:  # what is passed comes first
        assert ledger.suppressed(["ada"]) == [True]


def test_a_wrong_key_is_refused(tmp_path):
    Ledger(tmp_path / "a.db").close()
    Ledger(tmp_path / "b.db").close()
    with pytest.raises(LedgerError, match="another one in"):
        Ledger(tmp_path / "a.db", tmp_path / "b.db.key")
    (tmp_path / "a.db.key").write_text((tmp_path / "b.db.key").read_text())
    with Ledger(tmp_path / "a.db") as ledger:
        for step in (ledger.hashes, ledger.suppressed, lambda ids: ledger.add(ids=ids, received=CAME)):
            with pytest.raises(LedgerError, match="another one in"):
                step(["ada"])
        assert ledger.head().entries == 1


def test_a_lost_key_is_not_made_anew(tmp_path):
    """With a new one the ledger would know nobody again, and say nothing."""
    with Ledger(tmp_path / "a.db") as ledger:
        ledger.add(ids=["ada"], received=CAME)
    (tmp_path / "a.db.key").unlink()
    with Ledger(tmp_path / "a.db") as ledger:
        assert len(ledger.requests()) == 1
        assert ledger.verify().ok
        with pytest.raises(FileError, match="nothing there"):
            ledger.suppressed(["ada"])
    with pytest.raises(FileError, match="nothing there"):
        Ledger(tmp_path / "a.db", tmp_path / "new.key")
    assert {path.name for path in tmp_path.iterdir()} == {"a.db"}


@pytest.mark.parametrize("content", [b"", b"secret", b"ab" * 31, b"\xff" * 64, b"ab" * 33])
def test_a_file_that_holds_no_key_is_refused_and_not_quoted(tmp_path, content):
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(FileError, match="64 hexadecimal digits") as caught:
        Ledger(tmp_path / "a.db", tmp_path / "key")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "a.db").exists()


def test_no_id_and_no_key_in_any_file_log_or_error(tmp_path, caplog, capfd):
    """Planted ids are looked for, as they are and in usual encodings, in every file that was written."""
    home, safe = tmp_path / "home", tmp_path / "safe"
    home.mkdir()
    said = []
    with caplog.at_level(logging.DEBUG), Ledger(home / "requests.db", safe / "key") as ledger:
        ledger.add(ids=PLANTED, received=CAME)
        for wrong in (
            {"ids": [*PLANTED, None]}, {"received": "tomorrow"}, {"due": "2025-01-01"}, {"classes": ["x"]},
            {"ids": PLANTED[0]}, {"note": ""}, {"ids": [PLANTED[0] + "\ud800"]}, {"recieved": CAME},
        ):  # fmt: skip
            with pytest.raises(PurgeError) as caught:
                ledger.add_many([{"ids": PLANTED, "received": CAME, **wrong}])
            said.append(str(caught.value))
        for step in (
            lambda: ledger.match([99], PLANTED),
            lambda: ledger.match([1], [*PLANTED, 1.5]),
            lambda: ledger.suppressed([*PLANTED, b"x"]),
        ):
            with pytest.raises(PurgeError) as caught:
                step()
            said.append(str(caught.value))
        said.append(repr(ledger) + repr(ledger.requests()) + repr(vars(ledger)))
        start_batch(ledger, [1])
        ledger.match([1], tuple(PLANTED))
        ledger.suppressed(PLANTED)
        with ledger.working():
            kept = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
        finish_batch(ledger, 1)
        said.append(repr(ledger.verify()))
        ledger.export(home / "export.jsonl")
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
