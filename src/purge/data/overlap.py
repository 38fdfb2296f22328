"""What sets that must be apart have in common: the same samples, exact copies, nearly identical images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from purge.core.errors import DataError
from purge.data import inputs
from purge.data.identity import same_samples, steady
from purge.data.images import Images
from purge.data.inputs import Inputs
from purge.data.prefetch import say_once
from purge.data.samples import Data, Samples, batches, few, streamed

TOLERATED = 0.01  # of the smaller set: real data has a few exact copies between training and test data
NEAR = 0.99  # the correlation of their pixels from which on two images are nearly identical
SKETCH, ALIKE = 8, 0.97  # grey images of 8×8 whose correlation is below this are not looked at further
PAIRS = 250_000_000  # of images that are compared at most; 5,000 × 45,000 take about a second on a CPU
BLOCK = 1 << 24  # bytes of samples, or pairs of them, that are looked at at a time
LOOKED = 2048  # samples that are looked at in a set that is too large to keep


def overlap(given: Mapping[str, Data], parts: Mapping[str, Samples]) -> dict[str, int | None]:
    """How many samples of forget, retain and test are copies of each other; too many of them are refused.

    Sets of one source may have no id in common. Elsewhere the content counts, with the label: forget and
    retain may share nothing, test may share a hundredth (of the smaller set) with each of them, and more only
    where both have as many copies within themselves, as tables of few different values do.

    ``exact``, ``near``: forgotten samples with an equal or a nearly identical one in retain;
    ``near_same_label``: those with a near one of their label; ``compared``: how many were looked up for both.
    ``test_forget``, ``test_retain``: test samples with an equal one there. None: not looked for, because the
    data is too large to keep, differs when it is read again or, for ``near``, has no images. Where forget or
    retain is too large, up to ``LOOKED`` samples of it are looked at, of labels that both have: ``sampled``
    says how many retained ones, and ``exact`` is None unless these were all.
    """
    hashes = _hashes(parts)
    exact, sampled = _forget_in_retain(given, parts, hashes)
    found = dict[str, int | None](exact=exact, near=None, near_same_label=None, compared=None)
    found |= {} if sampled is None else {"sampled": sampled}
    if {"forget", "retain"} <= hashes.keys():
        found |= near_copies(parts["forget"], parts["retain"])
    for other in ("forget", "retain") if "test" in parts else ():
        found[f"test_{other}"] = _shared("test", other, given, parts, hashes)
    return found


def _shared(
    a: str, b: str, given: Mapping[str, Data], parts: Mapping[str, Samples], hashes: Mapping[str, Tensor]
) -> int | None:
    """How many samples of ``a`` have an equal one in ``b``; refused if they are the same ones or too many."""
    ids = same_samples(given[a], given[b])
    if ids is not None and len(ids):
        raise _refusal(a, b, f"{len(ids)} in both (first: {int(ids[0])})")
    if not {a, b} <= hashes.keys():
        return None
    common = torch.isin(hashes[a], hashes[b]).nonzero()[:, 0]
    if ids is None and len(common) > (most := 0 if a == "forget" else tolerated(hashes[a], hashes[b])):
        limit = f"; {most} would be tolerated" if most else ""
        raise _refusal(a, b, f"{len(common)} in both (first: {int(common[0])}{limit})")
    return len(common)


def _forget_in_retain(
    given: Mapping[str, Data], parts: Mapping[str, Samples], hashes: Mapping[str, Tensor]
) -> tuple[int | None, int | None]:
    """How many forgotten samples have an equal one in retain; how many were looked at if not all."""
    forget, retain = parts["forget"], parts["retain"]
    found = _shared("forget", "retain", given, parts, hashes)
    if found is not None or same_samples(given["forget"], given["retain"]) is not None:
        return found, None
    if not steady(forget) or not steady(retain):
        return None, None
    rows, whole = {}, True
    for name, ours, theirs in (("forget", forget, retain), ("retain", retain, forget)):
        rows[name] = torch.isin(ours.labels, theirs.labels.unique()).nonzero()[:, 0]
        if streamed(ours) and len(rows[name]) > LOOKED:
            drawn = torch.randperm(len(rows[name]), generator=torch.Generator().manual_seed(0))[:LOOKED]
            rows[name], whole = rows[name][drawn.sort().values], False
    if not len(rows["retain"]):
        return 0, None
    raw = _comparable(forget, retain)
    seen = {name: content_hashes(parts[name], raw, at) for name, at in rows.items()}
    common = torch.isin(seen["forget"], seen["retain"]).nonzero()[:, 0]
    if len(common):
        raise _refusal("forget", "retain", f"{len(common)} in both (first: {int(rows['forget'][common[0]])})")
    if whole:
        return 0, None
    say_once(
        f"The data is too large to keep: copies of forgotten samples were looked for among "
        f"{len(rows['retain'])} of {len(retain)} retained ones."
    )
    return None, len(rows["retain"])


def tolerated(a: Tensor, b: Tensor) -> int:
    """How many samples of ``a``, by their hashes, may have an equal one in ``b``."""
    twice = len(a) == len(b) and torch.equal(a.sort().values, b.sort().values)  # one set given for both
    share = 0.0 if twice else min(_repeated(a), _repeated(b))
    return math.ceil(TOLERATED * min(len(a), len(b)) + share * len(a))


def _repeated(hashes: Tensor) -> float:
    """The share of samples that have an equal one in their own set."""
    _, which, counts = hashes.unique(return_inverse=True, return_counts=True)
    return int((counts[which] > 1).sum()) / len(hashes)


def _refusal(a: str, b: str, got: str) -> DataError:
    if a == "forget":
        wanted = "every sample in forget or in retain, not in both"
        return DataError(wanted, got, "remove them from retain; a copy that stays keeps teaching the model")
    wanted = f"test data that was never trained on, without samples of {b}"
    return DataError(wanted, got, f"remove them from test, which shows nothing about {b} otherwise")


# -- equal samples ------------------------------------------------------------------------------


def _comparable(*sets: Samples) -> bool:
    """Are all of them images whose stored pixels can be compared, before any scaling?"""
    shapes = {s.pixel_shape if isinstance(s, Images) else None for s in sets}
    return len(shapes) == 1 and None not in shapes


def _hashes(parts: Mapping[str, Samples]) -> dict[str, Tensor]:
    """The hashes of those sets that can be read again at little cost."""
    kept = {n: s for n, s in parts.items() if n != "triggered" and steady(s) and not streamed(s)}
    raw = _comparable(*kept.values())
    return {name: content_hashes(samples, raw) for name, samples in kept.items()}


def content_hashes(samples: Samples, raw: bool, rows: Tensor | None = None) -> Tensor:
    """A 64-bit hash of every sample and its label, (N,) on the CPU; ``raw``: of an image's stored pixels.

    With ``rows``, of these alone. Faster than fingerprints, which are kept in files and so cannot change.
    """
    found = []
    for x, y in _blocks(samples, raw, rows):
        each = torch.cat([t.reshape(len(t), -1).contiguous().view(torch.uint8) for t in inputs.leaves(x)], 1)
        words = F.pad(each, (0, -each.shape[1] % 8)).view(torch.int64)
        generator = torch.Generator().manual_seed(0)
        odd = 2 * torch.randint(-(2**62), 2**62, (words.shape[1],), generator=generator) + 1
        mixed = words * 0x1E3779B97F4A7C15  # the bits of each word over all 64, then a weight per position
        hashed = ((mixed ^ (mixed >> 32)) * odd.to(mixed.device)).sum(1)
        found.append((hashed * 1_000_003 + y.to(hashed.device)).cpu())
    return torch.cat(found)


def _blocks(samples: Samples, raw: bool, rows: Tensor | None = None) -> Iterator[tuple[Inputs, Tensor]]:
    """The samples (those at ``rows``) in blocks; ``raw``: the stored pixels of images."""
    index = torch.arange(len(samples)) if rows is None else rows
    if not raw or not isinstance(samples, Images):
        yield from batches(samples, max(1, BLOCK // max(1, inputs.size(few(samples, 1)))), index)
        return
    for part in index.split(max(1, BLOCK // math.prod(samples.pixel_shape))):
        yield samples.select(part).pixels, samples.labels[part]


# -- nearly identical images --------------------------------------------------------------------


def near_copies(forget: Samples, retain: Samples) -> dict[str, int | None]:
    """How many forgotten images have a nearly identical one among the retained, whatever its label.

    Two images are nearly identical if their pixels correlate by ``NEAR``: with another brightness or
    contrast, light noise or recompression they still do, after a shift by a pixel they do not. Small grey
    versions of all pairs are compared, then each forgotten image with the likeliest of every block of
    retained ones, pixel by pixel.
    Of very many pairs only those of some forgotten images are looked at.
    """
    raw = _comparable(forget, retain)
    if not raw and not all(map(_pictures, (forget, retain))):
        return {}
    looked = torch.linspace(0, len(forget) - 1, min(len(forget), max(1, PAIRS // len(retain)))).long()
    ours, theirs = _sketches(forget, raw, looked), _sketches(retain, raw)
    near, same = (torch.zeros(len(looked), dtype=torch.bool) for _ in range(2))
    for at, some in zip(torch.arange(len(looked)).split(1024), ours.split(1024), strict=True):
        for start in range(0, len(theirs), 8192):
            best = (some @ theirs[start : start + 8192].T).max(1)
            likely = ((best.values >= ALIKE).cpu() & ~same[at]).nonzero()[:, 0]
            mine, other = looked[at[likely]], best.indices.cpu()[likely] + start
            alike = _correlated(forget, mine, retain, other, raw)
            near[at[likely]] |= alike
            same[at[likely]] |= alike & (forget.labels[mine] == retain.labels[other])
    return {"near": int(near.sum()), "near_same_label": int(same.sum()), "compared": len(looked)}


def _pictures(samples: Samples) -> bool:
    x = few(samples, 1)
    return isinstance(x, Tensor) and x.ndim == 4 and x.shape[1] in (1, 3, 4) and min(x.shape[2:]) >= SKETCH


def _sketches(samples: Samples, raw: bool, rows: Tensor | None = None) -> Tensor:
    """Small grey versions of the images, of mean 0 and length 1: (N, 64)."""
    found = []
    for x, _ in _blocks(samples, raw, rows):
        step = max(1, min(x.shape[2:]) // (4 * SKETCH))  # of large images some pixels are enough
        grey = x[:, :, ::step, ::step].float().mean(1, keepdim=True)
        found.append(_unit(F.adaptive_avg_pool2d(grey, SKETCH)))
    return torch.cat(found)


def _correlated(a: Samples, of_a: Tensor, b: Samples, of_b: Tensor, raw: bool) -> Tensor:
    """Which pairs of images correlate by ``NEAR``, (n,) on the CPU."""
    found = [torch.empty(0, dtype=torch.bool)]
    for (x, _), (y, _) in zip(_blocks(a, raw, of_a), _blocks(b, raw, of_b), strict=True) if len(of_a) else ():
        found.append(((_unit(x.float()) * _unit(y.float())).sum(1) >= NEAR).cpu())
    return torch.cat(found)


def _unit(x: Tensor) -> Tensor:
    """Rows of mean 0 and length 1; an image of one colour, which is like no other, is 0."""
    rows = x.flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    length = rows.norm(dim=1, keepdim=True)
    return torch.where(length > 1e-3 * rows.shape[1] ** 0.5, rows / length, 0.0)
