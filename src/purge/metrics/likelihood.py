"""Attacks that compare a model with others: arrays in, scores out.

Everywhere φ is the logit-scaled confidence of a sample's own label, φ = log p_y − log(1 − p_y), an
array of (models, samples) for shadow models and of (samples,) for the model that is attacked;
``inside`` (models, samples) says which shadow model was trained on which sample.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp, rel_entr

from purge.metrics.bootstrap import Array

Flags = NDArray[np.bool_]

ENOUGH = 64  # with so many shadow models, each sample has its own variance
LEAST_SPREAD = 1e-6  # of a Gaussian, in case all shadow models agree
DELTA, CAP, BUCKET, BUFFER = 1e-5, 50.0, 0.5, 2.0  # of the forgetting score
BINS, CLIP, EMPTY = 20, 100.0, 1e-5  # of KLoM


def margins(scores: Array, labels: NDArray[np.int64]) -> Array:
    """φ = z_y − log Σ_{j≠y} exp z_j (N,) from logits or log-probabilities (N, K).

    Nothing is rounded to 0 or 1 on the way: a probability of 1 − 1e-30 still differs from 1.

    >>> margins(np.log([[0.8, 0.1, 0.1], [0.5, 0.25, 0.25]]), np.array([0, 1])).round(3)
    array([ 1.386, -1.099])
    """
    own = np.arange(scores.shape[1]) == labels[:, None]
    return np.asarray(scores[own] - logsumexp(np.where(own, -np.inf, scores), axis=1))


# -- one model against its shadows ------------------------------------------------------------


def likelihood_ratio(phi: Array, shadows: Array, inside: Flags) -> Array:
    """log N(φ; in) − log N(φ; out): LiRA, and with unlearned shadow models U-LiRA.

    Each sample has a Gaussian of φ among the models trained on it and one among the others. With 64 or
    more models the variance is the sample's own; with fewer it is that of all samples around their own
    means. U-LiRA's p_f / (p_f + p_n) is the logistic function of this; the logarithm has the same order
    and does not round clear cases to 1.
    """
    (m_in, s_in), (m_out, s_out) = (gaussians(shadows, chosen) for chosen in (inside, ~inside))
    return (((phi - m_out) / s_out) ** 2 - ((phi - m_in) / s_in) ** 2) / 2 + np.log(s_out / s_in)


def gaussians(phi: Array, chosen: Flags) -> tuple[Array, Array]:
    """Mean and standard deviation (samples,) of φ among the chosen models of each sample."""
    count = chosen.sum(0)
    mean = np.where(chosen, phi, 0).sum(0) / count
    squares = np.where(chosen, phi - mean, 0) ** 2
    if len(phi) >= ENOUGH:
        variance = squares.sum(0) / (count - 1)
    else:
        variance = np.full(len(count), squares.sum() / (count - 1).sum())
    return mean, np.maximum(np.sqrt(variance), LEAST_SPREAD)


def rmia(phi: Array, population: Array, typical: Array, typical_population: Array, a: float = 0.3) -> Array:
    """The share of population samples z that x exceeds: p(x)/P(x) > p(z)/P(z).

    P is the probability under a model that may or may not have seen the sample, estimated from models
    that have not (``typical``, see :func:`typical_probability`): P = ((1 + a)·P_out + (1 − a)) / 2.
    """
    x, z = (
        expit(f) / (((1 + a) * p + (1 - a)) / 2)
        for f, p in ((phi, typical), (population, typical_population))
    )
    return np.asarray(np.searchsorted(np.sort(z), x) / len(z))


def typical_probability(shadows: Array, inside: Flags) -> Array:
    """The mean probability of the label (samples,) under the models that have not seen the sample."""
    return np.asarray(np.where(inside, 0, expit(shadows)).sum(0) / (~inside).sum(0))


# -- an ensemble of unlearned models against one of retrained models --------------------------


def forgetting_scores(unlearned: Array, retrained: Array) -> Array:
    """2^−⌊ε / 0.5⌋ of each sample, as in the NeurIPS 2023 challenge; the forgetting score is the mean.

    ε is :func:`epsilons`. With n models of a kind, ε can be measured up to ⌈ln(n − 1)⌉, and a sample
    that reaches this scores 0: 8 models give four grades (1, ½, ¼, ⅛) and 512 give fourteen.
    """
    epsilon = epsilons(unlearned, retrained)
    most = math.ceil(math.log(len(unlearned) - 1))
    return np.where(epsilon < most, 0.5 ** (epsilon // BUCKET), 0.0)


def epsilons(unlearned: Array, retrained: Array) -> Array:
    """How well the best attack on each sample separates n unlearned from n retrained models by φ.

    An attack is an interval: φ above a threshold suggests the kind with the larger median, or φ between
    two thresholds the kind with the smaller range. With its error rates,
    ε = max(log(1 − δ − FPR) − log FNR, log(1 − δ − FNR) − log FPR), δ = 1e-5, from 0 to 50. If only one
    rate is 0 there are too few models, and the attack is skipped; if both are, it is perfect. Where one
    range is below 1 % of the other, ε is 50. All thresholds between observed values are tried, while the
    challenge's code tries 100 per unit; as there, the second kind of interval is as wide as the smaller
    range, plus or minus 2, and ends within 2 of its upper end.
    """
    n, samples = unlearned.shape
    part = max(1, 2_000_000 // (2 * n + 1) ** 2)  # samples at a time, to save memory
    parts = [
        _epsilons(unlearned[:, at : at + part], retrained[:, at : at + part])
        for at in range(0, samples, part)
    ]
    return np.concatenate(parts)


def _epsilons(a: Array, b: Array) -> Array:
    n, both = len(a), np.concatenate([a, b])
    table = _epsilon_table(n)
    order = both.argsort(0, kind="stable")
    ends = np.full((1, a.shape[1]), np.inf)
    v = np.concatenate([-ends, np.take_along_axis(both, order, 0), ends])  # sorted, (2n + 2, samples)
    k = np.arange(2 * n + 1)[:, None]
    of_a = np.concatenate([0 * order[:1], np.cumsum(order < n, 0)])  # how many of a among the first k
    of_b = k - of_a
    cut = v[:-1] < v[1:]  # can a threshold stand after the first k?

    # All but the first k: the threshold is the next value.
    a_higher = np.median(a, 0) >= np.median(b, 0)
    higher, lower = np.where(a_higher, of_a, of_b)[:-1], np.where(a_higher, of_b, of_a)[:-1]
    best = np.where(cut[:-1], table[n - higher, n - lower], -np.inf).max(0)

    # From the left threshold, after the first i, to the right one, after the first j: (i, j, samples).
    ranges = np.ptp(a, 0), np.ptp(b, 0)
    a_narrower, width = ranges[0] < ranges[1], np.minimum(*ranges)
    end = np.where(a_narrower, a.max(0), b.max(0))
    right_from, right_to = np.maximum(v[:-1], end - BUFFER), np.minimum(v[1:], end + BUFFER)
    right = cut & (right_from < v[1:]) & (right_from <= end + BUFFER)
    near = v[1:, None] >= right_from - width - BUFFER
    near &= v[:-1, None] < right_to - width + BUFFER
    allowed = cut[:, None] & right & near & (k <= k.T)[..., None]
    narrower, wider = np.where(a_narrower, of_a, of_b), np.where(a_narrower, of_b, of_a)
    inner, outer = (np.where(allowed, c - c[:, None], 0) for c in (narrower, wider))
    best = np.maximum(best, np.where(allowed, table[inner, outer], -np.inf).max((0, 1)))

    # Where all values are equal no attack is left (-∞), and ε is 0.
    return np.where(width < 0.01 * np.maximum(*ranges), CAP, best.clip(0, CAP))


def _epsilon_table(n: int) -> Array:
    """ε of an attack that calls i of its own n models and j of the n others its own, (n + 1, n + 1)."""
    own, others = np.indices((n + 1, n + 1))
    fnr, fpr = 1 - own / n, others / n
    with np.errstate(divide="ignore", invalid="ignore"):
        both = np.log(1 - DELTA - fpr) - np.log(fnr), np.log(1 - DELTA - fnr) - np.log(fpr)
    table: Array = np.where(np.isnan(np.fmax(*both)), -np.inf, np.fmax(*both))
    table[(fnr == 0) | (fpr == 0)] = -np.inf
    table[(fnr == 0) & (fpr == 0)] = np.inf
    return table


def klom(unlearned: Array, retrained: Array) -> Array:
    """KL(unlearned ‖ retrained) of the margins of each sample (samples,), from histograms of 20 bins.

    φ is the margin of the correct class, clipped to ±100. The bins divide the range of both kinds; a
    bin without a retrained model counts as 1e-5.
    """
    a, b = (x.clip(-CLIP, CLIP) for x in (unlearned, retrained))
    low, high = np.minimum(a.min(0), b.min(0)), np.maximum(a.max(0), b.max(0))
    high = np.where(high > low, high, low + 1)
    p, q = (_histogram((x - low) / (high - low)) for x in (a, b))
    q = np.where(p > 0, np.maximum(q, EMPTY), q)
    q /= q.sum(1, keepdims=True)
    return np.asarray(rel_entr(p, q).sum(1))


def _histogram(x: Array) -> Array:
    """The share of models in each bin (samples, BINS), for x (models, samples) from 0 to 1."""
    samples = x.shape[1]
    bins = (x * BINS).astype(int).clip(0, BINS - 1) + BINS * np.arange(samples)
    return np.bincount(bins.ravel(), minlength=BINS * samples).reshape(samples, BINS) / len(x)
