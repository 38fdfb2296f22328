"""Distances on the forget set: to the retrained model, and to the original one."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Literal

import numpy as np
from scipy.special import rel_entr

from purge.metrics.accuracy import change_draws
from purge.metrics.audited import AuditedModel, Part
from purge.metrics.bootstrap import Array, interval, resamples, wide_interval
from purge.metrics.likelihood import margins
from purge.metrics.registry import METRICS
from purge.metrics.value import Missing, Value

Other = Literal["retrained", "original"]

ROUNDING = float(np.finfo(np.float32).eps)  # logits and features are computed in float32
LEARNED = 4_000  # retained samples that maps between features are learned from, at most
RIDGE = 1e-3  # their penalty, where each feature has variance 1
LEAST_VARIANCE = 1e-9  # of numbers whose variance is 1: in a resample below it, all are equal


def agreement(audited: AuditedModel, part: Part = "forget") -> Value:
    """Share of a part on which the model and the retrained one predict the same class.

    1 is never reached: two retrained models agree less on the forget set than on test data.
    """
    return audited.mean(audited.guesses(part) == audited.other("retrained").guesses(part))


agreement_test = partial(agreement, part="test")


def kl_retrain(audited: AuditedModel) -> Value:
    """Mean over the forget set of KL(retrained ‖ model), in nats."""
    p, q = audited.other("retrained").log_probs("forget"), audited.log_probs("forget")
    return audited.mean((np.exp(p) * (p - q)).sum(1))


def odds_correlation(audited: AuditedModel) -> Value:
    """Pearson correlation, over the forget set, of the label's log-odds in the model and in Retrain.

    log(p_y / (1 − p_y)) of the label that the sample was trained with. 1: the samples that the retrained
    model finds easy or hard are the same here. A shift or scale of all of them is not seen: see kl_retrain.
    """
    labels = audited.labels("forget")
    x, y = (margins(s.log_probs("forget"), labels) for s in (audited, audited.other("retrained")))
    if len(labels) < 3:
        raise Missing("a correlation needs at least three forget samples")
    for whose, odds in (("model's", x), ("retrained model's", y)):
        if np.ptp(odds) <= ROUNDING * np.abs(odds).max():
            raise Missing(f"the {whose} log-odds are the same for all forget samples")
    r = float(correlations(x, y, np.ones((1, len(x))))[0])
    draws = np.concatenate([correlations(x, y, counts) for counts in resamples(len(x), audited.seed)])
    low, high = interval(draws[np.isfinite(draws)])  # a resample in which one is constant tells nothing
    return Value(r, min(low, r), max(high, r), len(x))


def correlations(x: Array, y: Array, counts: Array) -> Array:
    """Pearson's r of x and y (N,) in each resample (draws, N), which says how often each counts.

    NaN where one of the two is constant.
    """
    x, y = ((v - v.mean()) / v.std() for v in (x, y))
    w = counts / counts.sum(1, keepdims=True)
    mean_x, mean_y = w @ x, w @ y
    var_x, var_y = w @ x**2 - mean_x**2, w @ y**2 - mean_y**2
    known = (var_x > LEAST_VARIANCE) & (var_y > LEAST_VARIANCE)
    root = np.sqrt(np.where(known, var_x * var_y, 1.0))
    r: Array = np.where(known, np.clip((w @ (x * y) - mean_x * mean_y) / root, -1, 1), np.nan)
    return r


def js_retrain(audited: AuditedModel) -> Value:
    """Mean over the forget set of JS(model, retrained), in nats: 0 to ln 2.

    Unlike KL it is symmetric and bounded, so that a few confident wrong answers do not dominate it.
    """
    p, q = (np.exp(s.log_probs("forget")) for s in (audited, audited.other("retrained")))
    return audited.mean(js(p, q))


def js(p: Array, q: Array) -> Array:
    """Jensen-Shannon divergence ½ KL(p ‖ m) + ½ KL(q ‖ m), m = (p + q) / 2, of rows (…, K): 0 to ln 2."""
    m = (p + q) / 2
    divergence: Array = (rel_entr(p, m) + rel_entr(q, m)).sum(-1) / 2
    return np.maximum(divergence, 0.0)


# -- features ----------------------------------------------------------------------------------


def _feature_pair(audited: AuditedModel, which: Other) -> tuple[Array, Array]:
    a, b = audited.features("forget"), audited.other(which).features("forget")
    if a.shape[1] != b.shape[1]:
        raise Missing(f"features of {a.shape[1]} and {b.shape[1]} dimensions cannot be compared")
    return a, b


def feature_cosine(audited: AuditedModel, which: Other = "retrained") -> Value:
    """Mean cosine of the penultimate features of each forget sample in two models."""
    a, b = _feature_pair(audited, which)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(1) / np.where(norms == 0, 1.0, norms)
    both_zero = ~a.any(1) & ~b.any(1)  # equal, so as near as can be
    return audited.mean(np.where(both_zero, 1.0, cosines))


def feature_l2(audited: AuditedModel, which: Other = "retrained") -> Value:
    """Mean Euclidean distance of the penultimate features of each forget sample in two models."""
    a, b = _feature_pair(audited, which)
    return audited.mean(np.linalg.norm(a - b, axis=1))


feature_cosine_original = partial(feature_cosine, which="original")
feature_l2_original = partial(feature_l2, which="original")


def hidden_change(audited: AuditedModel) -> Value:
    """How little the original's penultimate features tell of the model's on D_f, and the reverse: 0 to 1.

    The mean of :func:`untold` both ways, of maps learned from retained samples. 0: each is a linear function
    of the other, so the hidden layers are still the original's, in whatever order, scale or rotation their
    units are written. Far is not the same as forgotten: a model that was merely disturbed is far from the
    original too.
    """
    n = len(audited.featured("retain"))
    rows = np.sort(np.random.default_rng(audited.seed).permutation(n)[:LEARNED])
    pairs = [(s.features("retain")[rows], s.features("forget")) for s in (audited, audited.other("original"))]
    ours, theirs = (_standardised(*pair) for pair in pairs)
    if ours is None or theirs is None:
        raise Missing("the features are the same for all samples")
    both = untold(*ours, *theirs), untold(*theirs, *ours)
    return Value(float(np.mean(both)), n=len(ours[1]))


def _standardised(learn: Array, ask: Array) -> tuple[Array, Array] | None:
    """Two sets of features in units of their deviation, without units that are constant; None if all are."""
    both = np.concatenate([learn, ask])
    std = both.std(0)
    live = std > ROUNDING * np.abs(both).max(0)
    if not live.any():
        return None
    mean = learn[:, live].mean(0)
    return (learn[:, live] - mean) / std[live], (ask[:, live] - mean) / std[live]


def untold(learn: Array, ask: Array, learn_other: Array, ask_other: Array) -> float:
    """How far features B, as A's tell them, lie from B as B itself tells them: 0 to 1.

    Σ‖P_A(b) − P_B(b)‖² / Σ‖P_B(b)‖² over the asked samples b, with P the ridge regression on one of the two
    that was learned from the other samples. P_B is B itself, unless B is wider than there are samples.
    """
    explained, whole = (_ridge(x, learn_other, at) for x, at in ((learn, ask), (learn_other, ask_other)))
    size = float((whole**2).sum())
    return min(float(((explained - whole) ** 2).sum()) / size, 1.0) if size else 0.0


def _ridge(x: Array, y: Array, at: Array) -> Array:
    """What a ridge regression of Y (N, E) on X (N, D) says at other X (M, D)."""
    n, d = x.shape
    if d <= n:
        return np.asarray(at @ np.linalg.solve(x.T @ x / n + RIDGE * np.eye(d), x.T @ y / n))
    return np.asarray(at @ x.T @ np.linalg.solve(x @ x.T / n + RIDGE * np.eye(n), y / n))


def output_change(audited: AuditedModel) -> Value:
    """Mean over the forget set of JS(model, original), in nats: 0 is unchanged, ln 2 the most."""
    p, q = (np.exp(s.log_probs("forget")) for s in (audited, audited.other("original")))
    return audited.mean(js(p, q))


def fid_feat(audited: AuditedModel) -> Value:
    """Fréchet distance between the penultimate features of the model and of the retrained one."""
    a, b = _feature_pair(audited, "retrained")
    if len(a) < 2:
        raise Missing("a covariance needs at least two forget samples")
    return Value(frechet(a, b), n=len(a))


def frechet(a: Array, b: Array) -> float:
    """‖μ_a − μ_b‖² + Tr(Σ_a + Σ_b − 2(Σ_a Σ_b)^½) of two sets of features (N, D).

    The trace of the root is that of (Σ_a^½ Σ_b Σ_a^½)^½, which is symmetric and so stays real.
    """
    sa, sb = (np.atleast_2d(np.cov(x, rowvar=False)) for x in (a, b))
    values, vectors = np.linalg.eigh(sa)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ sb @ root), 0)).sum()
    gap = ((a.mean(0) - b.mean(0)) ** 2).sum()
    return float(max(gap + np.trace(sa) + np.trace(sb) - 2 * cross, 0.0))


def cka(audited: AuditedModel) -> dict[str, Value]:
    """Linear CKA with the retrained model on the forget set, by layer and for the penultimate features.

    1: equal up to a rotation and a scale. Layers are those that erasure looks at, pooled, matched by
    name (ignoring a wrapper around one of the models) and named as in the retrained model, with / for
    each dot. Few samples in many dimensions look alike whatever they are (a bias towards 1), and a high
    CKA does not mean that the same can be read out: see probe.
    """
    other, n = audited.other("retrained"), len(audited.featured("forget"))
    if n < 2:
        raise Missing("similarity of representations needs at least two forget samples")
    ours, theirs = audited.blocks("forget"), other.blocks("forget")
    pairs = {name: (ours[same], theirs[name]) for name, same in _same_layers([*ours], [*theirs]).items()}
    with suppress(Missing):
        pairs["penultimate"] = audited.features("forget"), other.features("forget")
    if not pairs:
        raise Missing("the two models have no layer of the same name, and there are no features")
    similarity = {name.replace(".", "/"): linear_cka(*pair) for name, pair in pairs.items()}
    constant = Value.missing("the outputs of this layer are the same for all samples")
    return {name: constant if v is None else Value(v, n=n) for name, v in similarity.items()}


def linear_cka(a: Array, b: Array) -> float | None:
    """‖AᵀB‖² / (‖AᵀA‖ ‖BᵀB‖) of centred A (N, D) and B (N, E); None where one is constant."""
    centred = [x - x.mean(0) for x in (a, b)]
    if any(np.linalg.norm(c) <= ROUNDING * np.linalg.norm(x) for c, x in zip(centred, (a, b), strict=True)):
        return None
    a, b = centred
    if len(a) < max(a.shape[1], b.shape[1]):  # the same in sample space, where (N, N) is smaller
        x, y = a @ a.T, b @ b.T
        cross = (x * y).sum()
    else:
        x, y = a.T @ a, b.T @ b
        cross = ((a.T @ b) ** 2).sum()
    return min(float(cross / (np.linalg.norm(x) * np.linalg.norm(y))), 1.0)


def _same_layers(ours: list[str], theirs: list[str]) -> dict[str, str]:
    """Their layers → ours of the same name, or of the same name inside a wrapper."""
    if same := {name: name for name in theirs if name in ours}:
        return same
    inside = _inside(ours)
    return {name: inside[short] for short, name in _inside(theirs).items() if short in inside}


def _inside(names: list[str]) -> dict[str, str]:
    """Names without the modules that all of them lie in → names."""
    around = [name.split(".")[:-1] for name in names]
    levels = enumerate(zip(*around, strict=False))
    shared = next((i for i, level in levels if len(set(level)) > 1), min(map(len, around), default=0))
    return {".".join(name.split(".")[shared:]): name for name in names}


# -- several accuracies in one number ----------------------------------------------------------


def retrain_gap(audited: AuditedModel) -> Value:
    """Mean absolute difference from the retrained model over FA, RA, TA_r and MIA."""
    return _mean_gap(audited, "fa_test", "ra", "ta_retain", "mia")


def field_gap(audited: AuditedModel) -> Value:
    """Mean absolute difference from the retrained model over UA, RA, TA and MIA, as papers report them.

    This is the "average gap" of SalUn and of those who compare with it: UA is 1 − the accuracy on the forget
    set itself, MIA the share of it that an SVC on the label's probability calls non-member, and TA leaves out
    classes that are forgotten as a whole. retrain_gap has unseen data for UA, and the mean of two AUROCs for
    MIA. Papers write it in points: their 0.25 is 0.0025 here.
    """
    return _mean_gap(audited, "ua", "ra", "ta_retain", "mia_svc.confidence")


def _mean_gap(audited: AuditedModel, *names: str) -> Value:
    gaps = []
    for name in names:
        kind = name.partition(".")[0]
        both = [s.named(METRICS[kind]) for s in (audited, audited.other("retrained"))]
        ours, theirs = (values.get(name) or values[kind] for values in both)
        if ours.value is None or theirs.value is None:
            raise Missing(f"{name} could not be computed: {ours.why or theirs.why}")
        gaps.append(abs(ours.value - theirs.value))
    return Value(float(np.mean(gaps)), n=len(gaps))


def tow(audited: AuditedModel) -> Value:
    """Tug of war (1 − |ΔA_f|)(1 − |ΔA_r|)(1 − |ΔA_t|), Δ: accuracy − the retrained model's.

    A_f, A_r and A_t are the accuracies on forget, retain and all test data. 1: the same three numbers,
    which need not be the same predictions. No factor moves by more than the bootstrap noise of its Δ, nor
    the product by more than their sum: the interval also holds where a Δ is truly 0.
    """
    value, noise, n = 1.0, np.zeros(1), 0
    parts: tuple[Part, ...] = ("forget", "retain", "test")
    for i, part in enumerate(parts):
        after, before = audited.hits(part), audited.other("retrained").hits(part)
        gap = float(after.mean() - before.mean())
        value *= 1 - abs(gap)
        noise = noise + np.abs(change_draws(after, before, audited.seed + i) - gap)
        n += len(after)
    return Value(value, *wide_interval(value, noise, most=1.0), n)
