"""Intervals: Wilson's for shares, the bootstrap for everything else; and the rates of a threshold attack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from purge.metrics.value import Value

Array = NDArray[np.float64]

DRAWS = 1000  # bootstrap resamples behind every interval
BLOCK = 50  # of them at a time, to save memory
Z = float(ndtri(0.975))  # standard errors on either side of a 95 % interval


def mean_value(x: Any, seed: int) -> Value:
    """The mean of N numbers with a 95 % interval: Wilson's for yes and no, the bootstrap's for others."""
    x = np.asarray(x)
    n, mean = len(x), float(x.mean())
    if x.dtype == np.bool_:
        return Value(mean, *wilson(mean, n), n)
    draws = np.concatenate([counts @ x / n for counts in resamples(n, seed)])
    return Value(mean, *interval(draws), n)


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of n samples; it has a width even for 0 of n and n of n.

    >>> [round(end, 3) for end in wilson(0.0, 40)]
    [0.0, 0.088]
    """
    middle, reach = share + Z**2 / (2 * n), Z * np.sqrt(share * (1 - share) / n + (Z / (2 * n)) ** 2)
    low, high = ((middle + side) / (1 + Z**2 / n) for side in (-reach, reach))
    return min(max(float(low), 0.0), share), max(min(float(high), 1.0), share)


def interval(draws: Array) -> tuple[float, float]:
    """The middle 95 % of bootstrap draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def wide_value(value: float, noise: Array, n: int, most: float = np.inf) -> Value:
    """A number ≥ 0 with an interval that is rather too wide than too narrow: 95 % of the noise either way.

    For numbers that are a product or a ratio of distances, whose resamples do not scatter around them.
    """
    reach = float(np.quantile(noise, 0.95))
    return Value(value, max(value - reach, 0.0), min(value + reach, most), n)


def resamples(n: int, seed: int) -> Iterator[Array]:
    """How often each of n samples is drawn in each bootstrap resample, in blocks (BLOCK, n)."""
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS // BLOCK):
        drawn = rng.integers(n, size=(BLOCK, n)) + n * np.arange(BLOCK)[:, None]
        yield np.bincount(drawn.ravel(), minlength=BLOCK * n).reshape(BLOCK, n).astype(np.float64)


# -- threshold attacks -------------------------------------------------------------------------


def auroc(inside: Array, outside: Array) -> float:
    """P(a score of ``inside`` > one of ``outside``); ties count half."""
    return float(rates(inside, outside)[0])


def auroc_draws(inside: Array, outside: Array, seed: int) -> Array:
    """Bootstrap draws of the AUROC; equal sizes and seeds give the same resamples."""
    found: Array = rate_draws([(inside, outside)], seed)[0, 0]
    return found


def rates(inside: Array, outside: Array, fprs: Sequence[float] = ()) -> Array:
    """The AUROC, and the TPR at each FPR: (1 + fprs,).

    The TPR at an FPR is the largest share of ``inside`` above a threshold that at most that share of
    ``outside`` is above; a score that ties with the threshold is not above it.
    """
    ones = np.ones((1, len(inside))), np.ones((1, len(outside)))
    found: Array = _weighted_rates(_ranked(inside, outside), *ones, fprs, np.zeros(1))[:, 0]
    return found


def rate_draws(pairs: Sequence[tuple[Array, Array]], seed: int, fprs: Sequence[float] = ()) -> Array:
    """Bootstrap draws of :func:`rates` of each (inside, outside): (pairs, 1 + fprs, DRAWS).

    Every pair has scores of the same samples, and all share their resamples. A threshold is estimated from
    the few highest of ``outside``, and no resample of them knows that the next one may exceed all so far:
    one more of them is resampled for the thresholds, and it lies above every score.
    """
    ranked = [_ranked(*pair) for pair in pairs]
    beyond = np.random.default_rng(seed + 2).poisson(1.0, (DRAWS // BLOCK, BLOCK)).astype(np.float64)
    inside, outside = (resamples(len(x), seed + i) for i, x in enumerate(pairs[0]))
    found = []
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # NumPy releases the GIL to sort and sum
        for a, b, c in zip(inside, outside, beyond, strict=True):
            rates_of = partial(_weighted_rates, w_in=a, w_out=b, fprs=fprs, beyond=c)
            found.append(list(pool.map(rates_of, ranked)))
    return np.concatenate(found, axis=2)


class _Ranked(NamedTuple):
    """Two sets of scores, sorted once for all resamples."""

    inside: NDArray[np.int64]  # their order, lowest first
    outside: NDArray[np.int64]  # their order, highest first
    upto: NDArray[np.int64]  # how many of ``inside`` are <= each of ``outside``
    less: NDArray[np.int64]  # and how many are < it


def _ranked(inside: Array, outside: Array) -> _Ranked:
    order = np.argsort(inside)
    upto, less = (np.searchsorted(inside[order], outside, side) for side in ("right", "left"))
    return _Ranked(order, np.argsort(-outside), upto, less)


def _weighted_rates(
    ranked: _Ranked, w_in: Array, w_out: Array, fprs: Sequence[float], beyond: Array
) -> Array:
    """Rates (1 + fprs, draws) of samples that count as often as ``w_in`` and ``w_out`` (draws, N) say.

    ``beyond`` of the threshold's ``outside`` lie above all scores there are.
    """
    order, top, upto, less = ranked
    (draws, n), m = w_in.shape, w_out.shape[1]
    summed = np.zeros((draws, n + 1))
    np.cumsum(w_in[:, order], axis=1, out=summed[:, 1:])
    tied = np.flatnonzero(less != upto)  # usually few: only these are looked up twice
    below = 2 * np.einsum("ij,ij->i", w_out, summed[:, upto])
    below -= np.einsum("ij,ij->i", w_out[:, tied], summed[:, upto[tied]] - summed[:, less[tied]])
    found = [(2 * n * m - below) / (2 * n * m)]
    for fpr in fprs:
        allowed = int(fpr * m + 1e-9)  # the product may lie just below a whole number
        first = top[: 2 * allowed + 50]  # a resample of these exceeds what is allowed (but for e⁻⁵⁰)
        over = w_out[:, first].cumsum(1) > (allowed - beyond)[:, None]
        threshold = upto[first[over.argmax(1)]]
        tpr = np.where(over[:, -1], (n - summed[np.arange(draws), threshold]) / n, 1.0)
        found.append(np.where(beyond > allowed, 0.0, tpr))
    return np.stack(found)
