"""Membership inference: can forgotten samples be told from unseen ones of the same classes?

AUROC of forget-train (members) against same-class test (non-members). 0.5 is indistinguishable;
the aim is the retrained model's value, which need not be 0.5.
"""

from __future__ import annotations

import numpy as np

from purge.metrics.base import Array, Metric, Part, Subject, auroc, auroc_draws, interval
from purge.result import Value

NEEDS = frozenset({"same_class_test"})


def _minus_loss(subject: Subject, part: Part) -> Array:
    y = subject.labels(part)
    return subject.log_probs(part)[np.arange(len(y)), y]


def _confidence(subject: Subject, part: Part) -> Array:
    found: Array = subject.log_probs(part).max(1)
    return found


SIGNALS = {"loss": _minus_loss, "confidence": _confidence}


def attack(subject: Subject, *signals: str) -> Value:
    """The mean over signals of the AUROC, with a bootstrap interval of that mean."""
    pairs = [[SIGNALS[s](subject, part) for part in ("forget", "same_class_test")] for s in signals]
    point = np.mean([auroc(a, b) for a, b in pairs])
    draws = np.mean([auroc_draws(a, b, subject.seed) for a, b in pairs], axis=0)
    return Value(float(point), *interval(draws), sum(len(part) for part in pairs[0]))


MEMBERSHIP = [
    Metric("mia_loss", "MIA loss", "AUROC of −loss, forget against unseen same-class data",
           lambda s: attack(s, "loss"), needs=NEEDS),
    Metric("mia_confidence", "MIA conf", "AUROC of the largest probability",
           lambda s: attack(s, "confidence"), needs=NEEDS),
    Metric("mia", "MIA", "mean of the two AUROCs", lambda s: attack(s, "loss", "confidence"),
           needs=NEEDS),
]  # fmt: skip
