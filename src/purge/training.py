"""The doors train and train_sharded: a trained copy of a model, or several trained on parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from purge.callbacks import Callback, Listeners
from purge.core.errors import DataError, MethodError, RunError, brief
from purge.core.files import as_json, out_folder
from purge.core.folders import claims_out
from purge.core.settings import as_dict, checked_seed, replace
from purge.core.threads import numbers, threads_for
from purge.data.accept import accepted
from purge.data.cache import places_of
from purge.data.forgotten import check_not_again, class_order, forgotten_by
from purge.data.items import Adapt, Form, IdOf
from purge.data.request import content_digest
from purge.data.samples import Data, Samples, few
from purge.engine.context import Context
from purge.engine.dist import Ranks
from purge.engine.precision import choose_device
from purge.engine.resume import HALF, STATE, training_folder
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe, diverged, fit
from purge.methods.sisa_model import train_sisa
from purge.methods.sisa_plan import ShardPlan, Vote
from purge.methods.update_log import UpdateLog
from purge.metrics.accuracy import accuracies
from purge.models.checks import (
    check_augment,
    check_batch_size,
    check_classifier,
    check_differentiable,
    parameters_to_train,
    training_data,
)
from purge.models.copies import copied, narrowed, widened
from purge.models.forward import counting
from purge.models.work import flop_of, flop_per_row
from purge.result import Result, module_of


@claims_out
@torch.enable_grad()
def train(
    model: nn.Module | Result,
    dataset: Data,
    *,
    test: Data | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: bool = True,
    title: str = "train",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    record: Mapping[str, Any] | None = None,
    log_updates: str | os.PathLike[str] | None = None,
    log_only: Data | None = None,
    label: str | None = None,
    id_of: IdOf = None,
    adapt: Adapt | None = None,
    after: Any = None,
    callbacks: Callback | Sequence[Callback] = (),
    **recipe: Any,
) -> Result:
    """A trained copy of ``model``.

    Args:
        model: a module, whose weights are where the training begins, or the :class:`Result` of an earlier
            call. A model that has forgotten samples is not trained on them, nor tested.
        dataset: what to train on. The forms of data are those of :func:`unlearn`.
        test: data to measure the accuracy on, which is then in ``info``.
        seed: of the order of the samples and of everything else that is drawn at random.
        device: the model's, unless given.
        progress: show a line of progress on a terminal and in a notebook.
        title: of this line.
        out: the run folder to write; after every epoch it holds the state of the training.
        resume: go on from that state after an interruption.
        force: replace an old run in ``out``, when the new one is whole.
        record: keys and values that go into run.json.
        log_updates: a folder for the update of every step, which the method ``amnesiac`` needs.
        log_only: a part of the data; only updates of steps with one of its samples are logged.
        label: the column or key of the label.
        id_of: the column, key or position of the user's own ids.
        adapt: a function from one item to ``(inputs, label)`` or ``(inputs, label, id)``.
        after: the run folder or the result of an earlier request, for a model that does not know its own.
        callbacks: objects that are told about the training: one, or a list of them.
        **recipe: fields of :class:`purge.engine.trainer.Recipe`, as ``epochs=10, lr=0.1, batch_size=128``;
            ``purge list recipe cifar10`` names them.

    Returns:
        The trained model, with the mean loss of each epoch as its history.

    Raises:
        PurgeError: bad input, in one line that says what to do, or a loss that is no longer finite.

    Example:
        >>> x, y = torch.eye(3).repeat(20, 1), torch.arange(60) % 3
        >>> result = train(nn.Linear(3, 3), (x, y), test=(x, y), epochs=20, batch_size=20, progress=False)
        >>> result.info["test_accuracy"], result.history_frame().shape
        (1.0, (20, 2))
    """
    listeners, chosen, extra = Listeners(callbacks), replace(Recipe(), recipe), _recordable(record)
    _check_log(log_updates, log_only, resume)
    order, before = class_order(model), forgotten_by(after, model if isinstance(model, Result) else None)
    model = check_classifier(module_of(model))
    at, seed = choose_device(device, model), checked_seed(seed)
    folder, ranks = training_folder(out, resume=resume, force=force), Ranks.here(at)
    trained = copied(model, at)
    with seeded(seed, at):
        sets = accepted(_sets(dataset, test=test, log_only=log_only), Form(label, id_of, adapt), order)
        parts = {name: training_data(trained, data, at) for name, data in sets.items()}
        check_not_again(before, parts)
        samples, unseen = parts["the dataset"], parts.get("test")
    ranks.begin([trained], [samples, unseen], (chosen, seed, resume))
    size = min(chosen.batch_size, len(samples))
    check_batch_size(trained, size)
    check_augment(samples, chosen.augment, chosen.colour)
    parameters_to_train(trained)
    with seeded(seed, at):
        check_differentiable(trained, samples)
        per_row = flop_per_row(trained, few(samples))

    only = parts.get("log_only")
    log = None if log_updates is None else UpdateLog(log_updates, trained, samples, chosen, only=only)
    state = None if folder is None else _state_in(folder)
    context = Context(
        at,
        seed,
        progress=progress,
        tell=listeners.during(seed, at),
        each=listeners.each(seed, at),
        ranks=ranks,
    )
    threads = threads_for(trained, at, chosen.batch_size, seen=context.threads)
    about = {"kind": "train", "method": "train", "settings": as_dict(chosen), "seed": seed, "device": str(at)}
    listeners.tell("on_start", {**about, "samples": len(samples)})
    with seeded(seed, at), threads, counting(trained) as rows:
        (history,), seconds = fit(
            [trained], [samples], chosen, context, seeds=[seed], title=title, state=state, resume=resume,
            watch=None if log is None else log.step,
        )  # fmt: skip
    trained = widened(narrowed(trained, model))  # what follows is about the weights that are delivered
    if log is not None:
        log.finish(trained)
    trained.zero_grad(set_to_none=True)
    ranks.end(trained, rows)
    if diverged(trained, samples, history):
        if state is not None:
            state.unlink(missing_ok=True)
        raise RunError("a finite loss", "NaN or infinity (nothing was returned)", "lower lr")

    info = {
        "seed": seed, "samples": len(samples), "model_class": type(model).__name__,
        "train_content": content_digest(samples), **accuracies(trained, unseen),
        **flop_of(rows, per_row), "threads": numbers(context.threads), "cache": places_of(samples, unseen),
        **({} if log_updates is None else {"log_updates": os.path.abspath(log_updates)}), **_names(samples),
    }  # fmt: skip
    result = Result(
        narrowed(trained, model), chosen, list(history), "schedule", seconds,
        chosen.epochs * max(1, len(samples) // size), info, forgotten=before, names=samples.names or order,
    )  # fmt: skip
    if folder is not None:
        result.save(folder, force=True, **extra)
        if ranks.rank == 0 and state:  # the others are here before the first one has written it
            state.unlink(missing_ok=True)
    ranks.wait()
    listeners.tell("on_end", result)
    return result


@claims_out
@torch.enable_grad()
def train_sharded(
    model: nn.Module | Callable[[], nn.Module],
    dataset: Data,
    *,
    shards: int,
    slices: int = 1,
    vote: Vote = "mean",
    test: Data | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: bool = True,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    record: Mapping[str, Any] | None = None,
    label: str | None = None,
    id_of: IdOf = None,
    adapt: Adapt | None = None,
    **recipe: Any,
) -> Result:
    """Train a model in shards, from which the method ``sisa`` deletes samples exactly.

    Each shard has a network of its own, and they vote. A deletion trains only the networks anew that saw what
    is deleted.

    Args:
        model: a network whose layers are drawn anew for each shard, or a function that builds one.
        dataset: what to train on. The forms of data are those of :func:`unlearn`.
        shards: how many networks there are.
        slices: in how many parts a shard is taught; a deletion begins with the part that it is in.
        vote: ``mean`` of the probabilities, or ``majority``.
        test: data to measure the accuracy on, which is then in ``info``.
        seed: of everything that is drawn at random.
        device: the model's, unless given.
        progress: show a line of progress on a terminal and in a notebook.
        out: a folder, in which a run folder is written, with all that deletions need.
        force: replace an old run in ``out``, when the new one is whole.
        record: keys and values that go into run.json.
        label: the column or key of the label.
        id_of: the column, key or position of the user's own ids.
        adapt: a function from one item to ``(inputs, label)`` or ``(inputs, label, id)``.
        **recipe: fields of :class:`purge.engine.trainer.Recipe`, as ``epochs=10``.

    Returns:
        A result whose model is a :class:`SisaModel`.

    Raises:
        PurgeError: bad input, in one line that says what to do.

    Example:
        >>> x, y = torch.eye(3).repeat(20, 1) + torch.rand(60, 3), torch.arange(60) % 3
        >>> result = train_sharded(nn.Linear(3, 3), (x, y), shards=2, epochs=2, progress=False)
        >>> result.model(x[:1]).shape, len(result.history)
        (torch.Size([1, 3]), 4)
    """
    chosen, extra = replace(Recipe(), recipe), _recordable(record)
    Ranks.here(torch.device("cpu")).refuse("training in shards")
    if out is not None:
        out_folder(out, force=force)
    started = time.perf_counter()
    plan = ShardPlan(shards, slices, checked_seed(seed), vote, chosen)
    with seeded(plan.seed, torch.device("cpu")):
        sets = accepted(_sets(dataset, test=test), Form(label, id_of, adapt), class_order(model))
    samples = sets["the dataset"]
    trained = train_sisa(model, samples, plan, device=device, progress=progress)
    seconds = time.perf_counter() - started
    unseen = None
    if test is not None:
        unseen = training_data(trained, sets["test"], choose_device(device, trained))
    info = {
        "seed": seed, "samples": len(trained.ids), **trained.work, **accuracies(trained, unseen),
        "threads": numbers(trained.threads), "cache": places_of(samples, unseen), **_names(samples),
    }  # fmt: skip
    steps = sum(row["steps"] for row in trained.history)
    result = Result(trained, chosen, trained.history, "schedule", seconds, steps, info, names=samples.names)
    if out is not None:
        result.save(out, force=force, **extra)
    return result


def _sets(dataset: Data, **others: Data | None) -> dict[str, Data]:
    """The data of a training, by what messages call it."""
    return {"the dataset": dataset, **{name: data for name, data in others.items() if data is not None}}


def _check_log(log_updates: Any, log_only: Any, resume: bool) -> None:
    wrong = log_only is not None if log_updates is None else resume
    if wrong:
        fix = "train anew with log_updates=FOLDER, or without a log"
        raise MethodError("log_updates=… in a training from its start", "resume, or log_only alone", fix)
    if log_updates is not None:
        Ranks.here(torch.device("cpu")).refuse("a training that logs its updates")


def _state_in(folder: Path) -> Path:
    """The file of the state of a training; halves of it that a killed process left are removed."""
    for half in folder.glob(HALF):
        half.unlink(missing_ok=True)
    return folder / STATE


def _names(samples: Samples) -> dict[str, Any]:
    """The names of the classes in their order, where labels were names."""
    return {"names": list(samples.names)} if samples.worded else {}


def _recordable(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """What goes into run.json, checked before a training that may take days."""
    if record is not None and not isinstance(record, Mapping):
        raise DataError("keys and values as record", type(record).__name__, "pass record={'ticket': 7}, say")
    facts = dict(record or {})
    if odd := [k for k in facts if not isinstance(k, str) or k in ("self", "folder", "force")]:
        raise DataError("other words as keys of record", brief(odd[0]), "rename it")
    as_json(facts)
    return facts
