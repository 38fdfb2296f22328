"""What is kept about a deletion: the audit of a run with its history, and who asked for what, and when."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from purge.core.errors import FileError
from purge.data.cache import copies
from purge.report.tables import class_words
from purge.result import Report, columns, read_history
from purge.runs.folder import RunFile, facts_of, gone_of


def audited(run: Path) -> dict[str, Any]:
    """The audit of a run as a plain dict, with what run.json and the history of the run add to it."""
    if not (run / "audit.json").is_file():
        got = "no audit" if run.is_dir() else "no such folder"
        raise FileError(f"audit.json in {run}", got, f"purge audit {run} first")
    found, facts = Report.from_json(run / "audit.json").to_dict(), facts_of(run)
    for key in ("seconds", "steps"):
        if getattr(facts, key) is None and (key in facts or "preset" in facts):
            fix = "use the file that purge wrote"
            raise FileError(f"a number as {key} in {run / 'run.json'}", "none", fix)
    found["info"] = {**found["info"], "run": facts.content}
    if (run / "history.parquet").is_file():
        history = columns(read_history(run / "history.parquet"))
        found["curves"].setdefault("audited", {}).setdefault("history", history)
    return found


def record(run: Path, report: dict[str, Any]) -> dict[str, Any]:
    """The certificate of a deletion: digests, versions, seeds and times."""
    facts, info = facts_of(run), report["info"]
    names = info.get("names") or []
    request, original = gone_of(facts), facts.original
    source = facts_of(Path(original)) if original and (Path(original) / "run.json").is_file() else RunFile()
    classes = class_words(request.get("forget_classes") or [], names)
    ids = len(request.get("forget_ids") or [])
    asked = " and ".join(filter(None, (classes, f"{ids} samples by number" if ids else "")))
    return {
        "Request": asked or "nothing to forget",
        "Digest of the request": _digest(request) if request else "–",
        "Digest of forgotten numbers": facts.get("forget_digest") or "–",
        "Data": f"{facts.get('data', '?')} ({facts.get('source') or 'no fingerprint'})",
        "Model": facts.get("model", "?"),
        "Source weights": original or "–",
        "Digest of source weights": source.get("digest", "–"),
        "Result weights": str((run / "model.safetensors").absolute()),
        "Digest of result weights": facts.get("digest", "–"),
        "Method": facts.preset or facts.get("method", "?"),
        "Digest of the settings": _digest(facts.settings),
        "Seeds": f"unlearning {facts.get('seed', '–')}, audit {info.get('seed', '–')}",
        "Time taken": f"{facts.get('seconds', 0):.1f} s in {facts.get('steps', 0)} steps",
        "Run finished": _when(facts.finished, run / "run.json"),
        "Audited": _when(info.get("finished"), run / "audit.json"),
        "Digest of audit.json": hashlib.sha256((run / "audit.json").read_bytes()).hexdigest(),
        "Copies in the cache": copies(facts.cache, info.get("cache")),
        "Settings": facts.settings,
        "Versions and hardware": {
            "unlearning": {key: facts.get(key) for key in ("versions", "hardware")},
            "audit": {key: info.get(key) for key in ("versions", "hardware")},
        },
    }


def _digest(content: Any) -> str:
    """SHA-256 of JSON with sorted keys and without spaces, so that anyone can compute it again."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _when(finished: Any, file: Path) -> str:
    """The time that was written down, or else that of the file."""
    try:
        return utc(datetime.fromisoformat(finished).timestamp() if finished else file.stat().st_mtime)
    except (ValueError, TypeError, OverflowError):
        fix = "use the file that purge wrote"
        raise FileError(f"a time as finished in {file}", repr(finished)[:80], fix) from None


def utc(seconds: float) -> str:
    """A time as people write it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
