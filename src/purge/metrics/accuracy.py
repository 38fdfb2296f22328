"""Accuracies: what the model still gets right, and where the forgotten samples go instead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from purge.metrics.bootstrap import DRAWS, Array, interval, mean_value
from purge.metrics.metric import Metric
from purge.metrics.subject import Part, Subject
from purge.metrics.value import Value

Hits = NDArray[np.bool_]


def hits(subject: Subject, part: Part) -> Hits:
    """Which samples (N,) of a part are predicted right."""
    found: Hits = subject.guesses(part) == subject.labels(part)
    return found


def _accuracy(subject: Subject, part: Part) -> Value:
    return mean_value(hits(subject, part), subject.seed)


def change(after: Hits, before: Hits, seed: int) -> Value:
    """The change of an accuracy between two models on the same N samples, resampled in pairs."""
    point = after.mean() - before.mean()
    return Value(float(point), *interval(change_draws(after, before, seed)), len(after))


def change_draws(after: Hits, before: Hits, seed: int) -> Array:
    """Bootstrap draws of the change: how many resampled pairs gain, lose or stay is multinomial."""
    n = len(after)
    won, lost = int((after & ~before).sum()), int((before & ~after).sum())
    drawn = np.random.default_rng(seed).multinomial(n, np.array([won, lost, n - won - lost]) / n, DRAWS)
    found: Array = (drawn[:, 0] - drawn[:, 1]) / n
    return found


def unlearning_accuracy(subject: Subject) -> Value:
    """UA = 1 − accuracy on the forget set."""
    return mean_value(~hits(subject, "forget"), subject.seed)


def destinations(subject: Subject) -> dict[str, Value]:
    """Share of the forget set that is predicted as each class."""
    guesses = subject.guesses("forget")
    return {str(k): mean_value(guesses == k, subject.seed) for k in range(subject.split.classes)}


ACCURACY = [
    Metric("ta", "TA", "accuracy on all test data", lambda s: _accuracy(s, "test"),
           needs=frozenset({"test"})),
    Metric("ta_retain", "TA_r", "accuracy on test data of the classes that stay",
           lambda s: _accuracy(s, "kept_class_test"), needs=frozenset({"kept_class_test"})),
    Metric("fa_train", "FA_train", "accuracy on the forget set itself",
           lambda s: _accuracy(s, "forget")),
    Metric("fa_test", "FA", "accuracy on unseen data of the classes in the forget set",
           lambda s: _accuracy(s, "same_class_test"), needs=frozenset({"same_class_test"})),
    Metric("ra", "RA", "accuracy on the retain set", lambda s: _accuracy(s, "retain")),
    Metric("ua", "UA", "1 − accuracy on the forget set", unlearning_accuracy),
    Metric("destinations", "→", "where predictions on the forget set go, by class", destinations),
]  # fmt: skip
