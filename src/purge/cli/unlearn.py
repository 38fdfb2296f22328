"""purge unlearn."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

import purge.runs
from purge.cli import options as opt
from purge.cli.ending import running_in
from purge.cli.printing import complain, show
from purge.core.errors import Exit
from purge.report import flop_words

if TYPE_CHECKING:
    from purge.runs import Unlearned


@opt.with_data
def unlearn(
    context: typer.Context,
    checkpoint: Annotated[Path, Argument(help="A run folder, or a file of weights.")],
    out: Annotated[Path, opt.place("Folder for the new model; must be empty.")],
    options: opt.Given,
    model: opt.ModelName = None,
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
    ledger: opt.SuppressedBy = None,
    key: opt.KeyAt = None,
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
    running = running_in(context)
    running.kept = lambda: "Nothing was written."
    record = purge.DeletionRequest(
        id=request_id, received=received, done=done, by=by, model_version=model_version
    )
    unlearned = purge.runs.unlearn_folder(
        checkpoint, out, options, model=model, forget_classes=forget_class or [], forget_ids=forget_ids,
        method=method, settings=opt.settings_from(set_), augment=augment, seed=seed,
        device=opt.pick_device(device), trust=trust, precision=precision, graph=graph, record=record,
        export_to=export, force=force, progress=not quiet,
        left_out=opt.left_out(ledger, key),
    )  # fmt: skip
    running.kept = lambda: f"The model is written to {out}."
    summary = unlearned.summary
    show(summary, _words(unlearned, out, export), json_)
    if summary["target_missed"]:
        accuracy, target = 100 * summary["forget_accuracy"], 100 * summary["forget_target"]
        got = f"accuracy {accuracy:.1f} % instead of {target:.1f} %"
        complain(f"Failed: the forget target was not reached, {got}.")
        raise typer.Exit(Exit.MISSED)


def _words(done: Unlearned, out: Path, export: Path | None) -> str:
    """What was unlearned, for people, and what comes next."""
    summary, request = done.summary, done.request
    accuracy, target, budget = (summary[key] for key in ("forget_accuracy", "forget_target", "retain_budget"))
    above, classes = "", ""
    if summary["target_missed"]:
        above = "; the forget target was not reached"
    elif target is not None and accuracy > target:
        above = "; above the target by no more than chance"
    if "forget_classes" in request:
        classes = f" ({purge.runs.request_words(request, done.names)})"
    aim = "no target" if target is None else f"target {target:.1%}"
    lines = [
        f"{summary['method']}: {done.samples} samples to forget{classes}, {summary['steps']} steps in "
        f"{summary['seconds']:.1f} s ({flop_words(summary['flop'])}), stopped by {summary['stopped_by']}"
        f"{above}.",
        f"Their accuracy is {accuracy:.1%} ({aim}), the retain loss {summary['retain_loss']:.4f} "
        f"(budget {'none' if budget is None else f'{budget:.4f}'}).",
    ]
    if summary["took"]:
        lines.append(f"It took {summary['took']}.")
    if export is not None:
        left_out = purge.runs.left_out_words(summary["left_out"], export)
        lines.append(f"Exported to {export}. {left_out}".rstrip())
    new = quote(str(out))
    lines.append(f"The reference: {done.reference} --out {new}-retrained")
    lines.append(f"Written to {out}. Next: purge audit {new} --retrained {new}-retrained")
    return "\n".join(lines)
