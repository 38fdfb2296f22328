"""The doors: unlearn, audit, train. They check, copy and clean up; the algorithms are elsewhere."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from purge.audit_report import Report
from purge.auditor import Auditor
from purge.callbacks import Callback, Told
from purge.core.errors import DataError, MethodError, RunError, brief
from purge.core.files import as_json, out_folder
from purge.core.folders import claims_out
from purge.core.settings import as_dict, checked_seed, replace
from purge.core.threads import numbers, threads_for
from purge.data.accept import Accepted, accepted
from purge.data.augmented import Augmentation, in_words
from purge.data.cache import places_of
from purge.data.forgotten import check_not_again, class_order, forgotten_by, just_forgotten
from purge.data.ids import IdOf
from purge.data.items import Adapt, Form
from purge.data.request import DeletionRequest, content_digest, contents, described
from purge.data.samples import Data, GivenLabels, Samples, few
from purge.engine.context import Context, Tell
from purge.engine.dist import Ranks
from purge.engine.precision import (
    Precision,
    choose_device,
    choose_graph,
    choose_precision,
    laid_out,
)
from purge.engine.resume import HALF, STATE, training_folder
from purge.engine.run import Run
from purge.engine.seeding import seeded
from purge.engine.stopping import Stopping
from purge.engine.trainer import Recipe, diverged, fit
from purge.methods.base import Method, with_augment
from purge.methods.registry import resolve_method
from purge.methods.sisa_model import ShardPlan, Vote, train_sisa
from purge.methods.update_log import UpdateLog
from purge.metrics.accuracy import accuracies
from purge.metrics.metric import Metric
from purge.metrics.shadow import Shadows
from purge.models.checkpoint import digest
from purge.models.checks import (
    check_augment,
    check_augmented,
    check_batch_size,
    check_classifier,
    check_differentiable,
    check_knows,
    make_split,
    parameters_to_train,
    training_data,
)
from purge.models.copies import copied, narrowed, widened
from purge.models.forward import at_once, counting
from purge.models.hooks import training_flags_kept
from purge.models.recompute import recomputed
from purge.models.work import flop_of, flop_per_row
from purge.report.tables import copies_words
from purge.result import Result, module_of, now

logger = logging.getLogger("purge")


@claims_out
@torch.enable_grad()
def unlearn(
    model: nn.Module | Result,
    forget: Data,
    retain: Data,
    *,
    method: str | Method = "purge",
    test: Data | None = None,
    stop: Stopping | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: bool = True,
    out: str | os.PathLike[str] | None = None,
    fresh: nn.Module | None = None,
    precision: Precision | None = None,
    graph: bool | None = None,
    request: DeletionRequest | None = None,
    check: bool = True,
    augment: str | Augmentation | Callable[[Any], Any] | None = None,
    label: str | None = None,
    id_of: IdOf = None,
    adapt: Adapt | None = None,
    after: Any = None,
    callbacks: Callback | Sequence[Callback] = (),
    **settings: Any,
) -> Result:
    """A new model that has forgotten ``forget`` and kept ``retain``; yours is not touched.

    A model in ``torch.compile``, DataParallel or DistributedDataParallel is unwrapped: the new one is plain.
    One of half precision is computed with in float32 and comes back in its types. One with a single logit
    per sample is binary, with labels 0 and 1. What takes no gradient, as below LoRA, is not changed.

    Args:
        model: a module, or the :class:`Result` of an earlier call. What that has forgotten is not taught
            again: a ``retain`` that holds such a sample, or one of a forgotten id, is refused. For a model
            without its result pass ``after``.
        forget: what must go; best cut by :func:`purge.split`. A map-style dataset of ``(x, y)``,
            ``(x, y, *more)`` or dicts, a pair of tensors or arrays (inputs may be a dict or tuple of them), a
            DataFrame, a DataLoader, a dataset of Hugging Face, or :class:`purge.Images`. Labels are numbers,
            booleans, one-hot rows or names.
        retain: what must stay, in any of these forms.
        method: a name of ``purge.list_methods()``, ``module:Class`` or an object: ``Purge(budget="close")``.
        test: data that was never trained on, which is checked. `purge` does without it; it says what
            accuracy unseen samples have, the target of single samples.
        stop: when to stop, as one object; its fields may also be given one by one, among ``settings``.
        seed: of everything that is drawn at random. The same seed gives the same model.
        device: the model's, unless given; the new model stays there.
        progress: show a line of progress on a terminal and in a notebook.
        out: a folder, in which a run folder is written.
        fresh: an untrained model of the same kind for methods that need one; by default the layers of yours
            are drawn anew.
        precision: of convolutions and products; ``bf16`` on a GPU that has it unless you say ``float32``
            (weights, losses and the arithmetic on gradients are float32 in any case).
        graph: steps are recorded as a CUDA graph and replayed by `purge` and most methods with simple steps,
            unless you say False.
        request: who asked for it and when, for the record; a :class:`purge.DeletionRequest`.
        check: refuse a model that is no better than chance on ``retain``.
        augment: how the model's training data was changed at random, for methods that train on such data;
            others refuse it. For :class:`purge.Images` one of ``none``, ``crop``, ``flip``, ``crop-flip`` and
            ``turn``, or ``purge.Augmentation("turn", colour=0.3)``. For any data a function from a batch of
            inputs on the device to a batch of the same shape, such as a module of
            ``torchvision.transforms.v2``. Left out, a dataset with random transforms is augmented by itself,
            and other data is read as it is.
        label: the column or key of the label.
        id_of: the column or key of the user's own ids (or their position in the items), which go into the
            record.
        adapt: a function from one item to ``(inputs, label)`` or ``(inputs, label, id)``, for data of any
            other form.
        after: the run folder or the result of an earlier request, for a model that does not know its own.
        callbacks: objects that are told about the run, see :mod:`purge.callbacks`: one,
            or a list of them.
        **settings: fields of the method and of its stopping, as ``budget="close", forget_target=0.05``;
            ``purge list methods purge`` names them.

    Returns:
        The new model, with its history and a record of the run.

    Raises:
        PurgeError: bad input, in one line that says what to do; nothing is written.

    Example:
        >>> y = torch.arange(60) % 3
        >>> x = 3 * torch.eye(3)[y] + torch.rand(60, 3)
        >>> model = train(nn.Linear(3, 3), (x, y), epochs=20, batch_size=20, progress=False).model
        >>> forget, retain = (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0])
        >>> result = unlearn(model, forget, retain, steps=40, progress=False)
        >>> result.steps, result.stopped_by, result.model is model
        (40, 'schedule', False)
    """
    told = Told(callbacks)
    chosen = resolve_method(method, {**settings, **({} if stop is None else {"stop": stop})})
    chosen, how = with_augment(chosen, augment)
    form, order = Form(label, id_of, adapt), class_order(model)
    before = forgotten_by(after, model if isinstance(model, Result) else None)
    model, fresh = check_classifier(module_of(model)), None if fresh is None else check_classifier(fresh)
    at = choose_device(device, model)
    if precision is not None and chosen.recipe is not None:
        chosen = replace(chosen, {"precision": precision})
    precision = choose_precision(precision, at, full=chosen.full_precision)
    ranks = Ranks.here(at)
    graph = choose_graph(graph, at, default=chosen.graph) and ranks.world == 1
    if not chosen.distributes:
        ranks.refuse(str(method) if isinstance(method, str) else type(method).__name__)
    seed = checked_seed(seed)
    if request is not None and not isinstance(request, DeletionRequest):
        fix = 'pass request=purge.DeletionRequest(id="DSR-17")'
        raise DataError("a purge.DeletionRequest as request", type(request).__name__, fix)
    if out is not None:
        out_folder(out)
    edited = copied(model, at)
    with seeded(seed, at):  # a dataset may draw random numbers, and so may a model
        given = {"forget": forget, "retain": retain, **({} if test is None else {"test": test})}
        data = Accepted()
        split = make_split(edited, accepted(given, form, order, data), at)
        check_not_again(before, {"retain": split.retain})
        parameters_to_train(edited)
        check_differentiable(edited, split.retain)
        check_augmented(split, how)
        asked = described(split)
        for words in copies_words(split.sizes()):
            logger.warning("%s.", words)
        parts = split.forget, split.retain, split.test
        ranks.begin([edited, fresh], parts, (chosen, seed, precision, in_words(how, split.retain)))
        if check:
            check_knows(edited, split.retain, "a model")
        per_row = flop_per_row(edited, few(split.retain))

    name = method if isinstance(method, str) else type(method).__name__
    context = Context(at, seed, precision, graph, progress, _teller(told, seed, at), ranks)
    run = Run(edited, split, context, stop=chosen.stop, title=name, fresh=fresh, augment=how)
    told.start({
        "kind": "unlearn", "method": name, "settings": as_dict(chosen), "seed": seed, "device": str(at),
        **split.sizes(),
    })  # fmt: skip
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # torch's first optimiser imports for seconds: not our time
    started = time.perf_counter()
    with (
        seeded(seed, at), training_flags_kept(edited), laid_out(edited, split.retain), run.autocast(),
        recomputed(edited, few(split.retain)) if chosen.checkpoint_activations else nullcontext(),
        at_once(edited, chosen.micro_batch),
    ):  # fmt: skip
        edited.eval()
        threads = threads_for(edited, at, chosen.batch_size or 128, seen=context.threads)
        with threads, counting(edited, fresh) as rows:
            chosen.run(edited, split, run)
    ranks.end(edited, rows)
    history = run.history()  # reads the device, so the clock below includes all of its work
    seconds = time.perf_counter() - started
    narrowed(edited, model).zero_grad(set_to_none=True)
    finished = now()
    info = {
        "preset": name, "seed": seed, "precision": precision, "graph": graph, **asked, **split.sizes(),
        "augment": in_words(how, split.retain) if chosen.augments else None,
        **flop_of(rows, per_row), "threads": numbers(context.threads),
        "took": run.took, "exact": run.exact, "forget_target": run.forget_target,
        "retain_budget": run.retain_budget,
        "model_class": type(model).__name__, "original_digest": digest(model), "finished": finished,
        "cache": places_of(split.forget, split.retain, split.test),
        "deletion_request": {"done": finished, **(request.to_dict() if request else {})},
    }  # fmt: skip
    later = cache(partial(contents, split))
    result = Result(
        edited, chosen, history, run.stopped_by or "schedule", seconds, run.step, info, later,
        before | just_forgotten(split.forget, split.retain), split.names or order, data,
    )  # fmt: skip
    if out is not None:
        result.save(out)
    ranks.wait()
    told.end(result)
    return result


def audit(
    model: nn.Module | Result,
    forget: Data,
    retain: Data,
    test: Data | None,
    *,
    original: nn.Module | Result | None = None,
    retrained: nn.Module | Result | Sequence[nn.Module | Result] | None = None,
    metrics: str | Metric | Sequence[str | Metric] = "standard",
    shadows: Shadows | None = None,
    truth: GivenLabels | None = None,
    triggered: Data | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: bool = True,
    check: bool = True,
    out: str | os.PathLike[str] | None = None,
    label: str | None = None,
    id_of: IdOf = None,
    adapt: Adapt | None = None,
    callbacks: Callback | Sequence[Callback] = (),
) -> Report:
    """Measure what a model still knows, beside the retrained and the original model.

    What cannot be measured (no test data, no retrained model, no BatchNorm) is None with a reason. A request
    that mixes whole classes with single samples is also audited in these two ``parts``.

    If what was forgotten is bad data, ``truth`` and ``triggered`` tell more.

    Args:
        model: the model to audit. Given a :class:`Result` instead of its model, the report also knows how
            the model came about.
        forget: what was forgotten. The forms of data are those of :func:`unlearn`.
        retain: what stayed.
        test: data that no model was trained on, or None; without it there are no attacks on membership.
        original: the model before the unlearning. One that is no better than chance on ``retain`` is refused.
        retrained: the model that never saw what was forgotten, which everything is compared with. Of several,
            the first; the others tell how far apart two retrainings are (``report.floor``). One that is the
            original, the audited model or given twice is refused.
        metrics: ``quick``, ``standard`` or ``full``, names of ``purge.list_metrics()``, or objects of
            :class:`purge.Metric`. ``full`` trains the models that ``shadows`` describes and attacks by
            comparison with them.
        shadows: how shadow models are trained; a :class:`purge.Shadows`.
        truth: the right labels (|D_f|,) of forget samples that were trained with wrong ones, in their order
            (``clean_label``).
        triggered: samples with a backdoor trigger, labelled with the attacker's label; leave out those of
            that class (``attack_success``).
        seed: of everything that is drawn at random.
        device: the model's, unless given.
        progress: show a line of progress on a terminal and in a notebook.
        check: refuse an original or a retrained model that cannot be one, as said above.
        out: a folder for audit.json and report.html.
        label: the column or key of the label.
        id_of: the column, key or position of the user's own ids.
        adapt: a function from one item to ``(inputs, label)`` or ``(inputs, label, id)``.
        callbacks: objects that are given the report: one, or a list of them.

    Returns:
        Every value with its interval, beside those of the other models.

    Raises:
        PurgeError: bad input, in one line that says what to do.

    Example:
        >>> y = torch.arange(60) % 3
        >>> x = 3 * torch.eye(3)[y] + torch.rand(60, 3)
        >>> model = train(nn.Linear(3, 3), (x, y), epochs=20, batch_size=20, progress=False).model
        >>> parts = (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0])
        >>> report = audit(model, *parts, None, metrics=["fa_train", "ra", "mia"], progress=False)
        >>> report["fa_train"].value, report["mia"]
        (1.0, Value(None, why='no test data was given'))
    """
    told = Told(callbacks)
    if out is not None:
        out_folder(out, force=True)
    auditor = Auditor(
        forget, retain, test, original=original, retrained=retrained, seed=seed, device=device, check=check,
        truth=truth, triggered=triggered, form=Form(label, id_of, adapt),
    )  # fmt: skip
    report = auditor.audit(model, metrics=metrics, shadows=shadows, progress=progress)
    if out is not None:
        report.save(out)
    told.report(report)
    return report


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
        out: a folder, in which a run folder is written, and after every epoch the state of the training.
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
    told, chosen = Told(callbacks), replace(Recipe(), recipe)
    if (log_updates is not None and resume) or (log_updates is None and log_only is not None):
        raise MethodError(
            "log_updates=… in a training from its start",
            "resume" if resume else "log_only alone",
            "train anew with log_updates=FOLDER, or without a log",
        )
    form, order = Form(label, id_of, adapt), class_order(model)
    before = forgotten_by(after, model if isinstance(model, Result) else None)
    model = check_classifier(module_of(model))
    at = choose_device(device, model)
    seed, extra = checked_seed(seed), _recordable(record)
    folder, ranks = training_folder(out, resume=resume, force=force), Ranks.here(at)
    trained = copied(model, at)
    with seeded(seed, at):
        more = {"test": test, "log_only": log_only}
        given = {"the dataset": dataset, **{name: data for name, data in more.items() if data is not None}}
        sets = accepted(given, form, order)
        parts = {name: training_data(trained, data, at) for name, data in sets.items()}
        check_not_again(before, parts)
        samples, unseen, only = parts["the dataset"], parts.get("test"), parts.get("log_only")
    if log_updates is not None:
        ranks.refuse("a training that logs its updates")
    ranks.begin([trained], [samples, unseen], (chosen, seed, resume))
    check_batch_size(trained, min(chosen.batch_size, len(samples)))
    check_augment(samples, chosen.augment, chosen.colour)
    parameters_to_train(trained)
    with seeded(seed, at):
        check_differentiable(trained, samples)
        per_row = flop_per_row(trained, few(samples))
    log = None if log_updates is None else UpdateLog(log_updates, trained, samples, chosen, only=only)
    state = None if folder is None else folder / STATE
    for half in () if folder is None else folder.glob(HALF):
        half.unlink(missing_ok=True)
    context = Context(at, seed, progress=progress, tell=_teller(told, seed, at), ranks=ranks)
    threads = threads_for(trained, at, chosen.batch_size, seen=context.threads)
    told.start({
        "kind": "train", "method": "train", "settings": as_dict(chosen), "seed": seed, "device": str(at),
        "samples": len(samples),
    })  # fmt: skip
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
    steps = chosen.epochs * max(1, len(samples) // min(chosen.batch_size, len(samples)))
    info = {
        "seed": seed, "samples": len(samples), "model_class": type(model).__name__,
        "train_content": content_digest(samples), **accuracies(trained, unseen),
        **flop_of(rows, per_row), "threads": numbers(context.threads),
    }  # fmt: skip
    info["cache"] = places_of(samples, unseen)
    if log_updates is not None:
        info["log_updates"] = os.path.abspath(log_updates)
    trained = narrowed(trained, model)
    info |= _names(samples)
    result = Result(
        trained, chosen, list(history), "schedule", seconds, steps, info, forgotten=before,
        names=samples.names or order,
    )  # fmt: skip
    if folder is not None and state is not None:
        result.save(folder, force=True, **extra)
        if ranks.rank == 0:  # the others are here before the first one has written it
            state.unlink(missing_ok=True)
    ranks.wait()
    told.end(result)
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
    parts: Callable[[int], Path] | None = None,
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
        parts: gives the file of each shard by its number; a shard that has one is read from it, one that has
            none is written to it, so that shards can be trained apart.
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
    given = {"the dataset": dataset, **({} if test is None else {"test": test})}
    with seeded(plan.seed, torch.device("cpu")):
        sets = accepted(given, Form(label, id_of, adapt), class_order(model))
    trained = train_sisa(model, sets["the dataset"], plan, device=device, progress=progress, parts=parts)
    seconds = time.perf_counter() - started + trained.seconds_before
    unseen = None
    if "test" in sets:
        unseen = training_data(trained, sets["test"], choose_device(device, trained))
    info = {"seed": seed, "samples": len(trained.ids), **trained.work, **accuracies(trained, unseen)}
    info |= {"threads": numbers(trained.threads), "cache": places_of(sets["the dataset"], unseen)}
    info |= _names(sets["the dataset"])
    steps = sum(row["steps"] for row in trained.history)
    names = sets["the dataset"].names
    result = Result(trained, chosen, trained.history, "schedule", seconds, steps, info, names=names)
    if out is not None:
        result.save(out, force=force, **extra)
    return result


def _teller(told: Told, seed: int, device: torch.device) -> Tell | None:
    """How a run tells what it measured; None if nobody listens.

    A callback may draw random numbers: those of the run are what they would be without it.
    """

    def tell(step: int, values: Mapping[str, float]) -> None:
        with seeded(seed, device):
            told.check(step, values)

    return tell if told else None


def _names(samples: Samples) -> dict[str, Any]:
    """The names of the classes in their order, where labels were names."""
    return {"names": list(samples.names)} if samples.worded else {}


def _recordable(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """What goes into run.json, checked before a training that may take days."""
    if record is not None and not isinstance(record, Mapping):
        raise DataError("keys and values as record", type(record).__name__, "pass record={'ticket': 7}, say")
    found = dict(record or {})
    if odd := [k for k in found if not isinstance(k, str) or k in ("self", "result", "folder", "force")]:
        raise DataError("other words as keys of record", brief(odd[0]), "rename it")
    as_json(found)
    return found
