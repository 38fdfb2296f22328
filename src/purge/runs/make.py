"""Train, unlearn and audit by name, as the command line, the demo and a bench all do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import nn

from purge.api import audit, train, train_sharded, unlearn
from purge.core.errors import DataError, FileError
from purge.core.settings import as_dict, checked_seed, replace
from purge.data.augmented import Augmentation
from purge.data.request import DeletionRequest
from purge.data.samples import Samples
from purge.engine.precision import Precision, choose_device
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe
from purge.methods.registry import all_methods, resolve_method
from purge.methods.sisa_model import Vote
from purge.metrics.accuracy import accuracies
from purge.metrics.metric import Metric
from purge.metrics.shadow import Shadows
from purge.models.checkpoint import digest
from purge.models.checks import training_data
from purge.report.tables import class_words, whose_words
from purge.result import Report, Result, reference_in_words
from purge.runs.folder import (
    DataChoice,
    Request,
    RunFile,
    augmentation_of,
    both,
    build_for,
    choose_model,
    cut,
    facts_of,
    first_of,
    gone_of,
    read_model,
    read_truth,
    rows_of,
    same_data,
    same_kind,
    same_scale,
    shown_path,
)
from purge.runs.weights import WEIGHTS, check_weights
from purge.verdict.roles import Role, Slot


def fresh_model(name: str, images: Samples, *, seed: int, pretrained: bool = False) -> nn.Module:
    """A model for these images, initialised from a seed; the caller's random numbers are untouched."""
    with seeded(checked_seed(seed), torch.device("cpu")):
        return build_for(name, images, pretrained=pretrained)


def facts_for(
    name: str, choice: DataChoice, data: Samples, request: Request, *, original: Path | None = None,
    gone: Request | None = None, deployed: tuple[Path, str | None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What run.json must say so that the model and its data can be found again.

    ``original``: where an unlearned model came from; ``gone``: what that had forgotten before;
    ``deployed``: the model that the first request began with, and its digest.
    """
    facts = {
        "model": name, **dataclasses.asdict(choice), "request": request, "classes": len(data.names),
        "channels": data.shape[0], "names": data.names, "source": data.source,
        **({"mean": data.mean, "std": data.std} if getattr(data, "mean", ()) else {}),
    }  # fmt: skip
    if original is None:
        return facts
    first, weights = deployed or (original, None)
    chain = {"deployed": str(first.absolute()), "deployed_digest": weights}
    return {**facts, "gone": gone or {}, "original": str(original.absolute()), **chain}


def train_run(
    out: Path, name: str, choice: DataChoice, data: Samples, request: Request, *, seed: int,
    recipe: Mapping[str, Any], test: Samples | None = None, pretrained: bool = False,
    shards: int | None = None, slices: int = 1, vote: Vote = "mean", log_updates: Path | None = None,
    log_only: Samples | None = None, device: str | None = None, progress: bool = True, title: str = "",
    resume: bool = False, force: bool = False, more: Mapping[str, Any] | None = None,
) -> Result:  # fmt: skip
    """Train a model by name on ``data`` without what the request names, and write its run folder.

    ``more`` is put into run.json; the other arguments are those of :func:`purge.train`.
    """
    kept = cut(data, request)[1] if request else data
    facts = {**facts_for(name, choice, data, request), "pretrained": pretrained, **(more or {})}
    if shards is not None:
        return train_sharded(
            partial(build_for, name, data, pretrained=pretrained), kept, shards=shards, slices=slices,
            vote=vote, test=test, seed=seed, device=device, progress=progress, out=out, force=force,
            record=facts, **recipe,
        )  # fmt: skip
    return train(
        fresh_model(name, data, seed=seed, pretrained=pretrained), kept, test=test, seed=seed, device=device,
        progress=progress, title=title or name, out=out, resume=resume, force=force, record=facts,
        log_updates=log_updates, log_only=log_only, **recipe,
    )  # fmt: skip


def check_finished(out: Path, model: str, data: str, seed: int, request: Request, recipe: Recipe) -> None:
    """Refuse a finished training that is not the one asked for."""
    facts = facts_of(out)
    asked = {"model": model, "data": data, "seed": seed, "request": request, "settings": as_dict(recipe)}
    if other := [key for key, value in asked.items() if facts.get(key) != value]:
        raise FileError(f"the finished training in {out}", f"another {other[0]}", "choose another folder")
    check_weights(out, facts.digest, whole=facts.shards is None)


def unlearn_run(
    model: nn.Module, name: str, forget: Samples, retain: Samples, *, facts: RunFile, method: str,
    settings: Mapping[str, Any], test: Samples | None, seed: int, device: str | None = None,
    progress: bool = True, precision: Precision | None = None, graph: bool | None = None,
    request: DeletionRequest | None = None, check: bool = True, checkpoint: Path | None = None,
    augment: str | Augmentation | None = None,
) -> Result:  # fmt: skip
    """Unlearn with all that the method needs: a fresh model of that name, the log of the training.

    ``facts`` are those of the model's run, in ``checkpoint``; the other arguments are those of
    :func:`purge.unlearn`. A method that augments its data does it as the model was trained, unless
    ``augment`` says otherwise.
    """
    chosen = resolve_method(method, settings)
    needs = chosen.needs
    if augment is None and chosen.augments and checkpoint is not None:
        augment = augmentation_of(checkpoint, facts)
    if augment is not None:
        settings = {"augment": augment, **settings}
    single = facts.shards is None  # the layers of an ensemble are drawn anew without a fresh model
    fresh = fresh_model(name, retain, seed=seed) if "fresh" in needs and single else None
    if "updates" in needs and facts.log_updates is not None:
        settings = {"log": facts.log_updates, **settings}
    return unlearn(
        model, forget, retain, test=test, method=method, seed=seed, device=device, progress=progress,
        fresh=fresh, precision=precision, graph=graph, request=request, check=check,
        **settings,
    )  # fmt: skip


def check_recorded(
    run: Path, facts: RunFile, model: nn.Module, data: Samples, test: Samples | None, device: str | None
) -> None:
    """Refuse a model that does on its test data other than its run recorded: it is not the same data."""
    fix = (
        "check --data, --mean and --std, the order of the classes and the weights in it; to go on without "
        f"this check, name {run / WEIGHTS} itself, with --data and --model"
    )
    if facts.names and tuple(facts.names) != tuple(data.names):
        wanted, got = (", ".join(names[:10]) for names in (facts.names, data.names))
        raise DataError(f"the classes of {run.name} ({wanted})", got, fix)
    if facts.test_accuracy is None or test is None:
        return
    at = choose_device(device, model)
    found = accuracies(model.to(at), training_data(model, test, at))
    n = torch.bincount(test.labels)
    if not _near(found["test_accuracy"], facts.test_accuracy, 0.01, len(test)):
        what = f"{facts.test_accuracy:.1%} right on test data, as {run.name} recorded"
        raise DataError(what, f"{found['test_accuracy']:.1%}", fix)
    for c, accuracy in found["class_accuracy"].items():
        recorded = facts.class_accuracy.get(str(c))
        if recorded is not None and not _near(accuracy, recorded, 0.1, int(n[c])):
            what = (
                f"{recorded:.1%} right on test data of {class_words([c], test.names)}, as {run.name} recorded"
            )
            raise DataError(what, f"{accuracy:.1%}", fix)


def _near(found: float, recorded: float, points: float, n: int) -> bool:
    """Do two accuracies on ``n`` samples differ by no more than another device may cause?"""
    return abs(found - recorded) <= max(points, 2.5 / n)


def audit_run(
    run: Path, facts: RunFile, choice: DataChoice, data: Samples, test: Samples | None, request: Request, *,
    model: str | None, original: Path | None, retrained: Sequence[Path], metrics: list[Metric],
    shadows: int, seed: int, device: str | None = None, progress: bool = True, trust: bool = False,
    truth: Path | None = None,
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
    same_scale(facts, choice, "audited")
    if not request:
        same_data(facts, choice, data)
    gone = both(gone_of(facts), request)
    request = request or needed(gone)
    forget, retain = cut(data, request, gone)
    right = None if truth is None else read_truth(truth, data, rows_of(data, request))
    began = None
    if original is None and facts.original is not None:
        first, began = first_of(run, facts)
        original = first if first.exists() and not (run.exists() and first.samefile(run)) else None
    for path in retrained:
        if not path.exists():
            command = reference_command(like_first(run, facts, choice, chosen), gone)
            fix = f"check the path, or make it: {command} --out {path}"
            raise FileError(f"the run folder of a retrained model at {path}", "nothing there", fix)
        same_kind(facts_of(path), choice, "retrained")
        _same_request(path, data, gone)
    if original is not None:
        same_kind(facts_of(original), choice, "original")
    like = None
    if any(metric.cost == "shadow" for metric in metrics):
        like = _shadows(facts, original, shadows, build_for(chosen, data))
    before = None if original is None else other(original)
    if before is not None and original is not None and began not in (None, digest(before)):
        fix = "pass --original with the model that it began with"
        raise FileError(f"the weights that {run.name} began with in {original}", "others", fix)
    others = [other(path) for path in retrained]
    for folder, one in ((run, unlearned), (original, before), *zip(retrained, others, strict=True)):
        if folder is not None and one is not None:
            check_recorded(folder, facts_of(folder), one, data, test, device)
    report = audit(
        unlearned, forget, retain, test, metrics=metrics, shadows=like, seed=seed, device=device,
        original=before, retrained=others, progress=progress, truth=right,
    )  # fmt: skip
    models = _models_in_words(run, facts, original, retrained, report.info["retain_content"])
    return dataclasses.replace(report, info={**report.info, "models": models})


def _models_in_words(
    run: Path, facts: RunFile, original: Path | None, retrained: Sequence[Path], retained: str | None
) -> dict[str, str]:
    """Which model each column of an audit is: its folder as seen from the run, and how it came about."""

    def told(path: Path, what: str) -> str:
        return f"{shown_path(path.absolute(), run.absolute())}, {what}"

    made = f"unlearned by “{facts.preset}”" if facts.preset else "how it was made is not recorded"
    made = "trained, not unlearned" if facts and facts.preset is None else made
    found = {"audited": f"{run.absolute().name}, {made}"}
    if original is not None:
        first, source = first_of(run, facts)[0], facts.original and Path(facts.original)
        what = "given as the original"
        if original.absolute() == first:
            later = " before the first of several requests" if source != first else ""
            what = f"the deployed model, as it was{later}"
        elif original.absolute() == source:
            what = "the model that this run began with, which had forgotten other data before"
        found["original"] = told(original, what)
    for i, path in enumerate(retrained):
        what = reference_in_words(facts_of(path).get("train_content"), retained)
        found[Slot(Role.RETRAINED, i).name] = told(path, what)
    return found


def _same_request(path: Path, data: Samples, gone: Request) -> None:
    """Refuse a retrained model that was trained without other samples than those that had to be forgotten.

    Of a file of weights nothing is known, and of a run folder without a request neither: they are taken.
    """
    facts = facts_of(path)
    if "request" not in facts or torch.equal(rows_of(data, gone_of(facts)), rows_of(data, gone)):
        return
    theirs = gone_of(facts)
    got = f"one without {request_words(theirs, data.names)}" if theirs else "one trained on all of the data"
    fix = (
        f"{reference_command('--like RUN', gone)} --out DIR, or name its file of weights if that is an error"
    )
    raise DataError(f"a model trained without {request_words(gone, data.names)} in {path}", got, fix)


def reference_command(like: str, gone: Request) -> str:
    """The command that trains a reference for what is gone, up to where it is written to."""
    options = [f"--without-class {c}" for c in gone.get("forget_classes", [])]
    if "forget_subjects" in gone or "forget_ids" in gone:
        options = [*(options if "forget_ids" not in gone else []), "--without-ids FILE"]
    return f"purge train {like} {' '.join(options)}"


def like_first(run: Path, facts: RunFile, choice: DataChoice, model: str) -> str:
    """The options of a training like that of the model which a chain of requests began with."""
    first = first_of(run, facts)[0]
    if (first / "run.json").is_file():
        here = first.relative_to(Path.cwd()) if first.is_relative_to(Path.cwd()) else first
        return f"--like {quote(str(here))}"
    columns = {"label": choice.label_column, "text": choice.text_column, "id": choice.id_column}
    seed = str(choice.split_seed) if choice.split_seed else None
    named = {"data": choice.data, **columns, "test": choice.test_file, "split-seed": seed, "model": model}
    options = [f"--{key} {quote(value)}" for key, value in named.items() if value is not None]
    return " ".join([*options, *(["--all-trained"] if choice.held_out is False else [])])


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


def gone_before(checkpoint: Path, facts: RunFile) -> Request:
    """What a model has forgotten before; a run that does not say it cannot be gone on with."""
    gone = gone_of(facts)
    if facts.preset is not None and not gone:
        got = f"{checkpoint.name}, made in Python, which does not name them by class or position"
        fix = "go on in Python, or start from the model that it began with and name all of them"
        raise FileError("a run that says which samples it has forgotten", got, fix)
    return gone


def needed(request: Request) -> Request:
    """The request, which must name something."""
    if not request:
        raise DataError(
            "either --forget-class or --forget-ids", "neither", "say with one of them what must be forgotten"
        )
    return request


def request_words(request: Request, names: Sequence[str]) -> str:
    """A request in words: the classes by name, and how many samples."""
    classes, ids = class_words(request.get("forget_classes") or [], names), request.get("forget_ids")
    whose = len(request.get("forget_subjects") or [])
    told = (classes, f"{len(ids)} samples" if ids else "", whose_words(whose))
    return " and ".join(filter(None, told))
