"""What the shell and the page say about a ledger, without naming anybody."""

from __future__ import annotations

import calendar
from collections.abc import Mapping
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from purge.ledger.records import Recovery, Request, Verification, Version, Working
from purge.verdict import Level

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

# -- of a certificate ------------------------------------------------------------------------

NOT_PROMISED = (
    "That the model is the one that training without this data would have produced. Unlearning is "
    "approximate, and each check finds only what it looks for.",
    "That the training data itself, copies of it, backups, earlier versions of the model, or answers that it "
    "gave before, have been deleted. This certificate is about the model.",
    "That the request was justified or complete. Only the ids and classes named in it were acted on.",
    "That nobody who could change the database, and every stored copy of its last entry, has rewritten both.",
)
UNCHANGED = "The model has not been changed for this request"
NOTHING_LEFT = (
    "None of the training data that was still in use belongs to this request, so the model was not changed "
    "for it."
)
RETRAINED = "A new version of the model was trained from the start without the data of this request."
RETRAINED_RIGHT = (
    "A new version of the model was trained from the start with the right label, {}, of this data."
)
STATE = {
    "open": "not done yet", "held": "not done, on hold", "running": "being carried out", "done": "done",
    "withdrawn": "not done, withdrawn",
}  # fmt: skip
AUDITED = {
    "fa_train": "Correct answers for the forgotten samples",
    "fa_test": "Correct answers for samples of the same classes that the model never saw",
    "wrong_label": "Answers with the label that was wrong",
    "right_label": "Answers with the right label",
    "mia": "How well an attack tells forgotten samples from unseen ones (0.5: no better than guessing)",
}
NO_REFERENCE = (
    "There was no model trained without this data to compare with. Without one, a check can disprove the "
    "deletion but not prove it."
)
BY_TRAINING = (
    "The deletion rests on the training itself, which did not use this data. The checks add little to that."
)
TOO_FEW = "Too few samples to tell ({})."
UNCHECKED = "Nothing was checked, because the model was not changed for this request."
RECHECKED = {
    Level.SHOWN: "It stayed forgotten when later requests were carried out",
    Level.FAILED: "It came back when later requests were carried out",
    Level.UNKNOWN: "It is open whether it came back when later requests were carried out",
}
NO_FINDINGS = "Whether the model forgot was measured, but what that shows was not recorded"


def on(value: date | str) -> str:
    """A day as people write it; of a time, the day in UTC.

    >>> on("2026-11-19T21:05:00.000Z")
    '19 November 2026'
    """
    day = value if isinstance(value, date) else date.fromisoformat(value[:10])
    return f"{day.day} {calendar.month_name[day.month]} {day.year}"


def counted(n: int, one: str, more: str = "") -> str:
    """A number of things: ``1 id``, ``3 ids``."""
    return f"{n:,} {one if n == 1 else more or f'{one}s'}"


def asked(request: Request) -> str:
    """What was asked, and by when."""
    what = f"the data held under {counted(request.subjects, 'id')}"
    if request.classes:
        named = ", ".join(f"“{name}”" for name in request.classes)
        what = f"the {'class' if len(request.classes) == 1 else 'classes'} {named}"
    wanted = (
        f"delete {what}" if request.label is None else f"correct the label of {what} to “{request.label}”"
    )
    return f"On {on(request.received)}: to {wanted} by {on(request.due)}."


def ended(request: Request, made: Version | None, today: date) -> str:
    """Whether and when something was done. Whether the model forgot is another question."""
    if request.done is None:
        over = request.waits() and today > request.due
        passed = f" The deadline passed on {on(request.due)}." if over else ""
        why = (
            request.hold if request.state == "held" else request.why if request.state == "withdrawn" else None
        )
        return f"{STATE[request.state].capitalize()}{f' ({why})' if why else ''}.{passed}"
    days = (date.fromisoformat(request.done[:10]) - request.due).days
    late = "in time" if days <= 0 else f"{counted(days, 'day')} after the deadline"
    when = f"on {on(request.done)}, {late}"
    if made is None:
        return f"Closed {when}. There was nothing to delete."
    if made.kind == "retrained":
        how = "without this data" if request.label is None else "with the right label"
        return f"The model was trained again {how} {when}."
    return f"The model was changed {when}."


def done(request: Request, made: Version | None, missing: int | None) -> str:
    """What was done for a request: ``made`` is the version that came of it; so many ids are ``missing``."""
    if missing is not None:
        return f"{UNCHANGED}: {request.why}."
    if request.state != "done" or request.batch is None:
        return f"{UNCHANGED}."
    if made is None:
        return NOTHING_LEFT
    if made.kind == "retrained":
        return RETRAINED if request.label is None else RETRAINED_RIGHT.format(request.label)
    method = made.about.get("method") or "a method that is not recorded"
    if request.label is not None:
        old = f"The wrong label of this data was unlearned: “{method}” changed the model to remove what it"
        return f"{old} had learned from it, and taught it the right one, {request.label}."
    return (
        f"The data of this request was unlearned: “{method}” changed the model to remove what it had learned "
        "from that data. Other requests may have been carried out in the same step."
    )


# -- of a policy: each bound that was passed ---------------------------------------------------

POLICY = {
    "requests": "{} requests since the last training, the policy allows {}",
    "age": "the last training was {} days ago, the policy allows {}",
    "share": "{:.1f} % of the training data was forgotten since the last training, the policy allows {:g} %",
    "drift": "{:.1f} % of retained accuracy lost since the last training, the policy allows {:g} %",
    "distance": "{:.1f} % of answers differ from those after the last training, the policy allows {:g} %",
}

# -- of requests, entries and runs -------------------------------------------------------------

# Of an entry: who else was part of it is not told with one request.
HIDDEN = ("subjects", "requests", "without_rows", "rows", "unknown", "lacking")


def shown(request: Request, today: date, worker: Working | None = None) -> dict[str, Any]:
    """A request with the days that are left, and how far its ``worker`` is, if that is known."""
    left = request.days_left(today) if request.waits() else None
    about = {**request.to_dict(), "days_left": left, "overdue": left is not None and left < 0}
    if worker is not None and request.state == "running" and worker.batch in (None, request.batch):
        about["progress"] = worker.to_dict()
    return about


def at_work(worker: Working) -> str:
    """Who carries requests out, how far that is, and how long it may take."""
    line = f"At work since {worker.since}: {worker.who}"
    if worker.batch is not None:
        line += f", batch {worker.batch}, {worker.doing}"
    if worker.steps:
        line += f", step {worker.step} of {worker.steps}"
    if worker.seconds_left is not None:
        line += f", about {timedelta(seconds=round(worker.seconds_left))} left before its audit"
    return f"{line}{'; it was asked to stop' * worker.stopping}."


def about(request: Mapping[str, Any]) -> str:
    """What a request of :func:`shown` is about."""
    if request["label"]:
        return (
            f"right label {request['label']} for {request['subjects']} id{'s' * (request['subjects'] != 1)}"
        )
    if request["classes"]:
        return f"class {', '.join(request['classes'])}"
    return "1 id" if request["subjects"] == 1 else f"{request['subjects']} ids"


def days_left(request: Mapping[str, Any]) -> str:
    """The days that are left for a request of :func:`shown`, if it waits."""
    left = request["days_left"]
    return "" if left is None else f"overdue by {-left}" if left < 0 else str(left)


def not_found(request: Request, missing: int, alike: int = 0) -> str:
    """Why a request stays open of which some ids or classes have no row in the data."""
    of = request.subjects or len(request.classes)
    what = ("id" if of == 1 else "ids") if request.subjects else ("class" if of == 1 else "classes")
    where = "the training data" if request.label is None else "the training data with a wrong label"
    told = f"not found in {where}: {missing} of {of} {what}; nothing of this request was done"
    if not alike:
        return told
    which = "it" if missing == 1 else f"{alike} of them"
    return f"{told}; {which} would be found but for upper case, spaces or the Unicode form of a character"


STOPPED = "stopped, as somebody asked"
AFFECTED = "the version that it was done in is lost, or was made by another copy of the ledger"


def unknown(folder: str, order: Mapping[str, Any], ledger: Ledger) -> str:
    """What a folder tells that is no version of this ledger: who has ordered it, and when."""
    name, end = ledger.entries(end=1)[0].payload["ledger"], ledger.head()
    count = int(str(order.get("head", "0")).partition(":")[0])
    if order.get("ledger") != name or not count:
        return f"{folder}, which it does not know"
    if count > end.entries:
        lacking = f"entry {count}" if count == end.entries + 1 else f"entries {end.entries + 1} to {count}"
        return f"{folder}, ordered by entry {count}: this ledger lacks {lacking}"
    if ledger.entries(start=count, end=count)[0].hash == order["head"].partition(":")[2]:
        return f"{folder}, made for batch {order['batch']}, which was given up"
    return f"{folder}, ordered by another entry {count} than its own: two copies of the ledger went on"


def recovered(recovery: Recovery) -> str:
    """What was found and done after a ledger or its versions had been lost."""

    def listed(what: str, numbers: tuple[int, ...]) -> str:
        return f"{what}{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"

    if not recovery.folders and not recovery.versions:
        return "Nothing to recover: each version is of this ledger, and in its place."
    lines = []
    if recovery.folders:
        lines.append(f"Not of this ledger, left where it is: {', '.join(recovery.folders)}.")
    if recovery.versions:
        lines.append(f"Lost: {listed('version', recovery.versions)}.")
    if recovery.requests:
        lines.append(f"Open: {listed('request', recovery.requests)}. A certificate of it is no longer right.")
    if recovery.lacking:
        lines.append(f"Add again what was asked in {listed('request', recovery.lacking)} of the lost ledger.")
    return "\n".join(lines)


def history(ledger: Ledger, number: int) -> list[dict[str, Any]]:
    """Every entry about a request, without the hashes of ids and the numbers of other requests."""
    entries = [one.to_dict() for one in ledger.history(number)]
    for one in entries:
        one["payload"] = {k: v for k, v in one["payload"].items() if k not in HIDDEN}
    return entries


def verified(verdict: Verification) -> str:
    """What verifying found, in a sentence or two."""
    if not verdict.ok:
        return f"Touched: {verdict.why}."
    signed = ", every signature is right" if verdict.signed else ""
    return f"{verdict.entries} entries, none was touched{signed}. The end of the chain is {verdict.head}"


def came_of(facts: Mapping[str, Any]) -> str:
    """What came of a run, from ``Outcome.facts()``, in a sentence."""
    n, left = len(facts["requests"]), len(facts.get("not_found", ()))
    some, state, batch = f"{n} request{'s' * (n != 1)}", facts["state"], facts["batch"]
    nothing = f"Batch {batch}: {some} done; nothing of them was left to forget, so the model stays as it is."
    sentence = {
        "nothing": "Nothing is due.",
        "due": f"A retraining is due; {some} left open. To train anew: purge request run --retrain",
        "missed": f"Batch {batch} was not accepted; {some} left open, the version before stays.",
        "stopped": f"Batch {batch} was stopped; {some} left open, the version before stays.",
        "not-found": "",
        "done": nothing,
    }[state]
    if state == "due" and not n:
        sentence = "A retraining is due; no request is. With the next one: purge request run --retrain"
    if state == "done" and facts["version"] is not None:
        version = f"version {facts['version']} ({facts['kind']}) is {facts['folder']}"
        sentence = f"Batch {batch}: {some} done; {version}."
    if left:
        whose = "its" if left == 1 else "their"
        open_ = f"{left} request{'s' * (left != 1)} left open"
        sentence += f" {open_}: not all of {whose} ids are in the training data."
    return sentence.strip()
