"""Which samples are the same: ids where the data has them, a hash of the content elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from purge.core.errors import DataError
from purge.data import inputs
from purge.data.images import Images
from purge.data.inputs import Inputs
from purge.data.pair import Pair
from purge.data.samples import Data, Samples, batches, few, unwrap


def same_samples(a: Data, b: Data) -> Tensor | None:
    """The ids that two parts of one source have in common; None where no ids are known."""
    if isinstance(a, Images) and isinstance(b, Images):
        return _common(a.ids, b.ids) if a.source == b.source else None
    if isinstance(a, Pair) and isinstance(b, Pair):
        return _common(_rows(a), _rows(b)) if a.whole is b.whole and a.whole is not None else None
    if isinstance(a, (Images, tuple, list)) or isinstance(b, (Images, tuple, list)):
        return None
    (base_a, index_a), (base_b, index_b) = unwrap(a), unwrap(b)  # a dataset is a part of itself
    return _common(index_a, index_b) if base_a is base_b else None


def _rows(pair: Pair) -> Tensor:
    """The rows of what a pair was cut out of; all of them if it is whole."""
    return torch.arange(len(pair[1])) if pair.rows is None else pair.rows


def _common(a: Tensor, b: Tensor) -> Tensor:
    """The ids of ``a`` that are in ``b``; ids that number rows are looked up in a mask, which is faster."""
    if not len(a) or not len(b):
        return a[:0]
    low, top = int(min(a.min(), b.min())), int(max(a.max(), b.max()))
    if low < 0 or top > 64 * (len(a) + len(b)):
        return a[torch.isin(a, b)]
    there = torch.zeros(top + 1, dtype=torch.bool)
    there[b] = True
    return a[there[a]]


def identities(samples: Samples) -> Tensor:
    """A name for each sample, (N,) on the CPU: the id of an image, a hash of the content elsewhere.

    A name does not depend on which other samples there are. Samples of equal content share a name. Data
    that differs whenever it is read is refused.
    """
    if not steady(samples):
        raise DataError(
            "samples that can be told apart by what they are",
            "items that differ when read again (random transforms?)",
            "use purge.Images and let the recipe augment",
        )
    return samples.ids if isinstance(samples, Images) else fingerprints(samples)


def steady(samples: Samples) -> bool:
    """Are the samples the same whenever they are read?"""
    return not getattr(samples, "moving", False)


def fingerprints(samples: Samples) -> Tensor:
    """A 64-bit hash of every sample and its label, (N,) on the CPU; equal samples, equal hashes."""
    if len(samples) == 0:
        return torch.empty(0, dtype=torch.long)
    width = _bits(few(samples, 1)).shape[1]
    generator = torch.Generator().manual_seed(0)
    odd = 2 * torch.randint(-(2**62), 2**62, (width,), generator=generator) + 1
    found = []
    for x, y in batches(samples, max(1, (1 << 24) // max(1, width))):
        # Spread the bits of each number over all 64 (small floats differ in a few high ones only),
        # then add up with a weight per position; integers wrap around, so the order does not matter.
        bits = _bits(x) * 0x1E3779B97F4A7C15
        hashed = ((bits ^ (bits >> 32)) * odd.to(bits.device)).sum(1)
        found.append((hashed * 1_000_003 + y).cpu())
    return torch.cat(found)


def _bits(x: Inputs) -> Tensor:
    """All that a sample is made of as whole numbers, (N, width)."""
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    rows = [t.contiguous().view(integers[t.element_size()]).reshape(len(t), -1) for t in inputs.leaves(x)]
    return torch.cat([t.long() for t in rows], 1)
