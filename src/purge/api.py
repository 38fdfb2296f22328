"""The doors unlearn and audit: they check, copy and clean up; the algorithms are elsewhere."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from purge.audit_report import Report
from purge.auditor import Auditor
from purge.callbacks import Callback, Listeners
from purge.core.errors import DataError
from purge.core.files import out_folder
from purge.core.folders import claims_out
from purge.core.settings import as_dict, checked_seed, replace
from purge.core.threads import numbers, threads_for
from purge.data.accept import Accepted, accepted
from purge.data.augmented import Augmentation, in_words
from purge.data.cache import places_of
from purge.data.forgotten import Forgotten, check_not_again, class_order, forgotten_by, just_forgotten
from purge.data.items import Adapt, Form, IdOf
from purge.data.request import DeletionRequest, contents, described
from purge.data.samples import Data, GivenLabels, Samples, few
from purge.data.split import Split
from purge.engine.context import Context
from purge.engine.dist import Ranks
from purge.engine.precision import Precision, choose_device, choose_graph, choose_precision, laid_out
from purge.engine.run import Run
from purge.engine.seeding import seeded
from purge.engine.stopping import Stopping
from purge.methods.base import Method, with_augment
from purge.methods.registry import resolve_method
from purge.metrics.metric import Metric
from purge.metrics.shadow import Shadows
from purge.models.checkpoint import digest
from purge.models.checks import (
    check_augmented,
    check_classifier,
    check_differentiable,
    check_knows,
    make_split,
    parameters_to_train,
)
from purge.models.copies import copied, narrowed
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
        model: a module, or the :class:`Result` of an earlier call: a ``retain`` that holds what it has
            forgotten is refused. For a model without its result pass ``after``.
        forget: what must go; best cut by :func:`purge.split`. A map-style dataset of ``(x, y)``,
            ``(x, y, *more)`` or dicts, a pair of tensors or arrays (inputs may be a dict or tuple of them), a
            DataFrame, a DataLoader, a dataset of Hugging Face, or :class:`purge.Images`. Labels are numbers,
            booleans, one-hot rows or names.
        retain: what must stay, in any of these forms.
        method: a name of ``purge.list_methods()``, ``module:Class`` or an object: ``Purge(budget="close")``.
        test: data that was never trained on; it says what accuracy unseen samples have, the target of single
            samples.
        stop: when to stop, as one object; its fields may also be given one by one, among ``settings``.
        seed: of everything that is drawn at random.
        device: the model's, unless given.
        progress: show a line of progress on a terminal and in a notebook.
        out: a folder, in which a run folder is written.
        fresh: an untrained model for methods that need one; by default yours with layers drawn anew.
        precision: of convolutions and products; ``bf16`` on a GPU that has it unless you say ``float32``.
        graph: record steps as a CUDA graph and replay it; by default where the method and the GPU can.
        request: who asked for it and when, for the record; a :class:`purge.DeletionRequest`.
        check: refuse a model that is no better than chance on ``retain``.
        augment: how the model's training data was changed at random, for methods that train on such data.
            For :class:`purge.Images` one of ``none``, ``crop``, ``flip``, ``crop-flip`` and ``turn``, or
            ``purge.Augmentation("turn", colour=0.3)``. For any data a function from a batch of inputs on the
            device to a batch of the same shape, such as a module of ``torchvision.transforms.v2``. Left out,
            a dataset with random transforms is augmented by itself, and other data is read as it is.
        label: the column or key of the label.
        id_of: the column, key or position of the user's own ids, which go into the record.
        adapt: a function from one item to ``(inputs, label)`` or ``(inputs, label, id)``.
        after: the run folder or the result of an earlier request, for a model that does not know its own.
        callbacks: objects that are told about the run, see :mod:`purge.callbacks`: one, or a list of them.
        **settings: fields of the method and of its stopping, as ``budget="close", forget_target=0.05``;
            ``purge list methods purge`` names them.

    Returns:
        The new model, with its history and a record of the run.

    Raises:
        PurgeError: bad input, in one line that says what to do; nothing is written.

    Example:
        >>> from purge import train
        >>> y = torch.arange(60) % 3
        >>> x = 3 * torch.eye(3)[y] + torch.rand(60, 3)
        >>> model = train(nn.Linear(3, 3), (x, y), epochs=20, batch_size=20, progress=False).model
        >>> forget, retain = (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0])
        >>> result = unlearn(model, forget, retain, steps=40, progress=False)
        >>> result.steps, result.stopped_by, result.model is model
        (40, 'schedule', False)
    """
    listeners = Listeners(callbacks)
    name = method if isinstance(method, str) else type(method).__name__
    chosen = resolve_method(method, settings if stop is None else {**settings, "stop": stop})
    chosen, how = with_augment(chosen, augment)
    order, before = class_order(model), forgotten_by(after, model if isinstance(model, Result) else None)
    model, fresh = check_classifier(module_of(model)), None if fresh is None else check_classifier(fresh)
    seed, at = checked_seed(seed), choose_device(device, model)
    if precision is not None and chosen.recipe is not None:
        chosen = replace(chosen, {"precision": precision})
    context = _context(chosen, name, at, seed, precision, graph, progress, listeners)
    _check_record(request, out)
    edited, data = copied(model, at), Accepted()
    with seeded(seed, at):  # a dataset may draw random numbers, and so may a model
        sets = accepted(
            {"forget": forget, "retain": retain} | ({} if test is None else {"test": test}),
            Form(label, id_of, adapt), order, data,
        )  # fmt: skip
        split = _checked_split(edited, sets, how, before, at)
        request_facts, augmented = described(split), in_words(how, split.retain)
        parts = split.forget, split.retain, split.test
        context.ranks.begin([edited, fresh], parts, (chosen, seed, context.precision, augmented))
        if check:
            check_knows(edited, split.retain, "a model")
        per_row = flop_per_row(edited, few(split.retain))

    run = Run(edited, split, context, stop=chosen.stop, title=name, fresh=fresh, augment=how)
    about = {"kind": "unlearn", "method": name, "settings": as_dict(chosen), "seed": seed, "device": str(at)}
    listeners.tell("on_start", {**about, **split.sizes()})
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # torch's first optimiser imports for seconds: not our time
    started = time.perf_counter()
    with (
        seeded(seed, at), training_flags_kept(edited), laid_out(edited, split.retain), run.autocast(),
        recomputed(edited, few(split.retain)) if chosen.checkpoint_activations else nullcontext(),
        at_once(edited, chosen.micro_batch),
    ):  # fmt: skip
        edited.eval()
        threads = threads_for(edited, at, chosen.batch_size, seen=context.threads)
        with threads, counting(edited, fresh) as rows:
            chosen.run(edited, split, run)
    context.ranks.end(edited, rows)
    history = run.history()  # reads the device, so the clock below includes all of its work
    seconds = time.perf_counter() - started
    narrowed(edited, model).zero_grad(set_to_none=True)

    info = {
        "preset": name, "seed": seed, "precision": context.precision, "graph": context.graph, **request_facts,
        **split.sizes(), "augment": augmented if chosen.augments else None, **flop_of(rows, per_row),
        **_how_it_ended(run, model, parts, request),
    }  # fmt: skip
    result = Result(
        edited, chosen, history, run.stopped_by or "schedule", seconds, run.step, info,
        cache(partial(contents, split)), before | just_forgotten(split.forget, split.retain),
        split.names or order, data,
    )  # fmt: skip
    if out is not None:
        result.save(out)
    context.ranks.wait()
    listeners.tell("on_end", result)
    return result


def _context(
    method: Method, name: str, at: torch.device, seed: int, precision: Precision | None, graph: bool | None,
    progress: bool, listeners: Listeners,
) -> Context:  # fmt: skip
    """How a method is run: at which precision, with a CUDA graph or without, and on which ranks."""
    ranks = Ranks.here(at)
    if not method.distributes:
        ranks.refuse(name)
    precision = choose_precision(precision, at, full=method.full_precision)
    graph = choose_graph(graph, at, default=method.graph) and ranks.world == 1
    return Context(
        at, seed, precision, graph, progress, listeners.during(seed, at), listeners.each(seed, at), ranks
    )


def _check_record(request: Any, out: Any) -> None:
    """Refuse what could not be written after the run."""
    if request is not None and not isinstance(request, DeletionRequest):
        fix = 'pass request=purge.DeletionRequest(id="DSR-17")'
        raise DataError("a purge.DeletionRequest as request", type(request).__name__, fix)
    if out is not None:
        out_folder(out)


def _how_it_ended(
    run: Run, model: nn.Module, parts: tuple[Samples | None, ...], request: DeletionRequest | None
) -> dict[str, Any]:
    """What a record says about the end of a run, and about the model that it began with."""
    finished = now()
    return {
        "threads": numbers(run.context.threads), "took": run.took, "exact": run.exact,
        "forget_target": run.forget_target, "retain_budget": run.retain_budget,
        "model_class": type(model).__name__, "original_digest": digest(model), "finished": finished,
        "cache": places_of(*parts),
        "deletion_request": {"done": finished, **(request.to_dict() if request else {})},
    }  # fmt: skip


def _checked_split(
    model: nn.Module, sets: dict[str, Samples], how: Any, before: Forgotten, at: torch.device
) -> Split:
    """A request that this model can carry out; copies of forgotten samples that stay are warned about."""
    split = make_split(model, sets, at)
    check_not_again(before, {"retain": split.retain})
    parameters_to_train(model)
    check_differentiable(model, split.retain)
    check_augmented(split, how)
    for words in copies_words(split.sizes()):
        logger.warning("%s.", words)
    return split


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

    Args:
        model: the model to audit. Given a :class:`Result` instead of its model, the report also knows how
            the model came about.
        forget: what was forgotten. The forms of data are those of :func:`unlearn`.
        retain: what stayed.
        test: data that no model was trained on, or None; without it there are no attacks on membership.
        original: the model before the unlearning.
        retrained: the model that never saw what was forgotten, which everything is compared with. Of several,
            the first; the others tell how far apart two retrainings are (``report.floor``).
        metrics: ``quick``, ``standard`` or ``full``, which attacks with shadow models, names of
            ``purge.list_metrics()``, or objects of :class:`purge.Metric`.
        shadows: how shadow models are trained; a :class:`purge.Shadows`.
        truth: the right labels of forget samples that were trained with wrong ones, in their order.
        triggered: samples of other classes with a backdoor trigger, labelled with the attacker's label.
        seed: of everything that is drawn at random.
        device: the model's, unless given.
        progress: show a line of progress on a terminal and in a notebook.
        check: refuse an original that is no better than chance on ``retain``, and a retrained model that is
            another of the models.
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
        >>> from purge import train
        >>> y = torch.arange(60) % 3
        >>> x = 3 * torch.eye(3)[y] + torch.rand(60, 3)
        >>> model = train(nn.Linear(3, 3), (x, y), epochs=20, batch_size=20, progress=False).model
        >>> parts = (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0])
        >>> report = audit(model, *parts, None, metrics=["fa_train", "ra", "mia"], progress=False)
        >>> report["fa_train"].value, report["mia"]
        (1.0, Value(None, why='no test data was given'))
    """
    listeners = Listeners(callbacks)
    if out is not None:
        out_folder(out, force=True)
    auditor = Auditor(
        forget, retain, test, original=original, retrained=retrained, seed=seed, device=device, check=check,
        truth=truth, triggered=triggered, form=Form(label, id_of, adapt),
    )  # fmt: skip
    report = auditor.audit(model, metrics=metrics, shadows=shadows, progress=progress)
    if out is not None:
        report.save(out)
    listeners.tell("on_report", report)
    return report
