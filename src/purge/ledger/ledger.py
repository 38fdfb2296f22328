"""The ledger of deletion requests: what was asked, when it is due, what was done, which model came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from purge.core.errors import LedgerError, NumberError, brief, did_you_mean
from purge.ledger import sql
from purge.ledger.chain import Kind
from purge.ledger.intake import checked_request, day, id_texts, text
from purge.ledger.journal import Journal, record, verify_export
from purge.ledger.records import STATES, Audit, DeletionBatch, Entry, Found, Recovery, Request, Version

if TYPE_CHECKING:
    from purge.data import Adapt, IdOf, Samples

__all__ = ["Ledger", "verify_export"]

MOST = 2**31  # what a database takes as a number


class Ledger(Journal):
    """Deletion requests over time, in an SQLite file or a PostgreSQL database.

    The ledger only grows: each entry carries the hash of the one before, and :meth:`verify` names the first
    that was touched. Of ids it keeps keyed hashes; the key is in a file of its own.

    Args:
        url: a path or ``sqlite:///requests.db``; or ``postgresql://user@host/name`` (extra ``postgres``).
        key: the file of the key that hashes ids; default: $PURGE_LEDGER_KEY, then beside the SQLite file. It
            is made together with the ledger. Without it the ledger can be read, but knows no id again.
        sign: a PEM file with an Ed25519 key (extra ``sign``), made if it is missing; each entry from now on
            is signed with it.
        must_exist: refuse to make a new ledger.
        patience: seconds to wait for another process that writes to an SQLite file.

    Raises:
        LedgerError: what a method is asked cannot be, such as the number of a request that is not there.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Ledger(f"{folder}/requests.db") as ledger:
        ...     request = ledger.add(ids=["ada@example.org"], received="2026-01-31")
        ...     print(request.number, request.due, request.state, ledger.suppressed(["ada@example.org"]))
        ...     print(ledger.verify().ok)
        1 2026-02-28 open [True]
        True
    """

    # -- requests ---------------------------------------------------------------------------

    def add(
        self, *, ids: Iterable[str] | None = None, classes: Iterable[str] | None = None, received: date | str,
        due: date | str | None = None, basis: str = "erasure request", note: str | None = None,
        label: str | None = None,
    ) -> Request:  # fmt: skip
        """Write a request down.

        Args:
            ids: of whose data it is, as the training data has them; only keyed hashes are kept.
            classes: names of whole classes, instead of ids. They are kept as they are.
            received: the day it came.
            due: the day it must be done by; default: one month later.
            basis: on which ground.
            note: a remark. It is kept for good, as it is: put in no name and no id.
            label: the right class of the rows of these ids. The model then forgets the wrong label that they
                have in the data, and is taught this one.

        Returns:
            The request, with its number.
        """
        one = {"ids": ids, "classes": classes, "received": received, "due": due, "basis": basis, "note": note}
        return self.add_many([{**one, "label": label}])[0]

    def add_many(self, requests: Iterable[Mapping[str, Any]]) -> list[Request]:
        """Write many requests down at once; all or none.

        Args:
            requests: each a dict with the arguments of :meth:`add`.

        Returns:
            The requests, with their numbers.
        """
        new = [checked_request(one, self.hashes) for one in requests]
        if not new:
            return []
        with self._writing() as connection:
            first = sql.next_number(connection, sql.requests)
            for number, one in enumerate(new, first):
                one["request"] = number
            self._append(connection, [(Kind.REQUEST, one) for one in new])
            return self._some(range(first, first + len(new)))

    def requests(
        self, state: str | Sequence[str] | None = None, due_by: date | str | None = None, *,
        newest: bool = False, skip: int = 0, at_most: int | None = None,
    ) -> list[Request]:  # fmt: skip
        """All requests in their order, or some of them.

        Args:
            state: only those in this state, or in one of these: open, held, running, done or withdrawn.
            due_by: only those due by this day.
            newest: the last one comes first.
            skip: leave out so many at the beginning.
            at_most: so many of them.

        Returns:
            The requests.
        """
        states = [state] if isinstance(state, str) else list(STATES if state is None else state)
        for one in states:
            if one not in STATES:
                raise LedgerError("a state of requests", brief(one), did_you_mean(str(one), STATES))
        where = [sql.requests.c.state.in_(states), *_due(due_by)]
        rows = self._table(sql.requests, *where, newest=newest, skip=skip, at_most=at_most)
        labels = self._labels()
        return [Request(**row, label=labels.get(row["number"])) for row in rows]

    def _labels(self) -> dict[int, str]:
        """For each correction, by its number: the right class."""
        entries = sql.entries.c
        query = select(entries.payload).where(
            entries.kind == Kind.REQUEST, entries.payload.like('%"label":%')
        )
        payloads = map(json.loads, self._rows(lambda c: c.execute(query).scalars().all()))
        return {one["request"]: one["label"] for one in payloads if "label" in one}

    def count(self, due_by: date | str | None = None) -> dict[str, int]:
        """How many requests are in each state.

        Args:
            due_by: only those due by this day.

        Returns:
            The number for each state.
        """
        state = sql.requests.c.state
        query = select(state, func.count()).where(*_due(due_by)).group_by(state)
        counts = self._rows(lambda c: {row[0]: int(row[1]) for row in c.execute(query)})
        return {name: counts.get(name, 0) for name in STATES}

    def request(self, number: int) -> Request:
        """One request.

        Args:
            number: which.

        Returns:
            The request.
        """
        return self._some([number])[0]

    def _some(self, numbers: Iterable[int]) -> list[Request]:
        """The requests with these numbers; one that is not there is refused."""
        wanted = list(numbers)
        odd = [one for one in wanted if type(one) is not int or not 0 < one < MOST]
        known: dict[int, Request] = {}
        if wanted and not odd:  # a range: an odd thousand of numbers is more than a query can name
            within = sql.requests.c.number.between(min(wanted), max(wanted))
            labels = self._labels()
            rows = {row["number"]: row for row in self._table(sql.requests, within)}
            known = {number: Request(**row, label=labels.get(number)) for number, row in rows.items()}
        if missing := odd or [one for one in wanted if one not in known]:
            raise NumberError("the number of a request", brief(missing[0]), "see purge request list")
        return [known[one] for one in wanted]

    def history(self, number: int) -> list[Entry]:
        """Every entry about a request, in their order: it was added, held, part of a batch, audited.

        Args:
            number: of the request.

        Returns:
            The entries.
        """
        self.request(number)
        return [
            one
            for one in self.entries()
            if one.payload.get("request") == number
            or (isinstance(among := one.payload.get("requests"), list) and number in among)
        ]

    def hold(self, number: int, reason: str) -> Request:
        """Let an open request wait.

        Args:
            number: of the request.
            reason: which stands in the ledger, a legal hold say.

        Returns:
            The request as it is now.
        """
        return self._step(Kind.HOLD, number, ["open"], text(reason, "reason"))

    def release(self, number: int) -> Request:
        """Let a request that was held go on.

        Args:
            number: of the request.

        Returns:
            The request as it is now.
        """
        return self._step(Kind.RELEASE, number, ["held"])

    def withdraw(self, number: int, reason: str) -> Request:
        """Take back a request that shall not be done.

        Args:
            number: of the request.
            reason: the person withdrew it, say, or it was a mistake.

        Returns:
            The request as it is now.
        """
        return self._step(Kind.WITHDRAW, number, ["open", "held"], text(reason, "reason"))

    def accept(self, number: int, *, by: str, why: str) -> Request:
        """Let a request go on although some of its ids, or classes, are in no data.

        This holds for those that the last run did not find: if a later run misses more, the request stays
        open again.

        Args:
            number: of the request.
            by: who accepts it; kept for good.
            why: the person was never a customer, say; kept for good.

        Returns:
            The request as it is now.
        """
        with self.together():
            found, state = self.found(number), self.request(number).state
            if found is None or not found.unknown or state not in ("open", "held"):
                got = f"number {number}, which is {state} and of which a run has missed nothing"
                raise LedgerError("a request of which ids were not found", got, "see purge request list")
            about = {"by": text(by, "by"), "reason": text(why, "why"), "unknown": list(found.unknown)}
            record(self, Kind.ACCEPT, {"request": number, **about})
            return self.request(number)

    def found(self, number: int) -> Found | None:
        """What is known of each id of a request, by its keyed hash, or of each class that it names.

        Args:
            number: of the request.

        Returns:
            Rows and what was not found, of its last run; None if there was none that told.
        """
        found, accepted = None, (None, None)
        for kind, about in ((one.kind, one.payload) for one in self.history(number)):
            if kind == Kind.NOT_FOUND:  # ledgers before 0.3 do not say which, nor how many rows of whom went
                found = Found({}, tuple(about.get("unknown", ())), about.get("alike", 0))
            elif kind == Kind.ACCEPT:
                accepted = about["by"], about["reason"]
                found = found and replace(found, by=accepted[0], why=accepted[1])
            elif kind == Kind.BATCH_DONE and str(number) in about.get("rows", {}):
                rows = about["rows"][str(number)]
                unknown = tuple(one for one, n in rows.items() if n is None)
                there = {one: n for one, n in rows.items() if n is not None}
                found = Found(there, unknown, 0, *(accepted if unknown else ()))
        return found

    def _step(self, kind: Kind, number: int, possible: list[str], reason: str | None = None) -> Request:
        with self.together():
            state = self.request(number).state
            if state not in possible:
                what = f"a request that is {' or '.join(possible)} to {kind}"
                raise LedgerError(what, f"number {number}, which is {state}", "see purge request list")
            record(self, kind, {"request": number} | ({} if reason is None else {"reason": reason}))
            return self.request(number)

    # -- whose data -------------------------------------------------------------------------

    def hashes(self, ids: Iterable[str], *, blank: bool = False) -> list[str]:
        """The keyed hash of each id.

        Args:
            ids: as the training data has them.
            blank: take empty ids, too; no request is of one.

        Returns:
            The hashes, in the same order.
        """
        return self._id_key().hashes(id_texts(ids, blank=blank))

    def suppressed(self, ids: Iterable[str]) -> list[bool]:
        """For each id: did somebody ask to forget it? Requests that were withdrawn do not count.

        Args:
            ids: as the training data has them; an empty id is nobody's.

        Returns:
            Whether each is among the requests, in the same order.
        """
        known = self.people([state for state in STATES if state != "withdrawn"])
        return [one in known for one in self.hashes(ids, blank=True)]

    def people(self, states: Sequence[str]) -> set[str]:
        """The keyed hashes of all ids that are to be forgotten by a request in one of these states.

        Args:
            states: of requests, as :meth:`requests` takes them.

        Returns:
            The hashes, as :meth:`hashes` gives them.
        """
        s, r = sql.subjects.c, sql.requests.c
        query = select(s.hash).distinct().join_from(sql.subjects, sql.requests, s.request == r.number)
        query = query.where(r.state.in_(states), r.number.not_in(self._labels()))
        return self._rows(lambda c: set(c.execute(query).scalars()))

    def match(self, numbers: int | Iterable[int], subjects: Sequence[str]) -> list[bool]:
        """For each row of data, by whose it is: does it belong to one of these requests?

        Args:
            numbers: of the requests, or of one.
            subjects: the ids of the rows, in their order; a row with an empty one is nobody's.

        Returns:
            Whether each row does, in the same order.
        """
        wanted = {one.number for one in self._some([numbers] if isinstance(numbers, int) else numbers)}
        known = {one for number, of in self.named().items() if number in wanted for one in of}
        return [one in known for one in self.hashes(subjects, blank=True)]

    def without(
        self, data: Any, *, label: str | None = None, id_of: IdOf = None, adapt: Adapt | None = None
    ) -> Samples:
        """Data without the rows of everybody who asked to be forgotten, to train on.

        Requests that were withdrawn do not count. Rows of classes that were to be forgotten go, too.

        Args:
            data: in any form that :func:`purge.train` takes.
            label: the column or key of the label.
            id_of: where the ids are, as the ledger has them.
            adapt: a function from one item to ``(inputs, label, id)``.

        Returns:
            The rows that are left.
        """
        from purge.data import Form, accepted
        from purge.ledger.data import left_out_by

        form = Form(label, id_of, adapt, owned=True)
        samples = accepted({"the data": data}, form)["the data"]
        return samples.select(~left_out_by(self).rows(samples))

    def named(self) -> dict[int, list[str]]:
        """For each request that names ids, by its number: their keyed hashes."""
        query = select(sql.subjects.c.request, sql.subjects.c.hash)
        named: dict[int, list[str]] = {}
        for number, one in self._rows(lambda c: c.execute(query).all()):
            named.setdefault(number, []).append(one)
        return named

    # -- batches, versions, audits ----------------------------------------------------------

    def batch(self, number: int) -> DeletionBatch:
        """One batch.

        Args:
            number: which.

        Returns:
            The batch.
        """
        here = type(number) is int and 0 < number < MOST
        where = sql.batches.c.number == (number if here else 0)
        for row in self._table(sql.batches, where):
            return DeletionBatch(**row)
        raise NumberError("the number of a batch", brief(number), "see purge request list")

    def batches(self) -> list[DeletionBatch]:
        """All batches in their order."""
        return [DeletionBatch(**row) for row in self._table(sql.batches)]

    def unfinished_batch(self) -> DeletionBatch | None:
        """The batch that is neither done nor failed: one runs, or its worker was killed."""
        running = self._table(sql.batches, sql.batches.c.state == "running")
        return DeletionBatch(**running[0]) if running else None

    def versions(self) -> list[Version]:
        """All versions of the model in their order."""
        return [Version(**row) for row in self._table(sql.versions)]

    def lineage(self) -> list[Version]:
        """All versions but those that :meth:`recover` found to be lost."""
        return [one for one in self.versions() if one.kind != "lost"]

    def current(self) -> Version | None:
        """The newest version of the model that is not lost."""
        return (self.lineage() or [None])[-1]  # type: ignore[list-item]

    def recover(self, wait: float | None = None) -> Recovery:
        """Go on after the newest copy of the ledger, or of the versions of the model, was lost.

        Folders of versions that this chain has not ordered are left where they are and no longer looked at;
        versions that are no longer in their folders no longer count. Each request whose certificate may name
        one of them is open again. All this is written into the chain.

        Args:
            wait: seconds to wait for a worker.

        Returns:
            What was found; all of it is empty if there was nothing to recover.
        """
        from purge.ledger.orders import recover

        with self.working(wait):
            return recover(self)

    def audits(self) -> list[Audit]:
        """All audits in their order."""
        rows = self._table(sql.audits)
        return [Audit(**{**r, "passed": None if r["passed"] is None else bool(r["passed"])}) for r in rows]


def _due(by: date | str | None) -> list[Any]:
    return [] if by is None else [sql.requests.c.due <= day(by, "due_by").isoformat()]
