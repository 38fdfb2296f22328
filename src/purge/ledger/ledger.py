"""The ledger of deletion requests: what was asked, when it is due, what was done, which model came of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from sqlalchemy import func, select

from purge.core.errors import LedgerError, NumberError, brief, did_you_mean
from purge.ledger import tables, words
from purge.ledger.chain import Kind
from purge.ledger.intake import checked_request, day, id_texts, text
from purge.ledger.journal import Journal, Place, next_number, verify_export
from purge.ledger.records import STATES, Audit, Batch, Entry, Request, Version

__all__ = ["Ledger", "verify_export"]

MOST = 2**31  # what a database takes as a number
KINDS = ("base", "unlearned", "retrained")  # of a version


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
    ) -> Request:  # fmt: skip
        """Write a request down.

        Args:
            ids: of whose data it is, as the training data has them; only keyed hashes are kept.
            classes: names of whole classes, instead of ids. They are kept as they are.
            received: the day it came.
            due: the day it must be done by; default: one month later.
            basis: on which ground.
            note: a remark. It is kept for good, as it is: put in no name and no id.

        Returns:
            The request, with its number.
        """
        one = {"ids": ids, "classes": classes, "received": received, "due": due, "basis": basis, "note": note}
        return self.add_many([one])[0]

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
            first = next_number(connection, tables.requests)
            for number, one in enumerate(new, first):
                one["request"] = number
            self._append(connection, [(Kind.REQUEST, one) for one in new])
            return self._requests(tables.requests.c.number >= first)

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
        where = _where(state, due_by)
        return [
            Request(**row)
            for row in self._table(tables.requests, *where, newest=newest, skip=skip, at_most=at_most)
        ]

    def count(self, due_by: date | str | None = None) -> dict[str, int]:
        """How many requests are in each state.

        Args:
            due_by: only those due by this day.

        Returns:
            The number for each state.
        """
        state = tables.requests.c.state
        query = select(state, func.count()).where(*_where(None, due_by)).group_by(state)
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
            number = tables.requests.c.number
            known = {r.number: r for r in self._requests(number.between(min(wanted), max(wanted)))}
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
        return [one for one in self.entries() if _concerns(one, number)]

    def _requests(self, *where: Any) -> list[Request]:
        return [Request(**row) for row in self._table(tables.requests, *where)]

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

    def not_found(self, number: int, missing: int) -> Request:
        """Write down that an open request was left out of a batch: some of its ids are in no data.

        It stays open and says so. A ledger that says so already does not say it again.

        Args:
            number: of the request.
            missing: how many of its ids, or classes, have no row in the training data.

        Returns:
            The request as it is now.
        """
        with self._writing() as connection:
            request = self.request(number)
            reason = words.not_found(request, missing)
            if request.state == "open" and request.why != reason:  # somebody may have held it in the meantime
                payload = {"request": number, "missing": missing, "reason": reason}
                self._append(connection, [(Kind.NOT_FOUND, payload)])
            return self.request(number)

    def _step(self, kind: Kind, number: int, possible: list[str], reason: str | None = None) -> Request:
        with self._writing() as connection:
            state = self.request(number).state
            if state not in possible:
                what = f"a request that is {' or '.join(possible)} to {kind}"
                raise LedgerError(what, f"number {number}, which is {state}", "see purge request list")
            payload = {"request": number} | ({} if reason is None else {"reason": reason})
            self._append(connection, [(kind, payload)])
            return self.request(number)

    # -- whose data -------------------------------------------------------------------------

    def hashes(self, ids: Iterable[str]) -> list[str]:
        """The keyed hash of each id.

        Args:
            ids: as the training data has them.

        Returns:
            The hashes, in the same order.
        """
        return self._id_key().hashes(id_texts(ids))

    def suppressed(self, ids: Iterable[str]) -> list[bool]:
        """For each id: did somebody ask to forget it? Requests that were withdrawn do not count.

        Args:
            ids: as the training data has them; an empty id is nobody's.

        Returns:
            Whether each is among the requests, in the same order.
        """
        s, r = tables.subjects.c, tables.requests.c
        query = select(s.hash).distinct().join_from(tables.subjects, tables.requests, s.request == r.number)
        query = query.where(r.state != "withdrawn")
        known = self._rows(lambda c: set(c.execute(query).scalars()))
        return [one in known for one in self._hashes_of_rows(ids)]

    def match(self, numbers: int | Iterable[int], subjects: Sequence[str]) -> list[bool]:
        """For each row of data, by whose it is: does it belong to one of these requests?

        Args:
            numbers: of the requests, or of one.
            subjects: the ids of the rows, in their order; a row with an empty one is nobody's.

        Returns:
            Whether each row does, in the same order.
        """
        wanted = self._some([numbers] if isinstance(numbers, int) else numbers)
        known = {one for _, one in self._subjects_of(wanted)}
        return [one in known for one in self._hashes_of_rows(subjects)]

    def missing(self, numbers: Iterable[int], subjects: Sequence[str]) -> list[int]:
        """For each request: how many of its ids have no row of data at all?

        Args:
            numbers: of the requests.
            subjects: the ids of the rows.

        Returns:
            How many of each, in the order of the numbers.
        """
        wanted = self._some(numbers)
        known = set(self._hashes_of_rows(subjects))
        counts = Counter(number for number, one in self._subjects_of(wanted) if one not in known)
        return [counts[request.number] for request in wanted]

    def _subjects_of(self, requests: Sequence[Request]) -> list[tuple[int, str]]:
        """The keyed hashes that requests name: pairs of a number and a hash."""
        s, numbers = tables.subjects.c, {request.number for request in requests}
        rows = self._rows(lambda c: c.execute(select(s.request, s.hash)).all()) if numbers else []
        return [(number, one) for number, one in rows if number in numbers]

    def _hashes_of_rows(self, ids: Iterable[str]) -> list[str]:
        return self._id_key().hashes(id_texts(ids, blank=True))  # no request is of an empty id

    # -- batches, versions, runs, audits ----------------------------------------------------

    def start_batch(self, numbers: Iterable[int], about: Mapping[str, Any] | None = None) -> Batch:
        """Begin to do open requests together.

        Args:
            numbers: of the requests.
            about: further facts for the record, plain JSON values.

        Returns:
            The batch, with its number.
        """
        members = sorted(set(numbers))
        with self._writing() as connection:
            if not members:
                raise LedgerError("requests in a batch", "none", "name at least one")
            if old := self.unfinished_batch():
                got = f"batch {old.number} of {old.started}, which is not"
                raise LedgerError("the last batch to be done or failed", got, "finish or fail it first")
            for request in self._some(members):
                if request.state != "open":
                    got = f"number {request.number}, which is {request.state}"
                    raise LedgerError("open requests in a batch", got, "leave it out")
            number = next_number(connection, tables.batches)
            self._append(
                connection, [(Kind.BATCH, {"batch": number, "requests": members, "about": about or {}})]
            )
            return self.batch(number)

    def finish_batch(
        self, number: int, *, version: str | None = None, about: Mapping[str, Any] | None = None,
        without_rows: Iterable[int] = (),
    ) -> Batch:  # fmt: skip
        """Mark a batch and its requests done.

        Args:
            number: of the batch.
            version: the digest of the model that came of it.
            about: further facts for the record, plain JSON values.
            without_rows: those of its requests of which no row was left to forget.

        Returns:
            The batch as it is now.
        """
        made = None if version is None else text(version, "version")
        return self._end_batch(
            number, Kind.BATCH_DONE, {"version": made, "without_rows": sorted(without_rows)}, about
        )

    def fail_batch(self, number: int, reason: str, *, about: Mapping[str, Any] | None = None) -> Batch:
        """Mark a batch failed; its requests are open again and carry the reason.

        Args:
            number: of the batch.
            reason: why.
            about: further facts for the record, plain JSON values.

        Returns:
            The batch as it is now.
        """
        return self._end_batch(number, Kind.BATCH_FAILED, {"reason": text(reason, "reason")}, about)

    def _end_batch(
        self, number: int, kind: Kind, more: dict[str, Any], about: Mapping[str, Any] | None
    ) -> Batch:
        with self._writing() as connection:
            batch = self.batch(number)
            if batch.state != "running":
                raise LedgerError(
                    "a batch that runs", f"number {number}, which is {batch.state}", "start one"
                )
            payload = {"batch": number, "requests": list(batch.requests), **more}
            self._append(connection, [(kind, payload | {"about": {**batch.about, **(about or {})}})])
            return self.batch(number)

    def batch(self, number: int) -> Batch:
        """One batch.

        Args:
            number: which.

        Returns:
            The batch.
        """
        here = type(number) is int and 0 < number < MOST
        where = tables.batches.c.number == (number if here else 0)
        batches = [Batch(**row) for row in self._table(tables.batches, where)]
        if not batches:
            raise NumberError("the number of a batch", brief(number), "see purge request list")
        return batches[0]

    def batches(self) -> list[Batch]:
        """All batches in their order."""
        return [Batch(**row) for row in self._table(tables.batches)]

    def unfinished_batch(self) -> Batch | None:
        """The batch that is neither done nor failed: one runs, or its worker was killed."""
        running = self._table(tables.batches, tables.batches.c.state == "running")
        return Batch(**running[0]) if running else None

    def add_version(
        self, folder: Place, digest: str, parent: str | None, *, kind: str = "unlearned",
        batch: int | None = None, about: Mapping[str, Any] | None = None,
    ) -> Version:  # fmt: skip
        """Write down a version of the model.

        Args:
            folder: where it is.
            digest: of its weights.
            parent: the digest of the version it came from; None for the first.
            kind: base, unlearned or retrained.
            batch: the number of the batch that made it.
            about: further facts for the record, plain JSON values.

        Returns:
            The version, with its number.
        """
        if kind not in KINDS:
            raise LedgerError("a kind of version", brief(kind), did_you_mean(str(kind), KINDS))
        row = {**self._place(folder, batch), "digest": text(digest, "digest"), "kind": kind}
        if parent is not None and parent not in {version.digest for version in self.versions()}:
            raise LedgerError("the digest of a version as parent", brief(parent), "add that version first")
        self._add(Kind.VERSION, tables.versions, row | {"parent": parent, "about": about or {}})
        return self.versions()[-1]

    def versions(self) -> list[Version]:
        """All versions of the model in their order."""
        return [Version(**row) for row in self._table(tables.versions)]

    def current(self) -> Version | None:
        """The newest version of the model."""
        return (self.versions() or [None])[-1]  # type: ignore[list-item]

    def add_audit(
        self, version: str, *, requests: Iterable[int] = (), passed: bool | None = None,
        found: Mapping[str, Any] | None = None, batch: int | None = None, folder: Place | None = None,
    ) -> Audit:  # fmt: skip
        """Write down what an audit of a version found.

        Args:
            version: its digest.
            requests: the numbers of those that the audit is about.
            passed: did it pass?
            found: what it found, plain JSON values.
            batch: the number of the batch that it belongs to.
            folder: where its report is.

        Returns:
            The audit, with its number.
        """
        about = sorted({request.number for request in self._some(requests)})
        row = {"version": text(version, "version"), "requests": about, "passed": passed, "found": found or {}}
        self._add(Kind.AUDIT, tables.audits, row | self._place(folder, batch))
        return self.audits()[-1]

    def audits(self) -> list[Audit]:
        """All audits in their order."""
        rows = self._table(tables.audits)
        return [Audit(**{**r, "passed": None if r["passed"] is None else bool(r["passed"])}) for r in rows]

    def _place(self, folder: Place | None, batch: int | None) -> dict[str, Any]:
        """Where something is and which batch it came from, checked."""
        if batch is not None:
            self.batch(batch)
        return {"folder": None if folder is None else text(os.fspath(folder), "folder"), "batch": batch}


def _where(state: str | Sequence[str] | None, due_by: date | str | None) -> list[Any]:
    """The conditions on requests in some states, due by a day."""
    t = tables.requests.c
    where: list[Any] = []
    if state is not None:
        states = [state] if isinstance(state, str) else list(state)
        for one in states:
            if one not in STATES:
                raise LedgerError("a state of requests", brief(one), did_you_mean(str(one), STATES))
        where.append(t.state.in_(states))
    if due_by is not None:
        where.append(t.due <= day(due_by, "due_by").isoformat())
    return where


def _concerns(entry: Entry, number: int) -> bool:
    among = entry.payload.get("requests")
    return entry.payload.get("request") == number or (isinstance(among, list) and number in among)
