"""Data that a function of the user returns, for the command line: ``--data module:function``."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from purge.core.errors import DataError, PurgeError, first_line
from purge.core.plugins import current_folder_importable, named
from purge.data import inputs
from purge.data.formats.source import class_names
from purge.data.images import Images
from purge.data.inputs import Inputs
from purge.data.request import content_digest
from purge.data.samples import Lazy, as_samples, batches

CPU = torch.device("cpu")


class Columns(TensorDataset):
    """Inputs of any nesting with a label each, in memory: a TensorDataset whose inputs may be a dict."""

    tensors: tuple[Any, Tensor]

    def __init__(self, x: Inputs, y: Tensor) -> None:
        self.tensors = (x, y)

    def __getitem__(self, index: Any) -> tuple[Inputs, Tensor]:
        return inputs.take(self.tensors[0], index), self.tensors[1][index]

    def __len__(self) -> int:
        return len(self.tensors[1])


class Rows(Subset[Any]):
    """Rows of a table in memory, with all that run folders ask of :class:`Images`.

    ``subjects``: whose each row is; ``mean`` and ``std``: how its columns were scaled.
    """

    def __init__(
        self,
        table: Columns,
        index: Tensor,
        *,
        names: tuple[str, ...] = (),
        source: str = "",
        subjects: tuple[str, ...] = (),
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
    ) -> None:
        super().__init__(table, index.tolist())
        self.table, self.ids, self.names, self.source = table, index, names, source
        self.subjects, self.mean, self.std = subjects, mean, std
        self.labels: Tensor = table.tensors[1][index]
        self.shape: tuple[int, ...] = tuple(inputs.leaves(table.tensors[0])[0].shape[1:])
        self.paths: tuple[str, ...] = ()

    def select(self, index: Tensor) -> Rows:
        """The rows at ``index``, or where a mask is true."""
        at = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        return Rows(
            self.table,
            self.ids[at],
            names=self.names,
            source=self.source,
            subjects=tuple(self.subjects[i] for i in at.tolist()) if self.subjects else (),
            mean=self.mean,
            std=self.std,
        )


def is_function(name: str) -> bool:
    """Is it ``module:function``, and not a path with a colon?"""
    return bool(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name)) and not Path(name).exists()


def from_function(name: str) -> tuple[Images | Rows, Images | Rows]:
    """Call ``module:function`` and take the training and test data that it returns.

    Each is :class:`Images`, a pair of arrays or tensors, or a dataset that fits into memory.
    """
    with current_folder_importable():
        function = named(name, DataError)
        try:
            found = function()
        except PurgeError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's own code may raise
            raise DataError(f"{name} to return (train, test)", first_line(error), "correct it") from error
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        got = f"{len(found)} of them" if isinstance(found, (tuple, list)) else type(found).__name__
        raise DataError(f"two data sets (train, test) from {name}", got, "return both as a pair")
    parts = [_known(data, f"{which} of {name}") for which, data in zip(("train", "test"), found, strict=True)]
    names = next((part.names for part in parts if part.names), ())
    count = 1 + max(int(part.labels.max()) for part in parts)
    for part, which in zip(parts, ("train", "test"), strict=True):
        part.names = tuple(names) or tuple(map(str, range(count)))
        part.source = f"{content_digest(as_samples(part, CPU, which))}-{which}"
    return parts[0], parts[1]


def _known(data: Any, what: str) -> Images | Rows:
    """Images as they are, and everything else as a table of tensors."""
    if isinstance(data, Images):
        if not len(data):
            raise DataError(f"samples in {what}", "none", "return a set that is not empty")
        return copy.copy(data)
    samples = as_samples(data, CPU, what)
    if isinstance(samples, Lazy):
        got = "items that differ when read again, or take too much memory"
        raise DataError(f"{what} that can be kept as tensors", got, "leave out random transforms")
    if not len(samples):
        raise DataError(f"samples in {what}", "none", "return a set that is not empty")
    (x, y), *_ = batches(samples, len(samples))
    named = class_names(getattr(data, "classes", ()), what)
    whose = tuple(map(str, getattr(data, "subjects", ())))
    return Rows(
        Columns(x, y), torch.arange(len(y)), names=named, subjects=whose if len(whose) == len(y) else ()
    )
