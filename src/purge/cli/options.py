"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from purge.cli import ending, several
from purge.core.errors import DataError, MethodError


def _no_cache(context: typer.Context, wanted: bool) -> bool:
    if wanted:
        from purge.data.cache import no_cache

        context.with_resource(no_cache())
    return wanted


def _debug(wanted: bool) -> bool:
    ending.show_traceback(wanted)
    return wanted


def _path(text: str) -> Path:
    if not text:  # it would mean the current folder
        raise typer.BadParameter("expected a path, got an empty text")
    return Path(text)


def place(help: str) -> Any:
    """An option for a file or folder that is written."""
    return Option(help=help, parser=_path, metavar="<path>")


def place_or_url(help: str) -> Any:
    """An option for a folder that is written, here or at a URL; a path would lose one of two slashes."""
    return Option(
        help=help, parser=lambda text: text if "://" in text else str(_path(text)), metavar="<path>"
    )


Json = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
Debug = Annotated[bool, Option("--debug", callback=_debug, help="Show the traceback of an error.")]
Quiet = Annotated[bool, Option("--quiet", help="Show no progress on stderr.")]
Seed = Annotated[int, Option(help="Seed for everything random.")]
Device = Annotated[str | None, Option(help="cpu, cuda, cuda:1, …; default: a GPU if there is one.")]
DataName = Annotated[
    str | None, Option("--data", help="A name, folder, file or module:function; default: the run's.")
]
ModelName = Annotated[str | None, Option("--model", help="The architecture; default: the run's.")]
MethodName = Annotated[str, Option("--method", help="See purge list methods; or module:Class.")]
DataDir = Annotated[
    Path | None, Option(help="Folder of named data sets; default: $PURGE_DATA, then the user's cache.")
]
Size = Annotated[int | None, Option(help="Resize images to this many pixels per side.")]
SplitSeed = Annotated[
    int | None, Option(help="Seed for the fifth held out of a folder without a test set; default: 0.")
]
Mean = Annotated[
    str | None, Option("--mean", help="Of each channel, as 0.49,0.48,0.45; default: the run's or the data's.")
]
Std = Annotated[str | None, Option("--std", help="The spread of each channel, likewise.")]
Label = Annotated[str | None, Option("--label", help="Of a table: the column of the classes.")]
Text = Annotated[
    str | None, Option("--text", help="The column of texts, for --model hf:DIR; default: all columns.")
]
Id = Annotated[str | None, Option("--id", help="The column that says whose each row is.")]
Test = Annotated[
    Path | None, Option("--test", help="A table of test data; default: the fifth that purge train holds out.")
]
AllTrained = Annotated[
    bool, Option("--all-trained", help="Training has all of --data: nothing is held out, nothing is unseen.")
]
Transform = Annotated[
    str | None, Option("--transform", help="module:function from a batch of scaled images to a batch.")
]
SkipBad = Annotated[bool, Option("--skip-bad", help="Leave out images that cannot be read.")]
Stream = Annotated[
    bool | None,
    Option("--stream/--no-stream", help="Decode images when needed, keep none; default: above 8 GiB."),
]
Set = Annotated[list[str] | None, Option("--set", help="A setting: key=value; repeatable.")]
Trust = Annotated[bool, Option("--trust", help="Import code that a run folder or a bench's file names.")]
NoCache = Annotated[
    bool, Option("--no-cache", callback=_no_cache, help="Keep no decoded images and no shadow models.")
]
Force = Annotated[bool, Option("--force", help="Write into a folder that is not empty.")]


def settings_from(pairs: list[str] | None) -> dict[str, Any]:
    """The settings that ``--set key=value`` names."""
    for pair in pairs or []:
        if "=" not in pair:
            raise MethodError("--set key=value", repr(pair), "write --set lr=0.01, say")
    return {key.strip(): value.strip() for key, value in (pair.split("=", 1) for pair in pairs or [])}


def numbers_from(text: str | None, option: str) -> list[float] | None:
    """The numbers in ``0.49,0.48,0.45``."""
    try:
        return None if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        raise DataError(f"numbers with commas as {option}", repr(text), f"write {option} 0.5, say") from None


def pick_device(wanted: str | None) -> str | None:
    """The device asked for, otherwise a GPU if there is one."""
    import torch

    if wanted in (None, "cuda") and several.started() and torch.cuda.is_available():
        return f"cuda:{several.gpu()}"
    return wanted or ("cuda" if torch.cuda.is_available() else None)
