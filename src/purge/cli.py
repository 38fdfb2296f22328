"""The command line: arguments in, tables or JSON out. Data goes to stdout, the rest to stderr."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from torch import nn

import purge
from purge import checks, demo, tables
from purge.api import audit as run_audit
from purge.api import unlearn as run_unlearn
from purge.data import Images
from purge.datasets import DATASETS, load
from purge.errors import DataError, FileError, MethodError, ModelError, PurgeError, did_you_mean, expected
from purge.files import read_json
from purge.methods import METHODS, resolve_method
from purge.metrics import METRICS, PANELS, resolve_metrics
from purge.models import MODELS, build, load_weights
from purge.settings import checked_seed
from purge.splits import split

app = typer.Typer(
    name="purge",
    help="Make a trained classifier forget, and prove it. Start with: purge demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ParserError: Any = typer.BadParameter.__mro__[2]  # the base of every complaint of the parser

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; default: the model's.")]
Force = Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")]


def main() -> None:
    """Run the command line: exit 0 done, 1 a threshold missed, 2 a bad request (one line)."""
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except PurgeError as error:
        _fail(str(error))
    except ParserError as error:
        _fail(f"{error.format_message().rstrip('.')}. Fix: see {_command()} --help.")
    except typer.Abort:
        sys.exit(130)
    sys.exit(code or 0)


def _fail(message: str) -> None:
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
    checks.out_folder(folder, force=force)
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


# -- unlearn ----------------------------------------------------------------------------------


class Trained(NamedTuple):
    """A model read from a checkpoint, and what its run.json says."""

    model: nn.Module
    data: str
    recipe: dict[str, Any]


@app.command()
def unlearn(
    checkpoint: Annotated[Path, typer.Argument(help="A run folder, or a file of weights.")],
    out: Annotated[Path, typer.Option(help="Folder for the new model; it must be empty.")],
    data: Annotated[str | None, typer.Option(help="The training data; default: the run's.")] = None,
    model: Annotated[str | None, typer.Option(help="The architecture; default: the run's.")] = None,
    forget_class: Annotated[list[int] | None, typer.Option(help="A class to forget; repeat it.")] = None,
    forget_ids: Annotated[
        Path | None, typer.Option(help="A file with the numbers of the samples to forget.")
    ] = None,
    method: Annotated[str, typer.Option(help="See purge list methods.")] = "purge",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method: key=value; repeat it."),
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Forget classes or samples; write a new model.

    For example: purge unlearn runs/demo/base --forget-class 3 --out runs/without3

    What may be set with --set is listed by: purge list methods purge
    """
    settings = _settings(set_ or [])
    resolve_method(method, settings)
    checks.out_folder(out, force=force)
    trained = _read_model(checkpoint, model, data)
    train_data, test = load(trained.data)
    request = _request(train_data, forget_class, forget_ids)
    forget, retain = _split(train_data, request)
    result = run_unlearn(
        trained.model, forget, retain, test=test, method=method, seed=seed, device=device,
        progress=not quiet, **settings,
    )  # fmt: skip
    result.save(out, force=force, **trained.recipe, request=request, original=str(checkpoint.absolute()))
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
    print(
        f"{method}: {len(forget)} samples to forget, {result.steps} steps in {result.seconds:.1f} s, "
        f"stopped by {result.stopped_by}{'' if reached else '; the forget target was not reached'}.\n"
        f"Accuracy on them {last['check_forget_accuracy']:.1%} (target {result.info['forget_target']:.1%}), "
        f"retain loss {last['check_retain_loss']:.4f} (budget {_budget(result.info['retain_budget'])}).\n"
        f"Written to {out}. Next: purge audit {out} --retrained RUN"
    )


def _budget(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _settings(pairs: list[str]) -> dict[str, Any]:
    for pair in pairs:
        if "=" not in pair:
            raise MethodError(expected("--set key=value", repr(pair), "write --set lr=0.01, say"))
    return {key.strip(): value.strip() for key, value in (pair.split("=", 1) for pair in pairs)}


def _read_model(checkpoint: Path, model: str | None, data: str | None) -> Trained:
    """Build the model that a run folder describes, or the one named, and load its weights."""
    recipe: dict[str, Any] = {}
    weights = checkpoint
    if checkpoint.is_dir():
        weights = checkpoint / "model.safetensors"
        recipe = _read_facts(checkpoint)
    elif not checkpoint.exists():
        raise FileError(
            expected(f"a run folder or a file at {checkpoint}", "nothing there", "check the path")
        )
    model, data = model or recipe.get("model"), data or recipe.get("data")
    if model is None:
        raise ModelError(
            expected("the name of the architecture", "none", "pass --model; see purge list models")
        )
    if data is None:
        raise DataError(
            expected("the name of the training data", "none", "pass --data; see purge list datasets")
        )
    load(data)
    entry = DATASETS[data]
    built = build(model, classes=entry.classes, channels=entry.channels)
    load_weights(built, weights)
    facts = {"model": model, "data": data, "classes": entry.classes, "channels": entry.channels}
    return Trained(built, data, facts)


def _read_facts(folder: Path) -> dict[str, Any]:
    """What run.json says about model, data, request and original, each of the right kind."""
    facts = read_json(folder / "run.json")
    request = facts.get("request") or {}
    sound = all(facts.get(k) is None or isinstance(facts[k], str) for k in ("model", "data", "original"))
    sound = sound and isinstance(request, dict) and set(request) <= {"forget_classes", "forget_ids"}
    sound = sound and len(request) <= 1 and all(isinstance(v, list) and v for v in request.values())
    if not sound:
        raise FileError(
            expected(
                f"model, data, request and original in {folder / 'run.json'}",
                "values of another kind",
                "use the run.json that purge wrote",
            )
        )
    return facts


def _request(train: Images, classes: list[int] | None, ids: Path | None) -> dict[str, list[int]]:
    """What must be forgotten, as it is written into run.json."""
    if bool(classes) == (ids is not None):
        raise DataError(
            expected(
                "either --forget-class or --forget-ids",
                "both" if classes else "neither",
                "say in one way what must be forgotten",
            )
        )
    if classes:
        return {"forget_classes": sorted(set(classes))}
    assert ids is not None
    return {"forget_ids": _read_ids(ids)}


def _read_ids(path: Path) -> list[int]:
    if not path.is_file():
        raise FileError(expected(f"a file of sample numbers at {path}", "nothing there", "check the path"))
    words = path.read_text(encoding="utf-8", errors="replace").replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise DataError(
                expected(f"whole numbers in {path.name}", repr(word), "write one sample number per line")
            )
    if not words:
        raise DataError(expected(f"sample numbers in {path.name}", "none", "write one number per line"))
    return sorted({int(word) for word in words})


def _split(train: Images, request: dict[str, list[int]]) -> tuple[Any, Any]:
    if "forget_classes" in request:
        return split(train, classes=request["forget_classes"])
    return split(train, indices=request["forget_ids"])


# -- audit ------------------------------------------------------------------------------------


@app.command()
def audit(
    run: Annotated[Path, typer.Argument(help="The run folder of an unlearned model.")],
    retrained: Annotated[Path | None, typer.Option(help="Run folder of the retrained model.")] = None,
    original: Annotated[
        Path | None, typer.Option(help="Run folder of the original; default: what the run names.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The training data; default: the run's.")] = None,
    model: Annotated[str | None, typer.Option(help="The architecture; default: the run's.")] = None,
    metrics: Annotated[str, typer.Option(help="quick, standard, or names with commas.")] = "standard",
    forget_class: Annotated[list[int] | None, typer.Option(help="Default: the run's request.")] = None,
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
    """
    names = metrics if metrics in PANELS else [m.strip() for m in metrics.split(",") if m.strip()]
    resolve_metrics(names)
    trained = _read_model(run, model, data)
    facts = _read_facts(run) if run.is_dir() else {}
    train_data, test = load(trained.data)
    if forget_class or forget_ids is not None or not facts.get("request"):
        request = _request(train_data, forget_class, forget_ids)
    else:
        request = facts["request"]
    forget, retain = _split(train_data, request)
    named = facts.get("original")
    if original is None and named is not None and Path(named).exists():
        original = Path(named)
    report = run_audit(
        trained.model,
        forget,
        retain,
        test,
        original=_read_model(original, model, data).model if original else None,
        retrained=_read_model(retrained, model, data).model if retrained else None,
        metrics=names,
        seed=seed,
        device=device,
        progress=not quiet,
    )
    if run.is_dir() and metrics in PANELS:
        report.to_json(run / "audit.json")
    if json_:
        _print_json(report.to_dict())
    else:
        _print_table(tables.audit_table(report.to_dict()))


# -- list -------------------------------------------------------------------------------------


SHELVES = ("methods", "metrics", "datasets", "models")


@app.command("list")
def list_(
    shelf: Annotated[str, typer.Argument(help="methods, metrics, datasets or models.")],
    name: Annotated[str | None, typer.Argument(help="A method: its settings.")] = None,
    json_: Json = False,
) -> None:
    """Show methods, metrics, data sets or models.

    For example: purge list methods, or, for the settings of one: purge list methods purge
    """
    if shelf not in SHELVES:
        raise PurgeError(expected("something to list", repr(shelf), did_you_mean(shelf, SHELVES)))
    if name is not None and shelf != "methods":
        raise MethodError(expected("a name only after 'methods'", repr(name), f"purge list {shelf}"))
    columns, rows = _settings_of(name) if name is not None else _shelf(shelf)
    if json_:
        _print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        _print_table(tables.listing(columns, rows))


def _shelf(shelf: str) -> tuple[list[str], list[list[str]]]:
    if shelf == "methods":
        return ["method", "about"], [[n, e.about] for n, e in METHODS.items()]
    if shelf == "metrics":
        rows = [[m.name, m.symbol, m.about, ", ".join(sorted(m.needs))] for m in METRICS.values()]
        return ["metric", "symbol", "about", "needs"], rows
    entries: dict[str, Any] = DATASETS if shelf == "datasets" else MODELS
    return [shelf[:-1], "about"], [[n, e.about] for n, e in entries.items()]


def _settings_of(name: str) -> tuple[list[str], list[list[str]]]:
    rows = []
    for config in (method := resolve_method(name, {}), method.stop):
        for f in dataclasses.fields(config):  # type: ignore[arg-type]
            if f.name != "stop":
                rows.append([f.name, str(getattr(config, f.name)), f.metadata["help"]])
    return ["setting", "value", "meaning"], rows


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2, allow_nan=False))


def _print_table(table: Table) -> None:
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
    else:
        print(tables.as_text(table))
