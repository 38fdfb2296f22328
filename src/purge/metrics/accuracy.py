"""Accuracies: what the model still gets right, and where the forgotten samples go instead."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import nn

from purge.core.threads import threads_for
from purge.data.samples import Samples
from purge.metrics.audited import AuditedModel, Hits, Part
from purge.metrics.bootstrap import DRAWS, Array, interval
from purge.metrics.value import Value
from purge.models.forward import logits
from purge.models.inspect import device_of


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


def unlearning_accuracy(audited: AuditedModel) -> Value:
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
