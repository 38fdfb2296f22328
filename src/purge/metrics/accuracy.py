"""Accuracies: what the model still gets right, and where the forgotten samples go instead."""

from __future__ import annotations

from purge.metrics.base import Metric, Part, Subject, mean_value
from purge.result import Value


def _accuracy(subject: Subject, part: Part) -> Value:
    return mean_value(subject.guesses(part) == subject.labels(part), subject.seed)


def unlearning_accuracy(subject: Subject) -> Value:
    """UA = 1 − accuracy on the forget set."""
    return mean_value(subject.guesses("forget") != subject.labels("forget"), subject.seed)


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
