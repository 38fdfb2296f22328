"""Accuracies: what the model still gets right, and where the forgotten samples go instead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from purge.metrics.bootstrap import DRAWS, Array, interval, mean_value
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


def ta(subject: Subject) -> Value:
    """Accuracy on all test data."""
    return _accuracy(subject, "test")


def ta_retain(subject: Subject) -> Value:
    """Accuracy on test data of the classes that stay."""
    return _accuracy(subject, "kept_class_test")


def fa_train(subject: Subject) -> Value:
    """Accuracy on the forget set itself."""
    return _accuracy(subject, "forget")


def fa_test(subject: Subject) -> Value:
    """Accuracy on unseen data of the classes in the forget set."""
    return _accuracy(subject, "same_class_test")


def ra(subject: Subject) -> Value:
    """Accuracy on the retain set."""
    return _accuracy(subject, "retain")
