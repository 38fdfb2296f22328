"""The life of requests in a ledger: what is kept, what may follow what, and what is refused."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import unicodedata
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
from dateutil.relativedelta import relativedelta
from hypothesis import given
from hypothesis import strategies as st

import purge
from purge.core.errors import DataError, FileError, LedgerError, PurgeError
from purge.ledger.batches import (
    add_audit,
    add_version,
    fail_batch,
    finish_batch,
    not_found,
    start_batch,
)
from purge.ledger.intake import day, folded, month_after, period
from purge.ledger.ledger import Ledger
from purge.ledger.records import Found

CAME = "2026-01-31"


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "requests.db") as made:
        yield made


def test_a_request_is_kept_as_it_came(ledger, tmp_path):
    made = ledger.add(ids=["ada", "bob", "ada"], received=CAME, basis="Art. 17(1)(b)", note="by letter")
    assert (made.number, made.received, made.due) == (1, date(2026, 1, 31), date(2026, 2, 28))
    assert (made.basis, made.state, made.subjects, made.classes) == ("Art. 17(1)(b)", "open", 2, ())
    other = ledger.add(classes=["cat", 3, "cat"], received=date(2026, 3, 1), due="2026-03-02")
    assert (other.number, other.due, other.subjects, other.classes) == (2, date(2026, 3, 2), 0, ("cat", "3"))
    with purge.Ledger(f"sqlite:///{tmp_path}/requests.db") as again:
        assert again.requests() == [made, other]
        assert again.request(2) == other


def test_a_request_may_be_due_on_the_day_it_came(ledger):
    assert ledger.add(ids=["ada"], received=CAME, due=CAME).due == date(2026, 1, 31)


def test_lists_by_state_and_deadline(ledger):
    for month in (3, 1, 2):
        ledger.add(ids=[month], received=f"2026-0{month}-10")
    ledger.hold(2, "court")
    assert [r.number for r in ledger.requests(state="open")] == [1, 3]
    assert [r.number for r in ledger.requests(due_by="2026-03-10")] == [2, 3]
    assert [r.number for r in ledger.requests(state="held", due_by=date(2026, 2, 10))] == [2]
    assert [r.number for r in ledger.requests(newest=True, skip=1, at_most=1)] == [2]
    assert ledger.count("2026-03-10") == {"open": 1, "held": 1, "running": 0, "done": 0, "withdrawn": 0}
    request = ledger.request(1)
    assert [request.days_left(date(2026, 4, d)) for d in (9, 10, 11)] == [1, 0, -1]


def test_many_at_once_are_all_kept_or_none(ledger):
    """More than a query can name, and in seconds."""
    begun = time.perf_counter()
    made = ledger.add_many({"ids": [f"p{i}"], "received": CAME} for i in range(3000))
    assert [r.number for r in made] == list(range(1, 3001))
    with pytest.raises(DataError):
        ledger.add_many([{"ids": ["x"], "received": CAME}, {"ids": ["y"], "received": "soon"}])
    assert ledger.add_many([]) == []
    assert len(ledger.requests("open")) == 3000
    assert ledger.match(range(1, 1201), ("p0", "p1199", "p1200")) == [True, True, False]
    finish_batch(ledger, start_batch(ledger, range(1, 1201)).number)
    assert ledger.count()["done"] == 1200
    assert ledger.verify().ok
    assert time.perf_counter() - begun < 10


def test_a_request_is_held_released_and_withdrawn(ledger):
    ledger.add(ids=["ada"], received=CAME)
    held = ledger.hold(1, "litigation")
    assert (held.state, held.hold) == ("held", "litigation")
    for step in (lambda: start_batch(ledger, [1]), lambda: ledger.hold(1, "again")):
        with pytest.raises(LedgerError, match="number 1, which is held"):
            step()
    freed = ledger.release(1)
    assert (freed.state, freed.hold) == ("open", None)
    with pytest.raises(LedgerError, match="which is open"):
        ledger.release(1)
    assert ledger.suppressed(["ada"]) == [True]
    withdrawn = ledger.withdraw(1, "by the person")
    assert (withdrawn.state, withdrawn.why) == ("withdrawn", "by the person")
    assert ledger.suppressed(["ada"]) == [False]
    with pytest.raises(LedgerError, match="withdrawn"):
        ledger.hold(1, "x")


def test_whose_rows_they_are_whatever_became_of_the_request(ledger):
    ledger.add(ids=["ada", "7"], received=CAME)
    ledger.add(ids=["bob"], received=CAME)
    ledger.add(classes=["cat"], received=CAME)
    rows = ("bob", "ada", "eve", "ada", "7", "07", "Ada", "")
    assert ledger.match(1, rows) == [False, True, False, True, True, False, False, False]
    assert ledger.match([1, 2], rows) == [True, True, False, True, True, False, False, False]
    assert ledger.match([3], rows) == ledger.match([], rows) == [False] * 8
    assert ledger.match(1, np.arange(6, 9)) == [False, True, False]
    assert ledger.hashes(["ada", "ada"]) == ledger.hashes(["ada"]) * 2
    with pytest.raises(LedgerError, match="number of a request, got 9"):
        ledger.match([1, 9], rows)
    for step in (lambda: ledger.hold(1, "x"), lambda: ledger.release(1), lambda: start_batch(ledger, [1]),
                 lambda: finish_batch(ledger, 1)):  # fmt: skip
        step()
        assert ledger.suppressed(["eve", "ada", 7]) == [False, True, True]


def test_a_batch_is_done_or_failed(ledger):
    for one in ("ada", "bob", "eve"):
        ledger.add(ids=[one], received=CAME)
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
    assert [(r.state, r.why, r.done) for r in ledger.requests()][:2] == [("done", None, done.ended)] * 2
    assert ledger.verify().ok


def test_versions_and_audits(ledger):
    assert ledger.current() is None
    base = add_version(ledger, "/models/0", "d0", None, kind="base", about={"n": 1437})
    ledger.add_many({"ids": [i], "received": CAME} for i in range(2))
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
    ledger.add(ids=["ada"], received=CAME)
    start_batch(ledger, [1])
    before = ledger.head()
    with suppress(ZeroDivisionError), ledger.together():
        add_version(ledger, "/models/0", "d0", None, kind="base")
        finish_batch(ledger, 1)
        assert ledger.request(1).state == "done"
        raise ZeroDivisionError
    assert ledger.head() == before
    assert (ledger.request(1).state, ledger.versions()) == ("running", [])
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
    entry = ledger.append("data-delivery", {"rows": 12, "requests": 5})
    assert (entry.seq, entry.kind, entry.payload) == (2, "data-delivery", {"rows": 12, "requests": 5})
    for one in ("ada", "bob"):
        ledger.add(ids=[one], received=CAME)
    ledger.hold(1, "x")
    ledger.release(1)
    start_batch(ledger, [1, 2])
    assert [one.kind for one in ledger.history(1)] == ["request", "hold", "release", "batch"]
    assert [one.kind for one in ledger.history(2)] == ["request", "batch"]
    assert [one.seq for one in ledger.entries("request")] == [3, 4]
    assert [one.seq for one in ledger.entries(start=6)] == [6, 7]


# -- what is refused, with nothing written ----------------------------------------------------

A = {"ids": ["a"], "received": CAME}
BAD = [
    {"ids": ["a"]}, {"received": CAME}, {**A, "classes": ["b"]}, {**A, "recieved": CAME},
    *({**A, "received": day} for day in (None, "31.1.2026", 20260131, "2999-01-01", "9999-12-15")),
    {**A, "due": "2026-01-30"},
    *({**A, "ids": ids} for ids in ([], "ada", 5, [None], [True], [" "], ["\ud800"])),
    *({"classes": names, "received": CAME} for names in ([], "cat", [""], ["\0"])),
    *({**A, "basis": basis} for basis in ("", None)),
    *({**A, "note": note} for note in ("x" * 1001, "\ud800")),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_request_is_refused_and_nothing_written(ledger, bad):
    with pytest.raises(DataError, match=r"^Expected .* got .* Fix: "):
        ledger.add_many([A, bad])
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
    ledger.add(ids=["ada"], received=CAME)
    before = ledger.head()
    with pytest.raises(PurgeError, match=r"^Expected .* got .* Fix: "):
        step(ledger)
    assert ledger.head() == before
    assert ledger.verify().ok


# -- dates ------------------------------------------------------------------------------------


@given(st.dates(max_value=date(9998, 12, 31)))
def test_a_month_is_that_of_dateutil(start):
    assert month_after(start) == start + relativedelta(months=1)


def test_the_date_is_that_of_the_place_where_it_was_written():
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-11))
    for written in (datetime(2026, 3, 1, 0, 30, tzinfo=east), datetime(2026, 3, 1, 23, 30, tzinfo=west),
                    "2026-03-01T00:30:00+14:00", "2026-03-01 00:30"):  # fmt: skip
        assert day(written, "received") == date(2026, 3, 1)
    today = datetime.now(UTC).date()
    period(today + timedelta(days=1), None)  # it may be tomorrow already, further east
    with pytest.raises(DataError, match="received by now"):
        period(today + timedelta(days=2), None)


# -- where a ledger can be --------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["", None, 5, ":memory:", "sqlite://", "mysql://x/y", "http://[", "/nowhere/at/all.db", "oracle://"],
)
def test_a_place_that_cannot_be(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match=r"^Expected .* got .* Fix: "):
        Ledger(url)
    assert list(tmp_path.iterdir()) == []


def test_reading_makes_no_ledger_and_a_path_may_hold_any_character(tmp_path):
    with pytest.raises(FileError, match="got none"):
        Ledger(tmp_path / "requests.db", must_exist=True)
    with pytest.raises(FileError):
        Ledger(tmp_path)
    assert list(tmp_path.iterdir()) == []
    place = tmp_path / "a?b=c&d%20 #ü"
    place.touch()  # an empty file is a place for a ledger
    Ledger(place).close()
    assert {p.name for p in tmp_path.iterdir()} == {place.name, place.name + ".key"}


def database(place, *statements):
    with closing(sqlite3.connect(place)) as connection:
        for one in statements:
            connection.execute(one)
        connection.commit()


@pytest.mark.parametrize("version", ["0", "1", "3", "'x'"])
def test_a_ledger_of_another_version_is_refused_and_not_touched(tmp_path, version):
    place = tmp_path / "requests.db"
    Ledger(place).close()
    database(place, f"UPDATE purge_head SET version = {version}")
    before = place.read_bytes()
    with pytest.raises(
        LedgerError, match=r"^Expected a ledger of version 2 .* Fix: use the version of purge"
    ):
        Ledger(place)
    assert place.read_bytes() == before


@pytest.mark.parametrize("content", [b"hello, this is text and no database", b"\0" * 4096, None])
def test_another_file_is_not_taken_over(tmp_path, content):
    place = tmp_path / "other.db"
    if content is None:
        database(place, "CREATE TABLE songs (title TEXT)")
    else:
        place.write_bytes(content)
    before = place.read_bytes()
    with pytest.raises(PurgeError, match=r"^Expected a ledger at .* Fix: "):
        Ledger(place)
    assert place.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["other.db"]


# -- ids that were not found ------------------------------------------------------------------


def test_who_accepts_what_was_not_found_is_kept(ledger):
    ledger.add(ids=["ada", "bob"], received=CAME)
    ada, bob = ledger.hashes(["ada", "bob"])
    assert ledger.found(1) is None
    with pytest.raises(LedgerError, match="missed nothing"):
        ledger.accept(1, by="A. Smith", why="no customer")
    not_found(ledger, 1, [bob], 0)
    end = ledger.head()
    not_found(ledger, 1, [bob], 0)
    assert ledger.head() == end
    assert ledger.found(1) == Found({}, (bob,))
    for bad in ({"by": "", "why": "x"}, {"by": "x", "why": " "}):
        with pytest.raises(DataError):
            ledger.accept(1, **bad)
    assert ledger.head() == end
    accepted = ledger.accept(1, by="A. Smith", why="no customer")
    assert (accepted.state, accepted.why) == ("open", "accepted by A. Smith: no customer")
    assert ledger.found(1) == Found({}, (bob,), 0, "A. Smith", "no customer")
    start_batch(ledger, [1])
    finish_batch(ledger, 1, rows={"1": {ada: 3, bob: None}})
    assert ledger.found(1) == Found({ada: 3}, (bob,), 0, "A. Smith", "no customer")
    with pytest.raises(LedgerError, match="which is done"):
        ledger.accept(1, by="A. Smith", why="again")
    assert ledger.verify().ok


@given(st.text(min_size=1).filter(str.strip))
def test_ways_to_write_an_id_are_alike(one):
    for other in (one.upper(), f" {one}", unicodedata.normalize("NFD", one)):
        if folded(one.upper()) == folded(one.lower()):  # of few characters, case cannot be told
            assert folded(other) == folded(one)
    assert folded(folded(one)) == folded(one)
