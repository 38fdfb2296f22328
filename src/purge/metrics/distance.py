"""Distances on the forget set: to the retrained model, to the original and to an untrained one."""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import partial
from typing import Literal

import numpy as np
import torch
from scipy.special import rel_entr

from purge.core.errors import ModelError
from purge.engine.precision import arrange
from purge.engine.seeding import seeded
from purge.metrics.accuracy import change_draws
from purge.metrics.audited import AuditedModel, Part
from purge.metrics.bootstrap import DRAWS, Array, effective, interval, resamples, some_rows, wide_interval
from purge.metrics.likelihood import margins
from purge.metrics.registry import METRICS
from purge.metrics.value import Missing, Value
from purge.models.copies import reinitialised
from purge.models.forward import logits
from purge.models.inspect import device_of

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
    rows = some_rows(len(audited.featured("retain")), LEARNED, np.random.default_rng(audited.seed))
    pairs = [(s.features("retain")[rows], s.features("forget")) for s in (audited, audited.other("original"))]
    ours, theirs = (_standardised(*pair) for pair in pairs)
    both = untold(*ours, *theirs), untold(*theirs, *ours)
    return Value(float(np.mean(both)), n=len(ours[1]))


def _standardised(learn: Array, ask: Array) -> tuple[Array, Array]:
    """Two sets of features in units of their deviation, without units that are constant."""
    both = np.concatenate([learn, ask])
    std = both.std(0)
    live = std > ROUNDING * np.abs(both).max(0)
    if not live.any():
        raise Missing("the features are the same for all samples")
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
    name and named as in the retrained model, with / for each dot. Few samples in many dimensions look alike
    whatever they are (a bias towards 1), and a high CKA does not mean that the same can be read out: see
    probe.
    """
    other, n = audited.other("retrained"), len(audited.featured("forget"))
    if n < 2:
        raise Missing("similarity of representations needs at least two forget samples")
    ours, theirs = audited.blocks("forget"), other.blocks("forget")
    pairs = {name: (ours[name], theirs[name]) for name in theirs if name in ours}
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


# -- to an untrained model, and to the original's answers on unseen data ------------------------


def zrf(audited: AuditedModel) -> Value:
    """Zero retrain forgetting: 1 − mean over D_f of JS(model, untrained copy), base 2, so 0 to 1.

    The untrained copy has the model's layers with new random weights, drawn by the seed. 1: the model
    answers on D_f like one that learned nothing. A retrained model does not: it knows the retained
    classes and puts D_f among them, so its value is the aim, and more is too much. The authors' code
    (Chundawat et al., arXiv:2205.08096) also averages over the classes, so its numbers are nearer to 1:
    docs/metrics.md.
    """
    try:
        with seeded(audited.seed, torch.device("cpu")):  # there, so that a seed means the same anywhere
            plain = copy.deepcopy(audited.model).cpu()
            arrange(plain, torch.contiguous_format)
            untrained = reinitialised(plain).to(device_of(audited.model))
    except ModelError:
        raise Missing("the model has layers whose weights cannot be drawn anew") from None
    z = logits(untrained, audited.split.forget).double().cpu()
    if not bool(torch.isfinite(z).all()):
        raise Missing("the untrained copy of the model gives no finite logits")
    p, q = np.exp(audited.log_probs("forget")), z.softmax(1).numpy()
    return audited.mean(1 - js(p, q) / np.log(2))


def rf_jsd(audited: AuditedModel) -> Value:
    """Retrain-free JS divergence: mean over the classes in D_f of JS(p̄, q̄), in nats.

    p̄: mean probabilities of the model over the class in D_f; q̄: of the original model over the class in
    the test data. 0: D_f is answered as unseen data was before, the aim when single samples are
    forgotten. When a whole class goes, a retrained model is far from 0 too. Means hide what happens to
    single samples. The interval reaches 0 where that is the truth: the root of a mean JS is a distance,
    and moves no more than the resampled p̄ and q̄ lie from those found.
    """
    sides = [
        (audited.labels("forget"), np.exp(audited.log_probs("forget"))),
        (audited.labels("same_class_test"), np.exp(audited.other("original").log_probs("same_class_test"))),
    ]
    classes = np.intersect1d(sides[0][0], sides[1][0])
    value, noise, n = 0.0, np.zeros((2, 1)), 0
    for k in classes:
        groups = [p[y == k] for y, p in sides]
        means = [p.mean(0) for p in groups]
        drawn = [
            np.concatenate([js(counts @ p / len(p), mean[None]) for counts in resamples(len(p), seed)])
            for p, mean, seed in zip(groups, means, (audited.seed, audited.seed + 1), strict=True)
        ]
        value += float(js(*means)) / len(classes)
        noise = noise + np.array(drawn) / len(classes)
        n += sum(map(len, groups))
    low, high = wide_interval(value**0.5, np.sqrt(noise).sum(0))
    return Value(value, low**2, min(high**2, float(np.log(2))), n)


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


def aus(audited: AuditedModel) -> Value:
    """Adaptive unlearning score (1 − (A_or − A_t)) / (1 + Δ): test accuracy kept, forgetting reached.

    A_or and A_t: test accuracy of the original and of this model over the classes that stay. Δ: for
    forgotten classes their test accuracy A_f; for single samples the distance of their accuracy from that
    on unseen samples, weighted to the same class shares. 1 is a model that kept everything and forgot
    everything; above 1 it also got better. One number for two things: it cannot tell which of them went
    wrong, nor whether anything can be brought back. The interval is wide: the bootstrap noise of both is
    added.
    """
    classes = sorted(audited.split.forget_classes)
    after, before = (s.hits("kept_class_test") for s in (audited, audited.other("original")))
    forgotten, aim, weights = audited.hits("forget"), np.zeros(1, dtype=bool), np.ones(1)
    if classes:
        forgotten = audited.hits("test")[np.isin(audited.labels("test"), classes)]
    else:
        aim, weights = audited.hits("same_class_test"), audited.matched()
    if not len(forgotten):
        raise Missing("the test data has no sample of the forgotten classes")
    unseen = float(np.average(aim, weights=weights))
    kept, gap = float(after.mean() - before.mean()), float(forgotten.mean()) - unseen
    value = (1 + kept) / (1 + abs(gap))
    rng = np.random.default_rng(audited.seed + 1)
    a = _share_draws(float(forgotten.mean()), len(forgotten), rng)
    b = np.zeros(1) if classes else _share_draws(unseen, effective(weights), rng)
    noise = np.abs(change_draws(after, before, audited.seed) - kept) + value * np.abs(a - b - gap)
    return Value(value, *wide_interval(value, noise), len(after) + len(forgotten))


def _share_draws(share: float, n: float, rng: np.random.Generator) -> Array:
    """Draws of a share of n samples; half a sample is added to each side, so that 0 of n has a width too."""
    size = max(1, round(n))
    draws: Array = rng.binomial(size, (share * n + 0.5) / (n + 1), DRAWS) / size
    return draws
