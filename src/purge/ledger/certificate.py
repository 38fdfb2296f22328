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

from jinja2 import Environment, PackageLoader, StrictUndefined

from purge.core.errors import DataError
from purge.core.files import below, file_errors, write_json, write_text
from purge.ledger.chain import Kind, now
from purge.ledger.records import Audit, Request, Version
from purge.ledger.words import AUDITED, NOT_PROMISED, RETRAINED, STATE
from purge.report import shown

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger


def certificate_of(ledger: Ledger, number: int, *, ids: Iterable[str] | None = None) -> dict[str, Any]:
    """The certificate of a request as plain values; ``ids``: its own, if they shall stand in it."""
    request = ledger.request(number)
    own = list(hashes_of(ledger, number))
    named = _own_ids(ledger, own, ids)
    batch = None if request.batch is None or request.state != "done" else ledger.batch(request.batch)
    versions = ledger.versions()
    changed = batch is not None and number not in _without_rows(ledger, batch.number)
    made = next((v for v in versions if changed and batch and v.digest == batch.version), None)
    parent = next((v for v in versions if made is not None and v.digest == made.parent), None)
    audits = [a for a in ledger.audits() if _about(a, number) and request.state == "done"]
    missing = _not_found(ledger, request)
    verdict = ledger.verify()
    return {
        "certificate": f"request {number}",
        "written": now(),
        "request": {
            **_request(request), "not_found": missing, "subject_hashes": own,
            **({} if named is None else {"subject_ids": named}),
        },
        "done": _done(request, batch is not None, made, missing),
        "versions": {
            "before": _version(parent), "after": _version(made),
            "now": _version(versions[-1] if versions else None),
        },
        "audits": [_audit(a, number, {v.digest: v for v in versions}) for a in audits],
        "ledger": {
            "verified": verdict.ok, "entries": verdict.entries, "head": verdict.head,
            "why": verdict.why, "signed": verdict.signed,
        },
        "not_promised": list(NOT_PROMISED),
    }  # fmt: skip


def hashes_of(ledger: Ledger, number: int) -> list[str]:
    """The keyed hashes of the ids that a request names."""
    for entry in ledger.entries(Kind.REQUEST):
        if entry.payload["request"] == number:
            return list(entry.payload["subjects"])
    return []


def _own_ids(ledger: Ledger, own: list[str], ids: Iterable[str] | None) -> list[str] | None:
    if ids is None:
        return None
    texts = list(ids)
    if foreign := [h for h in ledger.hashes(texts) if h not in own]:  # no id in a message
        got = f"{len(foreign)} that are not of this request"
        raise DataError("ids of the request itself", got, "a certificate names nobody else; leave them out")
    return texts


def _request(request: Request) -> dict[str, Any]:
    return {
        "number": request.number, "received": str(request.received), "due": str(request.due),
        "basis": request.basis, "classes": list(request.classes), "subjects": request.subjects,
        "state": request.state, "state_in_words": STATE[request.state], "done": request.done,
        "in_time": None if request.done is None else request.done[:10] <= str(request.due),
    }  # fmt: skip


def _not_found(ledger: Ledger, request: Request) -> int | None:
    """How many ids or classes of a request that waits were not found; None: this is not why it does."""
    if request.state not in ("open", "held") or request.why is None:
        return None
    payloads = [
        one.payload for one in ledger.entries(Kind.NOT_FOUND) if one.payload["request"] == request.number
    ]
    return payloads[-1]["missing"] if payloads and payloads[-1]["reason"] == request.why else None


def _without_rows(ledger: Ledger, batch: int) -> list[int]:
    """The requests of a batch of which no row was left to forget."""
    ends = [one.payload for one in ledger.entries(Kind.BATCH_DONE) if one.payload["batch"] == batch]
    return list(ends[-1].get("without_rows", ())) if ends else []  # older ledgers do not say it


def _done(request: Request, batched: bool, made: Version | None, missing: int | None) -> str:
    if missing is not None:
        return f"The model has not been changed for this request: {request.why}."
    if request.state != "done" or not batched:
        return "The model has not been changed for this request."
    if made is None:
        return (
            "The training data held no row of this request that had not been forgotten, so the model was not "
            "changed for it."
        )
    if made.kind == "retrained":
        return RETRAINED
    method = (made.about or {}).get("method") or "a method that is not recorded"
    return f"The data of this request was unlearned by “{method}”, in one batch with all that was due."


def _version(version: Version | None) -> dict[str, Any] | None:
    if version is None:
        return None
    about = {key: getattr(version, key) for key in ("number", "kind", "digest", "parent", "added")}
    return {**about, "folder": Path(version.folder).name}


def _about(audit: Audit, number: int) -> bool:
    return any(number in group["requests"] for group in audit.found.get("groups", ()))


def _audit(audit: Audit, number: int, versions: Mapping[str, Version]) -> dict[str, Any]:
    """What an audit found about the samples and classes of this request and those forgotten with it."""
    groups = [group for group in audit.found["groups"] if number in group["requests"]]
    keys = ("kind", "n", "classes", "tested", "why", "note", "values", "returned")
    version = versions.get(audit.version) if audit.passed else None  # otherwise it was not accepted
    return {
        "version": None if version is None else version.number, "digest": audit.version, "at": audit.added,
        "passed": audit.passed, "groups": [{key: group[key] for key in keys} for group in groups],
        "stays": audit.found.get("stays"), "n": audit.found.get("n"),
    }  # fmt: skip


# -- on paper ----------------------------------------------------------------------------------


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("purge", "ledger"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters["value"] = _value
    return made


def _value(name: str, value: Mapping[str, Any]) -> str:
    if value["value"] is None:
        return f"not measured: {value['why']}"
    unit = "number" if name == "mia" else "share"
    ends = "" if value["low"] is None else f" ({shown(value['low'], unit)} to {shown(value['high'], unit)})"
    return f"{shown(value['value'], unit)}{ends}, n = {value['n']}"


def certificate_page(content: Mapping[str, Any]) -> str:
    """The certificate as one page of HTML that needs no other file."""
    return _environment().get_template("certificate.html.j2").render(c=content, words=AUDITED)


def write_certificate(
    ledger: Ledger, number: int, out: str | os.PathLike[str], *, ids: Iterable[str] | None = None
) -> tuple[Path, Path]:
    """Write certificate-N.json and certificate-N.html into a folder, which is made if it is missing."""
    content, folder = certificate_of(ledger, number, ids=ids), Path(out)
    name = f"certificate-{content['request']['number']}"
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths = below(folder, name, ending=".json"), below(folder, name, ending=".html")
    with file_errors(folder):
        write_json(paths[0], content)
        write_text(paths[1], certificate_page(content))
    return paths
