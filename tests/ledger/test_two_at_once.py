"""Several processes and one ledger in a file: adders lose nothing, and one worker works at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from purge.core.errors import BusyError
from purge.ledger.ledger import Ledger

ADDER = """
import sys
from purge.ledger.ledger import Ledger
place, who, each = sys.argv[1:]
with Ledger(place) as ledger:
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


def started(code, *arguments, **options):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], **options)


def complete(place, count, each):
    with Ledger(place) as ledger:
        assert [one.number for one in ledger.requests()] == list(range(1, count * each + 1))
        assert all(ledger.suppressed([f"{who}-{i}" for who in range(count) for i in range(each)]))
        assert ledger.verify().ok


def test_processes_that_add_at_once_lose_none(tmp_path):
    """They make the ledger and its key together, too."""
    place = tmp_path / "requests.db"
    running = [started(ADDER, place, who, 5) for who in range(3)]
    assert [one.wait() for one in running] == [0] * 3
    complete(place, 3, 5)
    assert {path.name for path in tmp_path.iterdir()} == {"requests.db", "requests.db.key"}


@pytest.mark.slow
def test_twelve_processes_and_some_that_are_killed(tmp_path):
    """What a killed adder had written is whole; the others lose nothing."""
    place = tmp_path / "requests.db"
    running = [started(ADDER, place, who, 25) for who in range(12)]
    killed = [started(ADDER, place, f"killed{who}", 500) for who in range(3)]
    time.sleep(4)
    for one in killed:
        one.kill()
        one.wait()
    assert [one.wait() for one in running] == [0] * 12
    with Ledger(place) as ledger:
        assert all(ledger.suppressed([f"{who}-{i}" for who in range(12) for i in range(25)]))
        assert ledger.verify().ok


def test_one_worker_at_a_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Ledger(tmp_path / "requests.db") as ledger, Ledger("requests.db") as other:
        with ledger.working():
            other.add(classes=["cat"], received="2026-01-31")  # requests can still come in
            with pytest.raises(BusyError, match=f"process {os.getpid()} on .*, at work since 20"):
                with other.working():
                    pass
            begun = time.monotonic()
            with pytest.raises(BusyError), other.working(wait=0.3):
                pass
            assert time.monotonic() - begun >= 0.3
        with other.working():
            pass
        assert ledger.verify().ok


def test_the_one_that_waits_gets_its_turn(tmp_path):
    with Ledger(tmp_path / "requests.db") as ledger, Ledger(tmp_path / "requests.db") as other:
        order = []

        def waits():
            with other.working(wait=30):
                order.append("second")

        thread = threading.Thread(target=waits)
        with ledger.working():
            thread.start()
            time.sleep(0.2)
            order.append("first")
        thread.join()
        assert order == ["first", "second"]


def test_an_error_ends_the_work(tmp_path):
    with Ledger(tmp_path / "requests.db") as ledger:
        with pytest.raises(ZeroDivisionError), ledger.working():
            raise ZeroDivisionError
        with ledger.working():
            pass


def test_a_killed_worker_no_longer_has_the_ledger(tmp_path):
    place = tmp_path / "requests.db"
    with Ledger(place) as ledger:
        process = started(WORKER, place, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"mine\n"
        with pytest.raises(BusyError, match=f"process {process.pid} "), ledger.working():
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with ledger.working():
            pass
