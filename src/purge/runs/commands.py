"""What purge train and unlearn do, from the options of the command line to the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from torch import nn

from purge.core.errors import FileError, MethodError
from purge.core.files import out_folder, writes
from purge.core.folders import claimed
from purge.core.plugins import current_folder_importable
from purge.core.settings import as_dict, checked_seed, replace
from purge.data.catalog import DATASETS
from purge.data.request import DeletionRequest
from purge.data.samples import Samples
from purge.data.sources import DataSource, choose_data
from purge.engine.precision import Precision, choose_device
from purge.engine.resume import STATE, training_folder
from purge.engine.stopping import beyond_chance
from purge.engine.trainer import Recipe
from purge.methods.base import with_augment
from purge.methods.registry import resolve_method
from purge.methods.sisa_plan import Vote
from purge.models.export import check_export, check_form, export
from purge.result import Result
from purge.runs.folder import (
    RunFile,
    check_ledger,
    check_weights,
    choose_model,
    export_form,
    facts_of,
    first_of,
    gone_of,
    like_first,
    read_data,
    read_model,
    recipe_of,
    reference_command,
    same_scale,
)
from purge.runs.make import check_recorded, facts_for, needed, train_run, unlearn_run
from purge.runs.requests import LeftOut, Request, both, cut, request_of, unseen


@dataclass(frozen=True)
class Trained:
    """What purge train has done."""

    summary: dict[str, Any]
    request: Request  # what it was trained without
    source: DataSource
    samples: Samples
    result: Result | None  # None: it was finished before


def train_folder(
    out: Path, options: Mapping[str, Any], *, model: str | None, like: Path | None,
    without_classes: Sequence[str], without_ids: Path | None, pretrained: bool, settings: Mapping[str, Any],
    seed: int | None, device: str | None, trust: bool, shards: int | None, slices: int | None,
    vote: Vote | None, log_updates: Path | None, log_only_ids: Path | None, resume: bool, force: bool,
    progress: bool, left_out: LeftOut | None = None,
) -> Trained:  # fmt: skip
    """Train a model, or the reference without what must be forgotten; ``options``: those of its data."""
    facts = RunFile() if like is None else facts_of(like)
    if like is not None:
        check_ledger(like, facts, left_out)
    parts = shards if shards is not None or log_updates is not None else facts.shards
    _check_options(parts, shards, slices, vote, log_updates, log_only_ids, resume)
    finished = resume and (out / "run.json").is_file() and not (out / STATE).is_file()
    if not finished:
        training_folder(out, resume=resume, force=force)
    name = choose_model(facts, model, trust)
    source = choose_data(facts, options, trust=trust, model=name, trains=True)
    published = DATASETS[source.data].recipe if source.data in DATASETS else {}
    changes = {**published, **recipe_of(like, facts), **settings}
    recipe = replace(Recipe(), changes)
    choose_device(device, nn.Identity())
    data, test = read_data(source, progress=progress)
    test = unseen(test, left_out)
    request = request_of(data, without_classes, without_ids, words="without")
    request = request or facts.request  # like a reference: without the same
    if seed is None:  # a reference is trained from another one than the model that it is like
        seed = (facts.seed or 0) + 1 if request or like is not None else 0
    if finished:
        known = facts_of(out)
        wanted = {"model": name, "data": source.data, "seed": seed, "request": request}
        wanted["settings"] = as_dict(recipe)
        if other := [key for key, value in wanted.items() if known.get(key) != value]:
            raise FileError(f"the finished training in {out}", f"another {other[0]}", "choose another folder")
        check_weights(out, known.digest, whole=known.shards is None)
        return Trained({"folder": str(out), **_summary(known)}, request, source, data, None)
    log_only = None
    if log_only_ids is not None:
        log_only = cut(data, request_of(data, [], log_only_ids, words="log-only"))[0]
    result = train_run(
        out, name, source, data, request, seed=seed, recipe=changes, test=test,
        pretrained=pretrained or (model is None and facts.pretrained),  # a reference starts as its model did
        shards=parts, slices=slices or facts.slices or 1, vote=vote or facts.vote or "mean",
        log_updates=log_updates, log_only=log_only, device=device, progress=progress, resume=resume,
        force=force, left_out=left_out,
    )  # fmt: skip
    made = {
        "model": name,
        "steps": result.steps,
        "seed": seed,
        "seconds": result.seconds,
        "class_accuracy": {},
    }
    images = result.steps * min(result.method.batch_size, result.info["samples"])
    summary = {"folder": str(out), **_summary({"class_accuracy": {}, **made, **result.info})}
    summary |= {"images_per_second": images / result.seconds, **_left_out_of(data, left_out)}
    return Trained(summary, request, source, data, result)


def _left_out_of(data: Samples, left_out: LeftOut | None) -> dict[str, int]:
    """How many rows of the training data are left out, for a summary."""
    return {} if left_out is None else {"left_out_rows": int(left_out.rows(data).sum())}


def _summary(known: Mapping[str, Any]) -> dict[str, Any]:
    """What is said about a training, now or later."""
    keys = ("model", "samples", "steps", "seed", "seconds", "flop", "test_accuracy", "class_accuracy")
    return {key: known.get(key) for key in keys}


def _check_options(
    parts: int | None, shards: int | None, slices: int | None, vote: Vote | None, log_updates: Path | None,
    log_only_ids: Path | None, resume: bool,
) -> None:  # fmt: skip
    """Refuse options of a training that do not go together; ``parts``: shards, of its own or of its like."""
    divided, logged = shards is not None, log_updates is not None
    for wrong, expected, got, fix in (
        (slices is not None and not divided, "--slices with --shards", "--slices alone", "add --shards 5"),
        (log_only_ids is not None and not logged, "--log-only-ids with --log-updates", "it alone",
         "add --log-updates FOLDER"),
        (divided and logged, "--shards or --log-updates", "both", "leave one out"),
        (resume and (divided or logged), "--resume without --shards or --log-updates", "both",
         "use another folder"),
        (vote is not None and parts is None, "--vote with --shards", "--vote alone", "add --shards 5"),
    ):  # fmt: skip
        if wrong:
            raise MethodError(expected, got, fix)


@dataclass(frozen=True)
class Unlearned:
    """What purge unlearn has done."""

    summary: dict[str, Any]
    request: Request
    samples: int  # how many were to forget
    names: Sequence[str]  # of the classes
    reference: str  # the command that trains the reference, up to where it is written to


def unlearn_folder(
    checkpoint: Path, out: Path, options: Mapping[str, Any], *, model: str | None,
    forget_classes: Sequence[str], forget_ids: Path | None, method: str, settings: Mapping[str, Any],
    augment: str | None, seed: int, device: str | None, trust: bool, precision: Precision | None,
    graph: bool | None, record: DeletionRequest, export_to: Path | None, force: bool, progress: bool,
    left_out: LeftOut | None = None,
) -> Unlearned:  # fmt: skip
    """Make a checkpoint forget, and write the run folder; ``options``: those of its data."""
    with current_folder_importable(":" in method):
        with_augment(resolve_method(method, settings), augment)
    checked_seed(seed)
    out_folder(out, force=force)
    if checkpoint.exists() and out.exists() and checkpoint.samefile(out):
        got = "the model that is to forget"
        raise FileError("another folder for the new model", got, "keep it: an audit compares with it")
    facts = facts_of(checkpoint)
    check_ledger(checkpoint, facts, left_out)
    name = choose_model(facts, model, trust)
    form = _checked_form(checkpoint, name, export_to, out, force=force)
    source = choose_data(facts, options, trust=trust, model=name)
    data, test = read_data(source, progress=progress)
    trained = read_model(checkpoint, name, data)
    if form is not None:
        check_form(trained, form)
    same_scale(facts, source, "given")
    check_recorded(checkpoint, facts, trained, data, test, device)
    request = needed(request_of(data, forget_classes, forget_ids, words="forget"))
    before = gone_of(facts)  # it must not be taught again
    if facts.preset is not None and not before and facts.ledger is None:  # a ledger says it
        got = f"{checkpoint.name}, made in Python, which does not name them by class or position"
        fix = "go on in Python, or start from the model that it began with and name all of them"
        raise FileError("a run that says which samples it has forgotten", got, fix)
    forget, retain = cut(data, request, before, left_out)
    test = unseen(test, left_out)
    not_exported: list[str] = []
    with claimed(out):
        out_folder(out, force=force)  # another process may have been here since
        result = unlearn_run(
            trained, name, forget, retain, facts=facts, method=method, settings=settings, test=test,
            seed=seed, device=device, progress=progress, precision=precision, graph=graph, request=record,
            checkpoint=checkpoint, augment=augment,
        )  # fmt: skip
        first = first_of(checkpoint, facts, result.info["original_digest"])
        about = facts_for(name, source, data, request, original=checkpoint, gone=before, deployed=first)
        about |= {} if left_out is None else {"ledger": left_out.ledger}
        result.save(out, force=force, **about)
        if export_to is not None and writes():
            not_exported = export(result.model, export_to, like=form, force=force)
    last = [row for row in result.history if row.get("check_forget_accuracy") is not None][-1]
    summary = {
        "folder": str(out), "method": method, "steps": result.steps, "seconds": result.seconds,
        "flop": result.info["flop"], "took": result.info["took"], "stopped_by": result.stopped_by,
        "forget_accuracy": last["check_forget_accuracy"],
        "forget_target": result.info["forget_target"], "retain_loss": last["check_retain_loss"],
        "retain_budget": result.info["retain_budget"],
        **({} if export_to is None else {"export": str(export_to), "left_out": not_exported}),
        **_left_out_of(data, left_out),
        "target_missed": _missed(result, last["check_forget_accuracy"], request, len(forget)),
    }  # fmt: skip
    reference = reference_command(like_first(checkpoint, facts, source, name), both(before, request))
    if forget_ids is not None and not before:
        reference = reference.replace("FILE", quote(str(forget_ids)))
    return Unlearned(summary, request, len(forget), data.names, reference)


def _checked_form(
    checkpoint: Path, name: str, export_to: Path | None, out: Path, *, force: bool
) -> Path | None:
    """The file or folder whose form an export has; a place that it cannot go to is refused."""
    if export_to is None:
        return None
    form = export_form(checkpoint, name, export_to)
    check_export(export_to, form, force=force)
    if out.absolute() in (export_to.absolute(), *export_to.absolute().parents):
        got, fix = f"{export_to} in the run folder", "choose another place"
        raise FileError("the export beside the run folder", got, fix)
    return form


def _missed(result: Result, accuracy: float, request: Request, samples: int) -> bool:
    """Was the forget target missed, and not by chance alone?"""
    target, stop = result.info["forget_target"], result.method.stop
    if target is None or accuracy <= target or result.method.retrains:
        return False
    if stop.forget_target is None and "forget_classes" not in request:
        # The accuracy on unseen data is what a model that never saw these samples has on average.
        return beyond_chance(accuracy, target, min(samples, stop.check_samples))
    return True
