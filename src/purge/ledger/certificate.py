"""A certificate of one request: what was asked and done, which audits there were, what is not promised.

It names nobody. The subject of the request appears as a keyed hash, or by id if the one who asks for the
certificate passes that id. Of others it has no number, no hash and no row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from purge.core.errors import DataError
from purge.core.files import below, file_errors, write_json, write_text
from purge.ledger import words
from purge.ledger.chain import Kind, now
from purge.ledger.records import TELLS, Request, Version
from purge.report import HEADLINES, LEVELS, SIGNS, shown, standing_alone, title_for
from purge.verdict import FORGOTTEN, Level, Part, Topic

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

# What a certificate says of each group of an audit: nothing about others.
GROUP = ("kind", "n", "classes", "tested", "why", "note", "values", "returned")
ABOUT = (Topic.FORGETTING, Topic.MEMBERSHIP, Topic.DAMAGE, Topic.ROBUSTNESS)  # findings that are checks


def certificate_of(
    ledger: Ledger, number: int, *, ids: Iterable[str] | None = None, organisation: str | None = None
) -> dict[str, Any]:
    """The certificate of a request as plain values.

    Args:
        ledger: that the request is in.
        number: of the request.
        ids: its own, if they shall stand in it.
        organisation: who signs it.

    Returns:
        What was asked, done and found, and the numbers behind it.
    """
    request, own = ledger.request(number), hashes_of(ledger, number)
    subject: dict[str, Any] = {"subject_hashes": own}
    names: dict[str, str] = {}
    if ids is not None:
        subject["subject_ids"] = list(ids)
        names = dict(zip(ledger.hashes(subject["subject_ids"]), subject["subject_ids"], strict=True))
        if foreign := names.keys() - {*own}:  # no id in a message
            got = f"{len(foreign)} that are not of this request"
            fix = "a certificate names nobody else; leave them out"
            raise DataError("ids of the request itself", got, fix)
    done, missing = request.state == "done", _missing(ledger, request)
    versions = {version.digest: version for version in ledger.versions()}
    made = _made(ledger, request, versions) if done else None
    audits = _audits(ledger, number, versions) if done else []
    rows, unknown = _rows(ledger, request) if done else (None, [])
    verdict = ledger.verify()
    return {
        "certificate": f"request {number}",
        "organisation": organisation,
        "written": now(),
        "request": {
            "number": number, "received": str(request.received), "due": str(request.due),
            "basis": request.basis, "classes": list(request.classes), "subjects": request.subjects,
            "state": request.state, "state_in_words": words.STATE[request.state], "done": request.done,
            "in_time": None if request.done is None else request.done[:10] <= str(request.due),
            "not_found": missing, "rows": rows, "in_no_data": [names.get(one, one) for one in unknown],
            **subject,
        },
        "asked": words.asked(request),
        "ended": words.ended(request, made, date.today()),
        "done": words.done(request, made, missing),
        "found": _found(audits, made),
        "checks": _checks(audits) if made else [],
        "versions": {
            "before": _version(versions.get(str(made.parent)) if made else None), "after": _version(made),
            "now": _version(ledger.current()),
        },
        "audits": audits,
        "ledger": {
            "verified": verdict.ok, "entries": verdict.entries, "head": verdict.head,
            "why": verdict.why, "signed": verdict.signed,
        },
        "not_promised": list(words.NOT_PROMISED)[made is None or made.kind == "retrained" :],
    }  # fmt: skip


def hashes_of(ledger: Ledger, number: int) -> list[str]:
    """The keyed hashes of the ids that a request names."""
    entries = ledger.entries(Kind.REQUEST)
    return next((list(e.payload["subjects"]) for e in entries if e.payload["request"] == number), [])


def _missing(ledger: Ledger, request: Request) -> int | None:
    """How many ids or classes of a request that waits were not found; None: this is not why it does."""
    if request.state not in ("open", "held") or request.why is None:
        return None
    own = [e.payload for e in ledger.entries(Kind.NOT_FOUND) if e.payload["request"] == request.number]
    return own[-1]["missing"] if own and own[-1]["reason"] == request.why else None


def _made(ledger: Ledger, request: Request, versions: Mapping[str, Version]) -> Version | None:
    """The version that a request which is done has changed, if a row of it was left to forget."""
    if request.batch is None:
        return None
    for entry in reversed(ledger.entries(Kind.BATCH_DONE)):
        if entry.payload["batch"] == request.batch:
            nothing = request.number in entry.payload.get("without_rows", ())  # older ledgers do not say it
            return None if nothing else versions.get(str(entry.payload["version"]))
    return None


def _rows(ledger: Ledger, request: Request) -> tuple[int | None, list[str]]:
    """How many rows of training data went for a request, and which of its ids or classes are in no data.

    Ledgers before 0.3 recorded how many went with a whole batch; of a request in company, nobody knows.
    """
    for entry in reversed(ledger.entries(Kind.BATCH_DONE)):
        about = entry.payload
        if about["batch"] == request.batch:
            found = about.get("rows", {}).get(str(request.number))
            if found is not None:
                return sum(n or 0 for n in found.values()), [one for one, n in found.items() if n is None]
            if request.number in about.get("without_rows", ()):
                return 0, []
            return about["about"].get("rows") if about["requests"] == [request.number] else None, []
    return None, []


def _audits(ledger: Ledger, number: int, versions: Mapping[str, Version]) -> list[dict[str, Any]]:
    """What each audit found about the samples and classes of this request and those forgotten with it."""
    audits = []
    for audit in ledger.audits():
        groups = [group for group in audit.found.get("groups", ()) if number in group["requests"]]
        accepted = versions.get(audit.version) if audit.passed else None
        if groups:
            audits.append({
                "version": accepted and accepted.number, "kind": accepted and accepted.kind,
                "digest": audit.version,
                "at": audit.added, "passed": audit.passed,
                "groups": [{key: group[key] for key in GROUP} for group in groups],
                "verdict": audit.found.get("verdict"), "stays": audit.found.get("stays"),
                "n": audit.found.get("n"),
            })  # fmt: skip
    return audits


# -- what was found, in the words of a report ---------------------------------------------------


def _found(audits: Iterable[Mapping[str, Any]], made: Version | None) -> dict[str, Any]:
    """What the audit of the version that was made comes to, as a level and a sentence."""
    verdict = next((audit["verdict"] for audit in audits if audit["passed"]), None)
    if made is None:
        return {"level": None, "text": words.UNCHECKED}
    if verdict is None:
        return {"level": Level.UNKNOWN, "text": f"{words.NO_FINDINGS}."}
    parts = {PART[group["kind"]] for audit in audits if audit["passed"] for group in audit["groups"]}
    text = HEADLINES[verdict["kind"]].format(parts=" and ".join(sorted(parts)))
    return {"level": Level(verdict["level"]), "text": f"{text}."}


PART = {
    "samples": "the samples",
    "classes": "the classes",
    "labels": "the wrong labels",
}  # as headlines have them


def _checks(audits: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each check of the version that was made, and of the newest one, as a level and a plain sentence."""
    accepted = [audit for audit in audits if audit["passed"]]
    if not accepted:
        return []
    first, last = accepted[0], accepted[-1]
    kinds = {Part.WHOLE, *(group["kind"] for group in first["groups"])}
    few = [group["n"] for group in first["groups"] if group["note"]]
    checks = []
    for finding in (first["verdict"] or {}).get("findings", ()):
        if finding["topic"] not in ABOUT or finding["part"] not in kinds:
            continue
        level, why = Level(finding["level"]), ""
        if level is Level.UNKNOWN and finding["topic"] in (Topic.FORGETTING, Topic.MEMBERSHIP):
            why = words.TOO_FEW.format(sum(few)) if few else ""
        title = standing_alone(title_for(finding["rule"], level, finding["missing"]))
        topic = Topic(finding["topic"])
        checks.append({"topic": topic, "level": level, "text": title, "why": why, **_of(first)})
    if last is first or last["kind"] == "retrained":  # that one was trained without it
        return checks
    again = _rechecked(first, last)
    if Level.FAILED in {one["level"] for one in checks if one["topic"] is not Topic.DAMAGE}:
        again |= {"level": Level.UNKNOWN, "text": title_for("lasts", Level.UNKNOWN, "forgetting")}
    return [*checks, again]


def _rechecked(first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    """Did it stay forgotten? Shown if the whole interval of each number lies below its value then."""
    levels, why = set(), ""
    for then, now_ in zip(first["groups"], last["groups"], strict=False):
        within = [
            value["high"] is not None and value["high"] - before["value"] <= FORGOTTEN
            for name in TELLS[then["kind"]]
            if (value := now_["values"].get(name)) and (before := then["values"].get(name))
        ]
        few = now_["note"]
        level = Level.SHOWN if within and all(within) and not few else Level.UNKNOWN
        levels.add(Level.FAILED if now_["returned"] else level)
        if level is Level.UNKNOWN:
            why = words.TOO_FEW.format(now_["n"]) if few else f"{now_['why']}." if now_["why"] else why
    level = next(one for one in (Level.FAILED, Level.UNKNOWN, Level.SHOWN) if one in levels)
    return {
        "topic": Topic.ROBUSTNESS,
        "level": level,
        "text": words.RECHECKED[level],
        "why": why,
        **_of(last),
    }


def _of(audit: Mapping[str, Any]) -> dict[str, Any]:
    return {"version": audit["version"], "at": audit["at"]}


def _version(version: Version | None) -> dict[str, Any] | None:
    if version is None:
        return None
    about = {key: getattr(version, key) for key in ("number", "kind", "digest", "parent", "added")}
    return {**about, "folder": Path(version.folder).name}


# -- on paper ----------------------------------------------------------------------------------


def _value(name: str, value: Mapping[str, Any]) -> str:
    if value["value"] is None:
        return f"not measured: {value['why']}"
    unit = "number" if name == "mia" else "share"
    ends = "" if value["low"] is None else f" ({shown(value['low'], unit)} to {shown(value['high'], unit)})"
    text = f"{shown(value['value'], unit)}{ends}, on {words.counted(value['n'], 'sample')}"
    return text.replace(" %", "\u00a0%")


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("purge", "ledger"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"value": _value, "on": words.on, "counted": words.counted}
    environment.globals |= {"levels": LEVELS, "signs": SIGNS, "words": words}
    return environment.get_template("certificate.html.j2")


def certificate_page(content: Mapping[str, Any]) -> str:
    """The certificate as one page of HTML that needs no other file."""
    return _template().render(c=content)


def write_certificate(
    ledger: Ledger, number: int, out: str | os.PathLike[str], *, ids: Iterable[str] | None = None,
    organisation: str | None = None,
) -> tuple[Path, Path]:  # fmt: skip
    """Write certificate-N.json and certificate-N.html into a folder, which is made if it is missing."""
    content, folder = certificate_of(ledger, number, ids=ids, organisation=organisation), Path(out)
    name = f"certificate-{number}"
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        paths = below(folder, name, ending=".json"), below(folder, name, ending=".html")
        write_json(paths[0], content)
        write_text(paths[1], certificate_page(content))
    return paths
