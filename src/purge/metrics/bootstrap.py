"""Bootstrap intervals, and the rates of a threshold attack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from purge.metrics.value import Value

Array = NDArray[np.float64]


DRAWS = 1000  # bootstrap resamples behind every interval


REMEMBERED = 20_000  # of as many samples, at most, resamples are drawn once and kept (a byte per number)


def mean_value(x: Any, seed: int) -> Value:
    """The mean of N numbers with a 95 % bootstrap interval."""
    x = np.asarray(x)
    n = len(x)
    if x.dtype == np.bool_:  # the resampled number of hits is binomial: no need to resample
        draws = np.random.default_rng(seed).binomial(n, x.mean(), DRAWS) / n
    else:
        draws = np.concatenate([counts @ x / n for counts in resamples(n, seed)])
    return Value(float(x.mean()), *interval(draws), n)


def interval(draws: Array) -> tuple[float, float]:
    """The middle 95 % of bootstrap draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def auroc(inside: Array, outside: Array) -> float:
    """P(a score of ``inside`` > one of ``outside``), ties counted half."""
    return float(rates(inside, outside)[0])


def auroc_draws(inside: Array, outside: Array, seed: int) -> Array:
    """Bootstrap draws of the AUROC; equal sizes and seeds give the same resamples."""
    found: Array = rate_draws([(inside, outside)], seed)[0, 0]
    return found


def rates(inside: Array, outside: Array, fprs: Sequence[float] = ()) -> Array:
    """The AUROC, and the TPR at each FPR: (1 + fprs,).

    The TPR at an FPR is the largest share of ``inside`` above a threshold that at most that share of
    ``outside`` is above; what ties with the threshold is not above it.
    """
    ones = np.ones((1, len(inside))), np.ones((1, len(outside)))
    found: Array = _weighted_rates(_ranked(inside, outside), *ones, fprs)[:, 0]
    return found


def rate_draws(pairs: Sequence[tuple[Array, Array]], seed: int, fprs: Sequence[float] = ()) -> Array:
    """Bootstrap draws of :func:`rates` of each (inside, outside): (pairs, 1 + fprs, DRAWS).

    Every pair has scores of the same samples, and all share their resamples.
    """
    ranked = [_ranked(*pair) for pair in pairs]
    inside, outside = (resamples(len(x), seed + i) for i, x in enumerate(pairs[0]))
    found = []
    with ThreadPoolExecutor(
        torch.get_num_threads()
    ) as pool:  # NumPy sorts and sums without holding up the others
        for a, b in zip(inside, outside, strict=True):
            found.append(list(pool.map(partial(_weighted_rates, w_in=a, w_out=b, fprs=fprs), ranked)))
    return np.concatenate(found, axis=2)


def resamples(n: int, seed: int) -> Iterator[Array]:
    """How often each of n samples is drawn in each bootstrap resample, 50 resamples at a time."""
    for counts in _remembered(n, seed) if n <= REMEMBERED else _drawn(n, seed):
        yield counts.astype(np.float64)


@lru_cache(maxsize=6)
def _remembered(n: int, seed: int) -> list[NDArray[np.uint8]]:
    """All resamples: many metrics ask for the same, and drawing takes longer than what is done with them."""
    return list(_drawn(n, seed))


def _drawn(n: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS // 50):
        drawn = rng.integers(n, size=(50, n)) + n * np.arange(50)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=50 * n)
        yield counts.reshape(50, n).astype(np.uint8)  # a sample is drawn about once, never 256 times


class _Ranked(NamedTuple):
    """Two sets of scores, sorted once for all resamples."""

    inside: NDArray[np.int64]  # their order, from below
    outside: NDArray[np.int64]  # their order, from the top
    upto: NDArray[np.int64]  # how many of ``inside`` are <= each of ``outside``
    less: NDArray[np.int64]  # and how many are < it


def _ranked(inside: Array, outside: Array) -> _Ranked:
    order = np.argsort(inside)
    upto, less = (np.searchsorted(inside[order], outside, side) for side in ("right", "left"))
    return _Ranked(order, np.argsort(-outside), upto, less)


def _weighted_rates(ranked: _Ranked, w_in: Array, w_out: Array, fprs: Sequence[float]) -> Array:
    """Rates (1 + fprs, draws) of samples that count as often as ``w_in`` and ``w_out`` (draws, N) say."""
    order, top, upto, less = ranked
    (draws, n), m = w_in.shape, w_out.shape[1]
    summed = np.zeros((draws, n + 1))
    np.cumsum(w_in[:, order], axis=1, out=summed[:, 1:])
    tied = np.flatnonzero(less != upto)  # few as a rule: only these are looked up twice
    below = 2 * np.einsum("ij,ij->i", w_out, summed[:, upto])
    below -= np.einsum("ij,ij->i", w_out[:, tied], summed[:, upto[tied]] - summed[:, less[tied]])
    found = [(2 * n * m - below) / (2 * n * m)]
    for fpr in fprs:
        allowed = int(fpr * m + 1e-9)  # the product may lie just below a whole number
        first = top[: 2 * allowed + 50]  # resamples of so many hold more than are allowed (but for e⁻⁵⁰)
        over = w_out[:, first].cumsum(1) > allowed
        threshold = upto[first[over.argmax(1)]]
        found.append(np.where(over[:, -1], (n - summed[np.arange(draws), threshold]) / n, 1.0))
    return np.stack(found)
