"""A ledger that cannot certify what did not happen: hypothesis plays whatever can go wrong around it.

After every step, of each copy of the ledger: a request whose certificate says done had its rows, and nobody
else's, in the forget set of the version that is named, and these rows are in no later training. What went
into a training is told by the models themselves (see tiny.py), whose rows are whose by the tables here.

``PURGE_STORIES`` says how many stories are played, 500 if it is not set.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from safetensors.torch import load_file

from purge.core.errors import PurgeError
from purge.data.sources import DataSource
from purge.ledger import version_audits, worker
from purge.ledger.certificate import certificate_of
from purge.ledger.data import deliver
from purge.ledger.ledger import Ledger
from purge.ledger.plan import Outcome
from purge.ledger.policy import Policy
from purge.models.checkpoint import file_digest
from purge.runs.folder import read_data
from purge.runs.make import train_run
from tests.ledger import tiny

STORIES = int(os.environ.get("PURGE_STORIES", "500"))
PEOPLE = [f"p{i}" for i in range(9)]
NOBODY = ["P1", "nobody"]  # who are in no table
FREE = Policy(max_share=None, max_drift=None, max_distance=None, max_return=1.0)
# Where a worker is killed, or something happens beside it.
MOMENTS = [
    "purge.ledger.worker.start_batch", "purge.ledger.version.unlearn_run", "purge.ledger.version.train_run",
    "purge.ledger.version.audit_rows", "purge.ledger.worker.write_json", "purge.ledger.worker.check_weights",
    "purge.ledger.worker.add_version", "purge.ledger.worker.finish_batch", "purge.ledger.worker.fail_batch",
    "purge.ledger.worker.not_found", "purge.ledger.batches.record", "purge.ledger.sql.apply",
    "purge.ledger.orders.record", "tests.ledger.tiny.marked",
]  # fmt: skip
INSIDE = [  # a transaction, for which others would wait
    "purge.ledger.sql.apply", "purge.ledger.batches.record", "purge.ledger.orders.record",
    *(one for one in MOMENTS if one.endswith(("_batch", "version", "found")) and "start" not in one),
]  # fmt: skip
numbers = st.integers(1, 6)
someone = st.sampled_from([None, *PEOPLE, *PEOPLE])
retrains = st.sampled_from([False, False, False, True])


class Killed(BaseException):
    """The process has ended here: nothing that handles exceptions may do anything about it."""


@contextmanager
def at(moment: str, happens: Callable[[], None], *, after: bool) -> Iterator[None]:
    """Something happens once when a function is called, or when it returns."""
    module, _, name = moment.rpartition(".")
    real, left = getattr(import_module(module), name), [happens]

    def wrapped(*args: Any, **more: Any) -> Any:
        if left and not after:
            left.pop()()
        result = real(*args, **more)
        if left and after:
            left.pop()()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moment, wrapped)
        yield


class Story(RuleBasedStateMachine):
    """Ledgers of one company: the one that is used, and maybe a copy that is used beside it."""

    base: Path  # the trained model

    @initialize()
    def begin(self) -> None:
        """A ledger with its first version, of a table with four rows of each person."""
        self.place = Path(tempfile.mkdtemp(prefix="purge-story-"))
        first = tiny.Table({i: PEOPLE[i % len(PEOPLE)] for i in range(36)})
        tiny.LIVE[:], tiny.KEPT[:] = [first], [first]
        self.rows = itertools.count(36)
        self.clock = datetime(2026, 6, 1, tzinfo=UTC)
        self.stack = ExitStack()
        self.stack.enter_context(pytest.MonkeyPatch.context()).setattr("purge.ledger.chain.now", self.now)
        self.asked: dict[Path, dict[int, list[str]]] = {}  # of each ledger, by number: people, or =CLASS
        self.accepted: dict[Path, set[int]] = {}
        self.table: dict[Path, int] = {}  # in tiny.LIVE
        self.backups: list[tuple[Path, Path, Any]] = []
        self.made: dict[str, dict[str, torch.Tensor]] = {}  # digest → what the weights tell
        self.seen: dict[Path, str] = {}
        book = self.place / "requests.db"
        self.asked[book], self.accepted[book], self.table[book] = {}, set(), 0
        with Ledger(book) as ledger:
            worker.init(ledger, self.base)

    def teardown(self) -> None:
        """Nothing is left of the story."""
        if hasattr(self, "stack"):
            self.stack.close()
            shutil.rmtree(self.place)

    def now(self) -> str:
        """The time, by a clock that can go back."""
        self.clock += timedelta(milliseconds=7)
        return self.clock.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def book(self, second: bool) -> Path:
        return [*self.asked][-1 if second else 0]

    # -- what people do --------------------------------------------------------------------

    @rule(who=st.lists(st.sampled_from(PEOPLE + NOBODY * 2), min_size=1, max_size=3), second=st.booleans())
    def ask(self, who: list[str], second: bool) -> None:
        self._ask(self.book(second), who)

    @rule(name=st.sampled_from("ab"), second=st.booleans())
    def ask_for_a_class(self, name: str, second: bool) -> None:
        self._ask(self.book(second), [f"={name}"])

    def _ask(self, book: Path, who: list[str]) -> None:
        named = {"classes": [one[1:] for one in who]} if who[0][0] == "=" else {"ids": who}
        with Ledger(book) as ledger:
            self.asked[book][ledger.add(received="2026-01-05", **named).number] = who

    @rule(
        what=st.sampled_from(["hold", "release", "withdraw", "accept"]), number=numbers, second=st.booleans()
    )
    def step(self, what: str, number: int, second: bool) -> None:
        self._step(self.book(second), what, number)

    def _step(self, book: Path, what: str, number: int) -> None:
        with Ledger(book) as ledger, suppress(PurgeError):
            if what == "accept":
                ledger.accept(number, by="A. Smith", why="no customer")
                self.accepted[book].add(number)
            elif what == "release":
                ledger.release(number)
            else:
                getattr(ledger, what)(number, "a claim")

    # -- runs, also when something happens beside them -------------------------------------

    @rule(second=st.booleans(), retrain=retrains, who=someone)
    def run(self, second: bool, retrain: bool, who: str | None) -> None:
        if who:
            self._ask(self.book(second), [who])
        self._run(self.book(second), retrain)

    def _run(self, book: Path, retrain: bool = False) -> Outcome | None:
        with Ledger(book) as ledger:
            before = ledger.head()
            try:
                return worker.run(
                    ledger, everything=True, method="tests.ledger.tiny:OneStep", metrics=("fa_train",),
                    policy=FREE, retrain=retrain, trust=True, device="cpu", today=self.clock.date(),
                )  # fmt: skip
            except PurgeError as error:
                if "purge request recover" in str(error) and "version" in str(error):
                    states = {one.state for one in ledger.batches()}
                    assert ledger.head() == before or "failed" in states, "nothing is done but to end a batch"
                return None
            finally:
                self.look()

    @rule(
        second=st.booleans(), retrain=retrains, who=st.sampled_from(PEOPLE), after=st.booleans(),
        moment=st.sampled_from(MOMENTS),
    )  # fmt: skip
    def killed(self, second: bool, retrain: bool, who: str, after: bool, moment: str) -> None:
        """A worker is killed; of what is open, the next run knows nothing more than it left."""

        def now() -> None:
            raise Killed

        self._ask(self.book(second), [who])
        with suppress(Killed), at(moment, now, after=after):
            self._run(self.book(second), retrain)
        self.look()

    @rule(
        second=st.booleans(), retrain=retrains, who=st.sampled_from(PEOPLE), after=st.booleans(),
        moment=st.sampled_from([one for one in MOMENTS if one not in INSIDE]), number=numbers,
        happens=st.sampled_from(["another worker", "ask", "hold", "withdraw", "stop", "backup"]),
    )  # fmt: skip
    def while_it_runs(
        self, second: bool, retrain: bool, who: str, after: bool, moment: str, number: int, happens: str
    ) -> None:
        """Something is done beside a worker."""
        book = self.book(second)

        def now() -> None:
            if happens == "another worker":
                self._run(self.book(not second))
            elif happens == "ask":
                self._ask(book, [PEOPLE[number]])
            elif happens == "backup":
                self._backup(book)
            elif happens == "stop":
                with Ledger(book) as ledger, suppress(PurgeError):
                    ledger.stop()
            else:
                self._step(book, happens, number)

        self._ask(book, [who])
        with at(moment, now, after=after):
            self._run(book, retrain)

    # -- what goes wrong around it ---------------------------------------------------------

    @rule(second=st.booleans())
    def backup(self, second: bool) -> None:
        self._backup(self.book(second))

    def _backup(self, book: Path) -> None:
        kept = self.place / f"backup-{len(self.backups)}"
        shutil.copy(book, kept)
        what = deepcopy((self.asked[book], self.accepted[book], self.table[book]))
        self.backups.append((book, kept, what))

    @precondition(lambda self: self.backups)
    @rule(which=st.integers(0, 9), again=st.booleans())
    def put_back(self, which: int, again: bool) -> None:
        self.restore(which, again)

    def restore(self, which: int, again: bool) -> None:
        book, kept, what = self.backups[which % len(self.backups)]
        shutil.copy(kept, book)
        self.asked[book], self.accepted[book], self.table[book] = deepcopy(what)
        if again:
            self._run(book)

    @rule(lost=st.sampled_from(PEOPLE), then=st.sampled_from(PEOPLE), second=st.booleans())
    def a_day_is_lost(self, lost: str, then: str, second: bool) -> None:
        """Last night's backup is put back, and somebody else gets the numbers of that day."""
        book = self.book(second)
        self._backup(book)
        self._ask(book, [lost])
        self._run(book)
        self.restore(len(self.backups) - 1, False)
        self._ask(book, [then])
        self._run(book)

    @precondition(lambda self: len(self.asked) == 1)
    @rule()
    def copy(self) -> None:
        """Somebody copies the ledger, and both are used: their versions are in one folder."""
        book, copy = self.book(False), self.place / "copy.db"
        shutil.copy(book, copy)
        shutil.copy(f"{book}.key", f"{copy}.key")
        for kept in (self.asked, self.accepted, self.table):
            kept[copy] = deepcopy(kept[book])  # type: ignore[index]

    @rule(which=st.integers(0, 3), how=st.sampled_from(["gone", "another", "half"]))
    def lose(self, which: int, how: str) -> None:
        """Of the versions, one of the newest is lost, or another in its place."""
        places = sorted((self.place / "versions").glob("version-*")) or [None]
        place = places[-1 - which % len(places)]
        if place is None or not place.exists():
            return
        if how == "half":
            for name in ("batch.json", "history.parquet"):
                (place / name).unlink(missing_ok=True)
            return
        shutil.rmtree(place)
        if how == "another":
            shutil.copytree(self.base, place)

    @rule(second=st.booleans(), run=st.booleans())
    def recover(self, second: bool, run: bool) -> None:
        book = self.book(second)
        with Ledger(book) as ledger, suppress(PurgeError):
            ledger.recover()
        if run:
            self._run(book)

    @rule(days=st.sampled_from([-400, -40, -1, 1, 40]))
    def clock_goes(self, days: int) -> None:
        self.clock += timedelta(days=days)

    @rule(who=st.sampled_from(PEOPLE), more=st.integers(0, 2), second=st.booleans(), told=st.booleans())
    def data_changes(self, who: str, more: int, second: bool, told: bool) -> None:
        """Rows of somebody come or go, with a delivery or without a word."""
        book = self.book(second)
        old = tiny.LIVE[self.table[book]].owners
        rows = list(itertools.islice(self.rows, more))
        if rows and rows[-1] >= tiny.MOST:
            return
        new = {**old, **dict.fromkeys(rows, who)}
        if not more:
            new = {row: one for row, one in old.items() if one != who or row < tiny.TEST}
        if len({row % tiny.CLASSES for row in new if row >= tiny.TEST}) < tiny.CLASSES:
            return
        table = tiny.Table(new)
        tiny.KEPT.append(table)
        if not told:
            tiny.LIVE[self.table[book]] = table
            return
        tiny.LIVE.append(table)
        with Ledger(book) as ledger, suppress(PurgeError):
            deliver(ledger, f"tests.ledger.tiny:table_{len(tiny.LIVE) - 1}", leave_out=more == 2, trust=True)
            self.table[book] = len(tiny.LIVE) - 1

    # -- what must be true whatever happened -----------------------------------------------

    def look(self) -> None:
        """Read what the weights of each version tell, before something happens to its folder."""
        for place in (self.base, *(self.place / "versions").glob("version-*")):
            file = place / "model.safetensors"
            if file.exists() and (digest := file_digest(file)) not in self.made:
                self.made[digest] = load_file(file)

    def own(self, who: list[str], table: int) -> set[int]:
        """The rows of the training part of a table that a request names."""
        owners = tiny.KEPT[table].owners.items()
        wanted = {"abc".index(one[1:]) for one in who if one[0] == "="}
        return {r for r, one in owners if r >= tiny.TEST and (one in who or r % tiny.CLASSES in wanted)}

    @invariant()
    def certificates_are_right(self) -> None:
        for book, asked in self.asked.items() if hasattr(self, "asked") else ():
            with Ledger(book) as ledger:
                if self.seen.get(book) == (end := str(ledger.head())):
                    continue
                self.look()
                self.seen[book] = end
                verdict = ledger.verify()
                assert verdict.ok
                ledger.verify = lambda verdict=verdict: verdict  # each certificate would ask again
                line = ledger.lineage()
                assert [one.number for one in ledger.requests()] == [*asked]
                for number, who in asked.items():
                    paper = certificate_of(ledger, number)
                    if paper["request"]["done"] is not None:
                        self.assert_done(ledger, book, number, who, paper["versions"]["after"], line)

    def assert_done(
        self, ledger: Ledger, book: Path, number: int, who: list[str], after: Any, line: list[Any]
    ) -> None:
        """One request that is done, and what its certificate says."""
        begin, found = len(line) - 1, ledger.found(number)
        assert found is not None
        assert not found.unknown or number in self.accepted[book], "accepted by nobody"
        # Who was in no data, as a person has accepted; earlier data may have held rows of theirs.
        unknown = {one for one in who if one[0] != "=" and ledger.hashes([one])[0] in found.unknown}
        assert len(unknown) == len(found.unknown)
        if after is not None:
            begin = [one.number for one in line].index(after["number"])
            told = self.made[after["digest"]]
            table, rows = int(told["table"]), told["rows"]
            own = self.own(who, table)
            forgotten = set((rows == 2).nonzero()[:, 0].tolist())
            there = {*tiny.KEPT[table].owners.values()}
            assert unknown == {one for one in who if one[0] != "=" and one not in there}
            if after["kind"] == "unlearned":
                members = ledger.batch(ledger.request(number).batch or 0).requests
                everybody = {r for n in members for r in self.own(self.asked[book][n], table)}
                before = set((self.made[after["parent"]]["rows"] == 1).nonzero()[:, 0].tolist())
                assert forgotten <= everybody, "rows of others"
                assert own & before <= forgotten, "rows that the model before knew"
                assert own & forgotten, "no row of the request"
                assert sum(found.rows.values()) == len(own & forgotten)
            else:
                assert not forgotten
                assert not own & set(rows.nonzero()[:, 0].tolist())
        for i, version in enumerate(line[begin:]):
            told = self.made[version.digest]
            trained = set((told["rows"] == 1).nonzero()[:, 0].tolist())
            named = who if i else [one for one in who if one not in unknown]
            assert not self.own(named, int(told["table"])) & trained, f"taught in version {version.number}"


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits are those of the first version, and what is installed is read once: neither is asked here."""
    for name in ("version", "entry_points"):
        monkeypatch.setattr(importlib.metadata, name, functools.cache(getattr(importlib.metadata, name)))
    audits: dict[tuple[str, ...], Any] = {}
    real = version_audits.audit

    def audited(*data: Any, metrics: list[Any], **more: Any) -> Any:
        names = tuple(map(str, metrics))
        if names not in audits:
            audits[names] = real(*data, metrics=metrics, **more)
        return audits[names]

    monkeypatch.setattr(version_audits, "audit", audited)
    monkeypatch.setattr("purge.ledger.working.PAUSE", 0.0)
    first = tiny.Table({i: PEOPLE[i % len(PEOPLE)] for i in range(36)})
    tiny.LIVE[:], tiny.KEPT[:] = [first], [first]
    choice = DataSource("tests.ledger.tiny:table_0")
    train, test = read_data(choice, progress=False)
    Story.base = tmp_path / "base"
    recipe = {"epochs": 1, "batch_size": 64, "lr": 0.1}
    train_run(
        Story.base,
        "tests.ledger.tiny:net",
        choice,
        train,
        {},
        seed=0,
        recipe=recipe,
        test=test,
        progress=False,
    )


def play(stories: int) -> None:
    run_state_machine_as_test(
        Story,
        settings=settings(
            max_examples=stories, stateful_step_count=12, deadline=None, print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


@pytest.mark.usefixtures("quick")
def test_a_few_stories():
    play(15)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_every_certificate_is_right():
    play(STORIES)
