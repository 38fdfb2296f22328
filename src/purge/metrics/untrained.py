"""What can be said without a retrained model, by comparison with an untrained one or the original."""

from __future__ import annotations

import copy

import numpy as np
import torch

from purge.core.errors import ModelError
from purge.engine.precision import arrange
from purge.engine.seeding import seeded
from purge.metrics.accuracy import change_draws
from purge.metrics.audited import AuditedModel
from purge.metrics.bootstrap import DRAWS, Array, effective, resamples, wide_interval
from purge.metrics.distance import js
from purge.metrics.value import Missing, Value
from purge.models.copies import reinitialised
from purge.models.forward import logits
from purge.models.inspect import device_of


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
