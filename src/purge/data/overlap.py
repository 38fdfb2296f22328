"""What sets that must be apart have in common: the same samples, exact copies, nearly identical images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from purge.core.errors import DataError
from purge.data.identity import fingerprints, is_sketchable, same_samples, sketches, unit
from purge.data.prefetch import say_once
from purge.data.samples import Samples, batches, few

TOLERATED = 0.01  # of the smaller set: real data has a few exact copies between training and test data
NEAR = 0.99  # the correlation of their pixels from which on two images are nearly identical
ALIKE = 0.97  # images whose sketches correlate by less than this are not looked at further
PAIRS = 250_000_000  # of images that are compared at most; 5,000 × 45,000 take about a second on a CPU
ROWS = 1024  # that are compared at a time
LOOKED = 2048  # samples that are looked at in a set that is too large to keep


def overlap(parts: Mapping[str, Samples]) -> dict[str, int | None]:
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
    forget, retain = parts["forget"], parts["retain"]
    kept = {n: s for n, s in parts.items() if n != "triggered" and not s.streamed and s.steady}
    raw = len({samples.pixel_shape for samples in kept.values()}) == 1  # else as a model sees them
    hashes = {name: fingerprints(samples, stored=raw) for name, samples in kept.items()}
    exact = _shared("forget", "retain", parts, hashes)
    counts = dict[str, int | None](exact=exact, near=None, near_same_label=None, compared=None)
    if exact is None and same_samples(forget, retain) is None and forget.steady and retain.steady:
        counts |= _exact_in_some(forget, retain)
    if {"forget", "retain"} <= hashes.keys():
        counts |= near_copies(forget, retain)
    for other in ("forget", "retain") if "test" in parts else ():
        counts[f"test_{other}"] = _shared("test", other, parts, hashes)
    return counts


def _shared(a: str, b: str, parts: Mapping[str, Samples], hashes: Mapping[str, Tensor]) -> int | None:
    """How many samples of ``a`` have an equal one in ``b``; refused if they are the same ones or too many."""
    ids = same_samples(parts[a], parts[b])
    if ids is not None and len(ids):
        raise _refusal(a, b, f"{len(ids)} in both (first: {int(ids[0])})")
    if not {a, b} <= hashes.keys():
        return None
    common = torch.isin(hashes[a], hashes[b]).nonzero()[:, 0]
    most = 0 if a == "forget" else tolerated(hashes[a], hashes[b])
    if ids is None and len(common) > most:
        limit = f"; {most} would be tolerated" if most else ""
        raise _refusal(a, b, f"{len(common)} in both (first: {int(common[0])}{limit})")
    return len(common)


def _exact_in_some(forget: Samples, retain: Samples) -> dict[str, int | None]:
    """Equal samples of sets that are too large to keep, looked for among some of labels that both have."""
    rows, whole = [], True
    for ours, theirs in ((forget, retain), (retain, forget)):
        at = torch.isin(ours.labels, theirs.labels.unique()).nonzero()[:, 0]
        if ours.streamed and len(at) > LOOKED:
            drawn = torch.randperm(len(at), generator=torch.Generator().manual_seed(0))[:LOOKED]
            at, whole = at[drawn.sort().values], False
        rows.append(at)
    if not len(rows[1]):
        return {"exact": 0}
    raw = forget.pixel_shape == retain.pixel_shape
    hashes = [
        fingerprints(part.select(at), stored=raw) for part, at in zip((forget, retain), rows, strict=True)
    ]
    common = torch.isin(*hashes).nonzero()[:, 0]
    if len(common):
        raise _refusal("forget", "retain", f"{len(common)} in both (first: {int(rows[0][common[0]])})")
    if whole:
        return {"exact": 0}
    say_once(
        f"The data is too large to keep: copies of forgotten samples were looked for among "
        f"{len(rows[1])} of {len(retain)} retained ones."
    )
    return {"sampled": len(rows[1])}


def tolerated(a: Tensor, b: Tensor) -> int:
    """How many samples of ``a``, by their hashes, may have an equal one in ``b``."""
    shares = []  # of samples that have an equal one in their own set
    for hashes in (a, b):
        _, which, counts = hashes.unique(return_inverse=True, return_counts=True)
        shares.append(int((counts[which] > 1).sum()) / len(hashes))
    twice = len(a) == len(b) and torch.equal(a.sort().values, b.sort().values)  # one set given for both
    return math.ceil(TOLERATED * min(len(a), len(b)) + (0.0 if twice else min(shares)) * len(a))


def _refusal(a: str, b: str, got: str) -> DataError:
    wanted = f"test data that was never trained on, without samples of {b}"
    fix = f"remove them from test, which shows nothing about {b} otherwise"
    if a == "forget":
        wanted = "every sample in forget or in retain, not in both"
        fix = "remove them from retain; a copy that stays keeps teaching the model"
    return DataError(wanted, got, fix)


def near_copies(forget: Samples, retain: Samples) -> dict[str, int | None]:
    """How many forgotten images have a nearly identical one among the retained, whatever its label.

    Two images are nearly identical if their pixels correlate by ``NEAR``: with another brightness or
    contrast, light noise or recompression they still do, after a shift by a pixel they do not. Small grey
    versions of all pairs are compared, then each forgotten image with the likeliest of every block of
    retained ones, pixel by pixel. Of very many pairs only those of some forgotten images are looked at.
    """
    raw = forget.pixel_shape == retain.pixel_shape
    ours, theirs = _sketched(forget, raw), _sketched(retain, raw)
    if ours is None or theirs is None:
        return {}
    looked = torch.linspace(0, len(forget) - 1, min(len(forget), max(1, PAIRS // len(retain)))).long()
    ours, theirs = ours[looked].to(forget.device), theirs.to(forget.device)
    near, same = (torch.zeros(len(looked), dtype=torch.bool) for _ in range(2))
    for at, some in zip(torch.arange(len(looked)).split(ROWS), ours.split(ROWS), strict=True):
        for start in range(0, len(theirs), 8192):
            best = (some @ theirs[start : start + 8192].T).max(1)
            likely = ((best.values >= ALIKE).cpu() & ~same[at]).nonzero()[:, 0]
            if not len(likely):
                continue
            mine, other = looked[at[likely]], best.indices.cpu()[likely] + start
            pixels = []
            for part in (forget.select(mine), retain.select(other)):
                x = part.backend.raw(part.places) if raw else few(part, len(part))
                pixels.append(unit(x.float().cpu()))
            alike = (pixels[0] * pixels[1]).sum(1) >= NEAR
            near[at[likely]] |= alike
            same[at[likely]] |= alike & (forget.labels[mine] == retain.labels[other])
    return {"near": int(near.sum()), "near_same_label": int(same.sum()), "compared": len(looked)}


def _sketched(samples: Samples, raw: bool) -> Tensor | None:
    """Small grey versions of images, (N, 64); None of other data."""
    if raw or samples.pixel_shape is None:
        seen = samples.look()
        return None if seen is None else seen.sketches
    if not is_sketchable(few(samples, 1)):
        return None
    return torch.cat([sketches(x).cpu() for x, _ in batches(samples, ROWS)])
