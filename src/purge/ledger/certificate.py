"""A certificate of one request: what was asked and done, which audits there were, what is not promised.

It names nobody. The subject of the request appears as a keyed hash, or by id if the one who asks for the
certificate passes that id. Of others it has no number, no hash and no row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from purge.core.errors import DataError
from purge.core.files import below, file_errors, write_json, write_text
from purge.ledger import words
from purge.ledger.chain import Kind, now
from purge.ledger.records import Request, Version
from purge.report import shown

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

# What a certificate says of each group of an audit: nothing about others.
GROUP = ("kind", "n", "classes", "tested", "why", "note", "values", "returned")


def certificate_of(ledger: Ledger, number: int, *, ids: Iterable[str] | None = None) -> dict[str, Any]:
    """The certificate of a request as plain values; ``ids``: its own, if they shall stand in it."""
    request, own = ledger.request(number), hashes_of(ledger, number)
    subject: dict[str, Any] = {"subject_hashes": own}
    if ids is not None:
        subject["subject_ids"] = list(ids)
        if foreign := [
            h for h in ledger.hashes(subject["subject_ids"]) if h not in own
        ]:  # no id in a message
            got = f"{len(foreign)} that are not of this request"
            fix = "a certificate names nobody else; leave them out"
            raise DataError("ids of the request itself", got, fix)
    done, missing = request.state == "done", _missing(ledger, request)
    versions = {version.digest: version for version in ledger.versions()}
    made = _made(ledger, request, versions) if done else None
    verdict = ledger.verify()
    return {
        "certificate": f"request {number}",
        "written": now(),
        "request": {
            "number": number, "received": str(request.received), "due": str(request.due),
            "basis": request.basis, "classes": list(request.classes), "subjects": request.subjects,
            "state": request.state, "state_in_words": words.STATE[request.state], "done": request.done,
            "in_time": None if request.done is None else request.done[:10] <= str(request.due),
            "not_found": missing, **subject,
        },
        "done": words.done(request, made, missing),
        "versions": {
            "before": _version(versions.get(str(made.parent)) if made else None), "after": _version(made),
            "now": _version(ledger.current()),
        },
        "audits": _audits(ledger, number, versions) if done else [],
        "ledger": {
            "verified": verdict.ok, "entries": verdict.entries, "head": verdict.head,
            "why": verdict.why, "signed": verdict.signed,
        },
        "not_promised": list(words.NOT_PROMISED),
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


def _audits(ledger: Ledger, number: int, versions: Mapping[str, Version]) -> list[dict[str, Any]]:
    """What each audit found about the samples and classes of this request and those forgotten with it."""
    audits = []
    for audit in ledger.audits():
        groups = [group for group in audit.found.get("groups", ()) if number in group["requests"]]
        accepted = versions.get(audit.version) if audit.passed else None
        if groups:
            audits.append({
                "version": None if accepted is None else accepted.number, "digest": audit.version,
                "at": audit.added, "passed": audit.passed,
                "groups": [{key: group[key] for key in GROUP} for group in groups],
                "stays": audit.found.get("stays"), "n": audit.found.get("n"),
            })  # fmt: skip
    return audits


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
    return f"{shown(value['value'], unit)}{ends}, n = {value['n']}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("purge", "ledger"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["value"] = _value
    return environment.get_template("certificate.html.j2")


def certificate_page(content: Mapping[str, Any]) -> str:
    """The certificate as one page of HTML that needs no other file."""
    return _template().render(c=content, words=words.AUDITED)


def write_certificate(
    ledger: Ledger, number: int, out: str | os.PathLike[str], *, ids: Iterable[str] | None = None
) -> tuple[Path, Path]:
    """Write certificate-N.json and certificate-N.html into a folder, which is made if it is missing."""
    content, folder = certificate_of(ledger, number, ids=ids), Path(out)
    name = f"certificate-{number}"
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        paths = below(folder, name, ending=".json"), below(folder, name, ending=".html")
        write_json(paths[0], content)
        write_text(paths[1], certificate_page(content))
    return paths
