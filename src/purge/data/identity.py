"""Which samples are the same: one look at each row tells its digest, whether it is finite, and how it looks.

The digest of a sample is a SHA-256 of the bytes of its inputs (of an image its pixels, as bytes and before
any scaling; of a padded row what was there before) and of its label (64 bits, lowest byte first). Overlap
between sets, records of requests and what a model has forgotten all read it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from purge.core.errors import DataError
from purge.data import inputs
from purge.data.inputs import Inputs, without_pads

if TYPE_CHECKING:
    from purge.data.backends import Backend
    from purge.data.samples import Samples

BLOCK = 1 << 24  # bytes of samples that are looked at at a time
ROWS = 256  # samples that a model sees at a time
SKETCH = 8  # side of the small grey versions of images
UNSEEN = -1  # in place of the label of a row that was not looked at
Digests = NDArray[np.uint8]  # (N, 32)


@dataclass(frozen=True)
class Look:
    """What a look at some samples has found."""

    digests: Digests  # a SHA-256 of each
    not_finite: int | None  # the first sample with NaN or infinity
    sketches: Tensor | None  # small grey versions of images, of mean 0 and length 1: (N, 64)

    def each(self) -> list[bytes]:
        """The digest of each sample."""
        return [row.tobytes() for row in self.digests]


class Seen:
    """What is known about the rows of a backend, for all parts of it."""

    def __init__(self, n: int = 0) -> None:
        self.labels = torch.full((n,), UNSEEN)  # at the time of the look
        self.finite = torch.ones(n, dtype=torch.bool)
        self.digests: Digests = np.empty((n, 32), np.uint8)
        self.sketches: Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process looks for itself."""
        return Seen, ()


def look_at(backend: Backend, rows: Tensor, labels: Tensor) -> Look:
    """What some rows of a backend are; rows that were looked at before, with this label, are not read."""
    seen, rows = backend.seen, rows.cpu()
    if len(seen.labels) != len(backend):
        vars(seen).update(vars(Seen(len(backend))))
    new = (seen.labels[rows] != labels).nonzero()[:, 0]
    for at in new.split(max(1, BLOCK * len(new) // max(1, backend.bytes(len(new))))) if len(new) else ():
        where, x = rows[at], backend.raw(rows[at])
        seen.digests[where.numpy()] = digests(x, labels[at], backend.pads)
        for t in inputs.leaves(x):
            if t.is_floating_point():
                seen.finite[where] &= torch.isfinite(t.reshape(len(t), -1)).all(1).cpu()
        floats = isinstance(x, Tensor) and x.ndim == 4 and x.is_floating_point()
        if backend.pixel_shape is not None or (floats and is_sketchable(x)):
            if seen.sketches is None:
                seen.sketches = torch.empty(len(backend), SKETCH * SKETCH)
            seen.sketches[where] = sketches(x).cpu()
        seen.labels[where] = labels[at]
    bad = (~seen.finite[rows]).nonzero()
    return Look(
        seen.digests[rows.numpy()],
        int(bad[0]) if len(bad) else None,
        None if seen.sketches is None else seen.sketches[rows],
    )


def digests(x: Inputs, labels: Tensor, pads: Sequence[Any] = ()) -> Digests:
    """The SHA-256 of each sample of a batch, (B, 32).

    What fills up short rows does not count: another set has another longest row.
    """
    leaves = [t.detach().cpu().contiguous() for t in inputs.leaves(x)]
    if any(pad is not None for pad in pads):
        rows: list[Any] = []
        for i, label in enumerate(labels.tolist()):
            parts = [without_pads(t[i].numpy(), pad) for t, pad in zip(leaves, pads, strict=True)]
            content = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
            rows.append(content + label.to_bytes(8, "little"))
    else:
        flat = [t.reshape(len(t), -1).view(torch.uint8).numpy() for t in (*leaves, labels.cpu().contiguous())]
        rows = [*np.concatenate(flat, axis=1)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashes of long rows run side by side
        several = len(rows) > 1 and len(rows[0]) > 1 << 14
        each = (pool.map if several else map)(lambda row: hashlib.sha256(row).digest(), rows)
        return np.frombuffer(b"".join(each), np.uint8).reshape(-1, 32)


# -- sketches -----------------------------------------------------------------------------------


def is_sketchable(x: Tensor) -> bool:
    """Are the channels and sides of a batch (B, C, H, W) those of images?"""
    return x.shape[1] in (1, 3, 4) and min(x.shape[2:]) >= SKETCH


def sketches(x: Tensor) -> Tensor:
    """Small grey versions of images (B, C, H, W), of mean 0 and length 1: (B, 64)."""
    step = max(1, min(x.shape[2:]) // (4 * SKETCH))  # of large images some pixels are enough
    grey = x[:, :, ::step, ::step].float().mean(1, keepdim=True)
    return unit(F.adaptive_avg_pool2d(grey, SKETCH))


def unit(x: Tensor) -> Tensor:
    """Rows of mean 0 and length 1; an image of one colour, which is like no other, is 0."""
    rows = x.flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    length = rows.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-3 * rows.shape[1] ** 0.5, rows / length, 0.0)


# -- which samples are the same -----------------------------------------------------------------


def same_samples(a: Samples, b: Samples) -> Tensor | None:
    """The ids that two parts of the same data have in common; None if they are of different data."""
    return a.ids[torch.isin(a.ids, b.ids)] if a.origin.same(b.origin) else None


def identities(samples: Samples) -> Tensor:
    """A name for each sample, (N,) on the CPU: the id of an image, its fingerprint elsewhere.

    A name does not depend on which other samples there are. Samples of equal content share a name. Data
    that differs whenever it is read is refused.
    """
    if not samples.steady:
        raise DataError(
            "samples that can be told apart by what they are",
            "items that differ when read again (random transforms?)",
            "use purge.Images and let the recipe augment",
        )
    return fingerprints(samples, stored=True) if samples.pixel_shape is None else samples.ids


def fingerprints(samples: Samples, *, stored: bool = False) -> Tensor:
    """The first 64 bits of the digest of each sample, (N,) on the CPU: as stored, or as a model sees it."""
    seen, each = samples.look() if stored else None, [np.empty((0, 32), np.uint8)]
    if seen is not None:
        each = [seen.digests]
    elif len(samples):
        each = [digests(x, y) for x, y in samples.stream(torch.arange(len(samples)).split(ROWS))]
    return torch.from_numpy(np.concatenate(each).view(np.int64)[:, 0].copy())
