"""Data that a function of the user returns, for the command line: ``--data module:function``."""

from __future__ import annotations

from typing import Any

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
            found = function()
        except PurgeError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's own code may raise
            raise DataError(f"{name} to return (train, test)", first_line(error), "correct it") from error
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        got = f"{len(found)} of them" if isinstance(found, (tuple, list)) else type(found).__name__
        raise DataError(f"two data sets (train, test) from {name}", got, "return both as a pair")
    given = {f"{which} of {name}": data for which, data in zip(("train", "test"), found, strict=True)}
    sets = {what: samples.to(CPU) for what, samples in accepted(given).items()}
    parts = [_whole(sets[what], given[what], what) for what in given]
    names = next((part.names for part in parts if part.names), ())
    count = 1 + max(int(part.labels.max()) for part in parts)
    for part, which in zip(parts, ("train", "test"), strict=True):
        part.names = tuple(names) or tuple(map(str, range(count)))
        part.origin = Origin(f"{content_digest(part)}-{which}")
    return parts[0], parts[1]


def _whole(samples: Samples, data: Any, what: str) -> Samples:
    """The samples of a part, in memory, as data of its own."""
    if samples.backend.dataset is not None:
        got = "items that differ when read again, or take too much memory"
        raise DataError(f"{what} that can be kept as tensors", got, "leave out random transforms")
    if getattr(data, "subjects", ()):  # the name until 0.2
        raise DataError(f"owners as the ids in {what}", "subjects", "rename the attribute to owners")
    if not len(samples):
        raise DataError(f"samples in {what}", "none", "return a set that is not empty")
    if samples.pixel_shape is not None:
        return samples
    whole = samples.replaced(ids=torch.arange(len(samples)), cut=True)
    whole.names = whole.names or class_names(getattr(data, "classes", ()), what)
    return whole
