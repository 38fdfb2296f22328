"""The same ledger in a file and on a PostgreSQL server, which the tests start if it is installed.

Several processes may use it at once: adders lose nothing, one worker works at a time, and a kill frees it.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from sqlalchemy import NullPool, create_engine, inspect, text

from purge.core.errors import BusyError, LedgerError, PurgeError
from purge.ledger.batches import add_audit, add_version, finish_batch, start_batch
from purge.ledger.database import parse
from purge.ledger.ledger import Ledger, verify_export
from tests.ledger import server

needs_server = pytest.mark.skipif(server.missing() is not None, reason=str(server.missing()))
numbers = itertools.count()
ADDER = """
import sys
from purge.ledger.ledger import Ledger
place, key, who, each = sys.argv[1:]
with Ledger(place, key) as ledger:
    for i in range(int(each)):
        ledger.add(ids=[f"{who}-{i}"], received="2026-01-31")
"""
WORKER = """
import sys, time
from purge.ledger.ledger import Ledger
with Ledger(sys.argv[1]).working():
    print("mine", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def home():
    with server.server() as folder:
        yield folder


@pytest.fixture
def url(home):
    return server.fresh_url(home, f"db{next(numbers)}")


@pytest.fixture(params=["file", pytest.param("server", marks=needs_server)])
def place(request, tmp_path):
    """A path or a URL where there is no ledger yet."""
    return str(tmp_path / "requests.db") if request.param == "file" else request.getfixturevalue("url")


@pytest.fixture
def ledger(place, tmp_path):
    with Ledger(place, tmp_path / "key") as made:
        yield made


def sql(url, *statements):
    """What an administrator does by hand."""
    with create_engine(parse(url), poolclass=NullPool).begin() as connection:
        for one in statements:
            connection.execute(text(one))


def test_a_life(ledger, place, tmp_path):
    ledger.add(ids=["ada", "bob"], received="2026-01-31", note="ü \N{SNOWMAN}")
    ledger.add(classes=["cat"], received="2026-02-01")
    ledger.hold(2, "court")
    add_version(ledger, "/v0", "d0", None, kind="base")
    batch = start_batch(ledger, [1], {"share": 0.1})
    with ledger.together():
        add_version(ledger, "/v1", "d1", "d0", batch=batch.number)
        add_audit(ledger, "d1", requests=[1], passed=True, found={"mia": 0.51})
        finish_batch(ledger, batch.number, version="d1")
    with Ledger(place, tmp_path / "key") as again:
        assert [r.state for r in again.requests()] == ["done", "held"]
        assert again.match([1], ("bob", "eve", "ada")) == [True, False, True]
        assert again.suppressed(["ada", "eve"]) == [True, False]
        assert again.current().digest == "d1"
        end = again.export(tmp_path / "export.jsonl")
    assert verify_export(tmp_path / "export.jsonl", head=end).ok
    with Ledger(place) as keyless:  # an auditor
        assert keyless.verify(head=end).ok
        with pytest.raises(PurgeError, match="key"):
            keyless.hashes(["ada"])


# -- on a server ------------------------------------------------------------------------------


@needs_server
@pytest.mark.parametrize("place", ["url"], indirect=True)
def test_the_server_refuses_to_change_an_entry_and_what_was_changed_is_named(ledger, place):
    url = place
    for one in ("ada", "bob", "eve"):
        ledger.add(ids=[one], received="2026-01-31")
    end = ledger.head()
    for statement in ("UPDATE purge_entries SET kind = 'x'", "DELETE FROM purge_entries",
                      "TRUNCATE purge_entries"):  # fmt: skip
        with pytest.raises(Exception, match="never changed"):
            sql(url, statement)
    assert ledger.verify().ok
    sql(url, "UPDATE purge_requests SET due = '2027-01-01' WHERE number = 1")
    assert "requests" in ledger.verify().why
    sql(url, "UPDATE purge_requests SET due = '2026-02-28' WHERE number = 1")
    for kind, table, rest in (
        ("rule", "purge_entries", "AS ON INSERT TO purge_entries DO INSTEAD NOTHING"),
        ("policy", "purge_requests", "ON purge_requests USING (number > 1)"),
    ):
        sql(url, f"CREATE {kind} quiet {rest}")
        assert f"the {kind} quiet is not of the ledger" in ledger.verify().why
        sql(url, f"DROP {kind} quiet ON {table}")
    assert ledger.verify().ok
    body = "$$ BEGIN RETURN COALESCE(NEW, OLD); END $$"
    sql(url, f"CREATE OR REPLACE FUNCTION purge_refuse() RETURNS trigger LANGUAGE plpgsql AS {body}")
    assert "trigger" in ledger.verify().why
    made = "CREATE TRIGGER more AFTER INSERT ON purge_requests FOR EACH ROW EXECUTE FUNCTION purge_refuse()"
    sql(url, made)
    assert "trigger" in ledger.verify().why
    sql(url, "ALTER TABLE purge_entries DISABLE TRIGGER ALL")
    assert "trigger" in ledger.verify().why
    sql(url, "UPDATE purge_entries SET payload = replace(payload, '2026-02-28', '2027-02-28') WHERE seq = 3")
    assert ledger.verify().first_bad == 3
    sql(url, "DELETE FROM purge_entries WHERE seq >= 3")
    assert ledger.verify().first_bad == ledger.verify(head=end).first_bad == 3


@needs_server
def test_keys_and_passwords_of_a_server(url, home, tmp_path, monkeypatch):
    monkeypatch.delenv("PURGE_LEDGER_KEY", raising=False)
    with pytest.raises(LedgerError, match="PURGE_LEDGER_KEY"):
        Ledger(url)
    with create_engine(parse(url), poolclass=NullPool).connect() as connection:
        assert inspect(connection).get_table_names() == []
    Ledger(url, tmp_path / "key").close()
    (tmp_path / "other").write_text("00" * 32)
    with pytest.raises(LedgerError, match="another one"):
        Ledger(url, tmp_path / "other")
    for odd in (f"postgresql://purge:s3cret@/nowhere?host={home}",
                f"postgres://purge@/nowhere?host={home}&password=s3cret"):  # fmt: skip
        with pytest.raises(PurgeError, match="nowhere") as caught:
            Ledger(odd)
        assert "s3cret" not in str(caught.value)


# -- one worker at a time ---------------------------------------------------------------------


def test_one_worker_at_a_time(ledger, place, tmp_path, monkeypatch):
    if place.startswith("/"):  # another way to name the same file is no other lock
        monkeypatch.chdir(tmp_path)
        place = "requests.db"
    with Ledger(place, tmp_path / "key") as other:
        with suppress(ZeroDivisionError), ledger.working():
            other.add(classes=["cat"], received="2026-01-31")  # requests can still come in
            with pytest.raises(BusyError, match=f"process {os.getpid()} on .*, at work since 20"):
                with other.working():
                    pass
            begun = time.monotonic()
            with pytest.raises(BusyError), other.working(wait=0.3):
                pass
            assert time.monotonic() - begun >= 0.3
            raise ZeroDivisionError  # an error ends the work
        with other.working():
            pass
        assert ledger.verify().ok


def test_the_one_that_waits_gets_its_turn(ledger, place):
    order = []

    def waits():
        with Ledger(place) as other, other.working(wait=30):
            order.append("second")

    thread = threading.Thread(target=waits)
    with ledger.working():
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.slow
def test_a_killed_worker_no_longer_has_the_ledger(ledger, place):
    process = subprocess.Popen([sys.executable, "-c", WORKER, place], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"mine\n"
    with pytest.raises(BusyError, match=f"process {process.pid} "), ledger.working():
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with ledger.working(wait=20):
        pass


# -- many adders ------------------------------------------------------------------------------


def adders(place, key, names, each):
    command = [sys.executable, "-c", ADDER, place, str(key)]
    return [subprocess.Popen([*command, name, str(each)]) for name in names]


def test_processes_that_add_at_once_lose_none(place, tmp_path):
    """They make the ledger and its key together, too."""
    assert [one.wait() for one in adders(place, tmp_path / "key", "abc", 5)] == [0] * 3
    with Ledger(place, tmp_path / "key") as ledger:
        assert [one.number for one in ledger.requests()] == list(range(1, 16))
        assert all(ledger.suppressed([f"{who}-{i}" for who in "abc" for i in range(5)]))
        assert (ledger.verify().ok, ledger.verify().entries) == (True, 16)
    assert {path.name for path in tmp_path.iterdir()} - {"requests.db"} == {"key"}


@pytest.mark.slow
def test_many_processes_and_some_that_are_killed(place, tmp_path):
    """What a killed adder had written is whole, who verifies meanwhile sees a whole chain, none is lost."""
    key = tmp_path / "key"
    with Ledger(place, key) as ledger:
        running, killed = adders(place, key, "abcdef", 25), adders(place, key, "xyz", 500)
        while ledger.head().entries < 40:
            assert ledger.verify().ok
        for one in killed:
            one.kill()
            one.wait()
        while any(one.poll() is None for one in running):
            assert ledger.verify().ok
        assert [one.wait() for one in running] == [0] * 6
        assert all(ledger.suppressed([f"{who}-{i}" for who in "abcdef" for i in range(25)]))
        assert ledger.verify().ok
