"""A file of a table as training and test data: a column of labels, and texts or numbers as inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from purge.core.errors import DataError, brief
from purge.data.backends import Tensors
from purge.data.formats.source import class_names, held_out
from purge.data.formats.tables import Table, numbers, read_table, texts
from purge.data.images import per_channel
from purge.data.inputs import Inputs, take
from purge.data.samples import Origin, Samples

LONGEST_ID = 1000  # characters
FEW = 20  # rows up to which as many classes may be in a table as there are rows

Encode = Callable[[list[str]], dict[str, Tensor]]  # texts → tokens


def load_table(
    path: Path,
    *,
    label: str,
    text: str | None = None,
    id: str | None = None,
    test: Path | None = None,
    split_seed: int = 0,
    hold_out: bool = True,
    encode: Encode | None = None,
    names: Sequence[str] = (),
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> tuple[Samples, Samples | None]:
    """The training and test rows of a table; None for the test rows if there are none.

    Args:
        path: a file of .csv, .tsv, .jsonl, .ndjson or .parquet.
        label: the column of the classes, in words or numbers.
        text: the column of the texts; without it all other columns are inputs, and must be numbers.
        id: the column that says whose each row is.
        test: a second file of the same columns; without it, a fifth of each class is held out.
        split_seed: draws the fifth.
        hold_out: without ``test``, may rows be held out? If not, all of them are for training.
        encode: makes tokens of texts.
        names: of the classes in the order of a model's outputs, if that tells them.
        mean: subtracted from each column of numbers; default: that of the training rows.
        std: each column is divided by it afterwards; default: that of the training rows.
    """
    tables = [read_table(path), *([] if test is None else [read_table(test)])]
    taken = [name for name in (label, text, id) if name is not None]
    if twice := [name for name in taken if taken.count(name) > 1]:
        got = f"{brief(twice[0])} twice"
        raise DataError("different columns as --label, --text and --id", got, "name each column once")
    classes = [_filled(table, label, "--label") for table in tables]
    order, y = _numbered(classes, names, label, tables[0].path)
    owners = [_ids(table, id) for table in tables]
    x = _tokens(tables, text, encode) if text is not None else _features(tables, {label, id})
    scale: tuple[tuple[float, ...], tuple[float, ...]] = (), ()  # mean and std
    if test is None and hold_out:
        places = [torch.from_numpy(rows) for rows in held_out(y[0].numpy(), split_seed)]
    else:
        places = [torch.arange(len(part)) for part in y]
    if text is None:
        scale, x = _scaled(x, places[0], mean, std)
    own = owners
    tables_of = [Tensors(part, mean=scale[0], std=scale[1]) for part in x]
    if test is None:  # both are rows of one table
        tables_of, y, own = tables_of * len(places), y * len(places), own * len(places)
    digest = hashlib.sha256(
        "\0".join([t.digest for t in tables] + list(map(str, (label, text, id)))).encode()
    )
    made = [
        Samples(part, labels[rows], rows=rows, ids=rows, origin=Origin(f"{digest.hexdigest()}-{which}"),
                names=order, owners=tuple(mine[i] for i in rows.tolist()) if mine else (), cut=True)
        for part, labels, rows, mine, which in zip(
            tables_of, y, places, own, ("train", "test"), strict=False)
    ]  # fmt: skip
    return made[0], made[1] if len(made) > 1 else None


def _filled(table: Table, name: str, option: str) -> list[str]:
    """A column as text, of which no cell may be empty."""
    found = texts(table.column(name, option))
    if empty := [i for i, cell in enumerate(found) if cell is None]:
        got = f"{len(empty)} without (first: row {empty[0] + 1})"
        fix = "fill in what is missing, or remove these rows"
        raise DataError(f"something in every row of {name!r} in {table.path.name}", got, fix)
    return [cell for cell in found if cell is not None]


def _ids(table: Table, name: str | None) -> tuple[str, ...]:
    if name is None:
        return ()
    found = _filled(table, name, "--id")
    if long := [one for one in found if len(one) > LONGEST_ID or not one.isprintable()]:
        what = f"ids of at most {LONGEST_ID} characters in one line in {name!r}"
        raise DataError(what, brief(long[0][:50]), "name the column that says whose each row is")
    return tuple(found)


def _numbered(
    columns: list[list[str]], known: Sequence[str], label: str, path: Path
) -> tuple[tuple[str, ...], list[Tensor]]:
    """The names of the classes, and the labels as their numbers.

    The order is that of the model, if it names the classes or numbers as many. Otherwise numbers come in
    their order and words in that of the alphabet.
    """
    there = {cell for column in columns for cell in column}
    whole = all(cell.isascii() and cell.isdigit() and len(cell) < 10 for cell in there)
    if known and there <= set(known):
        order = tuple(known)
    elif known and whole and {int(cell) for cell in there} <= set(range(len(known))):
        return tuple(known), [torch.tensor([int(cell) for cell in column]) for column in columns]
    else:
        order = tuple(sorted(there, key=lambda cell: (int(cell), cell) if whole else cell))
    rows = sum(map(len, columns))
    if len(order) < 2 or (rows > FEW and len(there) > rows // 2):
        got = f"{len(there)} in {rows} rows"
        fix = "name the column of the classes with --label"
        raise DataError(f"two classes or more, each of several rows, in {label!r} of {path.name}", got, fix)
    class_names(order, path.name)
    number = {name: i for i, name in enumerate(order)}
    return order, [torch.tensor([number[cell] for cell in column]) for column in columns]


def _tokens(tables: list[Table], text: str, encode: Encode | None) -> list[Inputs]:
    """The tokens of each table, all padded to one length."""
    if encode is None:
        fix = "name a folder with a tokenizer as --model hf:DIR, or leave out --text"
        raise DataError("a model of Hugging Face for --text", "another", fix)
    columns = [_filled(table, text, "--text") for table in tables]
    tokens = encode([cell for column in columns for cell in column])
    ends = np.cumsum([0, *map(len, columns)])
    return [take(tokens, slice(a, b)) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _features(tables: list[Table], others: set[str | None]) -> list[Inputs]:
    """All columns of numbers, (N, columns) each."""
    first = [name for name in tables[0].columns if name not in others]
    if not first:
        got = "no other columns"
        fix = "name the column of texts with --text, or add columns of numbers"
        raise DataError(f"inputs in {tables[0].path.name}", got, fix)
    found = []
    for table in tables:
        if extra := [name for name in table.columns if name not in {*first, *others}]:
            got = f"{brief(extra[0])} too"
            raise DataError(f"the columns of {tables[0].path.name} in {table.path.name}", got, "remove it")
        columns = [numbers(table.column(name, "an input"), name, table.path) for name in first]
        found.append(torch.from_numpy(np.stack(columns, 1)))
    return found


def _scaled(
    x: list[Tensor], train: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[tuple[float, ...], tuple[float, ...]], list[Inputs]]:
    """Each column minus its mean, divided by its spread, in float32; and both of these."""
    own, width = x[0][train], x[0].shape[1]
    spread = own.std(0, correction=0)
    found = {"mean": own.mean(0), "std": torch.where(spread > 0, spread, 1.0)}
    for key, constants in (("mean", mean), ("std", std)):
        if constants is not None:
            found[key] = torch.tensor(per_channel(constants, key, width, "column"), dtype=torch.float64)
    scaled = [((part - found["mean"]) / found["std"]).float() for part in x]
    if not all(bool(part.isfinite().all()) for part in scaled):
        raise DataError("finite numbers after scaling", "infinity", "take out columns of huge numbers")
    return (tuple(found["mean"].tolist()), tuple(found["std"].tolist())), [*scaled]
