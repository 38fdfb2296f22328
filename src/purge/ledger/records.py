"""What a ledger hands out: requests, batches, versions and the rest, as plain frozen dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

State = Literal["open", "held", "running", "done", "withdrawn"]
STATES: tuple[State, ...] = ("open", "held", "running", "done", "withdrawn")
# Of each kind of group in an audit: the numbers that would rise if it came back.
TELLS = {"classes": ("fa_test", "fa_train"), "samples": ("mia", "fa_train"), "labels": ("wrong_label",)}


class Record:
    """Something of a ledger, which can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them: dates as text, tuples as lists."""
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}
        return {name: str(v) if isinstance(v, date) else v for name, v in plain.items()}


@dataclass(frozen=True)
class Request(Record):
    """A deletion request, as it stands now."""

    number: int
    received: date
    due: date
    basis: str
    state: State
    subjects: int  # how many different ids it names
    classes: tuple[str, ...]  # the classes it names
    hold: str | None = None  # why it must wait, if it is held
    note: str | None = None
    why: str | None = None  # why the last batch with it failed, or left it out, or why it was withdrawn
    batch: int | None = None  # the last batch that it was part of
    done: str | None = None  # when it was done, in UTC
    added: str = ""  # when it was written down, in UTC
    label: str | None = None  # of a correction: the right class of the rows of its ids, whose label was wrong

    def days_left(self, today: date) -> int:
        """Days until it is due; negative if it is overdue."""
        return (self.due - today).days

    def waits(self) -> bool:
        """Is it still to be done, now or after a hold?"""
        return self.state in ("open", "held", "running")


@dataclass(frozen=True)
class DeletionBatch(Record):
    """Requests that are done together, by one unlearning."""

    number: int
    requests: tuple[int, ...]
    state: Literal["running", "done", "failed"]
    started: str
    ended: str | None = None
    why: str | None = None  # why it failed
    version: str | None = None  # digest of the model that came of it
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Version(Record):
    """A version of the model."""

    number: int
    folder: str
    digest: str
    parent: str | None
    kind: str  # base, unlearned, retrained or lost
    batch: int | None = None
    added: str = ""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Audit(Record):
    """What an audit found about a version and some requests."""

    number: int
    version: str  # digest
    passed: bool | None
    requests: tuple[int, ...]
    batch: int | None = None
    folder: str | None = None
    added: str = ""
    found: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Found(Record):
    """What is known of each id of a request, by its keyed hash, or of each class that it names."""

    rows: Mapping[str, int]  # how many went with its batch; 0: none was left, or the model never had any
    unknown: tuple[str, ...] = ()  # those that are in no data
    alike: int = 0  # so many of them would be found but for upper case, spaces or the form of a character
    by: str | None = None  # who accepted that, so that the request goes on
    why: str | None = None


@dataclass(frozen=True)
class Recovery(Record):
    """What was found after a ledger, or versions of its model, had been lost."""

    requests: tuple[int, ...] = ()  # open now: a certificate of theirs may name a version that does not count
    lacking: tuple[int, ...] = ()  # numbers in a chain that went on, of requests that this one does not have
    versions: tuple[int, ...] = ()  # of this ledger, which are lost
    folders: tuple[str, ...] = ()  # names of those that it has not ordered


@dataclass(frozen=True)
class Entry(Record):
    """One entry of the chain."""

    seq: int
    at: str
    kind: str
    payload: Mapping[str, Any]
    hash: str


@dataclass(frozen=True)
class ChainHead(Record):
    """The end of the chain. Kept elsewhere, it shows later that no entry was cut off or replaced."""

    entries: int
    hash: str

    def __str__(self) -> str:
        return f"{self.entries}:{self.hash}"


@dataclass(frozen=True)
class RunRecord(Record):
    """How a process that carried requests out has ended; ``purge request run --record`` writes it."""

    code: int
    error: str = ""  # the class of what was raised
    message: str = ""  # of a bad request
    log: str = ""  # the file with the traceback
    outcome: dict[str, Any] | None = None  # what Outcome.facts() gave


@dataclass(frozen=True)
class Working(Record):
    """The worker that carries requests out at this moment."""

    who: str
    since: str  # in UTC
    stopping: bool = False  # has somebody asked it to stop?
    doing: str = ""  # unlearning, training or auditing; empty: it is just beginning
    batch: int | None = None
    step: int = 0  # of this part of the work
    steps: int = 0  # how many there will be; 0: they are not counted
    seconds_left: float | None = None  # of this part, if the rest goes on as fast


@dataclass(frozen=True)
class Verification(Record):
    """What verifying a ledger found."""

    ok: bool
    entries: int  # how many were walked
    first_bad: int | None = None  # the first entry that was touched
    why: str | None = None
    head: str | None = None  # the end of the chain as it was found, see ChainHead
    signed: bool = False  # were signatures checked, with a key from outside of the ledger?
