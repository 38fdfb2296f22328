"""purge train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from purge.cli import ending
from purge.cli import options as opt
from purge.cli.printing import show
from purge.core.errors import MethodError

if TYPE_CHECKING:
    from purge.runs.folder import Request


def train(
    out: Annotated[Path, opt.place("Folder for the model; must be empty.")],
    data: opt.DataName = None,
    model: Annotated[str | None, Option(help="See purge list models.")] = None,
    like: Annotated[Path | None, Option(help="Run folder whose data, model and recipe to use.")] = None,
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
    from torch import nn

    from purge.core.settings import replace
    from purge.data.catalog import DATASETS
    from purge.engine.precision import choose_device
    from purge.engine.resume import STATE, kept_epochs, training_folder
    from purge.engine.trainer import Recipe
    from purge.runs.folder import RunFile, choose_data, choose_model, cut, facts_of, recipe_of, request_of
    from purge.runs.make import check_finished, train_run

    if slices is not None and shards is None:
        raise MethodError("--slices with --shards", "--slices alone", "add --shards 5")
    if log_only_ids is not None and log_updates is None:
        raise MethodError("--log-only-ids with --log-updates", "it alone", "add --log-updates FOLDER")
    if shards is not None and log_updates is not None:
        raise MethodError("--shards or --log-updates", "both", "leave one out")
    if resume and (shards is not None or log_updates is not None):
        raise MethodError("--resume without --shards or --log-updates", "both", "use another folder")
    ending.keeps(lambda: kept_epochs(out, resumable=shards is None and log_updates is None))
    facts = RunFile() if like is None else facts_of(like)
    if vote is not None and shards is None and (facts.shards is None or log_updates is not None):
        raise MethodError("--vote with --shards", "--vote alone", "add --shards 5")
    finished = resume and (out / "run.json").is_file() and not (out / STATE).is_file()
    if not finished:
        training_folder(out, resume=resume, force=force)
    name = choose_model(facts, model, trust)
    choice = choose_data(
        facts, data=data, data_dir=data_dir, size=size, split_seed=split_seed, skip_bad=skip_bad,
        mean=opt.numbers_from(mean, "--mean"), std=opt.numbers_from(std, "--std"), trust=trust,
        label=label, text=text, id=id_, test=test_, transform=transform, model=name, stream=stream,
        all_trained=all_trained, trains=True,
    )  # fmt: skip
    published = dict(DATASETS[choice.data].recipe) if choice.data in DATASETS else {}
    copied = {} if like is None else recipe_of(like, facts)
    changes = {**published, **copied, **opt.settings_from(set_)}
    recipe = replace(Recipe(), changes)
    at = opt.pick_device(device)
    choose_device(at, nn.Identity())
    images, test = choice.load(progress=not quiet)
    request = request_of(images, without_class or [], without_ids, words="without")
    request = request or facts.request  # like a reference: without the same
    if seed is None:
        seed = (facts.seed or 0) + 1 if request or like is not None else 0
    if finished:
        check_finished(out, name, choice.data, seed, request, recipe)
        kept = ("model", "samples", "steps", "seed", "seconds", "flop", "test_accuracy", "class_accuracy")
        found = facts_of(out)
        summary = {"folder": str(out), **{key: found.get(key) for key in kept}}
        show(summary, f"The training in {out} is finished; nothing to do.", json_)
        return
    if model is None and facts.pretrained:
        pretrained = True  # a reference starts where its model started
    only = None if log_only_ids is None else request_of(images, [], log_only_ids, words="log-only")
    result = train_run(
        out, name, choice, images, request, seed=seed, recipe=changes, test=test, pretrained=pretrained,
        shards=facts.shards if shards is None and log_updates is None else shards,
        slices=slices or facts.slices or 1, vote=vote or facts.vote or "mean", log_updates=log_updates,
        log_only=None if only is None else cut(images, only)[0], device=at, progress=not quiet,
        resume=resume, force=force,
    )  # fmt: skip
    ending.keeps(lambda: f"The model is written to {out}.")
    samples = result.info["samples"]
    summary = {
        "folder": str(out), "model": name, "samples": samples, "steps": result.steps, "seed": seed,
        "seconds": result.seconds, "flop": result.info["flop"],
        "images_per_second": result.steps * min(result.method.batch_size, samples) / result.seconds,
        "test_accuracy": result.info.get("test_accuracy"),
        "class_accuracy": result.info.get("class_accuracy", {}),
    }  # fmt: skip
    kind = "rows" if images.pixel_shape is None else "images"
    then = (
        f"purge audit RUN --retrained {out}" if request else f"purge unlearn {out} --forget-class K --out RUN"
    )
    words = _words(summary, choice.data, result.method.epochs, request, images.names, kind)
    show(summary, f"{words} Next: {then}", json_)


def _words(
    found: dict[str, Any], data: str, epochs: int, request: Request, names: Sequence[str], kind: str
) -> str:
    """What a training did, for people; ``kind``: what its samples are called."""
    from purge.report.tables import class_words, flop_words
    from purge.runs.make import request_words

    gone = request.get("forget_classes", [])
    of_class = {c: a for c, a in found["class_accuracy"].items() if c not in gone}
    tested = "No test accuracy: nothing was held out."
    if of_class:
        lowest = min(of_class, key=lambda c: of_class[c])
        tested = (
            f"Test accuracy{' (all classes)' if gone else ''} {found['test_accuracy']:.1%}; lowest: "
            f"{class_words([lowest], names)} {of_class[lowest]:.1%}."
        )
    without = f" without {request_words(request, names)}" if request else ""
    return (
        f"{found['model']} on {Path(data).name}{without}: {found['samples']} {kind}, "
        f"{epochs} epoch{'' if epochs == 1 else 's'} in {found['seconds']:.1f} s "
        f"({flop_words(found['flop'])}, {found['images_per_second']:,.0f} {kind}/s).\n"
        f"{tested}\n"
        f"Written to {found['folder']}."
    )
