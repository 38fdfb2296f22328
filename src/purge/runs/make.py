"""Train and unlearn by name, as the command line, the ledger, a bench and the demo all do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from purge.api import unlearn
from purge.callbacks import Callback
from purge.core.errors import DataError
from purge.core.folders import WEIGHTS
from purge.core.settings import checked_seed
from purge.data.augmented import Augmentation
from purge.data.request import DeletionRequest
from purge.data.samples import Samples
from purge.data.sources import DataSource
from purge.engine.precision import Precision, choose_device
from purge.engine.seeding import seeded
from purge.methods.registry import resolve_method
from purge.methods.sisa_plan import Vote
from purge.metrics.accuracy import accuracies
from purge.models.checks import training_data
from purge.report.tables import class_words
from purge.result import Result
from purge.runs.folder import (
    RunFile,
    augmentation_of,
    build_for,
)
from purge.runs.requests import LeftOut, Request, cut
from purge.training import train, train_sharded


def fresh_model(name: str, images: Samples, *, seed: int, pretrained: bool = False) -> nn.Module:
    """A model for these images, initialised from a seed; the caller's random numbers are untouched."""
    with seeded(checked_seed(seed), torch.device("cpu")):
        return build_for(name, images, pretrained=pretrained)


def facts_for(
    name: str, choice: DataSource, data: Samples, request: Request, *, original: Path | None = None,
    gone: Request | None = None, deployed: tuple[Path, str | None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What run.json must say so that the model and its data can be found again.

    ``original``: where an unlearned model came from; ``gone``: what that had forgotten before;
    ``deployed``: the model that the first request began with, and its digest.
    """
    facts = {
        "model": name, **dataclasses.asdict(choice), "request": request, "classes": len(data.names),
        "names": data.names, "source": data.source,
        **({"mean": data.mean, "std": data.std} if getattr(data, "mean", ()) else {}),
    }  # fmt: skip
    if original is None:
        return facts
    first, weights = deployed or (original, None)
    chain = {"deployed": str(first.absolute()), "deployed_digest": weights}
    return {**facts, "gone": gone or {}, "original": str(original.absolute()), **chain}


def train_run(
    out: Path, name: str, choice: DataSource, data: Samples, request: Request, *, seed: int,
    recipe: Mapping[str, Any], test: Samples | None = None, pretrained: bool = False,
    shards: int | None = None, slices: int = 1, vote: Vote = "mean",
    log_updates: Path | None = None, log_only: Samples | None = None, device: str | None = None,
    progress: bool = True, title: str = "", resume: bool = False, force: bool = False,
    left_out: LeftOut | None = None, more: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:  # fmt: skip
    """Train a model by name on ``data`` without what the request names, and write its run folder.

    Nor is it taught rows that a ledger has ``left_out``. ``more`` is put into run.json; the other arguments
    are those of :func:`purge.train`.
    """
    kept = cut(data, request)[1] if request else data
    if left_out is not None:
        kept = kept.select(~left_out.rows(kept))
        more = {"ledger": left_out.ledger, **(more or {})}
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
        log_updates=log_updates, log_only=log_only, callbacks=callbacks, **recipe,
    )  # fmt: skip


def unlearn_run(
    model: nn.Module, name: str, forget: Samples, retain: Samples, *, facts: RunFile, method: str,
    settings: Mapping[str, Any], test: Samples | None, seed: int, device: str | None = None,
    progress: bool = True, precision: Precision | None = None, graph: bool | None = None,
    request: DeletionRequest | None = None, check: bool = True, checkpoint: Path | None = None,
    augment: str | Augmentation | None = None, callbacks: Sequence[Callback] = (),
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
        fresh=fresh, precision=precision, graph=graph, request=request, check=check, callbacks=callbacks,
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
    now = accuracies(model.to(at), training_data(model, test, at))
    of_class = torch.bincount(test.labels).tolist()
    measured: list[tuple[str, float, float | None, float, int]] = [
        ("test data", now["test_accuracy"], facts.test_accuracy, 0.01, len(test))
    ]
    for c, accuracy in now["class_accuracy"].items():
        of = f"test data of {class_words([c], test.names)}"
        measured.append((of, accuracy, facts.class_accuracy.get(str(c)), 0.1, of_class[c]))
    for of, accuracy, recorded, points, n in measured:  # another device may change a few answers
        if recorded is not None and abs(accuracy - recorded) > max(points, 2.5 / n):
            what = f"{recorded:.1%} right on {of}, as {run.name} recorded"
            raise DataError(what, f"{accuracy:.1%}", fix)


def needed(request: Request) -> Request:
    """The request, which must name something."""
    if not request:
        raise DataError(
            "either --forget-class or --forget-ids", "neither", "say with one of them what must be forgotten"
        )
    return request
