"""The record of a deletion: who asked for what and when, which data and weights, as digests.

It is made of run.json and the ``info`` of an audit, both as plain dicts. What they do not say is "not
recorded"; nothing is guessed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from purge.core.errors import FileError
from purge.report.sentences import exact_words
from purge.report.tables import class_words, whose_words

NOT = "not recorded"
MOST_ROWS = 60  # runs of row numbers that the page shows; run.json has all
NO_CLAIM = "no: the head before was not that of all samples, or other weights were changed, or changed later"
Facts = Mapping[str, Any]


def record_of(run: Facts, info: Facts, files: Facts | None = None) -> dict[str, Any]:
    """The record of a run and its audit, a row for each key.

    ``files``: rows about files, which only the one who reads a run folder can fill.
    """
    known = {key: value for key, value in run.items() if value}
    seconds, steps = run.get("seconds"), run.get("steps")
    request, files, forgotten = known.get("deletion_request", {}), files or {}, what_was_asked(run)
    return {
        "Request": in_words(forgotten, run, info),
        "Request id": request.get("id", NOT),
        "Received": request.get("received", NOT),
        "Done": _time(request.get("done"), "done in run.json"),
        "By": request.get("by", NOT),
        "Model version": request.get("model_version", NOT),
        "Rows to forget": _rows(forgotten, run),
        "Ids to forget": ids_in_words(known.get("forget_subjects", ())),
        "Digest of the request": digest_of(forgotten) if forgotten else NOT,
        "Digest of forgotten numbers": known.get("forget_digest", NOT),
        "Digest of forgotten samples": known.get("forget_content", NOT),
        "Samples": _sizes(run),
        "Digest of retained samples": known.get("retain_content", NOT),
        "Digest of test samples": known.get("test_content", NOT),
        "Data": _data(run, files),
        "Model": known.get("model", known.get("model_class", NOT)),
        "Source weights": files.get("source", NOT),
        "Digest of source weights": known.get("original_digest", files.get("source_digest") or NOT),
        **files.get("deployed", {}),
        "Result weights": files.get("result", NOT),
        "Digest of result weights": known.get("digest", NOT),
        "Audited weights": _same(run.get("digest"), (info.get("digests") or {}).get("audited"), "weights"),
        "Audited samples": _audited(run, info),
        "Method": known.get("preset", known.get("method", NOT)),
        **({"Exact deletion": exact_words(run) or NO_CLAIM} if run.get("exact") else {}),
        "Digest of the settings": digest_of(run["settings"]) if run.get("settings") else NOT,
        "Seeds": f"unlearning {run.get('seed', NOT)}, audit {info.get('seed', NOT)}",
        "Time taken": NOT if None in (seconds, steps) else f"{seconds:.1f} s in {steps} steps",
        "Run finished": _time(run.get("finished"), "finished in run.json"),
        "Audited": _time(info.get("finished"), "finished in audit.json"),
        "Digest of audit.json": files.get("audit_digest", NOT),
        "Copies in the cache": files.get("cache", NOT),
        "Settings": known.get("settings", {}),
        "Versions and hardware": {
            "unlearning": {key: run.get(key, NOT) for key in ("versions", "hardware", "threads")},
            "audit": {key: info.get(key, NOT) for key in ("versions", "hardware", "threads")},
        },
    }


def what_was_asked(run: Facts) -> dict[str, list[Any]]:
    """Classes, row numbers and ids that had to go, those of earlier requests included; empty if not recorded.

    A run from the shell names them in ``request`` and ``gone``, one from Python finds them in its data.
    """
    own = {"forget_classes": run.get("forget_classes"), "forget_ids": run.get("forget_rows")}
    parts = [run.get("gone") or {}, run.get("request") or own]
    rows = {key: {n for part in parts for n in part.get(key) or []} for key in (*own, "forget_subjects")}
    return {key: sorted(numbers) for key, numbers in rows.items() if numbers}


def in_words(forgotten: Mapping[str, Sequence[Any]], run: Facts, info: Facts) -> str:
    """What had to be forgotten: classes by name, samples by how many they are."""
    names = run.get("names") or info.get("names") or []
    classes = class_words(forgotten.get("forget_classes") or [], names)
    ids = len(forgotten.get("forget_ids") or [])
    numbers = f"{ids:,} sample{'s' * (ids > 1)} by number" if ids else ""
    words = " and ".join(
        filter(None, (classes, numbers, whose_words(len(forgotten.get("forget_subjects") or []))))
    )
    n = run.get("forget_samples")
    if not words and n:
        return f"{n:,} samples, given as data; their row numbers were {NOT}"
    return words or NOT


def _rows(forgotten: Mapping[str, Sequence[Any]], run: Facts) -> str:
    classes = "all rows of these classes" if forgotten.get("forget_classes") else ""
    single, whose = forgotten.get("forget_ids"), forgotten.get("forget_subjects") or []
    what = "ids of the images"
    if any((run.get(key) or {}).get("forget_ids") for key in ("request", "gone")):
        what = "positions in the training data, counted from 0"
    elif run.get("rows_of"):
        what = f"rows of {run['rows_of']:,}, counted from 0"
    numbers = rows_in_words(single, what) if single else ""
    people = f"all rows of the ids {ids_in_words(whose)}" if whose else ""
    return " and ".join(filter(None, (classes, numbers, people))) or NOT


def rows_in_words(rows: Sequence[int], what: str) -> str:
    """Row numbers as people write them, and what they count.

    >>> rows_in_words([1, 2, 3, 7], "rows of 675, counted from 0")
    '1–3, 7 (rows of 675, counted from 0)'
    """
    ends = [i for i, (a, b) in enumerate(pairwise(rows)) if b != a + 1]
    spans = [(rows[a + 1], rows[b]) for a, b in pairwise([-1, *ends, len(rows) - 1])]
    words = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in spans[:MOST_ROWS])
    more = " … (all in run.json)" if len(spans) > MOST_ROWS else ""
    return f"{words}{more} ({what})"


def ids_in_words(ids: Sequence[str]) -> str:
    """The user's own ids, as many as a page can hold.

    >>> ids_in_words(["c-17", "c-4"])
    'c-17, c-4'
    """
    more = f" … ({len(ids):,} in all, see run.json)" if len(ids) > MOST_ROWS else ""
    return (", ".join(ids[:MOST_ROWS]) + more) or NOT


def _sizes(run: Facts) -> str:
    words = {"forget_samples": "to forget", "retain_samples": "retained", "test_samples": "for testing"}
    sizes = [f"{run[key]:,} {word}" for key, word in words.items() if run.get(key) is not None]
    return ", ".join(sizes) or NOT


def _data(run: Facts, files: Facts) -> str:
    name = files.get("data") or run.get("data")
    return f"{name} (fingerprint {run.get('source') or NOT})" if name else f"name {NOT}, see the digests"


def _same(written: str | None, seen: str | None, what: str) -> str:
    """Did the audit look at what the run wrote down?"""
    if not seen or not written:
        return NOT
    return f"the {what} of this run" if seen == written else f"{what} with another digest: {seen}"


def _audited(run: Facts, info: Facts) -> str:
    seen, earlier = info.get("forget_content"), run.get("gone")
    if seen and earlier:
        return f"{info.get('forget_samples', '?')}, with those of earlier requests; digest {seen}"
    return _same(run.get("forget_content"), seen, "forgotten samples")


def digest_of(content: Any) -> str:
    """SHA-256 of JSON with sorted keys and without spaces, so that anyone can compute it again."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _time(text: Any, key: str) -> str:
    """A time that was written down, in UTC; a date without a time zone as it is."""
    if text is None:
        return NOT
    try:
        when = datetime.fromisoformat(text)
        return str(text) if when.tzinfo is None else utc(when.timestamp())
    except (ValueError, TypeError, OverflowError):
        fix = "use the file that purge wrote"
        raise FileError(f"a time as {key}", repr(text)[:80], fix) from None


def utc(seconds: float) -> str:
    """A time as people write it."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
