"""What only a worker writes into a ledger: batches, versions, audits, and requests that were left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from purge.core.errors import LedgerError
from purge.ledger import words
from purge.ledger.chain import Kind
from purge.ledger.intake import text
from purge.ledger.journal import record
from purge.ledger.records import Audit, DeletionBatch, Request, Version

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

Json = Mapping[str, Any]


def start_batch(ledger: Ledger, numbers: Iterable[int], about: Json | None = None) -> DeletionBatch:
    """Begin to do open requests together; ``about``: further facts for the record."""
    members = sorted(set(numbers))
    with ledger.together():
        if old := ledger.unfinished_batch():
            got = f"batch {old.number} of {old.started}, which is not"
            raise LedgerError("the last batch to be done or failed", got, "finish or fail it first")
        states = {number: ledger.request(number).state for number in members}
        if other := [
            f"number {number}, which is {state}" for number, state in states.items() if state != "open"
        ]:
            raise LedgerError("open requests in a batch", other[0], "leave it out")
        number = len(ledger.batches()) + 1
        record(ledger, Kind.BATCH, {"batch": number, "requests": members, "about": about or {}})
        return ledger.batch(number)


def finish_batch(
    ledger: Ledger, number: int, *, version: str | None = None, about: Json | None = None,
    rows: Mapping[str, Mapping[str, int | None]] = MappingProxyType({}),
) -> DeletionBatch:  # fmt: skip
    """Mark a batch and its requests done.

    ``rows``: for each request, and each keyed id or class of it, how many rows went; None: it is in no data.
    """
    without = sorted(int(number) for number, parts in rows.items() if not any(parts.values()))
    more = {"version": version, "without_rows": without, "rows": dict(rows)}
    return _end(ledger, number, Kind.BATCH_DONE, more, about)


def fail_batch(ledger: Ledger, number: int, reason: str, *, about: Json | None = None) -> DeletionBatch:
    """Mark a batch failed; its requests are open again and carry the reason."""
    short = reason if len(reason) <= 900 else f"{reason[:900]}…"
    return _end(ledger, number, Kind.BATCH_FAILED, {"reason": short}, about)


def _end(ledger: Ledger, number: int, kind: Kind, more: dict[str, Any], about: Json | None) -> DeletionBatch:
    with ledger.together():
        batch = ledger.batch(number)
        if batch.state != "running":
            raise LedgerError("a batch that runs", f"number {number}, which is {batch.state}", "start one")
        payload = {"batch": number, "requests": list(batch.requests), **more}
        record(ledger, kind, payload | {"about": {**batch.about, **(about or {})}})
        return ledger.batch(number)


def add_version(
    ledger: Ledger, folder: Path, digest: str, parent: str | None, *, kind: str = "unlearned",
    batch: int | None = None, about: Json | None = None, number: int | None = None,
) -> Version:  # fmt: skip
    """Write down a version of the model; ``digest``: of its weights, ``parent``: of those it came from.

    ``number``: default: the next.
    """
    row = {
        "folder": text(str(folder), "folder"),
        "batch": batch,
        "digest": digest,
        "kind": kind,
        "parent": parent,
    }
    with ledger.together():
        number = number or next_version(ledger)
        record(ledger, Kind.VERSION, {**row, "about": about or {}, "version": number})
        return ledger.versions()[-1]


def next_version(ledger: Ledger) -> int:
    """The number of the next version."""
    return max((version.number for version in ledger.versions()), default=0) + 1


def add_audit(
    ledger: Ledger, version: str, *, requests: Iterable[int] = (), passed: bool | None = None,
    found: Json | None = None, batch: int | None = None, folder: Path | None = None,
) -> Audit:  # fmt: skip
    """Write down what an audit of a version, named by its digest, found about some requests."""
    row: dict[str, Any] = {"version": version, "requests": sorted(set(requests)), "passed": passed}
    row |= {"found": found or {}, "folder": None if folder is None else str(folder), "batch": batch}
    with ledger.together():
        record(ledger, Kind.AUDIT, row | {"audit": len(ledger.audits()) + 1})
        return ledger.audits()[-1]


def not_found(ledger: Ledger, number: int, unknown: Sequence[str], alike: int) -> Request:
    """Write down that an open request was left out of a batch: some of its ids are in no data.

    It stays open and says so. A ledger that says so already does not say it again. ``unknown``: the keyed
    ids, or the classes; ``alike``: how many would be found if they were written otherwise.
    """
    with ledger.together():
        request = ledger.request(number)
        about = {"missing": len(unknown), "alike": alike, "unknown": sorted(unknown)}
        about |= {"reason": words.not_found(request, len(unknown), alike), "request": number}
        last = [one.payload for one in ledger.entries(Kind.NOT_FOUND) if one.payload["request"] == number]
        said = request.why == about["reason"] and last[-1:] == [about]
        if request.state == "open" and not said:  # somebody may have held it in the meantime
            record(ledger, Kind.NOT_FOUND, about)
        return ledger.request(number)
