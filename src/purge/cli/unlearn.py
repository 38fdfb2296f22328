"""purge unlearn."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from purge.cli import ending
from purge.cli import options as opt
from purge.cli.printing import complain, show


def unlearn(
    checkpoint: Annotated[Path, Argument(help="A run folder, or a file of weights.")],
    out: Annotated[Path, opt.place("Folder for the new model; must be empty.")],
    data: opt.DataName = None,
    model: opt.ModelName = None,
    data_dir: opt.DataDir = None,
    size: opt.Size = None,
    split_seed: opt.SplitSeed = None,
    skip_bad: opt.SkipBad = False,
    stream: opt.Stream = None,
    mean: opt.Mean = None,
    std: opt.Std = None,
    label: opt.Label = None,
    text: opt.Text = None,
    id_: opt.Id = None,
    test_: opt.Test = None,
    all_trained: opt.AllTrained = False,
    transform: opt.Transform = None,
    forget_class: Annotated[
        list[str] | None, Option(help="A class to forget, by number or name; repeatable.")
    ] = None,
    forget_ids: Annotated[Path | None, Option(help="A file with the samples to forget.")] = None,
    method: opt.MethodName = "purge",
    set_: opt.Set = None,
    augment: Annotated[
        str | None,
        Option(
            help="Random changes of images: none, crop, flip, crop-flip or turn. Default: as in training."
        ),
    ] = None,
    seed: opt.Seed = 0,
    device: opt.Device = None,
    trust: opt.Trust = False,
    precision: Annotated[Literal["float32", "bf16"] | None, Option(help="Default on a GPU: bf16.")] = None,
    graph: Annotated[bool | None, Option(help="Replay steps as a CUDA graph; GPU only.")] = None,
    request_id: Annotated[str | None, Option(help="Of the request, for the record.")] = None,
    received: Annotated[str | None, Option(help="When it came, as 2026-11-01; for the record.")] = None,
    done: Annotated[str | None, Option(help="When it was carried out; default: now.")] = None,
    by: Annotated[str | None, Option(help="Who carried it out; for the record.")] = None,
    export: Annotated[
        Path | None, opt.place("Write the weights here too, in the form that they came in: a file or folder.")
    ] = None,
    model_version: Annotated[str | None, Option(help="Of the model; for the record.")] = None,
    no_cache: opt.NoCache = False,
    force: opt.Force = False,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Forget classes or samples; write a new model.

    For example: purge unlearn runs/demo/base --forget-class 3 --out runs/without3

    For the names that --set takes: purge list methods purge

    Exits 1 if the forget target was not reached; the model is written all the same.
    """
    from purge.core.errors import Exit, FileError
    from purge.core.files import out_folder, writes
    from purge.core.folders import claimed
    from purge.core.plugins import current_folder_importable
    from purge.core.settings import checked_seed
    from purge.data.request import DeletionRequest
    from purge.engine.stopping import beyond_chance
    from purge.methods.base import with_augment
    from purge.methods.registry import resolve_method
    from purge.models.export import check_export, check_form, words
    from purge.models.export import export as write_back
    from purge.report.tables import flop_words
    from purge.runs.folder import (
        both,
        choose_data,
        choose_model,
        cut,
        export_form,
        facts_of,
        first_of,
        read_model,
        request_of,
        same_scale,
    )
    from purge.runs.make import (
        check_recorded,
        facts_for,
        gone_before,
        like_first,
        needed,
        reference_command,
        request_words,
        unlearn_run,
    )

    ending.keeps(lambda: "Nothing was written.")
    settings = opt.settings_from(set_)
    asked = DeletionRequest(id=request_id, received=received, done=done, by=by, model_version=model_version)
    with current_folder_importable(":" in method):
        with_augment(resolve_method(method, settings), augment)
    checked_seed(seed)
    out_folder(out, force=force)
    if checkpoint.exists() and out.exists() and checkpoint.samefile(out):
        got = "the model that is to forget"
        raise FileError("another folder for the new model", got, "keep it: an audit compares with it")
    facts = facts_of(checkpoint)
    name = choose_model(facts, model, trust)
    form = None if export is None else export_form(checkpoint, name, export)
    if export is not None:
        check_export(export, form, force=force)
        if out.absolute() in (export.absolute(), *export.absolute().parents):
            got, fix = f"{export} in the run folder", "choose another place"
            raise FileError("the export beside the run folder", got, fix)
    choice = choose_data(
        facts, data=data, data_dir=data_dir, size=size, split_seed=split_seed, skip_bad=skip_bad,
        mean=opt.numbers_from(mean, "--mean"), std=opt.numbers_from(std, "--std"), trust=trust,
        label=label, text=text, id=id_, test=test_, transform=transform, model=name, stream=stream,
        all_trained=all_trained,
    )  # fmt: skip
    images, test = choice.load(progress=not quiet)
    trained = read_model(checkpoint, name, images)
    if form is not None:
        check_form(trained, form)
    at = opt.pick_device(device)
    same_scale(facts, choice, "given")
    check_recorded(checkpoint, facts, trained, images, test, at)
    request = needed(request_of(images, forget_class or [], forget_ids, words="forget"))
    gone = gone_before(checkpoint, facts)  # it must not be taught again
    forget, retain = cut(images, request, gone)
    with claimed(out):
        out_folder(out, force=force)  # another process may have been here since
        result = unlearn_run(
            trained, name, forget, retain, facts=facts, method=method, settings=settings,
            test=test, seed=seed, device=at, progress=not quiet, precision=precision,
            graph=graph, request=asked, checkpoint=checkpoint, augment=augment,
        )  # fmt: skip
        first = first_of(checkpoint, facts, result.info["original_digest"])
        about = facts_for(name, choice, images, request, original=checkpoint, gone=gone, deployed=first)
        result.save(out, force=force, **about)
        left = []
        if export is not None and writes():
            left = write_back(result.model, export, like=form, force=force)
    ending.keeps(lambda: f"The model is written to {out}.")
    last = [row for row in result.history if row.get("check_forget_accuracy") is not None][-1]
    summary: dict[str, Any] = {
        "folder": str(out), "method": method, "steps": result.steps, "seconds": result.seconds,
        "flop": result.info["flop"], "took": result.info["took"], "stopped_by": result.stopped_by,
        "forget_accuracy": last["check_forget_accuracy"],
        "forget_target": result.info["forget_target"], "retain_loss": last["check_retain_loss"],
        "retain_budget": result.info["retain_budget"],
        **({} if export is None else {"export": str(export), "left_out": left}),
    }  # fmt: skip
    accuracy, target = summary["forget_accuracy"], summary["forget_target"]
    above_target = target is not None and accuracy > target
    missed = above_target and not result.method.retrains
    if missed and result.method.stop.forget_target is None and "forget_classes" not in request:
        # The accuracy on unseen data is what a model that never saw these samples has on average.
        missed = beyond_chance(accuracy, target, min(len(forget), result.method.stop.check_samples))
    summary["target_missed"] = missed
    above = "the forget target was not reached" if missed else "above the target by no more than chance"
    aim = "no target" if target is None else f"target {target:.1%}"
    classes = f" ({request_words(request, images.names)})" if "forget_classes" in request else ""
    budget = "none" if summary["retain_budget"] is None else f"{summary['retain_budget']:.4f}"
    reference = reference_command(like_first(checkpoint, facts, choice, name), both(gone, request))
    if forget_ids is not None and not gone:
        reference = reference.replace("FILE", quote(str(forget_ids)))
    new = quote(str(out))
    audit = f"purge audit {new} --retrained {new}-retrained"
    text = (
        f"{method}: {len(forget)} samples to forget{classes}, {result.steps} steps in "
        f"{result.seconds:.1f} s ({flop_words(summary['flop'])}), stopped by {result.stopped_by}"
        f"{f'; {above}' if above_target else ''}.\n"
        f"Their accuracy is {accuracy:.1%} ({aim}), the "
        f"retain loss {summary['retain_loss']:.4f} (budget {budget}).\n"
        + (f"It took {summary['took']}.\n" if summary["took"] else "")
        + ("" if export is None else f"Exported to {export}. {words(left, export)}".rstrip() + "\n")
        + f"The reference: {reference} --out {new}-retrained\n"
        + f"Written to {out}. Next: {audit}"
    )
    show(summary, text, json_)
    if missed:
        got = f"accuracy {100 * accuracy:.1f} % instead of {100 * target:.1f} %"
        complain(f"Failed: the forget target was not reached, {got}.")
        raise typer.Exit(Exit.MISSED)
