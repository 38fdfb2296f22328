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
Classes = tuple[NDArray[np.int64], NDArray[np.int64]]  # the labels of two sets of samples

DRAWS = 1000  # bootstrap resamples behind every interval
BLOCK = 50  # of them at a time, to save memory
Z = float(ndtri(0.975))  # standard errors on either side of a 95 % interval


def mean_value(x: Any, seed: int, weights: Array | None = None) -> Value:
    """The mean of N numbers with a 95 % interval: Wilson's for yes and no, the bootstrap's for others.

    Weights are for yes and no.
    """
    x = np.asarray(x)
    if x.dtype != np.bool_:
        return Value(float(x.mean()), *interval(mean_draws(x, seed)), len(x))
    share = float(x.mean() if weights is None else np.average(x, weights=weights))
    return Value(share, *wilson(share, len(x) if weights is None else effective(weights)), len(x))


def mean_draws(x: Array, seed: int) -> Array:
    """Bootstrap draws of a mean."""
    n = len(x)
    return np.concatenate([counts @ x / n for counts in resamples(n, seed)])


def effective(weights: Array) -> float:
    """How many samples of equal weight tell as much as these (Kish, 1965)."""
    return float(weights.sum() ** 2 / (weights**2).sum())


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


def wide_interval(value: float, noise: Array, most: float = np.inf) -> tuple[float, float]:
    """An interval of a number ≥ 0, rather too wide than too narrow: 95 % of the noise either way.

    For numbers that are a product or a ratio of distances, whose resamples do not scatter around them.
    """
    reach = float(np.quantile(noise, 0.95))
    return max(value - reach, 0.0), min(value + reach, most)


def resamples(n: int, seed: int) -> Iterator[Array]:
    """How often each of n samples is drawn in each bootstrap resample, in blocks (BLOCK, n)."""
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS // BLOCK):
        drawn = rng.integers(n, size=(BLOCK, n)) + n * np.arange(BLOCK)[:, None]
        yield np.bincount(drawn.ravel(), minlength=BLOCK * n).reshape(BLOCK, n).astype(np.float64)


def some_rows(n: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The rows 0 to n − 1, or a random choice of so many of them, in order."""
    return np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))


# -- threshold attacks -------------------------------------------------------------------------


def auroc(inside: Array, outside: Array, classes: Classes | None = None) -> float:
    """P(a score of ``inside`` > one of ``outside``); ties count half."""
    return float(rates(inside, outside, classes=classes)[0])


def rates(inside: Array, outside: Array, fprs: Sequence[float] = (), classes: Classes | None = None) -> Array:
    """The AUROC, and the TPR at each FPR: (1 + fprs,).

    The TPR at an FPR is the largest share of ``inside`` above a threshold that at most that share of
    ``outside`` is above; a score that ties with the threshold is not above it. With the ``classes`` of
    both, ``outside`` is weighted to the class shares of ``inside``: see :func:`matched`.
    """
    ones = np.ones((1, len(inside))), np.ones((1, len(outside)))
    points: Array = _weighted_rates(_ranked(inside, outside), *matched(*ones, classes), fprs, np.zeros(1))
    return points[:, 0]


def rate_draws(
    pairs: Sequence[tuple[Array, Array]],
    seed: int,
    fprs: Sequence[float] = (),
    classes: Classes | None = None,
) -> Array:
    """Bootstrap draws of :func:`rates` of each (inside, outside): (pairs, 1 + fprs, DRAWS).

    Every pair has scores of the same samples, and all share their resamples. A threshold is estimated from
    the few highest of ``outside``, and no resample of them knows that the next one may exceed all so far:
    one more of them is resampled for the thresholds, and it lies above every score.
    """
    ranked = [_ranked(*pair) for pair in pairs]
    beyond = np.random.default_rng(seed + 2).poisson(1.0, (DRAWS // BLOCK, BLOCK)).astype(np.float64)
    inside, outside = (resamples(len(x), seed + i) for i, x in enumerate(pairs[0]))
    blocks = []
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # NumPy releases the GIL to sort and sum
        for a, b, c in zip(inside, outside, beyond, strict=True):
            w_in, w_out = matched(a, b, classes)
            rates_of = partial(_weighted_rates, w_in=w_in, w_out=w_out, fprs=fprs, beyond=c)
            blocks.append(list(pool.map(rates_of, ranked)))
    return np.concatenate(blocks, axis=2)


def matched(w_in: Array, w_out: Array, classes: Classes | None) -> tuple[Array, Array]:
    """Weights (draws, N) and (draws, M) under which the second set has the class shares of the first.

    How sure a model is depends on the class: a set with more samples of a hard class looks unlike another
    even to a model that saw neither. A class that the second set lacks is left out of the first. The
    weights of the second set keep their sum; with a single class they stay as they are.
    """
    known, codes = (
        (None, None) if classes is None else np.unique(np.concatenate(classes), return_inverse=True)
    )
    if known is None or codes is None or len(known) == 1:
        return w_in, w_out
    one_hot = np.eye(len(known))[codes]
    a, b = np.split(codes, [w_in.shape[1]])
    n, m = (w @ part for w, part in zip((w_in, w_out), np.split(one_hot, [len(a)]), strict=True))
    n = n * (m > 0)
    some = n.sum(1, keepdims=True) > 0  # otherwise the two have no class in common
    share = n / np.where(some, n.sum(1, keepdims=True), 1) * m.sum(1, keepdims=True)
    factor = np.where(some, share / np.where(m > 0, m, 1), 1.0)
    return w_in * np.where(some, m > 0, True)[:, a], w_out * factor[:, b]


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
    draws, n, m = len(w_in), w_in.sum(1), w_out.sum(1)
    summed = np.zeros((draws, len(order) + 1))
    np.cumsum(w_in[:, order], axis=1, out=summed[:, 1:])
    tied = np.flatnonzero(less != upto)  # usually few: only these are looked up twice
    below = 2 * np.einsum("ij,ij->i", w_out, summed[:, upto])
    below -= np.einsum("ij,ij->i", w_out[:, tied], summed[:, upto[tied]] - summed[:, less[tied]])
    rates = [(2 * n * m - below) / (2 * n * m)]
    for fpr in fprs:
        allowed = fpr * m + 1e-9  # the product may lie just below a whole number
        for first in (top[: int(2 * allowed.max()) + 50], top):  # nearly always the first few exceed it
            over = w_out[:, first].cumsum(1) > (allowed - beyond)[:, None]
            if over[:, -1].all():
                break
        threshold = upto[first[over.argmax(1)]]
        tpr = np.where(over[:, -1], (n - summed[np.arange(draws), threshold]) / n, 1.0)
        rates.append(np.where(beyond > allowed, 0.0, tpr))
    return np.stack(rates)
