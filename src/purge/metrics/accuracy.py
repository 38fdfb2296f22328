"""Accuracies: what the model still gets right, overall and by class, and how sure it is."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import nn

from purge.core.threads import threads_for
from purge.data.samples import Samples
from purge.metrics.audited import AuditedModel, Hits, Labels, Part
from purge.metrics.bootstrap import DRAWS, Array, interval, resamples
from purge.metrics.value import Value
from purge.models.forward import logits
from purge.models.inspect import device_of

BINS = 15  # of equal width, for the calibration error
NEIGHBOURS = 3  # retained classes nearest to what is forgotten


def accuracy(audited: AuditedModel, part: Part) -> Value:
    """Accuracy on a part of the data."""
    return audited.mean(audited.hits(part))


ta = partial(accuracy, part="test")
ta_retain = partial(accuracy, part="kept_class_test")
fa_train = partial(accuracy, part="forget")
ra = partial(accuracy, part="retain")


def fa_test(audited: AuditedModel) -> Value:
    """Accuracy on unseen samples of the classes in the forget set.

    Where single samples are forgotten, their classes have the weights they have among these samples.
    """
    weights = audited.matched() if audited.split.single else None
    return audited.mean(audited.hits("same_class_test"), weights)


def ua(audited: AuditedModel) -> Value:
    """UA = 1 − accuracy on the forget set."""
    return audited.mean(~audited.hits("forget"))


def destinations(audited: AuditedModel) -> dict[str, Value]:
    """Share of the forget set that is predicted as each class."""
    guesses = audited.guesses("forget")
    return {str(k): audited.mean(guesses == k) for k in range(audited.split.classes)}


def clean_label(audited: AuditedModel) -> Value:
    """Share of the forget set that gets its right label, for samples that were trained with a wrong one.

    The right labels are what ``truth`` says. The share that still gets the label of the training is
    ``fa_train``; a sample whose label was right all along counts in both. Even a retrained model does not
    get all of them right: compare with its number.
    """
    assert audited.split.truth is not None  # the metric says that it needs it
    return audited.mean(audited.guesses("forget") == audited.split.truth.numpy())


def attack_success(audited: AuditedModel) -> Value:
    """Share of samples with a backdoor trigger that get the attacker's label.

    ``triggered`` has inputs with the trigger, and the attacker's label as the label of each. Leave out
    samples that are of this class anyway: for them a right answer cannot be told from a successful attack.
    A model that never saw the trigger also gives that label by mistake: compare with the retrained model's.
    """
    return accuracy(audited, "triggered")


def change(after: Hits, before: Hits, seed: int) -> Value:
    """The change of an accuracy between two models on the same N samples, resampled in pairs."""
    point = after.mean() - before.mean()
    return Value(float(point), *interval(change_draws(after, before, seed)), len(after))


def change_draws(after: Hits, before: Hits, seed: int) -> Array:
    """Bootstrap draws of the change: how many resampled pairs gain, lose or stay is multinomial.

    Half a pair is added to each of the four cells of before and after (Agresti & Min, 2005): that no pair
    of n changed does not mean that none could.
    """
    n = len(after)
    won, lost = int((after & ~before).sum()), int((before & ~after).sum())
    chances = np.array([won + 0.5, lost + 0.5, n - won - lost + 1]) / (n + 2)
    drawn = np.random.default_rng(seed).multinomial(n, chances, DRAWS)
    draws: Array = (drawn[:, 0] - drawn[:, 1]) / n
    return draws


def accuracies(model: nn.Module, test: Samples | None) -> dict[str, Any]:
    """The accuracy on test data, and that of each class in it."""
    if test is None:
        return {}
    with threads_for(model, device_of(model)):
        right = logits(model, test).argmax(1).cpu() == test.labels
    classes = {int(c): float(right[test.labels == c].float().mean()) for c in test.labels.unique()}
    return {"test_accuracy": float(right.float().mean()), "class_accuracy": classes}


# -- what unlearning did to everything else ------------------------------------------------------


def class_accuracy(audited: AuditedModel) -> dict[str, Value]:
    """Accuracy on the test data of each class; a class without test data is left out.

    The aim is the retrained model's: near 0 for a forgotten class, unharmed for the others. It does not
    tell what happens to single samples within a class.
    """
    y, right = audited.labels("test"), audited.hits("test")
    return {str(k): audited.mean(right[y == k]) for k in np.unique(y)}


def class_change(audited: AuditedModel) -> dict[str, Value]:
    """Accuracy of each class on test data, after − before unlearning, on the same samples.

    Retraining also moves classes a little either way, so compare with the retrained column.
    """
    y, after, before = audited.labels("test"), audited.hits("test"), audited.other("original").hits("test")
    return {str(k): change(after[y == k], before[y == k], audited.seed) for k in np.unique(y)}


def worst_class(audited: AuditedModel) -> dict[str, Value]:
    """The lowest test accuracy of a class that stays, and the number of that class.

    The interval is that of the class alone. It does not allow for the class having been picked as the
    lowest: with many classes and few samples, some class looks bad by chance. The class may have been
    as bad before: see the original column, or largest_drop.
    """
    y, right = audited.labels("kept_class_test"), audited.hits("kept_class_test")
    classes = np.unique(y)
    worst = classes[np.argmin([right[y == k].mean() for k in classes])]
    accuracy = audited.mean(right[y == worst])
    return {"accuracy": accuracy, "class": Value(float(worst), n=accuracy.n)}


def largest_drop(audited: AuditedModel) -> Value:
    """The largest drop in test accuracy of a class that stays: after − before, below 0 for a loss.

    See class_change for which class it is. As in worst_class, the interval is that of the class alone.
    """
    y, after = audited.labels("kept_class_test"), audited.hits("kept_class_test")
    before = audited.other("original").hits("kept_class_test")
    classes = np.unique(y)
    lost = classes[np.argmin([after[y == k].mean() - before[y == k].mean() for k in classes])]
    return change(after[y == lost], before[y == lost], audited.seed)


def ece(audited: AuditedModel) -> Value:
    """Expected calibration error on test data of the classes that stay.

    Σ_b n_b/n · |accuracy in b − mean confidence in b| over 15 bins of equal width of the largest
    probability, each closed above. 0 is calibrated, but a trained network is not: the aim is the
    retrained model's. Errors of opposite sign within a bin cancel unseen, and even a calibrated model
    is a little above 0 by chance.
    """
    confidence = np.exp(audited.log_probs("kept_class_test").max(1))
    return calibration_error(confidence, audited.hits("kept_class_test"), audited.seed)


def calibration_error(confidence: Array, right: Hits, seed: int) -> Value:
    """Σ_b n_b/n · |accuracy − mean confidence| over bins of the confidence (N,)."""
    n = len(confidence)
    bins = np.clip(np.ceil(confidence * BINS) - 1, 0, BINS - 1).astype(np.int64)
    terms = np.zeros((n, BINS))
    terms[np.arange(n), bins] = right - confidence
    draws = np.concatenate([counts @ terms / n for counts in resamples(n, seed)])
    return absolute_sum(terms.mean(0), draws, n)


def neighbours(audited: AuditedModel) -> dict[str, Value]:
    """Test accuracy over the retained classes that lie nearest to what is forgotten, and its change.

    Nearest: the three classes to which the original model gives most probability on the forget set,
    not counting each sample's own. Damage shows there first, and is diluted in the mean over all classes.
    """
    original = audited.other("original")
    p = np.exp(original.log_probs("forget"))
    p[np.arange(len(p)), audited.labels("forget")] = 0.0
    y = audited.labels("kept_class_test")
    there = np.unique(y)
    nearest = there[np.argsort(-p.mean(0)[there], kind="stable")[:NEIGHBOURS]]
    after, before = (s.hits("kept_class_test") for s in (audited, original))
    audited.curves["neighbours"] = {
        "class": [int(k) for k in nearest],
        "before": [float(before[y == k].mean()) for k in nearest],
        "after": [float(after[y == k].mean()) for k in nearest],
    }
    near = np.isin(y, nearest)
    return {"accuracy": audited.mean(after[near]), "change": change(after[near], before[near], audited.seed)}


def destinations_tv(audited: AuditedModel) -> Value:
    """Total-variation distance ½ Σ_k |share of D_f predicted as k − the retrained model's share|.

    0: as many samples go to each class as with the retrained model; 1: none goes to a class that it
    uses. It does not tell whether the same samples go there: see agreement. By chance it is above 0 even
    between two retrained models.
    """
    ours, theirs = audited.guesses("forget"), audited.other("retrained").guesses("forget")
    return variation_distance(ours, theirs, audited.split.classes, audited.seed)


def variation_distance(ours: Labels, theirs: Labels, classes: int, seed: int) -> Value:
    """½ Σ_k |share of k in ours − in theirs|, of predictions (N,) for the same N samples."""
    n = len(ours)
    pairs, counts = np.unique(ours * classes + theirs, return_counts=True)
    terms = (np.eye(classes)[pairs // classes] - np.eye(classes)[pairs % classes]) / 2
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, DRAWS)  # resampled pairs, counted
    return absolute_sum(counts @ terms / n, drawn @ terms / n, n)


def absolute_sum(means: Array, draws: Array, n: int) -> Value:
    """Σ_k |m_k| of K means, at most 1, with an interval from bootstrap draws (…, K) of the means.

    Noise adds to a sum of absolute values and never cancels, so the quantiles of resampled sums may lie
    above the value, and above 0 where that is the truth. Each end is found on its own. The true sum is
    at most the value plus the noise along the signs found. It is at least the value minus Σ|noise|, which
    reaches 0 where chance could have made all of it; only a mean more than four standard errors from 0
    is sure of its sign and counts with its noise along that.
    """
    value, noise = min(float(np.abs(means).sum()), 1.0), draws - means
    along = np.where(means == 0, np.abs(noise), noise * np.sign(means))
    against = np.where(np.abs(means) > 4 * noise.std(0), -along, np.abs(noise))
    above, below = (max(float(np.quantile(part.sum(1), 0.975)), 0.0) for part in (along, against))
    return Value(value, max(value - below, 0.0), min(value + above, 1.0), n)
