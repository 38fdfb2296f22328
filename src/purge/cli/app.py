"""The command line: arguments in, tables or JSON out. Data goes to stdout, the rest to stderr."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

import purge
from purge import demo
from purge.api import audit as run_audit
from purge.api import save as save_run
from purge.api import train as run_train
from purge.api import train_sharded
from purge.api import unlearn as run_unlearn
from purge.core.errors import DataError, FileError, MethodError, PurgeError, did_you_mean, expected
from purge.core.files import out_folder, told, write_text
from purge.core.settings import as_dict, checked_seed, flat_fields, replace
from purge.data.catalog import DATASETS
from purge.data.images import Images
from purge.engine.precision import Precision, choose_device
from purge.engine.resume import STATE, training_folder
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe
from purge.methods.registry import METHODS, resolve_method
from purge.metrics.registry import METRICS, PANELS, resolve_metrics
from purge.metrics.shadow import Shadows
from purge.report import tables
from purge.result import Report
from purge.runs.folder import (
    Request,
    RunFile,
    both,
    build_for,
    choose_data,
    choose_model,
    cut,
    facts_of,
    gone_of,
    read_model,
    recipe_of,
    request_of,
    same_data,
    same_kind,
)
from purge.runs.gates import Gate, as_gate
from purge.runs.record import audited, record, utc

app = typer.Typer(
    name="purge",
    help="Make a trained classifier forget, and prove it. Start with: purge demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ParserError: Any = typer.BadParameter.__mro__[2]  # the base of every complaint of the parser
PIPE = 141  # the exit code, as of other programs, if nobody reads on

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; default: a GPU if there is one.")]
DataName = Annotated[
    str | None, typer.Option("--data", help="A name, a folder or a file; default: the run's.")
]
ModelName = Annotated[str | None, typer.Option("--model", help="The architecture; default: the run's.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where named data is; default: $PURGE_DATA, then the user's cache.")
]
Size = Annotated[int | None, typer.Option(help="Side of the images that the model gets, in pixels.")]
SplitSeed = Annotated[
    int | None, typer.Option(help="Draws the fifth held out of a folder without a test part; default: 0.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")]
Force = Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")]


def main() -> None:
    """Run the command line: exit 0 done, 1 a threshold missed, 2 a bad request (one line)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # letters that the terminal does not have
    code = 0
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except PurgeError as error:
        _fail(_as_options(str(error)))
    except ParserError as error:
        said = error.format_message().rstrip(".")
        _fail(f"{said}{'' if said.endswith('?') else '.'} Fix: see {_command()} --help.")
    except typer.Abort:
        sys.exit(130)
    except (BrokenPipeError, SystemExit):  # the parser ends so as well
        _hush()
        sys.exit(code or PIPE)
    except OSError as error:
        fix = "make room, check permissions, or choose another place"
        _fail(expected("to be able to read and write", str(error), fix))
    sys.exit(code or 0)


def _hush() -> None:
    """If stdout fails, nothing more to it: not even what is still to be written at the end."""
    with suppress(OSError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_options(message: str) -> str:
    """Arguments of Python that a message names, as they are called here."""
    return re.sub(r"\b(by|with) (force|resume)\b", r"\1 --\2", message)


def _fail(message: str) -> None:
    _hush()
    print(f"Error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _command() -> str:
    names = [c.name or c.callback.__name__.rstrip("_") for c in app.registered_commands if c.callback]
    return "purge " + sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in names else "purge"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"purge {purge.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make a trained classifier forget, and prove it. Start with: purge demo."""


# -- demo -------------------------------------------------------------------------------------


@app.command("demo")
def demo_(
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; default: runs/demo.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Train less; for a first look.")] = False,
    seed: Seed = 0,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Watch a model forget a digit, with the proof.

    Trains a small ResNet on real digits, makes it forget the 0 in three ways, retrains without the
    0 as the reference, attacks all of them and prints one table.
    """
    checked_seed(seed)
    folder = demo.free_folder(Path("runs/demo")) if out is None else out
    out_folder(folder, force=force)
    err = Console(stderr=True, highlight=False)
    started = time.perf_counter()
    rows = demo.run_demo(
        folder,
        quick=quick,
        seed=seed,
        force=force,
        progress=not quiet,
        say=lambda line: None if quiet else err.print(line),
    )
    records, words = [demo.as_record(row) for row in rows], demo.sentences(rows)
    seconds = time.perf_counter() - started
    if json_:
        _print_json({"rows": records, "sentences": words, "folder": str(folder), "seconds": seconds})
        return
    body = [
        [r["method"], f"{r['seconds']:.1f}", *(tables.number(k, r[k]) for _, k in demo.COLUMNS)]
        for r in records
    ]
    columns = ["method", "seconds", *(title for title, _ in demo.COLUMNS)]
    _print_table(tables.plain_table(columns, body))
    for line in words:
        print(line)
    print(f"\nRun folders (weights, history, audits) in {folder}; the demo took {seconds:.0f} s.")


# -- train ------------------------------------------------------------------------------------


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder for the model; it must be empty.")],
    data: DataName = None,
    model: Annotated[str | None, typer.Option(help="See purge list models.")] = None,
    like: Annotated[
        Path | None, typer.Option(help="A run folder: its data, model and recipe, another seed.")
    ] = None,
    data_dir: DataDir = None,
    size: Size = None,
    split_seed: SplitSeed = None,
    skip_bad: SkipBad = False,
    without_class: Annotated[
        list[str] | None, typer.Option(help="A class to leave out, by number or name; repeat it.")
    ] = None,
    without_ids: Annotated[
        Path | None, typer.Option(help="A file with numbers or paths of the samples to leave out.")
    ] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Begin with published weights.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the recipe: key=value; repeat it.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of everything random; default: 0, or 1 without something.")
    ] = None,
    device: Device = None,
    shards: Annotated[
        int | None, typer.Option(help="Train this many models on parts of the data, for the method sisa.")
    ] = None,
    slices: Annotated[
        int | None, typer.Option(help="With --shards: checkpoints per shard; more make deletions cheaper.")
    ] = None,
    log_updates: Annotated[
        Path | None, typer.Option(help="Folder for the update of every step, for the method amnesiac.")
    ] = None,
    log_only_ids: Annotated[
        Path | None, typer.Option(help="With --log-updates: only steps with a sample named in this file.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was killed.")] = False,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model, or the reference without what must be forgotten.

    For example: purge train --data digits --model small-resnet --out runs/base

    The reference: purge train --like runs/base --without-class 3 --out runs/without3

    What may be set with --set is listed by: purge list recipe
    """
    _sharded_or_logged(shards, slices, log_updates, log_only_ids, resume)
    finished = resume and (out / "run.json").is_file() and not (out / STATE).is_file()
    if not finished:
        training_folder(out, resume=resume, force=force)
    facts = RunFile() if like is None else facts_of(like)
    name = choose_model(facts, model)
    choice = choose_data(
        facts, data=data, data_dir=data_dir, size=size, split_seed=split_seed, skip_bad=skip_bad
    )
    copied = {} if like is None else recipe_of(like, facts)
    changes = {**_recipe_of(choice.data), **copied, **_settings(set_ or [])}
    recipe = replace(Recipe(), changes)
    choose_device(_device(device), nn.Identity())
    train_data, test = choice.load(progress=not quiet)
    request = request_of(train_data, without_class or [], without_ids, words="without")
    request = request or facts.get("request") or {}  # another reference like the one named
    kept = cut(train_data, request)[1] if request else train_data
    if seed is None:
        seed = (facts.get("seed") or 0) + 1 if request or like is not None else 0
    if finished:
        _say_finished(out, name, choice.data, seed, request, recipe, json_)
        return
    if model is None and facts.get("pretrained") is True:
        pretrained = True  # a reference begins where its model began
    with seeded(checked_seed(seed), torch.device("cpu")):
        fresh = build_for(name, train_data, pretrained=pretrained)
    record = {
        "model": name, **dataclasses.asdict(choice), "pretrained": pretrained, "request": request,
        "classes": len(train_data.names), "channels": train_data.shape[0], "names": train_data.names,
        "source": train_data.source,
    }  # fmt: skip
    shards = facts.get("shards") if shards is None and log_updates is None else shards
    if shards is not None:
        result = train_sharded(
            lambda: build_for(name, train_data, pretrained=pretrained), kept, shards=shards,
            slices=slices or facts.get("slices") or 1, test=test, seed=seed, device=_device(device),
            progress=not quiet, out=out, force=force, record=record, **changes,
        )  # fmt: skip
    else:
        only = None if log_only_ids is None else _named(kept, log_only_ids)
        result = run_train(
            fresh, kept, test=test, seed=seed, device=_device(device), progress=not quiet, title=name,
            out=out, resume=resume, force=force, record=record, log_updates=log_updates, log_only=only,
            **changes,
        )  # fmt: skip
    images = result.steps * min(result.method.batch_size, len(kept))
    summary = {
        "folder": str(out), "model": name, "samples": len(kept), "steps": result.steps, "seed": seed,
        "seconds": result.seconds, "images_per_second": images / result.seconds,
        "test_accuracy": result.info["test_accuracy"], "class_accuracy": result.info["class_accuracy"],
    }  # fmt: skip
    if json_:
        _print_json(summary)
        return
    gone = f" without {_in_words(request, train_data)}" if request else ""
    epochs = "1 epoch" if result.method.epochs == 1 else f"{result.method.epochs} epochs"
    there = set(kept.labels.tolist())
    of_class = {c: a for c, a in result.info["class_accuracy"].items() if c in there}
    lowest = min(of_class, key=lambda c: of_class[c])
    on = "Test accuracy" + (" (all classes)" if len(there) < len(train_data.names) else "")
    then = f"audit RUN --retrained {out}" if request else f"unlearn {out} --forget-class K --out RUN"
    print(
        f"{name} on {Path(choice.data).name}{gone}: {len(kept)} images, {epochs} in "
        f"{result.seconds:.1f} s ({summary['images_per_second']:,.0f} images/s).\n"
        f"{on} {summary['test_accuracy']:.1%}; lowest: "
        f"{tables.class_words([lowest], train_data.names)} {of_class[lowest]:.1%}.\n"
        f"Written to {out}. Next: purge {then}"
    )


def _sharded_or_logged(
    shards: int | None, slices: int | None, log: Path | None, only: Path | None, resume: bool
) -> None:
    """Options of training that need or exclude each other."""
    wrong = [
        (slices is not None and shards is None, "--slices with --shards", "--slices alone", "add --shards 5"),
        (only is not None and log is None, "--log-only-ids with --log-updates", "it alone", "add a folder"),
        (shards is not None and log is not None, "--shards or --log-updates", "both", "leave one out"),
        (resume and (shards or log), "a training from its start", "--resume", "train anew in another folder"),
    ]
    for is_wrong, what, got, fix in wrong:
        if is_wrong:
            raise MethodError(what, got, fix)


def _named(images: Images, ids: Path) -> Images:
    """The images that a file names."""
    return cut(images, request_of(images, [], ids, words="log-only"))[0]


def _say_finished(
    out: Path, model: str, data: str, seed: int, request: Request, recipe: Recipe, json_: bool
) -> None:
    """A training to be resumed is finished already, if it is the one that was asked for."""
    facts = facts_of(out)
    asked = {"model": model, "data": data, "seed": seed, "request": request, "settings": as_dict(recipe)}
    if other := [key for key, value in asked.items() if facts.get(key) != value]:
        raise FileError(
            f"the training that is finished in {out}", f"another {other[0]}", "choose another folder"
        )
    if json_:
        known = ("model", "samples", "steps", "seed", "seconds", "test_accuracy", "class_accuracy")
        _print_json({"folder": str(out), **{key: facts.get(key) for key in known}})
    else:
        print(f"The training in {out} is finished; nothing to do.")


def _recipe_of(data: str) -> dict[str, Any]:
    """What the recipe of a named data set changes."""
    return dict(DATASETS[data].recipe) if data in DATASETS else {}


def _in_words(request: Request, images: Images) -> str:
    if "forget_classes" in request:
        return tables.class_words(request["forget_classes"], images.names)
    return f"{len(request['forget_ids'])} samples"


def _device(wanted: str | None) -> str | None:
    """The device asked for, or a GPU where there is one."""
    return wanted or ("cuda" if torch.cuda.is_available() else None)


# -- unlearn ----------------------------------------------------------------------------------


@app.command()
def unlearn(
    checkpoint: Annotated[Path, typer.Argument(help="A run folder, or a file of weights.")],
    out: Annotated[Path, typer.Option(help="Folder for the new model; it must be empty.")],
    data: DataName = None,
    model: ModelName = None,
    data_dir: DataDir = None,
    size: Size = None,
    split_seed: SplitSeed = None,
    skip_bad: SkipBad = False,
    forget_class: Annotated[
        list[str] | None, typer.Option(help="A class to forget, by number or name; repeat it.")
    ] = None,
    forget_ids: Annotated[
        Path | None, typer.Option(help="A file with numbers or paths of the samples to forget.")
    ] = None,
    method: Annotated[str, typer.Option(help="See purge list methods.")] = "purge",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method: key=value; repeat it."),
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    precision: Annotated[
        Precision | None, typer.Option(help="Of convolutions; by default bf16 on a GPU that has it.")
    ] = None,
    graph: Annotated[
        bool | None, typer.Option(help="Record a step as a CUDA graph and replay it; on a GPU.")
    ] = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Forget classes or samples; write a new model.

    For example: purge unlearn runs/demo/base --forget-class 3 --out runs/without3

    What may be set with --set is listed by: purge list methods purge
    """
    settings = _settings(set_ or [])
    needs = resolve_method(method, settings).needs
    out_folder(out, force=force)
    facts = facts_of(checkpoint)
    name = choose_model(facts, model)
    choice = choose_data(
        facts, data=data, data_dir=data_dir, size=size, split_seed=split_seed, skip_bad=skip_bad
    )
    train_data, test = choice.load(progress=not quiet)
    trained = read_model(checkpoint, name, train_data)
    request = _needed(request_of(train_data, forget_class or [], forget_ids, words="forget"))
    before = gone_of(facts)  # a model that has forgotten before must not be taught that again
    forget, retain = cut(train_data, request, before)
    with seeded(checked_seed(seed), torch.device("cpu")):
        one = "fresh" in needs and facts.get("shards") is None  # the layers of an ensemble are drawn anew
        fresh = build_for(name, train_data) if one else None
    if "updates" in needs and facts.get("log_updates") is not None:
        settings = {"log": facts["log_updates"], **settings}
    result = run_unlearn(
        trained, forget, retain, test=test, method=method, seed=seed, device=_device(device),
        progress=not quiet, fresh=fresh, precision=precision, graph=graph, **settings,
    )  # fmt: skip
    save_run(
        result, out, force=force, model=name, **dataclasses.asdict(choice), request=request, gone=before,
        channels=train_data.shape[0], original=str(checkpoint.absolute()), source=train_data.source,
    )  # fmt: skip
    last = [row for row in result.history if row.get("check_forget_accuracy") is not None][-1]
    reached = last["check_forget_accuracy"] <= result.info["forget_target"]
    summary = {
        "folder": str(out),
        "method": method,
        "steps": result.steps,
        "seconds": result.seconds,
        "stopped_by": result.stopped_by,
        "forget_accuracy": last["check_forget_accuracy"],
        "forget_target": result.info["forget_target"],
        "retain_loss": last["check_retain_loss"],
        "retain_budget": result.info["retain_budget"],
    }
    if json_:
        _print_json(summary)
        return
    classes = f" ({_in_words(request, train_data)})" if "forget_classes" in request else ""
    print(
        f"{method}: {len(forget)} samples to forget{classes}, {result.steps} steps in "
        f"{result.seconds:.1f} s, stopped by {result.stopped_by}"
        f"{'' if reached else '; the forget target was not reached'}.\n"
        f"Accuracy on them {last['check_forget_accuracy']:.1%} (target {result.info['forget_target']:.1%}), "
        f"retain loss {last['check_retain_loss']:.4f} (budget {_budget(result.info['retain_budget'])}).\n"
        f"Written to {out}. Next: purge audit {out} --retrained RUN"
    )


def _budget(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _settings(pairs: list[str]) -> dict[str, Any]:
    for pair in pairs:
        if "=" not in pair:
            raise MethodError("--set key=value", repr(pair), "write --set lr=0.01, say")
    return {key.strip(): value.strip() for key, value in (pair.split("=", 1) for pair in pairs)}


def _needed(request: Request) -> Request:
    if not request:
        raise DataError(
            "either --forget-class or --forget-ids", "neither", "say in one way what must be forgotten"
        )
    return request


# -- audit ------------------------------------------------------------------------------------


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="The run folder of an unlearned model.")],
    retrained: Annotated[
        list[Path] | None,
        typer.Option(help="Run folder of the retrained model; of further ones, how far apart they are."),
    ] = None,
    original: Annotated[
        Path | None, typer.Option(help="Run folder of the original; default: what the run names.")
    ] = None,
    data: DataName = None,
    model: ModelName = None,
    data_dir: DataDir = None,
    size: Size = None,
    split_seed: SplitSeed = None,
    skip_bad: SkipBad = False,
    metrics: Annotated[str, typer.Option(help="quick, standard, full, or names with commas.")] = "standard",
    shadows: Annotated[
        int, typer.Option(help="Shadow models of each kind that --metrics full trains.", min=4)
    ] = 16,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with 1 if this is so, as in 'fa_test>2'; percent as in the table; repeat it."
        ),
    ] = None,
    forget_class: Annotated[list[str] | None, typer.Option(help="Default: the run's request.")] = None,
    forget_ids: Annotated[Path | None, typer.Option(help="Default: the run's request.")] = None,
    seed: Seed = 0,
    device: Device = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what a model still knows.

    For example: purge audit runs/demo/purge --retrained runs/demo/retrain

    Every number stands beside the retrained and the original model's. A panel is
    also written into the run, as audit.json.

    In a pipeline: purge audit RUN --fail-if "fa_test>2" --fail-if "ra<99"
    """
    names = metrics if metrics in PANELS else [m.strip() for m in metrics.split(",") if m.strip()]
    wanted = resolve_metrics(names)
    limits = _limits(fail_if or [], [metric.name for metric in wanted])
    facts = facts_of(run)
    name = choose_model(facts, model)
    choice = choose_data(
        facts, data=data, data_dir=data_dir, size=size, split_seed=split_seed, skip_bad=skip_bad
    )
    train_data, test = choice.load(progress=not quiet)
    for limit in limits:
        limit.check_class(len(train_data.names))
    unlearned = read_model(run, model, train_data)
    request = request_of(train_data, forget_class or [], forget_ids, words="forget")
    if not request:
        same_data(facts, choice, train_data)
    gone = both(gone_of(facts), request)
    forget, retain = cut(train_data, request or _needed(gone), gone)
    named = facts.get("original")
    if original is None and named is not None and Path(named).exists():
        original = Path(named)
    others = [("retrained", path) for path in retrained or []] + [("original", original)]
    for what, path in others:
        if path is not None:
            same_kind(facts_of(path), choice, gone, what)
    like = None
    if any(metric.cost == "shadow" for metric in wanted):
        like = _shadows(facts, original, shadows, build_for(name, train_data))
    report = run_audit(
        unlearned,
        forget,
        retain,
        test,
        original=read_model(original, model, train_data) if original else None,
        retrained=[read_model(path, model, train_data) for path in retrained or []],
        metrics=names,
        shadows=like,
        seed=seed,
        device=_device(device),
        progress=not quiet,
    )
    try:
        if run.is_dir() and metrics in PANELS:
            report.to_json(run / "audit.json")
    finally:  # what was measured is shown even if it cannot be written
        _print_audit(report, json_)
    if broken := [line for limit in limits if (line := limit.broken(report.to_dict()))]:
        print("\n".join(broken), file=sys.stderr)
        raise typer.Exit(1)


def _limits(texts: list[str], wanted: list[str]) -> list[Gate]:
    """What --fail-if says, each on a number that will be measured."""
    limits = [as_gate(text) for text in texts]
    for limit in limits:
        limit.check(wanted)
    return limits


def _print_audit(report: Report, json_: bool) -> None:
    if json_:
        _print_json(report.to_dict())
        return
    _print_table(tables.audit_table(report.to_dict()))
    for line in report.verdict():
        print(line)


def _shadows(facts: RunFile, original: Path | None, number: int, fresh: nn.Module) -> Shadows:
    """Shadow models that are trained as the original was, and unlearned as the run was."""
    base = {} if original is None else facts_of(original)
    if base.get("method") != "Recipe" or base.get("shards") is not None:
        raise FileError(
            "the run folder of an original made by purge train, to train shadow models like it",
            "none" if original is None else str(original),
            "pass --original RUN, or --metrics standard",
        )
    preset = facts.get("preset")
    method = resolve_method(preset, facts.get("settings") or {}) if preset in METHODS else None
    recipe = replace(Recipe(), base.get("settings") or {})
    return Shadows(number=number, recipe=recipe, method=method, fresh=fresh)


# -- report -----------------------------------------------------------------------------------


@app.command("report")
def report_(
    run: Annotated[list[Path], typer.Argument(help="Audited run folders; several are compared.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default, for one run: RUN/report.html.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write every figure into this folder, as PNG and SVG.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    json_: Json = False,
) -> None:
    """Write an audit as one HTML page that people can read.

    For example: purge report runs/demo/purge

    The page needs no other file and no network. Several runs become a comparison:
    purge report runs/demo/purge runs/demo/gradient-ascent --out compared.html
    """
    if out is None and len(run) > 1:
        raise FileError("--out for several runs", "none", "add --out FILE.html")
    file = run[0] / "report.html" if out is None else out
    folders = _by_name(run)
    if file.is_dir() or (out is not None and file.exists() and not force):
        fix = "name a file" if file.is_dir() else "choose another, or overwrite with --force"
        raise FileError(f"no {'folder' if file.is_dir() else 'file'} yet at {file}", "one", fix)
    if not file.parent.is_dir() and out is not None:
        raise FileError(f"a folder at {file.parent}", "none", "make it first")
    if figures is not None:
        out_folder(figures, force=force)
    reports = {name: audited(folder) for name, folder in folders.items()}
    records = {name: record(folder, reports[name]) for name, folder in folders.items()}
    from purge.report import figures as plots
    from purge.report import page as html

    about = {m.name: f"{m.about}; aim: {_aim(m.ideal)}" for m in METRICS.values()}
    page = html.page(reports, about=about, records=records, written=utc(time.time()))
    with told(file):
        write_text(file, page)
    written = [] if figures is None else plots.save_all(reports, figures)
    if json_:
        _print_json({"file": str(file), "bytes": len(page.encode()), "figures": [str(p) for p in written]})
        return
    print(f"Report of {', '.join(reports)}: {file} ({len(page.encode()) / 1e6:.1f} MB, for any browser).")
    if figures is not None:
        print(f"{len(written)} figures written to {figures}.")


def _by_name(folders: list[Path]) -> dict[str, Path]:
    """Run folders by their names, or by their paths where two are called the same."""
    if twice := [f for i, f in enumerate(folders) if f.resolve() in {o.resolve() for o in folders[:i]}]:
        raise FileError("runs that differ", f"{twice[0]} twice", "name each run once")
    short = [folder.absolute().name for folder in folders]
    named = zip(short if len(set(short)) == len(short) else map(str, folders), folders, strict=True)
    return dict(named)


def _aim(ideal: float | str) -> str:
    return "as the retrained model" if isinstance(ideal, str) else f"{ideal:g}"


# -- bench ------------------------------------------------------------------------------------


@app.command("bench")
def bench_(
    config: Annotated[
        Path, typer.Argument(help="A YAML file; or the folder of a bench, whose tables are made again.")
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: runs/NAME.")] = None,
    models: Annotated[
        Path | None, typer.Option(help="Folder of trained models; default: OUT/models.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Run only this method; may be repeated.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that work at once.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on: run what is missing or failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and stop.")] = False,
    device: Device = None,
    data_dir: DataDir = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment: every job of a file, then its tables and figures.

    For example: purge bench configs/smoke.yaml --out runs/smoke

    After a kill, the same with --resume goes on.
    """
    from purge.bench import dry_run as outlook
    from purge.bench import runner as suite
    from purge.bench.expand import read_plan

    if config.is_dir():
        files = suite.make(config)
        _print_json(list(map(str, files))) if json_ else print(f"{len(files)} files made in {config}.")
        return
    plan = read_plan(config)
    place = suite.locate(plan, out, models, _device(device), data_dir)
    if dry_run:
        steps = outlook.steps_of(plan.only(only or ()), place)
        if json_:
            _print_json([step._asdict() for step in steps])
            return
        _print_table(tables.plain_table(*outlook.as_table(steps)))
        return
    err = Console(stderr=True, highlight=False)
    aloud = not quiet and not err.is_terminal  # where there is no progress line
    done = suite.bench(
        plan, place, only=only or (), at_once=jobs, resume=resume, progress=not quiet,
        say=lambda line: err.print(line, markup=False, soft_wrap=True) if aloud else None,
    )  # fmt: skip
    if json_:
        _print_json({**done._asdict(), "out": str(place.out), "files": list(map(str, done.files))})
    else:
        print("\n".join(suite.in_words(done, place)))
    if done.failed:
        raise typer.Exit(1)


# -- list -------------------------------------------------------------------------------------


SHELVES = ("methods", "metrics", "datasets", "models", "recipe")


@app.command("list")
def list_(
    shelf: Annotated[str, typer.Argument(help="methods, metrics, datasets, models or recipe.")],
    name: Annotated[
        str | None, typer.Argument(help="A method: its settings. After recipe, a data set.")
    ] = None,
    json_: Json = False,
) -> None:
    """Show methods, metrics, data sets, models, or the recipe of training.

    For example: purge list methods, or, for the settings of one: purge list methods purge
    """
    if shelf not in SHELVES:
        raise PurgeError("something to list", repr(shelf), did_you_mean(shelf, SHELVES))
    if name is not None and shelf not in ("methods", "recipe"):
        raise MethodError("a name only after 'methods' or 'recipe'", repr(name), f"purge list {shelf}")
    if shelf == "recipe":
        if name is not None and name not in DATASETS:
            raise DataError("the name of a data set", repr(name), did_you_mean(name, DATASETS))
        columns, rows = _settings_of(replace(Recipe(), _recipe_of(name or "")))
    elif name is not None:
        columns, rows = _settings_of(resolve_method(name, {}))
    else:
        columns, rows = _shelf(shelf)
    if json_:
        _print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        _print_table(tables.listing(columns, rows))


def _shelf(shelf: str) -> tuple[list[str], list[list[str]]]:
    if shelf == "methods":
        return ["method", "about", "cite"], [[n, e.about, e.cite] for n, e in METHODS.items()]
    if shelf == "metrics":
        rows = [[m.name, m.symbol, m.about, ", ".join(sorted(m.needs))] for m in METRICS.values()]
        return ["metric", "symbol", "about", "needs"], rows
    entries = purge.list_datasets() if shelf == "datasets" else purge.list_models()
    return [shelf[:-1], "about"], [[name, about] for name, about in entries.items()]


def _settings_of(config: Any) -> tuple[list[str], list[list[str]]]:
    rows = [[f.name, str(value), f.metadata["help"]] for f, value in flat_fields(config)]
    return ["setting", "value", "meaning"], rows


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2, allow_nan=False))


def _print_table(table: Table) -> None:
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
    else:
        print(tables.as_text(table))
