"""Data that a function of the user returns, for the command line: ``--data module:function``."""

from __future__ import annotations

import torch

from purge.core.errors import DataError, PurgeError, first_line
from purge.core.plugins import current_folder_importable, named
from purge.data.accept import accepted
from purge.data.formats.source import class_names
from purge.data.request import content_digest
from purge.data.samples import CPU, Origin, Samples


def from_function(name: str) -> tuple[Samples, Samples]:
    """Call ``module:function`` and take the training and test data that it returns.

    Each is :class:`Images`, a pair of arrays or tensors, or a dataset that fits into memory.
    """
    with current_folder_importable():
        function = named(name, DataError)
        try:
            pair = function()
        except PurgeError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's own code may raise
            raise DataError(f"{name} to return (train, test)", first_line(error), "correct it") from error
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        got = f"{len(pair)} of them" if isinstance(pair, (tuple, list)) else type(pair).__name__
        raise DataError(f"two data sets (train, test) from {name}", got, "return both as a pair")
    sets = accepted({f"train of {name}": pair[0], f"test of {name}": pair[1]})
    parts = []
    for (what, samples), data in zip(sets.items(), pair, strict=True):
        part = samples.to(CPU)
        if part.backend.dataset is not None:
            got = "items that differ when read again, or take too much memory"
            raise DataError(f"{what} that can be kept as tensors", got, "leave out random transforms")
        if not len(part):
            raise DataError(f"samples in {what}", "none", "return a set that is not empty")
        if part.pixel_shape is None:  # data of its own, by whose rows samples are named
            part = part.replaced(ids=torch.arange(len(part)), cut=True)
            part.names = part.names or class_names(getattr(data, "classes", ()), what)
        parts.append(part)
    highest = max(int(part.labels.max()) for part in parts)
    names = next((part.names for part in parts if part.names), tuple(map(str, range(highest + 1))))
    for part, which in zip(parts, ("train", "test"), strict=True):
        part.names = tuple(names)
        part.origin = Origin(f"{content_digest(part)}-{which}")
    return parts[0], parts[1]
