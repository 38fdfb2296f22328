"""The training data of a ledger: whose each row is, which rows requests name, and deliveries of new data.

Rows are looked up anew from the ledger each time, by keyed hashes of the ids in the data and by classes. So
data that grew, or came in another order, changes nothing about who was forgotten.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from purge.core.errors import DataError, FileError, LedgerError, PurgeError
from purge.core.plugins import is_function, trusted
from purge.core.schema import build
from purge.data import DataSource, Samples, choose_data, fingerprints, relabelled
from purge.ledger.chain import Kind
from purge.ledger.intake import folded
from purge.ledger.journal import record
from purge.ledger.records import STATES, Request, State, Version
from purge.runs import LeftOut, RunFile, facts_of, gone_of, read_data, read_model, same_scale

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger


IDS = {"ids": "ids of its own", "paths": "paths of images", "rows": "row numbers alone"}
ASKED: tuple[State, ...] = tuple(state for state in STATES if state != "withdrawn")


def owners_of(data: Samples) -> tuple[tuple[str, ...], str]:
    """Whose each row is, as text, and what says so: ``ids`` of the data, ``paths`` of images, or ``rows``."""
    if data.owners:
        return data.owners, "ids"
    if data.paths:
        return tuple(data.paths[i] for i in data.ids.tolist()), "paths"
    return tuple(map(str, range(len(data)))), "rows"


def left_out_by(ledger: Ledger, states: Sequence[State] = ASKED) -> LeftOut:
    """The rows that requests in some states name, in any data that says whose they are; not to be taught.

    Of a correction these are the rows that have a wrong label still, or again.
    """
    requests, named, people = ledger.requests(states), ledger.named(), ledger.people(states)
    classes = {name for request in requests for name in request.classes}
    right = {one: r.label for r in requests if r.label is not None for one in named[r.number]}
    ledger.hashes([])  # reads the key now: the ledger may be closed when rows are looked for
    deliveries, current = ledger.entries(Kind.DELIVERY), ledger.current()
    about = deliveries[-1].payload if deliveries else {} if current is None else current.about

    def rows(data: Samples) -> Tensor:
        labels = [data.names[c] for c in data.labels.tolist()]
        gone = torch.tensor([name in classes for name in labels])
        if not people and not right:
            return gone
        whose, kind = owners_of(data)
        if kind == "rows" or about.get("ids") not in (None, kind):
            what, fix = "data whose rows say whose they are, as in the ledger", "name their column with --id"
            raise DataError(what, f"some with {IDS[kind]}", fix)
        each = zip(ledger.hashes(whose, blank=True), labels, strict=True)
        return gone | torch.tensor([one in people or right.get(one, name) != name for one, name in each])

    return LeftOut(ledger.identity, rows)


@dataclass(frozen=True)
class Counted:
    """What a table holds of people who asked to be forgotten."""

    rows: int
    forgotten: int  # rows of people, or of classes, whose request is done
    asked: int  # of those whose request is not done yet


def count_rows(ledger: Ledger, data: str, options: Mapping[str, Any] = MappingProxyType({})) -> Counted:
    """Look for rows of forgotten people in a table: a restored backup, a new delivery, a colleague's copy.

    Args:
        ledger: with the requests.
        data: a name, folder, file or ``module:function``.
        options: how it is read: fields of :class:`purge.data.DataSource`.
    """
    source = choose_data(RunFile(), {"held_out": False, **options, "data": data})
    parts = [part for part in read_data(source, progress=False) if part is not None]
    states: tuple[Sequence[State], ...] = ("done",), [state for state in ASKED if state != "done"]
    counts = [sum(int(left_out_by(ledger, some).rows(part).sum()) for part in parts) for some in states]
    return Counted(sum(map(len, parts)), *counts)


@dataclass(frozen=True)
class OwnedData:
    """Training and test data, and whose each training sample is."""

    choice: DataSource
    train: Samples
    test: Samples
    subjects: tuple[str, ...]
    ids: str  # what tells whose a row is, see owners_of
    held_out: tuple[str, ...] = ()  # whose each row of the test data is, where that is known
    rows_of: Mapping[str, Tensor] = field(default_factory=dict)  # keyed id → its rows in the training data
    named: Mapping[int, Sequence[str]] = field(default_factory=dict)  # request → its keyed ids
    corrected: Tensor | None = None  # the labels (N,) that are taught now, where some were corrected

    @classmethod
    def load(cls, choice: DataSource, ledger: Ledger | None = None, *, progress: bool = False) -> OwnedData:
        """Read the data; what ``ledger`` knows of whose each row is and what was asked goes with it."""
        train, test = read_data(choice, progress=progress)
        if test is None:
            raise _without_test(choice.data)
        whose, ids = owners_of(train)
        held_out, same = owners_of(test)
        held_out = held_out if same == ids != "rows" else ()
        for part in (train, test):
            part.owners = ()  # only the ledger knows whose a row is: no run folder may name anyone
        if ledger is None:
            return cls(choice, train, test, whose, ids, held_out)
        rows: dict[str, list[int]] = {}
        for i, one in enumerate(ledger.hashes(whose, blank=True)):
            if whose[i].strip():
                rows.setdefault(one, []).append(i)
        rows_of = {one: torch.tensor(at) for one, at in rows.items()}
        return cls(choice, train, test, whose, ids, held_out, rows_of, ledger.named())

    def check_ids(self, before: str | None) -> None:
        """Refuse data whose rows are told apart in another way: who was forgotten would be lost."""
        if before not in (None, self.ids):
            fix = "let the data carry the same ids as before"
            raise DataError(f"training data with {IDS[str(before)]}", f"some with {IDS[self.ids]}", fix)

    def class_number(self, request: Request, name: str) -> int:
        """A class that a request names; one that the data does not know is refused."""
        names = list(self.train.names)
        if names.count(name) == 1:
            return names.index(name)
        if name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(names):
            return int(name)
        fix = f"withdraw request {request.number}, or hold it, and add one with the right name"
        raise DataError(
            f"a class of the data in request {request.number}", f"{name!r}, which is none or several", fix
        )

    def class_numbers(self, requests: Iterable[Request]) -> list[int]:
        """The classes that requests name."""
        return sorted({self.class_number(request, name) for request in requests for name in request.classes})

    def parts(self, request: Request) -> dict[str, Tensor]:
        """For each keyed id of a request, or each class: its rows in the training data.

        Of a correction these are the rows with a wrong label; of ids whose label is right there, none.
        """
        nothing = torch.empty(0, dtype=torch.long)
        if request.subjects:
            rows = {one: self.rows_of.get(one, nothing) for one in self.named[request.number]}
            if request.label is None:
                return rows
            right = self.class_number(request, request.label)
            return {one: at[self.train.labels[at] != right] for one, at in rows.items()}
        numbers = {name: self.class_number(request, name) for name in request.classes}
        return {name: (self.train.labels == c).nonzero()[:, 0] for name, c in numbers.items()}

    def not_found(
        self, ledger: Ledger, requests: Sequence[Request], versions: Iterable[Version]
    ) -> Iterator[list[str]]:
        """For each request: the keyed ids, or classes, that are in no data, unless that was accepted.

        Ids of the test part are found, as long as all ``versions`` since the last training stand on this very
        data: in other data they may have been in the other part.
        """
        try:
            same = all(facts_of(Path(one.folder)).source == self.train.source for one in versions)
        except FileError:  # of one that is no longer there, nobody knows
            same = False
        fine = {*ledger.hashes(self.held_out, blank=True)} if same else set()
        entries = [one.payload for one in ledger.entries(Kind.ACCEPT)]
        accepted = {(about["request"], one) for about in entries for one in about["unknown"]}
        for request in requests:
            in_test = fine if request.label is None else ()  # a label that was not taught needs no correction
            absent = [one for one, at in self.parts(request).items() if not len(at) and one not in in_test]
            yield [one for one in absent if (request.number, one) not in accepted]

    def alike(self, ledger: Ledger, number: int, unknown: Sequence[str]) -> int:
        """How many ids of a request would be found but for upper case, spaces or the form of a character."""
        entry = next(e for e in ledger.entries(Kind.REQUEST) if e.payload["request"] == number)
        alike = entry.payload.get("alike", {})
        there = {*ledger.hashes({folded(one) for one in self.subjects if one.strip()})}
        return sum(alike.get(one, one) in there for one in unknown)

    def rows(self, requests: Sequence[Request]) -> Tensor:
        """A mask (N,) of the training samples that requests name, by id or by class."""
        rows = torch.zeros(len(self.train), dtype=torch.bool)
        for request in requests:
            for at in self.parts(request).values():
                rows[at] = True
        return rows

    def corrected_by(self, requests: Sequence[Request], but: Tensor) -> OwnedData:
        """The data with the right labels of corrections in their order; rows of a mask keep theirs."""
        labels = (self.train.labels if self.corrected is None else self.corrected).clone()
        for request in requests:
            if request.label is not None:
                labels[self.rows([request]) & ~but] = self.class_number(request, request.label)
        return dataclasses.replace(self, corrected=labels)

    def taught(self, rows: Tensor) -> Samples:
        """Some rows with their right labels, as a set of its own if these are not those of the data."""
        part = self.train.select(rows)
        labels = part.labels if self.corrected is None else self.corrected[rows]
        if torch.equal(labels, part.labels):
            return part
        return relabelled(part, labels)

    def test_without(self, classes: Iterable[int]) -> Samples:
        """The test data without some classes: no number may rest on samples of a class that is gone."""
        without = torch.tensor(sorted(classes), dtype=torch.long)
        return self.test.select(~torch.isin(self.test.labels, without))


def checked_version(folder: Path) -> RunFile:
    """What a run folder says about itself, if it can be the first version of a ledger."""
    if not folder.is_dir():
        raise FileError(f"a run folder at {folder}", "no folder", "name one that purge train has written")
    facts = facts_of(folder)
    if facts.digest is None or facts.data is None or facts.model is None:
        fix = "make one with purge train --data NAME --model NAME --out DIR"
        raise FileError(f"a run folder that names its data and model in {folder}", "one that does not", fix)
    if not facts.held_out:
        raise _without_test(str(folder))
    if facts.preset is not None or gone_of(facts):  # the ledger would not know what it must not be taught
        fix = "begin with the trained model, and add what it had to forget as requests"
        raise FileError(f"a model trained on all of its data in {folder}", "one that has forgotten some", fix)
    return facts


def _without_test(name: str) -> DataError:
    what, got = "data that the model was not trained on", f"{name}, of which all was trained on"
    return DataError(f"{what}, for the audits of a ledger", got, "train one without --all-trained")


# -- which data: that of the first version, or of the last delivery -----------------------------


def choice_of(ledger: Ledger, version: Version, *, trust: bool) -> DataSource:
    """The data that the next version stands on: that of the last delivery, or else of the version's run."""
    facts = facts_of(Path(version.folder))
    deliveries = ledger.entries(Kind.DELIVERY)
    if not deliveries:
        return choose_data(facts, {}, trust=trust, model=facts.model or "")
    choice = build(DataSource, deliveries[-1].payload["choice"], "the last delivery", ignore_unknown=True)
    if is_function(choice.data):
        trusted(choice.data, "the ledger", trust, option="--trust")
    return choice


def expected_of(ledger: Ledger, version: Version) -> tuple[str | None, str | None]:
    """How rows were told apart until now, and the fingerprint of the data, where these are known."""
    if deliveries := ledger.entries(Kind.DELIVERY):
        return deliveries[-1].payload.get("ids"), deliveries[-1].payload.get("source")
    return version.about.get("ids"), facts_of(Path(version.folder)).source


@dataclass(frozen=True)
class Delivery:
    """What came with a delivery."""

    rows: int  # of the training data from now on
    before: int  # of the training data until now
    people: int  # who asked to be forgotten and have more rows than before
    came_back: int  # how many rows more


def deliver(
    ledger: Ledger, data: str, *, options: Mapping[str, Any] = MappingProxyType({}),
    leave_out: bool = False, trust: bool = False, wait: float | None = None,
) -> Delivery:  # fmt: skip
    """Write down that the training data is another one from now on: all of it, old and new.

    The next version is made with it. Rows of people who asked to be forgotten, and who have more of them than
    before, are refused; with ``leave_out`` the data is taken and these rows are never used.

    Args:
        ledger: with a version.
        data: the name, folder, file or ``module:function`` of the whole training data.
        options: how it is read, where it differs from the data before: fields of
            :class:`purge.data.sources.DataSource`, as ``{"split_seed": 1}``.
        leave_out: take the data, and use no row of those people.
        trust: may code that run folders and the ledger name be imported?
        wait: seconds to wait for a worker.
    """
    with ledger.working(wait):
        current = ledger.current()
        if current is None:
            raise LedgerError("a ledger with a model", "none", "purge request init RUN")
        facts = facts_of(Path(current.folder))
        # Read like the data that the model was trained on; a function brings its own scale and size.
        own = is_function(data)
        scale = (
            {}
            if own
            else {name: value for name in ("mean", "std") if (value := getattr(facts, name)) is not None}
        )
        choice = choose_data(facts, {**scale, **options, "data": data}, model=facts.model or "")
        choice = dataclasses.replace(choice, size=None) if own else choice
        new = OwnedData.load(choice)
        if facts.names and tuple(facts.names) != tuple(new.train.names):
            fix = "deliver data with the same classes"
            raise DataError("the classes of the current version", "others", fix)
        same_scale(facts, choice, "current")
        read_model(Path(current.folder), None, new.train, trust)  # it must fit
        new.check_ids(expected_of(ledger, current)[0])
        previous = _data_before(ledger, current, trust)
        if previous is not None:
            new.check_ids(previous.ids)
        if new.ids == "rows":
            _begins_with(new, previous)
        delivery = _delivery(ledger, new, previous)
        if delivery.people and not leave_out:
            got = f"{delivery.came_back} rows of {delivery.people} who did"
            fix = "remove them from the data, or pass leave_out (--leave-out), and no version will use them"
            raise DataError("new data of people who did not ask to be forgotten", got, fix)
        about = {"choice": dataclasses.asdict(choice), "source": new.train.source, "ids": new.ids}
        record(ledger, Kind.DELIVERY, about | dataclasses.asdict(delivery))
    return delivery


def _data_before(ledger: Ledger, current: Version, trust: bool) -> OwnedData | None:
    """The training data until now; None if it is no longer there."""
    choice = choice_of(ledger, current, trust=trust)
    try:
        return OwnedData.load(choice)
    except PurgeError:
        return None


def _delivery(ledger: Ledger, new: OwnedData, previous: OwnedData | None) -> Delivery:
    old = Counter(() if previous is None else previous.subjects)
    more = {one: n - old[one] for one, n in Counter(new.subjects).items() if n > old[one]}
    people = [one for one, forgotten in zip(more, ledger.suppressed(list(more)), strict=True) if forgotten]
    return Delivery(len(new.train), old.total(), len(people), sum(more[one] for one in people))


def _begins_with(new: OwnedData, previous: OwnedData | None) -> None:
    """Refuse data in which a row number means another sample than before."""
    n = 0 if previous is None else len(previous.train)
    if previous is not None and len(new.train) >= n:
        a, b = (data.to("cpu") for data in (previous.train, new.train.select(torch.arange(n))))
        if torch.equal(fingerprints(a), fingerprints(b)) and torch.equal(a.labels, b.labels):
            return
    got, fix = "other rows in their places", "append new rows, or let the data carry ids"
    raise DataError(f"the {n} rows until now at the beginning of the data, which has no ids", got, fix)
