"""The options that several commands share."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from purge.cli import several
from purge.cli.ending import running_in
from purge.core.errors import DataError, MethodError
from purge.core.schema import Field
from purge.data import OPTIONS, DataSource, no_cache, option_name, option_type

if TYPE_CHECKING:
    from purge.runs import LeftOut


def _no_cache(context: typer.Context, wanted: bool) -> bool:
    if wanted:
        context.with_resource(no_cache())
    return wanted


def _debug(context: typer.Context, wanted: bool) -> bool:
    running_in(context).debug |= wanted
    return wanted


def _path(text: str) -> Path:
    if not text:  # it would mean the current folder
        raise typer.BadParameter("expected a path, got an empty text")
    return Path(text)


def place(help: str) -> Any:
    """An option for a file or folder that is written."""
    return Option(help=help, parser=_path, metavar="<path>")


Json = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
Debug = Annotated[bool, Option("--debug", callback=_debug, help="Show the traceback of an error.")]
Quiet = Annotated[bool, Option("--quiet", help="Show no progress on stderr.")]
Seed = Annotated[int, Option(help="Seed for everything random.")]
Device = Annotated[str | None, Option(help="cpu, cuda, cuda:1, …; default: a GPU if there is one.")]
ModelName = Annotated[str | None, Option("--model", help="The architecture; default: the run's.")]
MethodName = Annotated[str, Option("--method", help="See purge list methods; or module:Class.")]
Set = Annotated[list[str] | None, Option("--set", help="A setting: key=value; repeatable.")]
Trust = Annotated[bool, Option("--trust", help="Import code that a run folder or a bench's file names.")]
NoCache = Annotated[
    bool, Option("--no-cache", callback=_no_cache, help="Keep no decoded images and no shadow models.")
]
Force = Annotated[bool, Option("--force", help="Write into a folder that is not empty.")]


Given = dict[str, Any]  # fields of DataSource, as far as their options were passed
DataDir = Annotated[Path | None, Option(help=DataSource.__dataclass_fields__["data_dir"].metadata["help"])]


def with_data(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of :class:`DataSource`.

    They stand where its argument ``options`` does, which gets the fields whose options were passed. A field
    that the command has an argument for itself is left to it.
    """
    signature = inspect.signature(command, eval_str=True)
    fields = [f for f in OPTIONS if f.name not in signature.parameters]

    @functools.wraps(command)
    def called(**arguments: Any) -> None:
        options = {f.name: _value(f, arguments.pop(f.name)) for f in fields}
        command(
            **arguments, options={name: value for name, value in options.items() if value not in (None, "")}
        )

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name != "options":
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        for field in fields:
            hint, name, default = option_type(field), f"--{option_name(field)}", None
            if field.metadata["flag"] is not None:
                hint, default = bool, False
            elif hint is bool:
                hint, name = bool | None, f"{name}/--no-{option_name(field)}"
            else:
                hint = (Path if field.metadata["path"] else hint if hint is int else str) | None
            shown = Annotated[hint, Option(name, help=field.metadata["help"])]  # type: ignore[valid-type]
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=shown))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _value(field: Field, passed: Any) -> Any:
    """The value of a field; None if its option was not passed."""
    if field.metadata["flag"] is not None:
        return field.metadata["flag"] if passed else None
    if passed is None or typing.get_origin(option_type(field)) is not tuple:
        return passed
    try:
        return tuple(float(word) for word in passed.split(","))
    except ValueError:
        what = f"numbers with commas as --{option_name(field)}"
        raise DataError(what, repr(passed), f"write --{option_name(field)} 0.5, say") from None


def settings_from(pairs: list[str] | None) -> dict[str, Any]:
    """The settings that ``--set key=value`` names."""
    for pair in pairs or []:
        if "=" not in pair:
            raise MethodError("--set key=value", repr(pair), "write --set lr=0.01, say")
    return {key.strip(): value.strip() for key, value in (pair.split("=", 1) for pair in pairs or [])}


SuppressedBy = Annotated[
    str | None,
    Option("--ledger", metavar="FILE|URL", help="Leave out rows of everybody who asked it to be forgotten."),
]
KeyAt = Annotated[
    Path | None,
    Option(
        "--key", metavar="FILE", help="The key that hashes ids; default: $PURGE_LEDGER_KEY, then LEDGER.key."
    ),
]


def left_out(ledger: str | None, key: Path | None) -> LeftOut | None:
    """The rows of everybody who asked this ledger to be forgotten, to be taught no more."""
    if ledger is None:
        return None
    from purge.ledger.data import left_out_by
    from purge.ledger.ledger import Ledger

    with Ledger(ledger, key, must_exist=True) as book:
        return left_out_by(book)


def pick_device(wanted: str | None) -> str | None:
    """The device asked for, otherwise a GPU if there is one."""
    import torch

    if wanted in (None, "cuda") and several.started() and torch.cuda.is_available():
        return f"cuda:{several.gpu()}"
    return wanted or ("cuda" if torch.cuda.is_available() else None)
