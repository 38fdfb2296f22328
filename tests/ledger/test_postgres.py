"""The same ledger on a PostgreSQL server, which the tests start if it is installed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest
from sqlalchemy import NullPool, create_engine, inspect, text

from purge.core.errors import BusyError, LedgerError, PurgeError
from purge.ledger.database import parse
from purge.ledger.ledger import Ledger, verify_export
from tests.ledger import server

pytestmark = pytest.mark.skipif(server.missing() is not None, reason=str(server.missing()))
numbers = itertools.count()


@pytest.fixture(scope="module")
def home():
    with server.server() as folder:
        yield folder


@pytest.fixture
def url(home):
    return server.fresh_url(home, f"db{next(numbers)}")


@pytest.fixture
def ledger(url, tmp_path):
    with Ledger(url, tmp_path / "key") as found:
        yield found


def sql(url, *statements):
    """What an administrator does by hand."""
    with create_engine(parse(url), poolclass=NullPool).begin() as connection:
        for one in statements:
            connection.execute(text(one))


def test_a_life_on_a_server(ledger, url, tmp_path):
    ledger.add(ids=["ada", "bob"], received="2026-01-31", note="ü \N{SNOWMAN}")
    ledger.add(classes=["cat"], received="2026-02-01")
    ledger.hold(2, "court")
    ledger.add_version("/v0", "d0", None, kind="base")
    batch = ledger.start_batch([1], {"share": 0.1})
    with ledger.together():
        ledger.add_version("/v1", "d1", "d0", batch=batch.number)
        ledger.add_audit("d1", requests=[1], passed=True, found={"mia": 0.51})
        ledger.finish_batch(batch.number, version="d1")
    with Ledger(url, tmp_path / "key") as again:
        assert [r.state for r in again.requests()] == ["done", "held"]
        assert again.match([1], ("bob", "eve", "ada")) == [True, False, True]
        assert again.suppressed(["ada", "eve"]) == [True, False]
        assert again.current().digest == "d1"
        assert again.verify().ok
        end = again.export(tmp_path / "export.jsonl")
    assert verify_export(tmp_path / "export.jsonl", head=end).ok
    with Ledger(url) as keyless:  # an auditor
        assert keyless.verify(head=end).ok
        with pytest.raises(LedgerError, match="key"):
            keyless.hashes(["ada"])


@pytest.mark.parametrize(
    "statement",
    ["UPDATE purge_entries SET kind = 'x'", "DELETE FROM purge_entries", "TRUNCATE purge_entries"],
)
def test_the_server_refuses_to_change_an_entry(ledger, url, statement):
    ledger.add(ids=["ada"], received="2026-01-31")
    with pytest.raises(Exception, match="never changed"):
        sql(url, statement)
    assert ledger.verify().ok


def test_what_an_administrator_changed_is_named(ledger, url):
    for one in ("ada", "bob", "eve"):
        ledger.add(ids=[one], received="2026-01-31")
    end = ledger.head()
    disable = "ALTER TABLE purge_entries DISABLE TRIGGER ALL"
    sql(url, disable)
    assert "trigger" in ledger.verify().why
    sql(url, "UPDATE purge_entries SET payload = replace(payload, '2026-02-28', '2027-02-28') WHERE seq = 3")
    assert ledger.verify().first_bad == 3
    sql(url, "DELETE FROM purge_entries WHERE seq >= 3")
    assert ledger.verify().first_bad == 3
    assert ledger.verify(head=end).first_bad == 3


def test_a_trigger_that_no_longer_refuses_is_told(ledger, url):
    assert ledger.verify().ok
    body = "$$ BEGIN RETURN COALESCE(NEW, OLD); END $$"
    sql(url, f"CREATE OR REPLACE FUNCTION purge_refuse() RETURNS trigger LANGUAGE plpgsql AS {body}")
    assert "trigger" in ledger.verify().why


def test_a_table_that_differs_from_the_chain_is_found(ledger, url):
    ledger.add(ids=["ada"], received="2026-01-31")
    sql(url, "UPDATE purge_requests SET due = '2027-01-01'")
    verdict = ledger.verify()
    assert not verdict.ok
    assert "requests" in verdict.why


def test_a_new_ledger_needs_a_place_for_its_key(url, monkeypatch):
    monkeypatch.delenv("PURGE_LEDGER_KEY", raising=False)
    with pytest.raises(LedgerError, match="PURGE_LEDGER_KEY"):
        Ledger(url)
    with create_engine(parse(url), poolclass=NullPool).connect() as connection:
        assert inspect(connection).get_table_names() == []


def test_another_key_is_refused(ledger, url, tmp_path):
    (tmp_path / "other").write_text("00" * 32)
    with pytest.raises(LedgerError, match="another one"):
        Ledger(url, tmp_path / "other")


def test_a_server_that_is_not_there_and_a_password(home):
    for url in (
        "postgresql://purge:s3cret@/nowhere?host={}",
        "postgres://purge@/nowhere?host={}&password=s3cret",
    ):
        with pytest.raises(PurgeError) as caught:
            Ledger(url.format(home))
        assert "s3cret" not in str(caught.value)
        assert "nowhere" in str(caught.value)


def test_one_worker_at_a_time(ledger, url, tmp_path):
    with Ledger(url) as other:
        with ledger.working():
            other.add(classes=["cat"], received="2026-01-31")  # requests can still come in
            with pytest.raises(BusyError, match=f"process {os.getpid()} .* since 20"), other.working():
                pass
        with other.working():
            pass


@pytest.mark.slow
def test_a_killed_worker_no_longer_has_the_ledger(ledger, url):
    code = (
        "import sys, time\nfrom purge.ledger.ledger import Ledger\n"
        "with Ledger(sys.argv[1]).working():\n    print('mine', flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"mine\n"
    with pytest.raises(BusyError, match=f"process {process.pid} "), ledger.working():
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with ledger.working(wait=20):
        pass


ADDER = """
import sys
from purge.ledger.ledger import Ledger
url, key, who, each = sys.argv[1:]
with Ledger(url, key) as ledger:
    for i in range(int(each)):
        ledger.add(ids=[f"{who}-{i}"], received="2026-01-31")
"""


def threads_add(url, key, count, each):
    """Many adders at once, each with a connection of its own, all starting on an empty database."""
    failures = []

    def work(who):
        try:
            with Ledger(url, key) as ledger:
                for i in range(each):
                    ledger.add(ids=[f"{who}-{i}"], received="2026-01-31")
        except Exception as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(who,)) for who in range(count)]
    for one in workers:
        one.start()
    return workers, failures


def complete(ledger, count, each):
    found = ledger.requests()
    assert [one.number for one in found] == list(range(1, count * each + 1))
    assert all(ledger.suppressed([f"{who}-{i}" for who in range(count) for i in range(each)]))
    assert ledger.verify().entries == 1 + count * each
    assert ledger.verify().ok


def test_adders_at_once_lose_none(url, tmp_path):
    workers, failures = threads_add(url, tmp_path / "key", 8, 5)
    for one in workers:
        one.join()
    assert failures == []
    with Ledger(url, tmp_path / "key") as ledger:
        complete(ledger, 8, 5)


@pytest.mark.slow
def test_100_adders_at_once_lose_none(url, tmp_path):
    """And who verifies meanwhile sees a whole chain each time."""
    workers, failures = threads_add(url, tmp_path / "key", 100, 10)
    while not (tmp_path / "key").exists():
        pass
    verdicts = []
    while any(one.is_alive() for one in workers):
        try:
            with Ledger(url, must_exist=True) as ledger:
                verdicts.append(ledger.verify())
        except PurgeError:  # not made yet
            continue
    assert failures == []
    assert all(verdict.ok for verdict in verdicts)
    with Ledger(url, tmp_path / "key") as ledger:
        complete(ledger, 100, 10)


@pytest.mark.slow
def test_processes_that_add_at_once_lose_none(url, tmp_path):
    command = [sys.executable, "-c", ADDER, url, str(tmp_path / "key")]
    running = [subprocess.Popen([*command, str(who), "20"]) for who in range(10)]
    assert [one.wait() for one in running] == [0] * 10
    with Ledger(url, tmp_path / "key") as ledger:
        complete(ledger, 10, 20)
