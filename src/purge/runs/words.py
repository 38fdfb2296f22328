"""Requests in words, and the command that trains the reference for one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from purge.data.sources import DataSource
from purge.report.tables import class_words, whose_words
from purge.runs.folder import RunFile, first_of
from purge.runs.requests import Request


def reference_command(like: str, request: Request) -> str:
    """The command that trains a reference for what was forgotten, up to where it is written to."""
    options = [f"--without-class {c}" for c in request.get("forget_classes", [])]
    if "forget_subjects" in request or "forget_ids" in request:
        options = [*(options if "forget_ids" not in request else []), "--without-ids FILE"]
    return f"purge train {like} {' '.join(options)}"


def like_first(run: Path, facts: RunFile, source: DataSource, model: str) -> str:
    """The options of a training like that of the model which a chain of requests began with."""
    first = first_of(run, facts)[0]
    if (first / "run.json").is_file():
        here = first.relative_to(Path.cwd()) if first.is_relative_to(Path.cwd()) else first
        return f"--like {quote(str(here))}"
    return " ".join([*source.as_options(), f"--model {quote(model)}"])


def request_words(request: Request, names: Sequence[str]) -> str:
    """A request in words: the classes by name, and how many samples."""
    classes, ids = class_words(request.get("forget_classes") or [], names), request.get("forget_ids")
    whose = len(request.get("forget_subjects") or [])
    parts = (classes, f"{len(ids)} samples" if ids else "", whose_words(whose))
    return " and ".join(filter(None, parts))
