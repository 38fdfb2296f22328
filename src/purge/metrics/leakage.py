"""Leakage on retained samples: what do the models before and after unlearning tell about the rest?

Whoever kept a copy of the original and sees the unlearned model can compare the two. Min Chen, Zhikun Zhang,
Tianhao Wang, Michael Backes, Mathias Humbert, Yang Zhang: "When Machine Unlearning Jeopardizes Privacy"
(2021, arXiv 2005.02205) find deleted samples that way. Unlearning that trains on retained data once more may
give those away too: they move, and unseen samples do not.
"""

from __future__ import annotations

import numpy as np

from purge.metrics.audited import AuditedModel, Labels, Part
from purge.metrics.bootstrap import Array, interval, rate_draws, rates, some_rows
from purge.metrics.likelihood import margins
from purge.metrics.value import Missing, Value

MOST = 5000  # samples of either kind, at most, drawn by the seed
PARTS: tuple[Part, Part] = ("retain", "kept_class_test")  # members and non-members


def leak_retained(audited: AuditedModel) -> dict[str, Value]:
    """AUROC of the change from the original model: retained samples against unseen ones of kept classes.

    ``loss``: how much the logit of the label's probability rose; ``confidence``: how much the largest
    probability did; ``distance``: how little the output moved (total variation). ``after`` is the attack
    by the loss of the unlearned model alone: where another part is farther from 0.5, the pair tells more
    than one model does. Below 0.5 an attacker reverses the answer. Each number is ranked among the unseen
    samples of its own class, so that it does not matter if a class is harder or more frequent.
    """
    original, rng = audited.other("original"), np.random.default_rng(audited.seed)
    members, others = (some_rows(len(audited.labels(part)), MOST, rng) for part in PARTS)
    y, unseen = (audited.labels(part)[rows] for part, rows in zip(PARTS, (members, others), strict=True))
    inside, outside = (
        changes(audited.log_probs(part)[rows], original.log_probs(part)[rows], labels)
        for part, rows, labels in zip(PARTS, (members, others), (y, unseen), strict=True)
    )
    known = np.isin(y, unseen)
    if not known.any():
        raise Missing("the test data has no sample of a class in the retain set")
    pairs = [
        (ranked(inside[name][known], y[known], x, unseen), ranked(x, unseen, x, unseen))
        for name, x in outside.items()
    ]
    n, draws = int(known.sum()) + len(unseen), rate_draws(pairs, audited.seed)[:, 0]
    return {
        name: Value(float(rates(*pair)[0]), *interval(drawn), n)
        for name, pair, drawn in zip(outside, pairs, draws, strict=True)
    }


def changes(after: Array, before: Array, y: Labels) -> dict[str, Array]:
    """The signals (N,) of two models' log-probabilities (N, K); larger is more like a member."""
    return {
        "loss": margins(after, y) - margins(before, y),
        "confidence": after.max(1) - before.max(1),
        "distance": -np.abs(np.exp(after) - np.exp(before)).sum(1) / 2,
        "after": margins(after, y),
    }


def ranked(x: Array, y: Labels, reference: Array, labels: Labels) -> Array:
    """The share of the reference samples of its class that each number (N,) exceeds; ties count half.

    >>> ranked(np.array([2.0, 2.0]), np.array([0, 1]), np.arange(4.0), np.array([0, 0, 0, 1])).tolist()
    [0.8333333333333334, 0.0]
    """
    ranks = np.zeros(len(x))
    for k in np.unique(y):
        own, sorted_reference = y == k, np.sort(reference[labels == k])
        below, upto = (np.searchsorted(sorted_reference, x[own], side) for side in ("left", "right"))
        ranks[own] = (below + upto) / (2 * len(sorted_reference))
    return ranks
