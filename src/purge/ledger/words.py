"""What the shell and the page say about a ledger, without naming anybody."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from purge.ledger.records import Request, Verification

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

# -- of a certificate ------------------------------------------------------------------------

NOT_PROMISED = (
    "That the model is the one that a training without this data would have given: deletion by unlearning is "
    "approximate, and its audits bound what their attacks can find, no more.",
    "That an attack which was not tried would fail as well.",
    "Anything about copies of the data, backups, earlier versions of the model that are kept or were handed "
    "on, or answers that the model gave before.",
    "That the request was justified, or complete: the ledger acts on the ids and classes that it was given.",
    "That nobody who could write to the database and to all copies of its head has written both anew.",
)
RETRAINED = "This version was trained from the start without the data of this request."
STATE = {
    "open": "open: not carried out yet", "held": "on hold: not carried out", "running": "being carried out",
    "done": "carried out", "withdrawn": "withdrawn",
}  # fmt: skip
AUDITED = {
    "fa_train": "right answers on the forgotten samples",
    "fa_test": "right answers on unseen samples of the same classes",
    "mia": "how well an attack tells forgotten from unseen samples (0.5: not at all)",
}

# -- of a policy: each bound that was passed ---------------------------------------------------

POLICY = {
    "requests": "{} requests since the last training, the policy allows {}",
    "age": "the last training was {} days ago, the policy allows {}",
    "share": "{:.1f} % of the training data was forgotten since the last training, the policy allows {:g} %",
    "drift": "{:.1f} % of retained accuracy lost since the last training, the policy allows {:g} %",
    "distance": "{:.1f} % of answers differ from those after the last training, the policy allows {:g} %",
}

# -- of requests, entries and runs -------------------------------------------------------------

HIDDEN = (
    "subjects",
    "requests",
    "without_rows",
)  # of an entry: who else was part of it is not told with one request


def shown(request: Request, today: date) -> dict[str, Any]:
    """A request with the days that are left."""
    left = request.days_left(today) if request.waits() else None
    return {**request.to_dict(), "days_left": left, "overdue": left is not None and left < 0}


def about(request: Mapping[str, Any]) -> str:
    """What a request of :func:`shown` is about."""
    if request["classes"]:
        return f"class {', '.join(request['classes'])}"
    return "1 id" if request["subjects"] == 1 else f"{request['subjects']} ids"


def days_left(request: Mapping[str, Any]) -> str:
    """The days that are left for a request of :func:`shown`, if it waits."""
    left = request["days_left"]
    return "" if left is None else f"overdue by {-left}" if left < 0 else str(left)


def not_found(request: Request, missing: int) -> str:
    """Why a request stays open of which some ids or classes have no row in the data."""
    of = request.subjects or len(request.classes)
    what = ("id" if of == 1 else "ids") if request.subjects else ("class" if of == 1 else "classes")
    return f"not found in the training data: {missing} of {of} {what}; nothing of this request was done"


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
    left = len(facts.get("not_found", ()))
    if not left:
        return _came_of(facts)
    stay = (
        f"{_some(left)} left open: not all of {'its' if left == 1 else 'their'} ids are in the training data."
    )
    return stay if facts["state"] == "not-found" else f"{_came_of(facts)} {stay}"


def _some(n: int) -> str:
    return f"{n} request{'s' * (n != 1)}"


def _came_of(facts: Mapping[str, Any]) -> str:
    n, state, batch = len(facts["requests"]), facts["state"], facts["batch"]
    some = _some(n)
    if state == "nothing":
        return "Nothing is due."
    if state == "due" and not n:
        return "A retraining is due; no request is. With the next one: purge request run --retrain"
    if state == "due":
        return f"A retraining is due; {some} left open. To train anew: purge request run --retrain"
    if state == "missed":
        return f"Batch {batch} was not accepted; {some} left open, the version before stays."
    if facts["version"] is None:
        return f"Batch {batch}: {some} done; nothing of them was left to forget, so the model stays as it is."
    return f"Batch {batch}: {some} done; version {facts['version']} ({facts['kind']}) is {facts['folder']}."
