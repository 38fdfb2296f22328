"""Carrying requests out: what is due is unlearned at once, audited, and only then marked done.

A batch is written down first. The new model is made in a hidden folder, audited there, and renamed to
``version-000K``. Then one transaction of the ledger adds the version, its audit and the end of the batch.
A worker that is killed anywhere leaves either an unfinished batch, with which the next one goes on, or a
finished one; the version before stays the current one until that transaction.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purge import Metric
from purge.core.errors import LedgerError, PurgeError
from purge.core.files import LOCK, file_errors, read_json, write_json
from purge.ledger import words
from purge.ledger.batches import (
    add_audit,
    add_version,
    fail_batch,
    finish_batch,
    next_version,
    not_found,
    start_batch,
)
from purge.ledger.chain import Kind, write_witness
from purge.ledger.data import checked_version
from purge.ledger.journal import record
from purge.ledger.orders import check_folders, set_aside, stage_of
from purge.ledger.plan import (
    BatchPlan,
    Hook,
    Outcome,
    call_hook,
    check_days,
    checked_hook,
    chosen,
    settings_of,
)
from purge.ledger.policy import Policy, Spent
from purge.ledger.records import DeletionBatch, Version
from purge.ledger.version import STAGES, NextVersion, trained_last, whole
from purge.ledger.version_audits import METRICS
from purge.ledger.working import Stopped, Watched
from purge.runs import check_weights

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

ABOUT = "batch.json"  # in the folder of a version: what the ledger keeps of it


# -- the first version -------------------------------------------------------------------------


def init(
    ledger: Ledger, run: str | os.PathLike[str], *, versions: str | os.PathLike[str] | None = None,
    keep_for_audit: bool = True,
) -> Version:  # fmt: skip
    """Write down the model that requests begin with, and where later versions shall be.

    Args:
        ledger: which has no version yet.
        run: the run folder of the deployed model, made by ``purge train``.
        versions: the folder for later versions; default: ``versions`` beside the SQLite file.
        keep_for_audit: may forgotten samples be kept, to test later that they stay forgotten? If not, later
            audits look at held-out samples of forgotten classes only.
    """
    folder = Path(run).absolute()
    facts = checked_version(folder)
    check_weights(folder, facts.digest, whole=False)
    if versions is None and "://" in ledger.name:
        raise LedgerError("a folder for versions", "none, and the ledger is no file", "pass versions")
    place = Path(versions or Path(ledger.name).parent / "versions").absolute()
    with ledger.together():
        if ledger.current() is not None:
            raise LedgerError("a ledger without a version", "one that has some", "purge request run goes on")
        record(ledger, Kind.SETTINGS, {"versions": str(place), "keep_for_audit": keep_for_audit})
        return add_version(ledger, folder, str(facts.digest), None, kind="base", about={"model": facts.model})


# -- a run -------------------------------------------------------------------------------------


def run(
    ledger: Ledger, *, due: int | None = 7, everything: bool = False, at_most: int | None = None,
    every: int | None = None, today: date | None = None, wait: float | None = None, method: str = "purge",
    settings: Mapping[str, Any] | None = None, metrics: str | Metric | Sequence[str | Metric] = METRICS,
    fail_if: Sequence[str] = (), policy: Policy | str | os.PathLike[str] | None = None, retrain: bool = False,
    seed: int = 0, device: str | None = None, trust: bool = False, before: Hook | None = None,
    after: Hook | None = None, witness: str | os.PathLike[str] | None = None, progress: bool = False,
) -> Outcome:  # fmt: skip
    """Carry out the requests that are due, all of them by one unlearning.

    A request of which an id is in no data is left out: nothing of it is done, it stays open and says so.

    Args:
        ledger: with a first version, see :func:`init`.
        due: take requests whose deadline is at most so many days away; None: whenever it is.
        everything: take all open requests.
        at_most: take no more than so many, those with the nearest deadline.
        every: take all open requests, unless the last batch was done less than so many days ago.
        today: the day it is; default: by the clock, in UTC.
        wait: seconds to wait for another worker; then a BusyError says who it is.
        method: how to unlearn, as in :func:`purge.unlearn`; ``settings`` are its settings.
        metrics: what the audit of the batch measures; ``fail_if``: conditions on these numbers, as in
            ``purge audit``. If one holds, the version before stays and the requests stay open.
        policy: how far a chain of deletions may go; a :class:`Policy` or its YAML file.
        retrain: train anew, whatever the policy says.
        seed: for everything random.
        device: default: a GPU if there is one.
        trust: may code that run folders and the ledger name be imported?
        before: a command or a function, called before a batch begins; if it fails, nothing is begun.
        after: likewise, after it has ended.
        witness: a file elsewhere (another disk, a git repository) that the end of the chain is written into.
            A ledger that does not hold what stands there, since an older one was put back, is refused.
        progress: show progress on stderr.
    """
    plan = BatchPlan.make(method, settings, metrics, fail_if, policy, retrain, seed, device, trust, progress)
    for value, name, low in ((due, "due", 0), (at_most, "at_most", 1), (every, "every", 1)):
        check_days(value, name, low)
    before, after = checked_hook(before, "before"), checked_hook(after, "after")
    day = today or datetime.now(UTC).date()
    with ledger.working(wait), _witnessed(ledger, witness):
        folder, keep = settings_of(ledger)
        check_folders(ledger, folder)
        new, batch = _unfinished(ledger, plan, folder, keep=keep, today=day)
        reasons: list[str] = []
        if new is None:
            wanted = chosen(ledger, due=due, everything=everything, every=every, today=day)
            if not wanted:
                aged = _aged(ledger, plan.policy, day)
                return Outcome("due" if aged else "nothing", reasons=tuple(aged))
            # Refuses before anything begins.
            new = NextVersion.begin(ledger, plan, wanted, keep=keep, today=day, at_most=at_most)
            reasons = new.used_up() if new.requests else _aged(ledger, plan.policy, day)
        left = _left_out(ledger, new)
        taken, missing = tuple(request.number for request in new.requests), tuple(new.missing)
        if batch is None and (plan.leaves(reasons) or not taken):
            if taken:
                record(ledger, Kind.RETRAINING_DUE, {"requests": taken, "reasons": reasons})
            outcome = Outcome(
                "due" if reasons else "not-found", taken, reasons=(*reasons, *left), not_found=missing
            )
        else:
            if batch is None:
                call_hook(before, "before", {"requests": list(taken)})
                batch = start_batch(ledger, taken, plan.record(ledger))
            outcome = _carried_out(ledger, batch, new, folder)
            outcome = replace(outcome, reasons=(*outcome.reasons, *left), not_found=missing)
    call_hook(after, "after", outcome.facts())
    return outcome


@contextmanager
def _witnessed(ledger: Ledger, witness: str | os.PathLike[str] | None) -> Iterator[None]:
    """Refuse a ledger that lacks entries which it once had; a new witness begins with what there is.

    At the end, also of a run that broke, the witness is told the end of the chain.
    """
    if witness is None:
        yield
        return
    if Path(witness).exists() and not (verdict := ledger.verify(witness=witness)).ok:
        fix = "put the newest ledger in its place, or find out who changed this one: purge request verify"
        what = f"the chain that {Path(witness).name} has seen in {ledger.name}"
        raise LedgerError(what, str(verdict.why), fix)
    try:
        yield
    finally:
        write_witness(Path(witness), ledger.head())


def _left_out(ledger: Ledger, new: NextVersion) -> list[str]:
    """Write down which requests are left out since an id of theirs is in no data, and say it."""
    lines = []
    with ledger.together():
        for number, unknown in new.missing.items():
            alike = new.data.alike(ledger, number, unknown)
            request = not_found(ledger, number, unknown, alike)
            lines.append(f"Request {number} stays open, {words.not_found(request, len(unknown), alike)}.")
    more = (
        "An id is compared as it is written. Withdraw such a request and add it anew; or, if nobody has such "
    )
    more += "data: purge request accept N --unknown"
    return [*lines, more] if lines else []


def _aged(ledger: Ledger, policy: Policy, today: date) -> list[str]:
    """Why a chain of deletions has lasted too long, though nothing is to be deleted today."""
    versions = ledger.lineage()
    if versions[-1].kind != "unlearned":
        return []
    return policy.reasons(Spent(age=(today - trained_last(versions)[1]).days))


def _unfinished(
    ledger: Ledger, plan: BatchPlan, folder: Path, *, keep: bool, today: date
) -> tuple[NextVersion, DeletionBatch] | tuple[None, None]:
    """The batch of a worker that was killed, if this one would do the same; otherwise it is given up."""
    batch = ledger.unfinished_batch()
    if batch is None:
        return None, None
    why, now = "", plan.record(ledger)
    if {key: batch.about.get(key) for key in now} != now:
        why = "its worker was ended, and the next was asked to do it in another way"
    else:
        taken = [ledger.request(number) for number in batch.requests]
        try:
            new = NextVersion.begin(ledger, plan, taken, keep=keep, today=today)
            if not new.missing:
                return new, batch
            why = "its worker was ended, and the data does not hold all of its ids any more"
        except PurgeError as error:  # its requests must not be stuck in it
            _given_up(ledger, batch, folder, str(error))
            raise
    _given_up(ledger, batch, folder, why)
    return None, None


def _given_up(ledger: Ledger, batch: DeletionBatch, folder: Path, why: str) -> None:
    """End a batch that nobody goes on with, and remove its work."""
    fail_batch(ledger, batch.number, why)
    for left in (stage_of(ledger, folder, batch), _target(ledger, folder)):
        shutil.rmtree(left, ignore_errors=True)


def _target(ledger: Ledger, folder: Path) -> Path:
    """Where the next version shall be: under the first number that no chain has used."""
    others = {name for name, _ in set_aside(ledger)}
    number = next_version(ledger)
    while f"version-{number:04d}" in others:
        number += 1
    return folder / f"version-{number:04d}"


# -- carrying out ------------------------------------------------------------------------------


def _carried_out(ledger: Ledger, batch: DeletionBatch, new: NextVersion, folder: Path) -> Outcome:
    """Make the version that a batch ordered, or take what a worker that was killed has made of it."""
    stage, target = stage_of(ledger, folder, batch), _target(ledger, folder)
    order = new.order(batch)
    try:
        for left in (*(stage / name for name in STAGES if whole(stage / name)), target):
            if left.exists():  # whatever lies where a batch works must be its own
                order.check(left, ledger.lineage())
        if target.exists():
            return _finished(ledger, batch, new, target, stage)
    except PurgeError as error:
        fail_batch(ledger, batch.number, str(error))
        raise
    if new.nothing_to_forget():
        finish_batch(ledger, batch.number, about={"rows": 0}, rows=new.found())
        return Outcome("done", batch.requests, batch.number)
    try:
        with file_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        watched = Watched(ledger, batch.number)
        made, about, reasons = new.made(stage, order, watched)
        watched.begins("finishing")  # the last moment at which it can be stopped
        if not reasons:
            write_json(made / ABOUT, about)
            with file_errors(target):
                (made / LOCK).unlink(missing_ok=True)  # of a worker that was killed
                os.rename(made, target)
    except Stopped:
        fail_batch(ledger, batch.number, words.STOPPED)
        shutil.rmtree(stage, ignore_errors=True)
        return Outcome("stopped", batch.requests, batch.number, reasons=(f"{words.STOPPED}.",))
    except Exception as error:
        # What our own errors say names no id; others may quote anything.
        why = str(error) if isinstance(error, PurgeError) else f"something broke: {type(error).__name__}"
        fail_batch(ledger, batch.number, why)
        shutil.rmtree(stage, ignore_errors=True)
        raise
    if not reasons:
        return _finished(ledger, batch, new, target, stage)
    digest, kind, found = about["digest"], about["kind"], about["found"]
    with ledger.together():
        add_audit(ledger, digest, requests=batch.requests, passed=False, found=found, batch=batch.number)
        fail_batch(ledger, batch.number, " ".join(reasons))
    shutil.rmtree(stage, ignore_errors=True)
    return Outcome("missed", batch.requests, batch.number, kind=kind, reasons=tuple(reasons), found=found)


def _finished(ledger: Ledger, batch: DeletionBatch, new: NextVersion, target: Path, stage: Path) -> Outcome:
    """Tell the ledger about a version that is in its place: version, audit and batch at once."""
    about = read_json(target / ABOUT)
    check_weights(target, about["digest"], whole=False)
    with file_errors(target):  # on the disk: the ledger must not know a version that a power cut takes away
        for path in (*(p for p in target.iterdir() if p.is_file()), target, target.parent):
            if os.name == "nt" and path.is_dir():  # Windows opens no folders
                continue
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
    place, kind, digest, found = target.absolute(), about["kind"], about["digest"], about["found"]
    kept = {key: about[key] for key in ("method", "rows", "spent", "ids")}
    tested = {n for group in found["groups"] if group["tested"] for n in group["requests"]}
    with ledger.together():
        version = add_version(
            ledger, place, digest, new.parent.digest, kind=kind, batch=batch.number, about=kept,
            number=int(target.name.rpartition("-")[2]),
        )  # fmt: skip
        add_audit(
            ledger, digest, requests=tested | {*batch.requests}, passed=True, found=found,
            batch=batch.number, folder=place,
        )  # fmt: skip
        finish_batch(
            ledger, batch.number, version=digest, about={"rows": about["rows"]},
            rows=new.found(),
        )  # fmt: skip
    shutil.rmtree(stage, ignore_errors=True)
    return Outcome("done", batch.requests, batch.number, version.number, str(place), kind, found=found)
