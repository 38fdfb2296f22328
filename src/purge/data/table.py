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
from purge.data.formats.columns import TableFile, read_table
from purge.data.formats.source import class_names, held_out
from purge.data.images import per_channel
from purge.data.inputs import Inputs, take
from purge.data.samples import Origin, Samples
from purge.data.sources import DataSource

LONGEST_ID = 1000  # characters
FEW = 20  # classes that there may be whatever the number of rows

Encode = Callable[[list[str]], dict[str, Tensor]]  # texts → tokens


def load_table(
    source: DataSource, encode: Encode | None, names: Sequence[str]
) -> tuple[Samples, Samples | None]:
    """The training and test rows of a table; None for the test rows if there are none.

    Test rows are those of a second file, or a fifth of each class, unless all rows are for training.

    Args:
        source: says which columns are what. Without one of texts, all others are inputs: numbers.
        encode: makes tokens of texts.
        names: of the classes in the order of a model's outputs, if that tells them.
    """
    tables = [read_table(Path(file)) for file in (source.data, source.test_file) if file is not None]
    label, text, id = str(source.label_column), source.text_column, source.id_column
    columns = [name for name in (label, text, id) if name is not None]
    most = max(columns, key=columns.count)
    if columns.count(most) > 1:
        got, fix = f"{brief(most)} twice", "name each column once"
        raise DataError("different columns as --label, --text and --id", got, fix)
    order, y = _numbered([table.texts(label, "--label") for table in tables], names, source)
    owners = [[] if id is None else _owners(table, id) for table in tables]
    x = _numbers(tables, columns) if text is None else _tokens(tables, text, encode)
    rows = [torch.arange(len(part)) for part in y]
    if len(tables) == 1 and source.held_out is not False:
        rows = [torch.from_numpy(part) for part in held_out(y[0].numpy(), source.split_seed)]
    backends = _scaled(x, rows[0], source) if text is None else [Tensors(part) for part in x]
    facts = [*(table.digest for table in tables), *map(str, (label, text, id))]
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    parts = []
    for which, i, at in zip(("train", "test"), (0, len(tables) - 1), rows, strict=False):
        origin = Origin(f"{digest}-{which}")
        whole = Samples(backends[i], y[i], origin=origin, names=order, owners=owners[i])
        parts.append(whole.select(at))
    return parts[0], parts[1] if len(parts) > 1 else None


def _owners(table: TableFile, id: str) -> list[str]:
    """Whose each row of a table is."""
    owners = table.texts(id, "--id")
    for owner in owners:
        if len(owner) > LONGEST_ID or not owner.isprintable():
            what = f"ids of at most {LONGEST_ID} characters in one line in {id!r}"
            raise DataError(what, brief(owner[:50]), "name the column that says whose each row is")
    return owners


def _numbered(
    columns: list[list[str]], known: Sequence[str], source: DataSource
) -> tuple[tuple[str, ...], list[Tensor]]:
    """The names of the classes, and the labels as their numbers.

    The order is that of the model, if it names the classes or numbers as many. Otherwise numbers come in
    their order and words in that of the alphabet.
    """
    there: set[str] = set().union(*columns)
    whole = all(cell.isascii() and cell.isdigit() and len(cell) < 10 for cell in there)
    named = there <= set(known)
    if whole and not named and {int(cell) for cell in there} <= set(range(len(known))):
        return tuple(known), [torch.tensor([int(cell) for cell in column]) for column in columns]
    by_number = (lambda cell: (int(cell), cell)) if whole else None
    order = tuple(known) if named else tuple(sorted(there, key=by_number))
    rows, file = sum(map(len, columns)), Path(source.data).name
    if len(order) < 2 or len(there) > max(rows // 2, FEW):
        got, fix = f"{len(there)} in {rows} rows", "name the column of the classes with --label"
        what = f"two classes or more, each of several rows, in {source.label_column!r} of {file}"
        raise DataError(what, got, fix)
    class_names(order, file)
    number = dict(zip(order, range(len(order)), strict=True))
    return order, [torch.tensor([number[cell] for cell in column]) for column in columns]


def _tokens(tables: list[TableFile], text: str, encode: Encode | None) -> list[Inputs]:
    """The tokens of each table, all padded to one length."""
    if encode is None:
        fix = "name a folder with a tokenizer as --model hf:DIR, or leave out --text"
        raise DataError("a model of Hugging Face for --text", "another", fix)
    first, *others = (table.texts(text, "--text") for table in tables)
    tokens = encode([*first, *(cell for other in others for cell in other)])
    return [take(tokens, at) for at in (slice(len(first)), slice(len(first), None))[: len(tables)]]


def _numbers(tables: list[TableFile], others: list[str]) -> list[Tensor]:
    """All other columns, which must be numbers, of each table: (N, columns)."""
    names = [name for name in tables[0].columns if name not in others]
    if not names:
        fix = "name the column of texts with --text, or add columns of numbers"
        raise DataError(f"inputs in {tables[0].path.name}", "no other columns", fix)
    if extra := [name for name in tables[-1].columns if name not in {*names, *others}]:
        what = f"the columns of {tables[0].path.name} in {tables[-1].path.name}"
        raise DataError(what, f"{brief(extra[0])} too", "remove it")
    return [torch.from_numpy(np.stack([table.numbers(name) for name in names], 1)) for table in tables]


def _scaled(x: list[Tensor], train: Tensor, source: DataSource) -> list[Tensors]:
    """Each column minus its mean over the training rows, divided by its spread, in float32."""
    mean, std, n = x[0][train].mean(0), x[0][train].std(0, correction=0), x[0].shape[1]
    std = torch.where(std > 0, std, 1.0)
    if source.mean is not None:
        mean = torch.tensor(per_channel(source.mean, "mean", n, "column"), dtype=torch.float64)
    if source.std is not None:
        std = torch.tensor(per_channel(source.std, "std", n, "column"), dtype=torch.float64)
    scaled = [((part - mean) / std).float() for part in x]
    if not all(bool(part.isfinite().all()) for part in scaled):
        raise DataError("finite numbers after scaling", "infinity", "take out columns of huge numbers")
    return [Tensors(part, mean=mean.tolist(), std=std.tolist()) for part in scaled]
