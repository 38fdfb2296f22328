"""Which data, and how it is read: every option of data, with its default and its help, in one place.

A field of :class:`DataSource` is an option of ``purge train``, ``unlearn`` and ``audit``, and a key of
run.json. To add an option, add a field here, and use it in ``data/load.py``. Nothing here imports torch, so
that ``--help`` is quick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from purge.core.errors import DataError
from purge.core.plugins import is_function, trusted
from purge.core.schema import Field, hints_of, options
from purge.data.catalog import DATASETS

Kind = Literal["images", "numbers", "texts", "function"]
KINDS: dict[Kind, str] = {
    "images": "images", "numbers": "a table of numbers", "texts": "a table of texts",
    "function": "data of a function",
}  # fmt: skip
TABLES: tuple[Kind, ...] = ("numbers", "texts")


def option(
    default: Any = None, help: str = "", *, name: str = "", flag: bool | None = None, path: bool = False,
    kept: Literal["run", "data"] = "data", kinds: tuple[Kind, ...] = tuple(KINDS),
) -> Any:  # fmt: skip
    """A field of :class:`DataSource` with what the command line needs to know about it.

    A field without help is no option. ``flag``: the option takes no value, and this is what it stands for.
    ``kept``: the run's value is used where the option is not passed, always (``run``) or for its own data.
    ``kinds``: of data that have it; others refuse it.
    """
    about = {"help": help, "name": name, "flag": flag, "path": path, "kept": kept, "kinds": kinds}
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True)
class DataSource:
    """Which data, and how it is read; run.json says so, and the data can be found again."""

    data: str = option("", "A name, folder, file or module:function; default: the run's.")
    data_dir: str | None = option(
        None, "Folder of named data sets; default: $PURGE_DATA, then the user's cache.", path=True, kept="run"
    )
    size: int | None = option(
        None, "Resize images to this many pixels per side.", kept="run", kinds=("images",)
    )
    split_seed: int = option(
        0, "Seed for the fifth held out of a folder without a test set; default: 0.", kept="run"
    )
    skip_bad: bool = option(False, "Leave out images that cannot be read.", flag=True, kept="run")
    mean: tuple[float, ...] | None = option(
        None, "Of each channel, as 0.49,0.48,0.45; default: the run's or the data's.",
        kinds=("images", "numbers"),
    )  # fmt: skip
    std: tuple[float, ...] | None = option(
        None, "The spread of each channel, likewise.", kinds=("images", "numbers")
    )
    label_column: str | None = option(
        None, "Of a table: the column of the classes.", name="label", kinds=TABLES
    )
    text_column: str | None = option(
        None, "The column of texts, for --model hf:DIR; default: all columns.", name="text", kinds=TABLES
    )
    id_column: str | None = option(None, "The column that says whose each row is.", name="id", kinds=TABLES)
    test_file: str | None = option(
        None, "A table of test data; default: the fifth that purge train holds out.",
        name="test", path=True, kinds=TABLES,
    )  # fmt: skip
    # Is a fifth held out of data without a test part? None: nobody knows, so such data is refused.
    held_out: bool | None = option(
        True, "Training has all of --data: nothing is held out, nothing is unseen.",
        name="all-trained", flag=False,
    )  # fmt: skip
    tokenizer: str | None = option(None)  # the folder that makes tokens of the texts
    transform: str | None = option(
        None, "module:function from a batch of scaled images to a batch.", kinds=("images",)
    )
    stream: bool | None = option(
        None, "Decode images when needed, keep none; default: above 8 GiB.", kinds=("images",)
    )

    def refuse_others(self, kind: Kind) -> None:
        """Refuse options that this kind of data does not have."""
        for f in OPTIONS:
            if kind not in f.metadata["kinds"] and getattr(self, f.name) not in (None, f.default):
                what = " or ".join(KINDS[known] for known in f.metadata["kinds"])
                got = f"--{option_name(f)} for {Path(self.data).name}, which is {KINDS[kind]}"
                fix = f"prepare it in {self.data}" if kind == "function" else "leave it out"
                raise DataError(f"{what} for --{option_name(f)}", got, fix)

    def as_options(self) -> list[str]:
        """The options of a command that name this data."""
        words = []
        for f in OPTIONS:
            value, name = getattr(self, f.name), option_name(f)
            if f.metadata["flag"] is not None:
                words += [f"--{name}"] * (value is f.metadata["flag"])
            elif value in (None, f.default):
                continue
            elif isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
            else:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                words.append(f"--{name} {quote(text)}")
        return words


OPTIONS: tuple[Field, ...] = tuple(f for f in dataclasses.fields(DataSource) if f.metadata["help"])


def option_name(field: Field) -> str:
    """The name of an option without its dashes."""
    return field.metadata["name"] or field.name.replace("_", "-")


def option_type(field: Field) -> Any:
    """The type of an option's value, if it is passed."""
    return next(hint for hint in options(hints_of(DataSource)[field.name]) if hint is not type(None))


def choose_data(
    run: DataSource, options: Mapping[str, Any], *, trust: bool = False, model: str = "", trains: bool = False
) -> DataSource:
    """The data that is named, or else the run's; paths become absolute.

    Inputs are scaled, and columns of a table chosen, as the run did. Code that run.json names is refused
    unless ``trust`` is true.

    Args:
        run: what the run says about its data; nothing, of a file of weights.
        options: fields and their values, as far as the user has passed them.
        trust: may run.json name code to import?
        model: the architecture, whose folder has the tokenizer of texts.
        trains: will a model be trained on it now? Otherwise one was trained before.
    """
    data = str(options.get("data") or run.data or "")
    if not data:
        raise DataError("the name of the training data", "none", "pass --data; see purge list datasets")
    if "data" not in options and is_function(data):
        trusted(data, "run.json", trust, option="--data")
    if "data" in options and data not in DATASETS and (Path(data).exists() or is_pattern(Path(data))):
        data = str(Path(data).absolute())
    same = data == run.data and not is_function(data)  # other data has another mean
    values: dict[str, Any] = {}
    for f in OPTIONS:
        if f.name in options:
            values[f.name] = str(Path(options[f.name]).absolute()) if f.metadata["path"] else options[f.name]
        elif same or f.metadata["kept"] == "run":
            values[f.name] = getattr(run, f.name)
    if "transform" not in options and values.get("transform") is not None:
        trusted(values["transform"], "run.json", trust, option="--transform")
    if "text_column" not in options and values.get("label_column") != run.label_column:
        values["text_column"] = None  # the run's other columns say nothing about another one of labels
    if values.get("text_column") is not None and model.startswith("hf:"):
        values["tokenizer"] = model.removeprefix("hf:")
    held_out = _held_out(run, options, same=same, trains=trains)
    return DataSource(**{**values, "data": data, "held_out": held_out})


def _held_out(run: DataSource, options: Mapping[str, Any], *, same: bool, trains: bool) -> bool | None:
    """Is a fifth of data without a test part held out? None: a checkpoint from elsewhere does not say."""
    all_trained, test = options.get("held_out") is False, "test_file" in options
    if all_trained and test:
        raise DataError("either --test or --all-trained", "both", "leave one of them out")
    if all_trained and same and run.held_out:
        got = "one that knows its test data"
        raise DataError("a checkpoint from elsewhere for --all-trained", got, "leave it out")
    if all_trained:
        return False
    if run.data and (same or run.held_out):
        return run.held_out or test
    return True if trains or test or "split_seed" in options else None


def is_pattern(path: Path) -> bool:
    """Is it no path but a pattern, as ``DIR/train-*.tar``, of files that are there?"""
    return "*" in path.name and any(path.parent.glob(path.name))
