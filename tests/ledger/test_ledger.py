"""The life of requests in a ledger: what is kept, what may follow what, and what is refused."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from datetime import date

import numpy as np
import pytest

import purge
from purge.core.errors import DataError, FileError, LedgerError, PurgeError
from purge.ledger.batches import add_audit, add_version, fail_batch, finish_batch, start_batch
from purge.ledger.ledger import Ledger


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "requests.db") as found:
        yield found


def test_a_request_is_kept_as_it_came(ledger, tmp_path):
    made = ledger.add(
        ids=["ada", "bob", "ada"], received="2026-01-31", basis="Art. 17(1)(b)", note="by letter"
    )
    assert (made.number, made.received, made.due) == (1, date(2026, 1, 31), date(2026, 2, 28))
    assert (made.basis, made.state, made.subjects, made.classes) == ("Art. 17(1)(b)", "open", 2, ())
    other = ledger.add(classes=["cat", 3, "cat"], received=date(2026, 3, 1), due="2026-03-02")
    assert (other.number, other.due, other.subjects, other.classes) == (2, date(2026, 3, 2), 0, ("cat", "3"))
    with purge.Ledger(f"sqlite:///{tmp_path}/requests.db") as again:
        assert again.requests() == [made, other]
        assert again.request(2) == other


def test_lists_by_state_and_deadline(ledger):
    for month in (3, 1, 2):
        ledger.add(ids=[month], received=f"2026-0{month}-10")
    ledger.hold(2, "court")
    assert [r.number for r in ledger.requests(state="open")] == [1, 3]
    assert [r.number for r in ledger.requests(due_by="2026-03-10")] == [2, 3]
    assert [r.number for r in ledger.requests(state="held", due_by=date(2026, 2, 10))] == [2]
    assert ledger.requests(state="done") == []


def test_many_at_once_are_all_kept_or_none(ledger):
    found = ledger.add_many({"ids": [f"p{i}"], "received": "2026-01-31"} for i in range(1200))
    assert [r.number for r in found] == list(range(1, 1201))
    with pytest.raises(DataError):
        ledger.add_many([{"ids": ["x"], "received": "2026-01-31"}, {"ids": ["y"], "received": "soon"}])
    assert ledger.add_many([]) == []
    assert len(ledger.requests()) == 1200
    assert ledger.match(range(1, 1201), ("p0", "p1199", "x")) == [True, True, False]
    batch = start_batch(ledger, range(1, 1201))
    finish_batch(ledger, batch.number)
    assert {r.state for r in ledger.requests()} == {"done"}
    assert ledger.verify().ok


def test_hold_and_release(ledger):
    ledger.add(ids=["ada"], received="2026-01-31")
    held = ledger.hold(1, "litigation")
    assert (held.state, held.hold) == ("held", "litigation")
    with pytest.raises(LedgerError, match="number 1, which is held"):
        start_batch(ledger, [1])
    with pytest.raises(LedgerError, match="which is held"):
        ledger.hold(1, "again")
    freed = ledger.release(1)
    assert (freed.state, freed.hold) == ("open", None)
    with pytest.raises(LedgerError, match="which is open"):
        ledger.release(1)


def test_what_was_withdrawn_stays_and_suppresses_nobody(ledger):
    ledger.add(ids=["ada"], received="2026-01-31")
    assert ledger.suppressed(["ada"]) == [True]
    gone = ledger.withdraw(1, "by the person")
    assert (gone.state, gone.why) == ("withdrawn", "by the person")
    assert ledger.suppressed(["ada"]) == [False]
    with pytest.raises(LedgerError, match="withdrawn"):
        ledger.hold(1, "x")


def test_whose_rows_they_are(ledger):
    ledger.add(ids=["ada", "7"], received="2026-01-31")
    ledger.add(ids=["bob"], received="2026-01-31")
    ledger.add(classes=["cat"], received="2026-01-31")
    rows = ("bob", "ada", "eve", "ada", "7", "07", "Ada", "")
    assert ledger.match(1, rows) == [False, True, False, True, True, False, False, False]
    assert ledger.match([1, 2], rows) == [True, True, False, True, True, False, False, False]
    assert ledger.match([3], rows) == [False] * 8
    assert ledger.match([], rows) == [False] * 8
    assert ledger.match(1, np.arange(6, 9)) == [False, True, False]
    assert ledger.hashes(["ada", "ada"])[0] == ledger.hashes(["ada"])[0]
    with pytest.raises(LedgerError, match="number of a request, got 9"):
        ledger.match([1, 9], rows)


@pytest.mark.parametrize("state", ["open", "held", "running", "done"])
def test_an_id_stays_suppressed_whatever_became_of_the_request(ledger, state):
    ledger.add(ids=["ada"], received="2026-01-31")
    if state == "held":
        ledger.hold(1, "x")
    if state in ("running", "done"):
        start_batch(ledger, [1])
    if state == "done":
        finish_batch(ledger, 1)
    assert ledger.request(1).state == state
    assert ledger.suppressed(["eve", "ada", 5]) == [False, True, False]


def test_a_batch_is_done_or_failed(ledger):
    for one in ("ada", "bob", "eve"):
        ledger.add(ids=[one], received="2026-01-31")
    assert ledger.unfinished_batch() is None
    batch = start_batch(ledger, [3, 1, 3], {"method": "purge"})
    assert (batch.requests, batch.state, batch.about) == ((1, 3), "running", {"method": "purge"})
    assert ledger.unfinished_batch() == batch
    assert [r.state for r in ledger.requests()] == ["running", "open", "running"]
    with pytest.raises(LedgerError, match="batch 1 of 20"):
        start_batch(ledger, [2])
    failed = fail_batch(ledger, 1, "fa_test is 3 %")
    assert (failed.state, failed.why) == ("failed", "fa_test is 3 %")
    assert [(r.state, r.why, r.batch) for r in ledger.requests()] == [
        ("open", "fa_test is 3 %", 1), ("open", None, None), ("open", "fa_test is 3 %", 1),
    ]  # fmt: skip
    with pytest.raises(LedgerError, match="number 1, which is failed"):
        finish_batch(ledger, 1)
    start_batch(ledger, [1, 2])
    done = finish_batch(ledger, 2, version="d1", about={"rows": 9})
    assert (done.state, done.version, done.about) == ("done", "d1", {"rows": 9})
    assert [(r.state, r.why) for r in ledger.requests()][:2] == [("done", None)] * 2
    assert ledger.request(1).done == done.ended
    assert ledger.verify().ok


def test_versions_runs_and_audits(ledger):
    assert ledger.current() is None
    base = add_version(ledger, "/models/0", "d0", None, kind="base", about={"n": 1437})
    ledger.add_many({"ids": [i], "received": "2026-01-31"} for i in range(2))
    start_batch(ledger, [1])
    new = add_version(ledger, "/models/1", "d1", "d0", batch=1)
    assert (new.batch, new.kind, new.folder) == (1, "unlearned", "/models/1")
    assert ledger.versions() == [base, new]
    assert ledger.current() == new
    audit = add_audit(ledger, "d1", requests=[2, 1], passed=False, found={"fa_test": 0.03}, folder="/runs/1")
    assert (audit.requests, audit.passed, audit.found) == ((1, 2), False, {"fa_test": 0.03})
    assert add_audit(ledger, "d1").passed is None
    assert ledger.verify().ok
    json.dumps([one.to_dict() for one in (base, audit)])  # all of it is JSON


def test_together_is_all_or_nothing(ledger):
    ledger.add(ids=["ada"], received="2026-01-31")
    start_batch(ledger, [1])
    before = ledger.head()
    with suppress(ZeroDivisionError), ledger.together():
        add_version(ledger, "/models/0", "d0", None, kind="base")
        finish_batch(ledger, 1)
        assert ledger.request(1).state == "done"
        raise ZeroDivisionError
    assert ledger.head() == before
    assert ledger.request(1).state == "running"
    assert ledger.versions() == []
    with ledger.together():
        add_version(ledger, "/models/0", "d0", None, kind="base")
        with ledger.together():
            finish_batch(ledger, 1)
    assert ledger.request(1).state == "done"


def test_a_transaction_belongs_to_its_thread(ledger):
    """Another thread with the same object waits for its turn instead of writing into the open one."""
    started = threading.Event()

    def other():
        started.set()
        ledger.append("other", {})

    thread = threading.Thread(target=other)
    with suppress(ZeroDivisionError), ledger.together():
        ledger.append("mine", {})
        thread.start()
        started.wait()
        raise ZeroDivisionError
    thread.join()
    assert [one.kind for one in ledger.entries()] == ["ledger", "other"]


def test_entries_of_ones_own_and_the_history_of_a_request(ledger):
    entry = ledger.append("data-delivery", {"rows": 12})
    assert (entry.seq, entry.kind, entry.payload) == (2, "data-delivery", {"rows": 12})
    ledger.add(ids=["ada"], received="2026-01-31")
    ledger.add(ids=["bob"], received="2026-01-31")
    ledger.hold(1, "x")
    ledger.release(1)
    start_batch(ledger, [1, 2])
    assert [one.kind for one in ledger.history(1)] == ["request", "hold", "release", "batch"]
    assert [one.kind for one in ledger.history(2)] == ["request", "batch"]
    assert [one.seq for one in ledger.entries("request")] == [3, 4]
    assert [one.seq for one in ledger.entries(start=6)] == [6, 7]


@pytest.mark.parametrize(
    "given",
    [
        {"ids": ["a"]},
        {"ids": ["a"], "received": None},
        {"ids": ["a"], "received": "31.1.2026"},
        {"ids": ["a"], "received": 20260131},
        {"ids": ["a"], "received": "2999-01-01"},
        {"ids": ["a"], "received": "2026-01-31", "due": "2026-01-30"},
        {"received": "2026-01-31"},
        {"ids": ["a"], "classes": ["b"], "received": "2026-01-31"},
        {"ids": [], "received": "2026-01-31"},
        {"ids": "ada", "received": "2026-01-31"},
        {"ids": 5, "received": "2026-01-31"},
        {"ids": [None], "received": "2026-01-31"},
        {"ids": [True], "received": "2026-01-31"},
        {"ids": [" "], "received": "2026-01-31"},
        {"ids": ["\ud800"], "received": "2026-01-31"},
        {"classes": [], "received": "2026-01-31"},
        {"classes": "cat", "received": "2026-01-31"},
        {"classes": [""], "received": "2026-01-31"},
        {"classes": ["\0"], "received": "2026-01-31"},
        {"ids": ["a"], "received": "2026-01-31", "basis": ""},
        {"ids": ["a"], "received": "2026-01-31", "basis": None},
        {"ids": ["a"], "received": "2026-01-31", "note": "x" * 1001},
        {"ids": ["a"], "received": "2026-01-31", "note": "\ud800"},
        {"ids": ["a"], "received": "2026-01-31", "recieved": "2026-01-31"},
    ],
)
def test_a_bad_request_is_refused_and_nothing_written(ledger, given):
    with pytest.raises(DataError, match=r"^Expected .* got .* Fix: "):
        ledger.add_many([{"ids": ["good"], "received": "2026-01-31"}, given])
    assert ledger.requests() == []
    assert ledger.head().entries == 1


@pytest.mark.parametrize(
    "step",
    [
        lambda ledger: ledger.request(0),
        lambda ledger: ledger.request("1"),
        lambda ledger: ledger.request(True),
        lambda ledger: ledger.request(10**30),
        lambda ledger: ledger.hold(1, ""),
        lambda ledger: ledger.hold(2, "x"),
        lambda ledger: ledger.requests(state="opened"),
        lambda ledger: ledger.requests(due_by="soon"),
        lambda ledger: start_batch(ledger, [1], {"x": float("nan")}),
        lambda ledger: start_batch(ledger, [1], {"x": object()}),
        lambda ledger: ledger.batch(3),
        lambda ledger: fail_batch(ledger, 1, "x"),
        lambda ledger: add_version(ledger, "/x\udcff", "d", None, kind="base"),
        lambda ledger: ledger.append("request", {}),
        lambda ledger: ledger.append("", {}),
        lambda ledger: ledger.append("x", {"y": {1, 2}}),
        lambda ledger: ledger.append("x", [1]),
        lambda ledger: ledger.verify(head="12"),
        lambda ledger: ledger.verify(public="/nowhere"),
        lambda ledger: ledger.export("/nowhere/x"),
    ],
)
def test_a_bad_step_is_refused_and_nothing_written(ledger, step):
    ledger.add(ids=["ada"], received="2026-01-31")
    before = ledger.head()
    with pytest.raises(PurgeError, match=r"^Expected .* got .* Fix: "):
        step(ledger)
    assert ledger.head() == before
    assert ledger.verify().ok


@pytest.mark.parametrize(
    "url",
    ["", None, 5, ":memory:", "sqlite://", "mysql://x/y", "http://[", "/nowhere/at/all.db", "oracle://"],
)
def test_a_place_that_cannot_be(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=r"^Expected .* got .* Fix: "):
        Ledger(url)
    assert list(tmp_path.iterdir()) == []


def test_reading_makes_no_ledger(tmp_path):
    with pytest.raises(FileError, match="got none"):
        Ledger(tmp_path / "requests.db", must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_hold_any_character(tmp_path):
    place = tmp_path / "a?b=c&d%20 #ü"
    with Ledger(place) as ledger:
        ledger.add(ids=["ada"], received="2026-01-31")
    assert {p.name for p in tmp_path.iterdir()} == {place.name, place.name + ".key"}


@pytest.mark.slow
def test_10000_requests_take_less_than_10_seconds(tmp_path):
    start = time.perf_counter()
    with Ledger(tmp_path / "requests.db") as ledger:
        ledger.add_many({"ids": [f"person-{i}"], "received": "2026-01-31"} for i in range(10_000))
        assert len(ledger.requests(state="open")) == 10_000
        assert ledger.verify().ok
    assert time.perf_counter() - start < 10
