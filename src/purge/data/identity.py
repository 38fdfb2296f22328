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
    """A name for each sample, (N,) on the CPU: the id of an image, a hash of the content elsewhere.

    A name does not depend on which other samples there are. Samples of equal content share a name. Data
    that differs whenever it is read is refused.
    """
    if not samples.steady:
        raise DataError(
            "samples that can be told apart by what they are",
            "items that differ when read again (random transforms?)",
            "use purge.Images and let the recipe augment",
        )
    return fingerprints(samples) if samples.pixel_shape is None else samples.ids


def fingerprints(samples: Samples) -> Tensor:
    """A 64-bit hash of every sample and its label, (N,) on the CPU; equal samples, equal hashes.

    These are in files of ensembles and logs, and so cannot become digests.
    """
    if len(samples) == 0:
        return torch.empty(0, dtype=torch.long)
    width = _words(samples.take(torch.arange(1))[0]).shape[1]
    generator = torch.Generator().manual_seed(0)
    odd = 2 * torch.randint(-(2**62), 2**62, (width,), generator=generator) + 1
    hashes = []
    for x, y in samples.stream(torch.arange(len(samples)).split(max(1, (1 << 24) // max(1, width)))):
        # Spread the bits of each number over all 64 (small floats differ in a few high ones only),
        # then add up with a weight per position; integers wrap around, so the order does not matter.
        words = _words(x) * 0x1E3779B97F4A7C15
        hashed = ((words ^ (words >> 32)) * odd.to(words.device)).sum(1)
        hashes.append((hashed * 1_000_003 + y).cpu())
    return torch.cat(hashes)


def _words(x: Inputs) -> Tensor:
    """All that a sample is made of as whole numbers, (N, width)."""
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    rows = [t.contiguous().view(integers[t.element_size()]).reshape(len(t), -1) for t in inputs.leaves(x)]
    return torch.cat([t.long() for t in rows], 1)
