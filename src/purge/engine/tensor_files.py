"""Tensors in files, whole or not at all, and digests of data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from purge.core.errors import FileError
from purge.core.files import atomically
from purge.data.identity import fingerprints
from purge.data.images import Images
from purge.data.samples import Samples
from purge.engine.seeding import seeded
from purge.models.checkpoint import tensors_digest

TRANSFORMED = 16  # images that tell one transform from another


def cpu_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU, as safetensors wants them."""
    form = torch.contiguous_format
    return {k: v.detach().to("cpu", copy=True, memory_format=form) for k, v in tensors.items()}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, fix: str, metadata: dict[str, str] | None = None
) -> str:
    """Write tensors to a safetensors file with their digest, whole or not at all; return the digest."""
    held = cpu_copies(tensors)
    about = {"digest": tensors_digest(held), **(metadata or {})}
    try:
        atomically(path, lambda to: save_file(held, to, metadata=about))
    except (OSError, SafetensorError) as error:
        got = getattr(error, "strerror", None) or str(error)
        raise FileError(f"to be able to write {path}", got, fix) from None
    return about["digest"]


def read_tensors(path: Path, recorded: str | None = None) -> dict[str, Tensor] | None:
    """What :func:`write_tensors` wrote; None if the file is missing or damaged, or holds other tensors.

    ``recorded``: their digest; by default what the file itself says.
    """
    try:
        with safe_open(path, "pt") as file:
            recorded = recorded or (file.metadata() or {}).get("digest")
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError):
        return None
    return tensors if tensors_digest(tensors) == recorded else None


def data_digest(samples: Samples, most: int | None = None) -> str:
    """A digest of all labels, and of the inputs (of images also the ids) of at most so many samples."""
    n = len(samples)
    count = n if most is None else min(n, most)
    some = samples if count == n else samples.select(torch.arange(count) * n // max(1, count))
    parts = [samples.labels]
    h = hashlib.sha256()
    if isinstance(some, Images):  # pixels are the same on every device
        h.update(repr((some.shape, some.mean, some.std)).encode())
        parts += [samples.ids, some.pixels.cpu().contiguous()]
        if some.backend.transform is not None:
            parts.append(fingerprints(samples.select(torch.arange(min(n, TRANSFORMED)))))
    else:
        with seeded(0, torch.device("cpu")):  # a dataset may draw random numbers for its items
            parts.append(fingerprints(some))
    for part in parts:
        h.update(part.numpy().data)
    return h.hexdigest()
