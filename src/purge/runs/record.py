"""What is kept about a deletion: the audit of a run with its history, and a record of who, what and when."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from purge.core.errors import FileError
from purge.core.errors import expected
from purge.result import Report
from purge.result import columns
from purge.result import is_number
from purge.result import read_history
from purge.runs.folder import facts_of
from purge.runs.folder import gone_of
from purge.report.tables import class_words


def audited(run: Path) -> dict[str, Any]:
    """The audit of a run as a plain dict, with what run.json and the history of the run add to it."""
    if not (run / "audit.json").is_file():
        got = "no audit" if run.is_dir() else "no such folder"
        raise FileError(f"audit.json in {run}", got, f"purge audit {run} first")
    found = Report.from_json(run / "audit.json").to_dict()
    found["info"] = {**found["info"], "run": _sound(facts_of(run), run / "run.json")}
    if (run / "history.parquet").is_file():
        history = columns(read_history(run / "history.parquet"))
        found["curves"].setdefault("audited", {}).setdefault("history", history)
    return found


def _sound(facts: dict[str, Any], file: Path) -> dict[str, Any]:
    """What run.json says, if the parts that a report shows are what they should be."""
    numbers = [key for key in ("seconds", "steps") if key in facts or "preset" in facts]
    numbers += [key for key in ("forget_target", "retain_budget") if facts.get(key) is not None]
    for key in numbers:
        if not is_number(facts.get(key)):
            raise _damaged(f"a number as {key}", facts.get(key), file)
    for key in ("preset", "method", "stopped_by"):
        if not isinstance(facts.get(key) or "", str):
            raise _damaged(f"a word as {key}", facts[key], file)
    return facts


def _damaged(what: str, value: Any, file: Path) -> FileError:
    got = "none" if value is None else repr(value)[:80]
    return FileError(f"{what} in {file}", got, "use the file that purge wrote")


def record(run: Path, report: dict[str, Any]) -> dict[str, Any]:
    """What is to be kept about a deletion: digests, versions, seeds and times."""
    facts, names = report["info"]["run"], report["info"].get("names") or []
    request = gone_of(facts)
    original = facts.get("original")
    known = original is not None and (Path(original) / "run.json").is_file()
    classes = class_words(request.get("forget_classes") or [], names)
    ids = len(request.get("forget_ids") or [])
    asked = " and ".join(filter(None, (classes, f"{ids} samples by number" if ids else "")))
    return {
        "Request": asked or "nothing was to be forgotten",
        "Digest of the request": _digest(request) if request else "–",
        "Digest of forgotten numbers": facts.get("forget_digest") or "–",
        "Data": f"{facts.get('data', '?')} ({facts.get('source') or 'no fingerprint'})",
        "Model": facts.get("model", "?"),
        "Source weights": original or "–",
        "Digest of source weights": facts_of(Path(original)).get("digest", "–") if known else "–",
        "Result weights": str((run / "model.safetensors").absolute()),
        "Digest of result weights": facts.get("digest", "–"),
        "Method": facts.get("preset") or facts.get("method", "?"),
        "Digest of the settings": _digest(facts.get("settings") or {}),
        "Seeds": f"unlearning {facts.get('seed', '–')}, audit {report['info'].get('seed', '–')}",
        "Time taken": f"{facts.get('seconds', 0):.1f} s in {facts.get('steps', 0)} steps",
        "Run finished": _when(facts, run / "run.json"),
        "Audited": _when(report["info"], run / "audit.json"),
        "Digest of audit.json": hashlib.sha256((run / "audit.json").read_bytes()).hexdigest(),
        "Settings": facts.get("settings") or {},
        "Versions and hardware": {
            "unlearning": {key: facts.get(key) for key in ("versions", "hardware")},
            "audit": {key: report["info"].get(key) for key in ("versions", "hardware")},
        },
    }


def _digest(content: Any) -> str:
    """SHA-256 of JSON with sorted keys and without spaces, so that anyone can compute it again."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _when(facts: dict[str, Any], file: Path) -> str:
    """The time that was written down, or else that of the file."""
    written = facts.get("finished")
    try:
        return utc(datetime.fromisoformat(written).timestamp() if written else file.stat().st_mtime)
    except (ValueError, TypeError, OverflowError):
        raise _damaged("a time as finished", written, file) from None


def utc(seconds: float) -> str:
    """A time as people write it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
