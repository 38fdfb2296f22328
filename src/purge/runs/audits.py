"""Audit a run folder beside those of its original and of retrained models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from purge.api import audit
from purge.audit_report import Report
from purge.auditor import reference_in_words
from purge.core.errors import DataError, FileError
from purge.core.settings import replace
from purge.data.samples import Samples
from purge.data.sources import DataSource
from purge.engine.trainer import Recipe
from purge.methods.registry import all_methods, resolve_method
from purge.metrics.metric import Metric
from purge.metrics.shadow import Shadows
from purge.models.checkpoint import digest
from purge.runs.folder import (
    RunFile,
    build_for,
    choose_model,
    facts_of,
    first_of,
    gone_of,
    read_model,
    same_data,
    same_kind,
    same_scale,
    shown_path,
)
from purge.runs.make import check_recorded, needed
from purge.runs.requests import LeftOut, Request, both, cut, read_truth, rows_of
from purge.runs.words import like_first, reference_command, request_words
from purge.verdict.numbers import Role, Slot


def audit_run(
    run: Path, facts: RunFile, source: DataSource, data: Samples, test: Samples | None, request: Request, *,
    model: str | None, original: Path | None, retrained: Sequence[Path], metrics: list[Metric],
    shadows: int, seed: int, device: str | None = None, progress: bool = True, trust: bool = False,
    truth: Path | None = None, left_out: LeftOut | None = None,
) -> Report:  # fmt: skip
    """Audit a run folder beside those of the original and of retrained models.

    An empty request stands for the run's, and all that was forgotten before. ``original``: by default the
    model that the first request began with. ``model``: the architecture of all of them; by default each
    run's own. ``shadows``: how many models of each kind an attack with shadow models trains. ``trust``: may
    a run name code to import? ``truth``: a file of right labels.
    """
    chosen = choose_model(facts, model, trust)

    def other(path: Path) -> nn.Module:  # a file of weights does not say what it is of
        return read_model(path, model if facts_of(path).model else chosen, data, trust)

    unlearned = read_model(run, model, data, trust)
    same_scale(facts, source, "audited")
    if not request:
        same_data(facts, source, data)
    everything = both(gone_of(facts), request)
    request = request or needed(everything)
    forget, retain = cut(data, request, everything, left_out)
    right = None if truth is None else read_truth(truth, data, rows_of(data, request))
    original, began = (original, None) if original is not None else _first(run, facts)
    for path in retrained:
        if not path.exists():
            command = reference_command(like_first(run, facts, source, chosen), everything)
            fix = f"check the path, or make it: {command} --out {path}"
            raise FileError(f"the run folder of a retrained model at {path}", "nothing there", fix)
        same_kind(facts_of(path), source, "retrained")
        _same_request(path, data, everything)
    attacks = [metric for metric in metrics if metric.cost == "shadow"]
    like = _shadows(facts, original, shadows, build_for(chosen, data)) if attacks else None
    before = None
    if original is not None:
        same_kind(facts_of(original), source, "original")
        before = other(original)
        if began not in (None, digest(before)):
            fix = "pass --original with the model that it began with"
            raise FileError(f"the weights that {run.name} began with in {original}", "others", fix)
        check_recorded(original, facts_of(original), before, data, test, device)
    others = [other(path) for path in retrained]
    for folder, one in ((run, unlearned), *zip(retrained, others, strict=True)):
        check_recorded(folder, facts_of(folder), one, data, test, device)
    report = audit(
        unlearned, forget, retain, test, metrics=metrics, shadows=like, seed=seed, device=device,
        original=before, retrained=others, progress=progress, truth=right,
    )  # fmt: skip
    models = _models_in_words(run, facts, original, retrained, report.info["retain_content"])
    return dataclasses.replace(report, info={**report.info, "models": models})


def _first(run: Path, facts: RunFile) -> tuple[Path | None, str | None]:
    """The model that a chain of requests began with, if it is still there, and the digest of its weights."""
    if facts.original is None:
        return None, None
    first, digest_of_first = first_of(run, facts)
    same = run.exists() and first.exists() and first.samefile(run)
    return (first if first.exists() and not same else None), digest_of_first


def _models_in_words(
    run: Path, facts: RunFile, original: Path | None, retrained: Sequence[Path], retained: str | None
) -> dict[str, str]:
    """Which model each column of an audit is: its folder as seen from the run, and how it came about."""

    def column(path: Path, what: str) -> str:
        return f"{shown_path(path.absolute(), run.absolute())}, {what}"

    made = f"unlearned by “{facts.preset}”" if facts.preset else "how it was made is not recorded"
    made = "trained, not unlearned" if facts and facts.preset is None else made
    columns = {"audited": f"{run.absolute().name}, {made}"}
    if original is not None:
        first, source = first_of(run, facts)[0], facts.original and Path(facts.original)
        what = "given as the original"
        if original.absolute() == first:
            later = " before the first of several requests" if source != first else ""
            what = f"the deployed model, as it was{later}"
        elif original.absolute() == source:
            what = "the model that this run began with, which had forgotten other data before"
        columns["original"] = column(original, what)
    for i, path in enumerate(retrained):
        what = reference_in_words(facts_of(path).get("train_content"), retained)
        columns[Slot(Role.RETRAINED, i).name] = column(path, what)
    return columns


def _same_request(path: Path, data: Samples, request: Request) -> None:
    """Refuse a retrained model that was trained without other samples than those that had to be forgotten.

    Of a file of weights nothing is known, and of a run folder without a request neither: they are taken.
    """
    facts = facts_of(path)
    if "request" not in facts or torch.equal(rows_of(data, gone_of(facts)), rows_of(data, request)):
        return
    theirs = gone_of(facts)
    got = f"one without {request_words(theirs, data.names)}" if theirs else "one trained on all of the data"
    like = f"{reference_command('--like RUN', request)} --out DIR"
    fix = f"{like}, or name its file of weights if that is an error"
    raise DataError(f"a model trained without {request_words(request, data.names)} in {path}", got, fix)


def _shadows(facts: RunFile, original: Path | None, number: int, fresh: nn.Module) -> Shadows:
    """Shadow models trained as the original was, and unlearned as the run was."""
    base = RunFile() if original is None else facts_of(original)
    if not base or base.method != "Recipe" or base.shards is not None:
        raise FileError(
            "the run folder of an original made by purge train, to train shadow models like it",
            "none" if original is None else str(original),
            "pass --original RUN, or --metrics standard",
        )
    known = facts.preset is not None and facts.preset in all_methods()
    method = resolve_method(facts.preset or "", facts.settings) if known else None
    return Shadows(
        number=number, recipe=replace(Recipe(), base.settings), method=method, fresh=fresh,
        precision=facts.precision,
    )  # fmt: skip
