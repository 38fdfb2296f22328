"""What the edit did to everything else: classes, calibration, neighbours of what is gone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from purge.metrics.accuracy import Hits, change, hits
from purge.metrics.bootstrap import DRAWS, Array, mean_value, resamples
from purge.metrics.subject import Subject
from purge.metrics.value import Value

BINS = 15  # of equal width, for the calibration error
NEIGHBOURS = 3  # retained classes nearest to what is forgotten
KEPT = frozenset({"kept_class_test"})


def class_accuracy(subject: Subject) -> dict[str, Value]:
    """Accuracy on the test data of each class; one without test data is left out.

    The aim is the retrained model's: near 0 for a forgotten class, unharmed for the others. It does
    not tell what happens to single samples within a class.
    """
    y, right = subject.labels("test"), hits(subject, "test")
    return {str(k): mean_value(right[y == k], subject.seed) for k in np.unique(y)}


def class_change(subject: Subject) -> dict[str, Value]:
    """Accuracy of each class on test data, after − before unlearning, on the same samples.

    Retraining also moves classes a little either way, so compare with the retrained column.
    """
    assert subject.original is not None
    y, after, before = subject.labels("test"), hits(subject, "test"), hits(subject.original, "test")
    return {str(k): change(after[y == k], before[y == k], subject.seed) for k in np.unique(y)}


def worst_class(subject: Subject) -> dict[str, Value]:
    """The lowest test accuracy of a class that stays, and the number of that class.

    The interval is that of the class alone: that it was picked as the lowest is not allowed for, so
    with many classes and few samples some class looks bad by chance. It may have been as bad before:
    see the original column, or worst_change.
    """
    y, right = subject.labels("kept_class_test"), hits(subject, "kept_class_test")
    classes = np.unique(y)
    worst = classes[np.argmin([right[y == k].mean() for k in classes])]
    found = mean_value(right[y == worst], subject.seed)
    return {"accuracy": found, "class": Value(float(worst), n=found.n)}


def worst_change(subject: Subject) -> Value:
    """The change in test accuracy of the class that stays and lost most: after − before, below 0 a loss.

    Which class it is can be read from class_change. As in worst_class, the interval is that of the
    class alone.
    """
    assert subject.original is not None
    y = subject.labels("kept_class_test")
    after, before = hits(subject, "kept_class_test"), hits(subject.original, "kept_class_test")
    classes = np.unique(y)
    worst = classes[np.argmin([after[y == k].mean() - before[y == k].mean() for k in classes])]
    return change(after[y == worst], before[y == worst], subject.seed)


def ece(subject: Subject) -> Value:
    """Expected calibration error on test data of the classes that stay.

    Σ_b n_b/n · |accuracy in b − mean confidence in b| over 15 bins of equal width of the largest
    probability, each closed above. 0 is calibrated, but a trained network is not: the aim is the
    retrained model's. It does not see errors of opposite sign within a bin, and even a calibrated
    model has a little of it by chance.
    """
    confidence = np.exp(subject.log_probs("kept_class_test").max(1))
    return calibration_error(confidence, hits(subject, "kept_class_test"), subject.seed)


def calibration_error(confidence: Array, right: Hits, seed: int) -> Value:
    """Σ_b n_b/n · |accuracy − mean confidence| over bins of the confidence (N,)."""
    n = len(confidence)
    bins = np.clip(np.ceil(confidence * BINS) - 1, 0, BINS - 1).astype(np.int64)
    terms = np.zeros((n, BINS))
    terms[np.arange(n), bins] = right - confidence
    draws = np.concatenate([counts @ terms / n for counts in resamples(n, seed)])
    return absolute_sum(terms.mean(0), draws, n)


def neighbours(subject: Subject) -> dict[str, Value]:
    """Test accuracy over the retained classes that lie nearest to what is forgotten, and its change.

    Nearest: the three classes to which the original model gives most probability on the forget set,
    beside each sample's own. Damage shows there first, and is diluted in the mean over all classes.
    """
    assert subject.original is not None
    forgotten, y = subject.labels("forget"), subject.labels("kept_class_test")
    p = np.exp(subject.original.log_probs("forget"))
    p[np.arange(len(p)), forgotten] = 0.0
    there = np.unique(y)
    nearest = there[np.argsort(-p.mean(0)[there], kind="stable")[:NEIGHBOURS]]
    after, before = hits(subject, "kept_class_test"), hits(subject.original, "kept_class_test")
    subject.curves["neighbours"] = {
        "class": [int(k) for k in nearest],
        "before": [float(before[y == k].mean()) for k in nearest],
        "after": [float(after[y == k].mean()) for k in nearest],
    }
    near = np.isin(y, nearest)
    return {
        "accuracy": mean_value(after[near], subject.seed),
        "change": change(after[near], before[near], subject.seed),
    }


def destinations_tv(subject: Subject) -> Value:
    """Total-variation distance ½ Σ_k |share of D_f predicted as k − the retrained model's share|.

    0: as many samples go to each class as with the retrained model; 1: none to a class that it uses.
    Not whether the same samples go there: see agreement. By chance it is above 0 even between equals.
    """
    assert subject.retrained is not None
    ours, theirs = subject.guesses("forget"), subject.retrained.guesses("forget")
    return variation_distance(ours, theirs, subject.split.classes, subject.seed)


def variation_distance(ours: NDArray[np.int64], theirs: NDArray[np.int64], classes: int, seed: int) -> Value:
    """½ Σ_k |share of k in ours − in theirs|, of predictions (N,) for the same N samples."""
    n = len(ours)
    pairs, counts = np.unique(ours * classes + theirs, return_counts=True)
    terms = (np.eye(classes)[pairs // classes] - np.eye(classes)[pairs % classes]) / 2
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, DRAWS)  # resampled pairs, counted
    return absolute_sum(counts @ terms / n, drawn @ terms / n, n)


def absolute_sum(means: Array, draws: Array, n: int) -> Value:
    """Σ_k |m_k| of K means, at most 1, with an interval from bootstrap draws (…, K) of the means.

    Resampled sums of absolute values lie above the value, as noise adds and never cancels: their
    quantiles may miss the value, and 0 where that is the truth. So the ends are found apart. The true sum
    is at most the value plus the noise along the signs found. Below, it is at least the value minus
    Σ|noise|, which reaches 0 where chance alone could have made all of it; only a mean more than four
    standard errors from 0 is sure of its sign, and counts with its noise along that.
    """
    value, noise = min(float(np.abs(means).sum()), 1.0), draws - means
    along = np.where(means == 0, np.abs(noise), noise * np.sign(means))
    against = np.where(np.abs(means) > 4 * noise.std(0), -along, np.abs(noise))
    above, below = (max(float(np.quantile(part.sum(1), 0.975)), 0.0) for part in (along, against))
    return Value(value, max(value - below, 0.0), min(value + above, 1.0), n)
