"""Distances on the forget set: to the retrained model, and to the original one."""

from __future__ import annotations

import numpy as np

from purge.metrics.accuracy import ACCURACY
from purge.metrics.base import Array, Metric, Subject, mean_value
from purge.metrics.membership import MEMBERSHIP
from purge.result import Value

RETRAINED = frozenset({"retrained"})
ORIGINAL = frozenset({"original"})


def agreement(subject: Subject) -> Value:
    """Share of the forget set on which the model and the retrained one predict the same class."""
    assert subject.retrained is not None
    same = subject.guesses("forget") == subject.retrained.guesses("forget")
    return mean_value(same, subject.seed)


def kl_retrain(subject: Subject) -> Value:
    """Mean over the forget set of KL(retrained ‖ model), in nats."""
    assert subject.retrained is not None
    p, q = subject.retrained.log_probs("forget"), subject.log_probs("forget")
    return mean_value((np.exp(p) * (p - q)).sum(1), subject.seed)


def _features(subject: Subject, other: Subject | None) -> tuple[Array, Array] | Value:
    assert other is not None
    a, b = subject.forget_features, other.forget_features
    if a is None or b is None:
        return Value.missing("no layer that makes the logits was found, so there are no features")
    if a.shape[1] != b.shape[1]:
        return Value.missing(f"features of {a.shape[1]} and {b.shape[1]} dimensions do not compare")
    return a, b


def feature_cosine(subject: Subject, other: Subject | None) -> Value:
    """Mean cosine of the penultimate features of each forget sample in two models."""
    pair = _features(subject, other)
    if isinstance(pair, Value):
        return pair
    a, b = pair
    cosines = (_unit(a) * _unit(b)).sum(1)
    both_zero = ~a.any(1) & ~b.any(1)  # equal, so as near as can be
    return mean_value(np.where(both_zero, 1.0, cosines), subject.seed)


def _unit(x: Array) -> Array:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    found: Array = x / np.where(norms > 0, norms, 1.0)
    return found


def feature_l2(subject: Subject, other: Subject | None) -> Value:
    """Mean Euclidean distance of the penultimate features of each forget sample in two models."""
    pair = _features(subject, other)
    if isinstance(pair, Value):
        return pair
    return mean_value(np.linalg.norm(pair[0] - pair[1], axis=1), subject.seed)


def fid_feat(subject: Subject) -> Value:
    """Fréchet distance between the penultimate features of the model and of the retrained one."""
    pair = _features(subject, subject.retrained)
    if isinstance(pair, Value):
        return pair
    if len(pair[0]) < 2:
        return Value.missing("a covariance needs at least two forget samples")
    return Value(frechet(*pair), n=len(pair[0]))


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


def retrain_gap(subject: Subject) -> Value:
    """Mean absolute difference to the retrained model over FA, RA, TA_r and MIA."""
    assert subject.retrained is not None
    by_name = {m.name: m for m in [*ACCURACY, *MEMBERSHIP]}
    gaps = []
    for name in ("fa_test", "ra", "ta_retain", "mia"):
        ours, theirs = subject.value(by_name[name]), subject.retrained.value(by_name[name])
        assert isinstance(ours, Value)
        assert isinstance(theirs, Value)
        if ours.value is None or theirs.value is None:
            return Value.missing(f"{name} could not be computed: {ours.why or theirs.why}")
        gaps.append(abs(ours.value - theirs.value))
    return Value(float(np.mean(gaps)), n=len(gaps))


DISTANCE = [
    Metric("feature_cosine", "cos", "cosine of penultimate features with the retrained model's",
           lambda s: feature_cosine(s, s.retrained), ideal=1.0, needs=RETRAINED),
    Metric("feature_l2", "L2", "distance of penultimate features from the retrained model's",
           lambda s: feature_l2(s, s.retrained), ideal=0.0, needs=RETRAINED),
    Metric("feature_cosine_original", "cos₀", "cosine of penultimate features with the original's",
           lambda s: feature_cosine(s, s.original), needs=ORIGINAL),
    Metric("feature_l2_original", "L2₀", "distance of penultimate features from the original's",
           lambda s: feature_l2(s, s.original), needs=ORIGINAL),
    Metric("fid_feat", "FID", "Fréchet distance of penultimate features to the retrained model's",
           fid_feat, ideal=0.0, needs=RETRAINED),
    Metric("agreement", "agree", "same prediction as the retrained model on the forget set",
           agreement, ideal=1.0, needs=RETRAINED),
    Metric("kl_retrain", "KL", "KL(retrained ‖ model) on the forget set", kl_retrain, ideal=0.0,
           needs=RETRAINED),
    Metric("retrain_gap", "gap", "mean difference to the retrained model in FA, RA, TA_r, MIA",
           retrain_gap, ideal=0.0, needs=RETRAINED),
]  # fmt: skip
