"""What the page and the API ask of a ledger, as plain values. Both say the same, since both ask here."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from purge.core.errors import DataError, FileError, LedgerError, NumberError, PurgeError
from purge.core.files import read_json
from purge.ledger import words
from purge.ledger.certificate import certificate_of
from purge.ledger.chain import now
from purge.ledger.intake import text
from purge.ledger.ledger import Ledger
from purge.ledger.plan import settings_of
from purge.ledger.records import STATES, Request, Verification, Version
from purge.serve.background import Runner

WAITING = ("open", "held", "running")
SHOWN = ("all", *STATES, "waiting", "overdue")  # what the list can be narrowed to
PAGE, LONGEST_PAGE = 50, 500  # rows of a list
MOST_IDS = 100_000  # of one request
FRESH = 2.0  # seconds for which the last walk along the chain is given again: it reads the whole ledger
KEPT_LISTS = 64  # pages of the list
KEPT = 8  # reports that are kept, since drawing one takes a second or two


class Desk:
    """A ledger, and what may be done with it from afar."""

    def __init__(self, ledger: Ledger, runner: Runner, organisation: str | None = None) -> None:
        self.ledger, self.runner, self.organisation = ledger, runner, organisation
        self._file = None if "://" in ledger.name else Path(ledger.name)
        self.title = ledger.name if self._file is None else self._file.name
        self._verifying, self._drawing = threading.Lock(), threading.Lock()
        self._verdict: tuple[float, Verification] | None = None
        self._reports: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._keeping, self._mark = threading.Lock(), ledger.mark()
        self._lists: OrderedDict[Any, dict[str, Any]] = OrderedDict()

    def check(self) -> None:
        """Refuse if the file of the ledger has gone: SQLite would make an empty one."""
        if self._file is not None and not self._file.is_file():
            raise FileError(f"a ledger at {self.ledger.name}", "none", "put it back, or restore a backup")

    # -- requests ---------------------------------------------------------------------------

    def listed(
        self, show: str = "all", due_by: date | str | None = None, page: int = 1, size: int = PAGE
    ) -> dict[str, Any]:
        """One page of requests, the newest first."""
        if show not in SHOWN:
            raise DataError("a kind of requests to list", repr(show[:40]), f"use one of {', '.join(SHOWN)}")
        today = date.today()
        key, mark = (show, due_by, page, size, today), self.ledger.mark()
        with self._keeping:
            if mark is None or mark != self._mark:  # something was written
                self._mark = mark
                self._lists.clear()
            if key in self._lists:
                return self._lists[key]
        due_by = today - timedelta(days=1) if show == "overdue" else due_by
        states = WAITING if show in ("waiting", "overdue") else STATES if show == "all" else (show,)
        counts = self.ledger.count(due_by)
        total = sum(counts[state] for state in states)
        requests = self.ledger.requests(states, due_by, newest=True, skip=(page - 1) * size, at_most=size)
        made = {
            "requests": [words.shown(one, today) for one in requests], "total": total, "page": page,
            "pages": max(1, -(-total // size)),
        }  # fmt: skip
        with self._keeping:
            if mark is not None and mark == self._mark:  # what was read is not to be changed
                self._lists[key] = made
                while len(self._lists) > KEPT_LISTS:
                    self._lists.popitem(last=False)
        return made

    def due(self, days: int = 7) -> dict[str, Any]:
        """What waits and is due within some days, the nearest deadline first, and how many are overdue."""
        today = date.today()
        waiting = self.ledger.requests(WAITING, today + timedelta(days=days))
        requests = sorted(waiting, key=lambda r: (r.due, r.number))
        late = self.ledger.count(today - timedelta(days=1))
        return {
            "days": days, "total": len(requests), "overdue": sum(late[state] for state in WAITING),
            "requests": [words.shown(one, today) for one in requests[:LONGEST_PAGE]],
        }  # fmt: skip

    def one(self, number: int) -> dict[str, Any]:
        """One request, with its history."""
        request = words.shown(self.ledger.request(number), date.today())
        return {**request, "history": words.history(self.ledger, number)}

    def add(
        self, *, received: str, ids: list[str] | None = None, classes: list[str] | None = None,
        due: str | None = None, basis: str | None = None, note: str | None = None, label: str | None = None,
    ) -> Request:  # fmt: skip
        """Write a request down."""
        if ids is not None and len(ids) > MOST_IDS:
            raise DataError(f"at most {MOST_IDS} ids", str(len(ids)), "split the request, or use the shell")
        return self.ledger.add(
            ids=ids, classes=classes, received=received, due=due or None, basis=basis or "erasure request",
            note=note or None, label=label or None,
        )  # fmt: skip

    def step(self, number: int, kind: str, reason: str | None) -> Request:
        """Hold a request, release or withdraw it."""
        self.ledger.request(number)
        if kind == "release":
            return self.ledger.release(number)
        why = text(reason, "reason")
        return self.ledger.hold(number, why) if kind == "hold" else self.ledger.withdraw(number, why)

    def certificate(self, number: int) -> dict[str, Any]:
        """The certificate of a request. It names nobody."""
        return certificate_of(self.ledger, number, organisation=self.organisation)

    def run(self) -> dict[str, Any]:
        """How the run that was started here stands, and how far a worker is, this one or another."""
        worker = self.ledger.worker()
        return {
            **self.runner.state(), "worker": None if worker is None else worker.to_dict(),
            "progress": "" if worker is None else words.at_work(worker),
        }  # fmt: skip

    # -- versions and the chain -------------------------------------------------------------

    def versions(self) -> list[dict[str, Any]]:
        """All versions, the newest first; of their folders only the names are told."""
        passed = {audit.version: audit.passed for audit in self.ledger.audits()}
        place, rows = self._place(), []
        for version in reversed(self.ledger.versions()):
            about = {key: getattr(version, key) for key in ("number", "kind", "digest", "parent", "batch")}
            about |= {"added": version.added, "folder": Path(version.folder).name}
            about |= {"passed": passed.get(version.digest), "report": _audit_of(version, place) is not None}
            rows.append(about)
        return rows

    def verdict(self) -> Verification:
        """Was anything in the ledger touched? One walk at a time; others get its answer."""
        with self._verifying:
            if self._verdict is None or time.monotonic() - self._verdict[0] > FRESH:
                verdict = self.ledger.verify()
                self._verdict = (time.monotonic(), verdict)
            return self._verdict[1]

    def chain(self, before: int | None = None) -> dict[str, Any]:
        """Entries of the chain, the newest first, without what they hold."""
        last = self.ledger.head().entries
        end = last if before is None else max(0, min(last, before - 1))
        start = max(1, end - PAGE + 1)
        entries = []
        for entry in reversed(self.ledger.entries(start=start, end=end)):
            about = {key: entry.payload.get(key) for key in ("request", "batch", "version")}
            plain = {key: value for key, value in about.items() if isinstance(value, int)}
            entries.append(
                {"seq": entry.seq, "at": entry.at, "kind": entry.kind, "hash": entry.hash, **plain}
            )
        return {"entries": entries, "start": start, "end": end, "all": last}

    # -- reports ----------------------------------------------------------------------------

    def report(self, number: int) -> str:
        """The report of a version as a page. It is drawn from the numbers of its audit: no id is in them."""
        version = next((v for v in self.ledger.versions() if v.number == number), None)
        if version is None:
            raise NumberError("the number of a version", str(number)[:20], "see the list of versions")
        file = _audit_of(version, self._place())
        if file is None:
            fix = "versions that a run has made have one"
            raise NumberError(f"an audit of version {number} where versions are kept", "none", fix)
        key = (version.digest, file.stat().st_mtime_ns)
        with self._drawing:
            if key not in self._reports:
                from purge.report import html_page  # draws figures: takes a second to import

                content, name = read_json(file), f"version {number}"
                try:
                    self._reports[key] = html_page({name: content}, records={name: {}}, written=now())
                except PurgeError:
                    raise
                except Exception:  # whatever a damaged file makes of it
                    what, fix = f"an audit in {file.parent.name}", "audit the version again"
                    raise FileError(what, "a damaged one", fix) from None
                while len(self._reports) > KEPT:
                    self._reports.popitem(last=False)
            return self._reports[key]

    def _place(self) -> Path | None:
        """The folder where this ledger keeps its versions."""
        try:
            return settings_of(self.ledger)[0].resolve()
        except (LedgerError, OSError):
            return None


def _audit_of(version: Version, place: Path | None) -> Path | None:
    """The audit of a version, if it is a plain file in a folder of that place: no link leads out of it."""
    if place is None:
        return None
    try:
        file = Path(version.folder, "audit.json")
        here = file.resolve() == place / Path(version.folder).name / "audit.json"
        return file if here and file.is_file() else None
    except (OSError, ValueError):
        return None


def readable(read: Callable[[], Any]) -> tuple[Any, str]:
    """What can be read, or why it cannot: a touched chain is shown as far as possible."""
    try:
        return read(), ""
    except PurgeError as error:
        return None, str(error)
