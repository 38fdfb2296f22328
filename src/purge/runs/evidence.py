"""What is kept about a deletion: the audit of a run with its history, and who asked for what, and when."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from purge.audit_report import Report
from purge.core.errors import FileError
from purge.core.files import file_errors, write_text
from purge.core.folders import WEIGHTS
from purge.data.cache import copies
from purge.report.page import page
from purge.report.record import NOT, record_of, utc
from purge.result import columns, read_history
from purge.runs.folder import facts_of, other_than_audited, shown_path


def audited(run: Path) -> dict[str, Any]:
    """The audit of a run as a plain dict, with what run.json and the history of the run add to it.

    Weights that are not those of run.json are refused; ``info`` warns if they are not those of the audit.
    """
    if not (run / "audit.json").is_file():
        if not run.is_dir():
            fix = f"check the path, or make one: purge unlearn RUN --forget-class K --out {run}"
            raise FileError(f"a run folder at {run}", "nothing there", fix)
        raise FileError(f"audit.json in {run}", "no audit", f"purge audit {run} first")
    report, facts = Report.from_json(run / "audit.json").to_dict(), facts_of(run)
    seen = (report["info"].get("digests") or {}).get("audited")
    report["info"] |= {"run": facts.content, "warning": other_than_audited(run, facts.digest, seen)}
    if (run / "history.parquet").is_file():
        history = columns(read_history(run / "history.parquet"))
        report["curves"].setdefault("audited", {}).setdefault("history", history)
    return report


def record(run: Path, report: dict[str, Any]) -> dict[str, Any]:
    """The certificate of a deletion, with what only the run folder and those that it names can tell."""
    facts = facts_of(run)
    source, first = (None if p is None else Path(p) for p in (facts.original, facts.deployed))
    files: dict[str, Any] = {
        "result": WEIGHTS if (run / WEIGHTS).is_file() else f"{WEIGHTS}, which is no longer there",
        "audit_digest": hashlib.sha256((run / "audit.json").read_bytes()).hexdigest(),
        "cache": copies(facts.cache, report["info"].get("cache")),
    }
    if source is not None:
        files |= {"source": shown_path(source, run), "source_digest": _digest_in(source)}
    if first is not None and first != source:
        of = facts.deployed_digest or _digest_in(first) or NOT
        files["deployed"] = {"Deployed model": shown_path(first, run), "Digest of the deployed model": of}
    if facts.data is not None and Path(facts.data).is_absolute():
        files["data"] = shown_path(Path(facts.data), run)
    return record_of(facts.content, report["info"], files)


def write_report(runs: Mapping[str, Path], file: Path) -> dict[str, dict[str, Any]]:
    """Write the page of audited runs, by name, and return what is on it; several are compared."""
    reports = {name: audited(folder) for name, folder in runs.items()}
    records = {name: record(folder, reports[name]) for name, folder in runs.items()}
    text = page(reports, records=records, written=utc(time.time()))
    with file_errors(file):
        write_text(file, text)
    return reports


def _digest_in(folder: Path) -> str | None:
    return facts_of(folder).get("digest") if (folder / "run.json").is_file() else None
