"""purge train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

import purge.runs
from purge.cli import options as opt
from purge.cli.ending import running_in
from purge.cli.printing import show
from purge.report import class_words, flop_words

if TYPE_CHECKING:
    from purge.runs import Trained


@opt.with_data
def train(
    context: typer.Context,
    out: Annotated[Path, opt.place("Folder for the model; must be empty.")],
    options: opt.Given,
    model: Annotated[str | None, Option(help="See purge list models.")] = None,
    like: Annotated[Path | None, Option(help="Run folder whose data, model and recipe to use.")] = None,
    without_class: Annotated[
        list[str] | None, Option(help="A class to leave out, by number or name; repeatable.")
    ] = None,
    without_ids: Annotated[Path | None, Option(help="A file with samples to leave out.")] = None,
    pretrained: Annotated[bool, Option("--pretrained", help="Start from published weights.")] = False,
    set_: Annotated[list[str] | None, Option("--set", help="A setting: key=value; repeatable.")] = None,
    seed: Annotated[int | None, Option(help="Default: 0; for a reference, its model's plus 1.")] = None,
    device: opt.Device = None,
    trust: opt.Trust = False,
    shards: Annotated[int | None, Option(help="Train that many models on parts, for sisa.")] = None,
    slices: Annotated[int | None, Option(help="Checkpoints per shard; more: cheaper deletions.")] = None,
    vote: Annotated[
        Literal["mean", "majority"] | None,
        Option(help="How shards decide; default: the mean of their softmax."),
    ] = None,
    log_updates: Annotated[Path | None, opt.place("Folder for all updates, for amnesiac.")] = None,
    log_only_ids: Annotated[Path | None, Option(help="Log only steps with a sample of this file.")] = None,
    ledger: opt.SuppressedBy = None,
    key: opt.KeyAt = None,
    no_cache: opt.NoCache = False,
    resume: Annotated[bool, Option("--resume", help="Resume an interrupted training.")] = False,
    force: opt.Force = False,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
    debug: opt.Debug = False,
) -> None:
    """Train a model, or the reference without what must be forgotten.

    For example: purge train --data digits --model small-resnet --out runs/base

    The reference: purge train --like runs/base --without-class 3 --out runs/without3

    For the names that --set takes: purge list recipe
    """
    running = running_in(context)
    resumable = shards is None and log_updates is None
    running.kept = lambda: purge.runs.kept_epochs(out, resumable=resumable)
    done = purge.runs.train_folder(
        out, options, model=model, like=like, without_classes=without_class or [], without_ids=without_ids,
        pretrained=pretrained, settings=opt.settings_from(set_), seed=seed, device=opt.pick_device(device),
        trust=trust, shards=shards, slices=slices, vote=vote, log_updates=log_updates,
        log_only_ids=log_only_ids, resume=resume, force=force, progress=not quiet,
        left_out=opt.left_out(ledger, key),
    )  # fmt: skip
    if done.result is None:
        show(done.summary, f"The training in {out} is finished; nothing to do.", json_)
        return
    running.kept = lambda: f"The model is written to {out}."
    then = (
        f"purge audit RUN --retrained {out}"
        if done.request
        else f"purge unlearn {out} --forget-class K --out RUN"
    )
    show(done.summary, f"{_words(done, done.result.method.epochs)} Next: {then}", json_)


def _words(done: Trained, epochs: int) -> str:
    """What a training did, for people."""
    summary, names, forgotten = done.summary, done.samples.names, done.request.get("forget_classes", [])
    kind = "rows" if done.samples.pixel_shape is None else "images"
    accuracies = {c: a for c, a in summary["class_accuracy"].items() if c not in forgotten}
    tested = "No test accuracy: nothing was held out."
    if accuracies:
        lowest = min(accuracies, key=lambda c: accuracies[c])
        tested = (
            f"Test accuracy{' (all classes)' if forgotten else ''} {summary['test_accuracy']:.1%}; lowest: "
            f"{class_words([lowest], names)} {accuracies[lowest]:.1%}."
        )
    without = f" without {purge.runs.request_words(done.request, names)}" if done.request else ""
    return (
        f"{summary['model']} on {Path(done.source.data).name}{without}: {summary['samples']} {kind}, "
        f"{epochs} epoch{'' if epochs == 1 else 's'} in {summary['seconds']:.1f} s "
        f"({flop_words(summary['flop'])}, {summary['images_per_second']:,.0f} {kind}/s).\n"
        f"{tested}\n"
        f"Written to {summary['folder']}."
    )
