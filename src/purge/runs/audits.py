"""What purge audit does: a run beside its original and retrained models, if they belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from purge.api import audit
from purge.audit_report import Report
from purge.auditor import reference_in_words
from purge.core.errors import DataError, FileError
from purge.core.plugins import current_folder_importable
from purge.core.settings import replace
from purge.data.samples import Samples
from purge.data.sources import choose_data
from purge.engine.trainer import Recipe
from purge.methods.registry import all_methods, resolve_method
from purge.metrics.registry import PANELS, read_conditions, resolve_metrics
from purge.metrics.shadow import Shadows
from purge.models.checkpoint import digest
from purge.runs.folder import (
    RunFile,
    build_for,
    check_ledger,
    choose_model,
    facts_of,
    first_of,
    gone_of,
    like_first,
    read_data,
    read_model,
    reference_command,
    request_words,
    same_data,
    same_kind,
    same_scale,
    shown_path,
)
from purge.runs.make import check_recorded, needed
from purge.runs.requests import LeftOut, Request, both, cut, read_truth, request_of, rows_of, unseen
from purge.verdict.compare import Broken, Condition, broken
from purge.verdict.numbers import Role, Slot


@dataclass(frozen=True)
class Audited:
    """What purge audit has measured."""

    report: Report
    panel: bool  # is it a whole panel, which is kept in the run folder?
    conditions: list[Condition]
    reference: str  # the command that trains a reference, up to where it is written to

    def broken(self) -> list[Broken]:
        """The conditions that do not hold."""
        return broken(self.conditions, self.report.to_dict(), self.report.verdict)


def audit_folder(
    run: Path, options: Mapping[str, Any], *, model: str | None, original: Path | None,
    retrained: Sequence[Path], metrics: str, shadows: int, fail_if: Sequence[str],
    forget_classes: Sequence[str], forget_ids: Path | None, truth: Path | None, seed: int,
    device: str | None, trust: bool, progress: bool, left_out: LeftOut | None = None,
) -> Audited:  # fmt: skip
    """Measure what a model still knows, beside other models; ``options``: those of its data.

    Without classes and ids, the request is the run's, and all that was forgotten before. ``original``: by
    default the model that the first request began with. ``model``: the architecture of all of them; by
    default each run's own. ``shadows``: how many models of each kind an attack with shadow models trains.
    ``trust``: may a run name code to import? ``truth``: a file of right labels.
    """
    names = metrics if metrics in PANELS else [m.strip() for m in metrics.split(",") if m.strip()]
    with current_folder_importable(":" in metrics):
        wanted = resolve_metrics(names, [] if truth is None else ["truth"])
    conditions = read_conditions(fail_if, wanted)
    facts = facts_of(run)
    check_ledger(run, facts, left_out)
    name = choose_model(facts, model, trust)
    source = choose_data(facts, options, trust=trust, model=name)
    data, test = read_data(source, progress=progress)
    test = unseen(test, left_out)
    for condition in conditions:
        condition.check_class(len(data.names))
    request = request_of(data, forget_classes, forget_ids, words="forget")

    def other(path: Path) -> nn.Module:  # a file of weights does not say what it is of
        return read_model(path, model if facts_of(path).model else name, data, trust)

    unlearned = read_model(run, model, data, trust)
    same_scale(facts, source, "audited")
    if not request:
        same_data(facts, source, data)
    everything = both(gone_of(facts), request)
    reference = reference_command(like_first(run, facts, source, name), everything)
    request = request or needed(everything)
    forget, retain = cut(data, request, everything, left_out)
    right = None if truth is None else read_truth(truth, data, rows_of(data, request))
    first, began = first_of(run, facts)
    if original is None and facts.original is not None and first.exists() and not first.samefile(run):
        original = first
    else:
        began = None  # the model that is named may be any
    for path in retrained:
        if not path.exists():
            fix = f"check the path, or make it: {reference} --out {path}"
            raise FileError(f"the run folder of a retrained model at {path}", "nothing there", fix)
        same_kind(facts_of(path), source, "retrained")
        _same_request(path, data, everything)
    attacks = any(metric.cost == "shadow" for metric in wanted)
    like = _shadows(facts, original, shadows, build_for(name, data)) if attacks else None
    models = [(run, unlearned)]
    if original is not None:
        same_kind(facts_of(original), source, "original")
        models.append((original, other(original)))
        if began not in (None, digest(models[-1][1])):
            fix = "pass --original with the model that it began with"
            raise FileError(f"the weights that {run.name} began with in {original}", "others", fix)
    models += [(path, other(path)) for path in retrained]
    for folder, one in models:
        check_recorded(folder, facts_of(folder), one, data, test, device)
    loaded = [one for _, one in models]
    report = audit(
        unlearned, forget, retain, test, metrics=wanted, shadows=like, seed=seed, device=device,
        original=None if original is None else loaded[1], retrained=loaded[1 + (original is not None) :],
        progress=progress, truth=right,
    )  # fmt: skip
    words = _models_in_words(run, facts, original, retrained, report.info["retain_content"])
    report = dataclasses.replace(report, info={**report.info, "models": words})
    return Audited(report, metrics in PANELS, conditions, reference)


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
    theirs = gone_of(facts)
    if "request" not in facts or torch.equal(rows_of(data, theirs), rows_of(data, request)):
        return
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
