"""What can be said without a retrained model: by comparison with an untrained one, or the original."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from purge.core.errors import ModelError
from purge.engine.precision import arrange
from purge.engine.seeding import seeded
from purge.metrics.accuracy import change_draws, hits
from purge.metrics.bootstrap import DRAWS, Array, mean_value, resamples
from purge.metrics.distance import js
from purge.metrics.subject import Subject
from purge.metrics.value import Value
from purge.models.copies import reinitialised
from purge.models.forward import logits
from purge.models.inspect import device_of

SIDE = 600  # samples of each side that the silhouette looks at
POINTS = 600  # in the 2-D view of features, at most a quarter of them forgotten


def zrf(subject: Subject) -> Value:
    """Zero retrain forgetting: 1 − mean over D_f of JS(model, untrained copy), base 2, so 0 to 1.

    The untrained copy has the model's layers with weights drawn anew from the seed, in evaluation mode.
    1: the model answers on D_f like one that learned nothing. A retrained model does not: it knows the
    retained classes and puts D_f among them, so its value is the aim, and more is too much. (Code that
    averages the divergence over classes as well reports numbers nearer to 1.)
    """
    try:
        with seeded(subject.seed, torch.device("cpu")):  # drawn there, so that a seed means the same anywhere
            plain = copy.deepcopy(subject.model).cpu()
            arrange(plain, torch.contiguous_format)
            untrained = reinitialised(plain).to(device_of(subject.model))
    except ModelError:
        return Value.missing("the model has layers that cannot draw their weights anew")
    z = logits(untrained, subject.split.forget).double().cpu()
    if not bool(torch.isfinite(z).all()):
        return Value.missing("the untrained copy of the model gives no finite logits")
    divergence = js(subject.log_probs("forget"), z.log_softmax(1).numpy()) / np.log(2)
    return mean_value(1 - divergence, subject.seed)


def rf_jsd(subject: Subject) -> Value:
    """Retrain-free JS divergence: mean over the classes in D_f of JS(p̄, q̄), in nats.

    p̄: mean probabilities of the model over the class in D_f; q̄: of the original model over the class in
    the test data. 0: D_f is answered as unseen data was before, the aim when single samples are
    forgotten. When a whole class goes, a retrained model is far from 0 too. Means hide what happens to
    single samples. The interval is wide rather than narrow, so that it reaches 0 where that is the truth:
    the root of a mean JS is a distance, and moves no more than the resampled p̄ and q̄ lie from those found.
    """
    assert subject.original is not None
    sides = [
        (subject.labels("forget"), np.exp(subject.log_probs("forget"))),
        (subject.labels("same_class_test"), np.exp(subject.original.log_probs("same_class_test"))),
    ]
    classes = np.intersect1d(sides[0][0], sides[1][0])
    value, noise, n = 0.0, np.zeros((2, 1)), 0
    for k in classes:
        groups = [p[y == k] for y, p in sides]
        means = [_log(p.mean(0)) for p in groups]
        drawn = [
            np.concatenate([js(_log(counts @ p / len(p)), mean[None]) for counts in resamples(len(p), seed)])
            for p, mean, seed in zip(groups, means, (subject.seed, subject.seed + 1), strict=True)
        ]
        value += float(js(*means)) / len(classes)
        noise = noise + np.array(drawn) / len(classes)
        n += sum(map(len, groups))
    reach = float(np.quantile(np.sqrt(noise).sum(0), 0.95))
    low, high = max(value**0.5 - reach, 0.0) ** 2, min((value**0.5 + reach) ** 2, float(np.log(2)))
    return Value(value, low, high, n)


def _log(p: Array) -> Array:
    found: Array = np.log(np.maximum(p, np.finfo(np.float64).tiny))
    return found


def aus(subject: Subject) -> Value:
    """Adaptive unlearning score (1 − (A_or − A_t)) / (1 + Δ): test accuracy kept, forgetting reached.

    A_or and A_t: test accuracy of the original and of this model over the classes that stay. Δ: for
    forgotten classes their test accuracy A_f; for single samples |A_f − A_t| with A_f on D_f. 1 is a
    model that kept everything and forgot everything; above 1 it also got better. One number for two
    things: it cannot tell which of them went wrong, nor whether anything can be brought back. The
    interval is wide rather than narrow: the bootstrap noise of both is added.
    """
    assert subject.original is not None
    after, before = hits(subject, "kept_class_test"), hits(subject.original, "kept_class_test")
    gone = np.isin(subject.labels("test"), sorted(subject.split.forget_classes))
    forgotten = hits(subject, "test")[gone] if subject.split.forget_classes else hits(subject, "forget")
    if not len(forgotten):
        return Value.missing("the test data has no sample of the forgotten classes")
    aim = np.zeros_like(after) if subject.split.forget_classes else after
    kept, gap = float(after.mean() - before.mean()), float(forgotten.mean() - aim.mean())
    value = (1 + kept) / (1 + abs(gap))
    rng = np.random.default_rng(subject.seed + 1)
    drawn = [rng.binomial(len(x), x.mean(), DRAWS) / len(x) for x in (forgotten, aim)]
    noise = np.abs(change_draws(after, before, subject.seed) - kept) + value * np.abs(
        drawn[0] - drawn[1] - gap
    )
    reach = float(np.quantile(noise, 0.95))
    return Value(value, max(value - reach, 0.0), value + reach, len(after) + len(forgotten))


def silhouette(subject: Subject) -> Value:
    """How far apart the forgotten lies in the space of penultimate features: −1 to 1, 0 is mixed.

    The mean silhouette of two groups: test data of the forgotten classes against the other test data;
    where single samples are forgotten, D_f against unseen data of the same classes. At most 600 of each,
    chosen by the seed. A retrained model may well keep an unseen class together, so its value is the
    aim; groups that are not round can be told apart all the same: see probe.
    """
    from sklearn.metrics import silhouette_score  # takes long to import

    unseen = subject.features("test")
    if unseen is None:
        return Value.missing("no layer that makes the logits was found, so there are no features")
    y = subject.labels("test")[subject.featured("test")]
    if classes := sorted(subject.split.forget_classes):
        gone = np.isin(y, classes)
        forgotten, labels = unseen[gone], y[gone]
        others = rest = np.flatnonzero(~gone)
    else:
        found = subject.features("forget")
        assert found is not None
        forgotten, labels = found, subject.labels("forget")[subject.featured("forget")]
        others, rest = np.flatnonzero(np.isin(y, labels)), np.arange(len(y))
    rng = np.random.default_rng(subject.seed)
    inside, outside = _some(rng, len(forgotten), SIDE), others[_some(rng, len(others), SIDE)]
    shown = _some(rng, len(forgotten), POINTS // 4)
    beside = rest[_some(rng, len(rest), POINTS - len(shown))]
    at = plane(np.concatenate([forgotten[shown], unseen[beside]]))
    subject.curves["features"] = {
        "x": [float(f"{v:.4g}") for v in at[:, 0]],
        "y": [float(f"{v:.4g}") for v in at[:, 1]],
        "label": [int(k) for k in (*labels[shown], *y[beside])],
        "forgotten": [1] * len(shown) + [0] * len(beside),
    }
    if min(len(inside), len(outside)) < 2:
        return Value.missing("two groups need at least two samples each")
    side = np.repeat([1, 0], [len(inside), len(outside)])
    score = silhouette_score(np.concatenate([forgotten[inside], unseen[outside]]), side)
    return Value(float(score), n=len(side))


def _some(rng: np.random.Generator, n: int, most: int) -> NDArray[np.int64]:
    """All of n, or a choice of ``most``, in order."""
    return np.sort(rng.choice(n, min(n, most), replace=False))


def plane(x: Array) -> Array:
    """The two principal components (N, 2) of features (N, D); in each the largest entry is positive."""
    x = x - x.mean(0)
    values, vectors = np.linalg.eigh(x @ x.T)  # (N, N) with N ≤ 600: cheaper than the SVD of wide features
    found: Array = vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0))
    largest = found[np.abs(found).argmax(0), np.arange(found.shape[1])]
    return found * np.where(largest < 0, -1.0, 1.0)
