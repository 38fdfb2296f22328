"""New training data between requests, and people who come back in it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from purge.core.errors import DataError, LedgerError, PurgeError
from purge.core.files import as_json
from purge.data.identity import fingerprints
from purge.ledger.grounds import DELIVERED, Grounds, choice_of, delivered_choice, expected_of
from purge.ledger.records import Version
from purge.runs.folder import facts_of, read_model, same_scale

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger


@dataclass(frozen=True)
class Delivery:
    """What came with a delivery."""

    rows: int  # of the training data from now on
    before: int  # of the training data until now
    people: int  # who asked to be forgotten and have more rows than before
    came_back: int  # how many rows more


def deliver(
    ledger: Ledger, data: str, *, data_dir: Path | None = None, split_seed: int | None = None,
    leave_out: bool = False, trust: bool = False, wait: float | None = None,
) -> Delivery:  # fmt: skip
    """Write down that the training data is another one from now on: all of it, old and new.

    The next version is made with it. Rows of people who asked to be forgotten, and who have more of them than
    before, are refused; with ``leave_out`` the data is taken and these rows are never used.

    Args:
        ledger: with a version.
        data: the name, folder, file or ``module:function`` of the whole training data.
        data_dir: where named data sets are.
        split_seed: draws the fifth that is held out if the data has no test part.
        leave_out: take the data, and use no row of those people.
        trust: may code that run folders and the ledger name be imported?
        wait: seconds to wait for a worker.
    """
    with ledger.working(wait):
        current = ledger.current()
        if current is None:
            raise LedgerError("a ledger with a model", "none", "purge request init RUN")
        facts = facts_of(Path(current.folder))
        choice = delivered_choice(facts, data, data_dir, split_seed)
        new = Grounds.load(choice)
        if facts.names and tuple(facts.names) != tuple(new.train.names):
            raise DataError(
                "the classes of the current version", "others", "deliver data with the same classes"
            )
        same_scale(facts, choice, "current")
        read_model(Path(current.folder), None, new.train, trust)  # it must fit
        new.check_ids(expected_of(ledger, current)[0])
        previous = _previous(ledger, current, trust)
        if previous is not None:
            new.check_ids(previous.ids)
        if new.ids == "rows":
            _begins_with(new, previous)
        old = Counter(() if previous is None else previous.subjects)
        more = {one: n - old[one] for one, n in Counter(new.subjects).items() if n > old[one]}
        people = [one for one, asked in zip(more, ledger.suppressed(list(more)), strict=True) if asked]
        rows = sum(more[one] for one in people)
        found = Delivery(len(new.train), old.total(), len(people), rows)
        if people and not leave_out:
            got = f"{rows} rows of {len(people)} who did"
            fix = "remove them from the data, or pass leave_out (--leave-out), and no version will use them"
            raise DataError("new data of people who did not ask to be forgotten", got, fix)
        payload = {
            "choice": dataclasses.asdict(choice),
            "source": new.train.source,
            "ids": new.ids,
            **dataclasses.asdict(found),
        }
        as_json(payload)
        ledger.append(DELIVERED, payload)
    return found


def _previous(ledger: Ledger, current: Version, trust: bool) -> Grounds | None:
    """The training data until now; None if it is no longer there."""
    choice = choice_of(ledger, current, trust=trust)
    try:
        return Grounds.load(choice)
    except PurgeError:
        return None


def _begins_with(new: Grounds, previous: Grounds | None) -> None:
    """Refuse data in which a row number means another sample than before."""
    n = 0 if previous is None else len(previous.train)
    if previous is not None and len(new.train) >= n:
        first = new.train.select(torch.arange(n))
        a, b = (data.to("cpu") for data in (previous.train, first))
        if torch.equal(fingerprints(a), fingerprints(b)) and torch.equal(a.labels, b.labels):
            return
    got, fix = "other rows in their places", "append new rows, or let the data carry ids"
    raise DataError(f"the {n} rows until now at the beginning of the data, which has no ids", got, fix)
