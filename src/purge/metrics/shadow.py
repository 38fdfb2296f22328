"""Attacks that compare with shadow models, and metrics of the unlearning method itself.

LiRA and RMIA ask whether a model was trained on the forget set, U-LiRA whether it was trained on it
and then unlearned. Members are the forget set, non-members unseen samples of the same classes; the ideal
is the retrained model's value. The forgetting score and KLoM compare an ensemble of unlearned models
with one of retrained models: they are about the method, not about one model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from purge.core.errors import RunError
from purge.metrics import likelihood
from purge.metrics.audited import AuditedModel
from purge.metrics.bootstrap import DRAWS, Array, auroc, auroc_draws, interval, mean_value
from purge.metrics.ensemble import Ensemble, Kind, Shadows
from purge.metrics.likelihood import forgetting_scores, likelihood_ratio, typical_probability
from purge.metrics.membership import roc, tpr_value
from purge.metrics.value import Value

__all__ = ["Ensemble", "Shadows"]

Found = Value | dict[str, Value]


def _with_shadows(attack: Callable[[AuditedModel, Ensemble], Found]) -> Callable[[AuditedModel], Found]:
    """The metric of an attack; missing, with the reason, if the shadow models cannot be made."""

    def metric(audited: AuditedModel) -> Found:
        assert audited.shadows is not None
        try:
            return attack(audited, audited.shadows)
        except RunError as error:
            return Value.missing(str(error))

    return metric


def _told_apart(name: str, scores: Array, audited: AuditedModel, ensemble: Ensemble) -> dict[str, Value]:
    """How well scores of the targets separate forgotten from unseen samples."""
    inside, outside = np.split(scores, [len(ensemble.forget)])
    classes = ensemble.target_classes
    audited.curves.setdefault("roc", {})[name] = roc(inside, outside, classes)
    draws = auroc_draws(inside, outside, audited.seed, classes)
    return {
        "auroc": Value(auroc(inside, outside, classes), *interval(draws), len(scores)),
        "tpr_1pct": tpr_value(inside, outside, 0.01, audited.seed, classes),
        "tpr_01pct": tpr_value(inside, outside, 0.001, audited.seed, classes),
    }


def _lira(name: str, kind: Kind, audited: AuditedModel, ensemble: Ensemble) -> Found:
    n, shadows = ensemble.targets, ensemble.signals(kind)
    scores = likelihood_ratio(ensemble.of(audited)[:n], shadows[:, :n], ensemble.inside)
    return _told_apart(name, scores, audited, ensemble)


lira = _with_shadows(partial(_lira, "lira", "original"))
u_lira = _with_shadows(partial(_lira, "u_lira", "unlearned"))


@_with_shadows
def rmia(audited: AuditedModel, ensemble: Ensemble) -> Found:
    """The relative attack: each target against a population of unseen samples."""
    n, shadows = ensemble.targets, ensemble.signals("original")
    x, z = np.split(ensemble.of(audited), [n])
    # A sample of the population may also be a target: then half of the models have seen it.
    where = {row: at for at, row in enumerate(ensemble.unseen.tolist(), len(ensemble.forget))}
    seen = np.zeros((len(shadows), len(z)), dtype=bool)
    for at, row in enumerate(ensemble.population.tolist()):
        if row in where:
            seen[:, at] = ensemble.inside[:, where[row]]
    typical = typical_probability(shadows, np.concatenate([ensemble.inside, seen], 1))
    return _told_apart("rmia", likelihood.rmia(x, z, typical[:n], typical[n:]), audited, ensemble)


def _compared(
    audited: AuditedModel, ensemble: Ensemble, name: str, least: int, between: Callable[[Array, Array], Value]
) -> Found:
    """Compare unlearned models that had seen a sample with retrained ones, and retrained with retrained.

    Half of the retrained models stand for retraining, the other half for a perfect method: its value,
    ``retrain``, is the best that so few models can show.
    """
    if audited.retrained is audited:
        return Value.missing("this is about the unlearning method, not about one model")
    number, forget = ensemble.shadows.number, len(ensemble.forget)
    if number < least:
        return Value.missing(f"this needs at least {least} shadow models, and there are {number}")
    if ensemble.targets < 2:
        return Value.missing("a single sample cannot be divided among shadow models")
    inside = ensemble.inside[:, :forget]  # half of the models have each sample
    unlearned = ensemble.signals("unlearned")[:, :forget].T[inside.T].reshape(forget, number // 2).T
    perfect, retrained = np.split(ensemble.signals("retrained")[:, :forget], 2)
    return {name: between(unlearned, retrained), "retrain": between(perfect, retrained)}


@_with_shadows
def forgetting_score(audited: AuditedModel, ensemble: Ensemble) -> Found:
    """How hard unlearned models are to tell from retrained ones, sample by sample."""

    def between(a: Array, b: Array) -> Value:
        return mean_value(forgetting_scores(a, b), audited.seed)

    return _compared(audited, ensemble, "score", 6, between)  # two models of a kind cannot be graded


@_with_shadows
def klom(audited: AuditedModel, ensemble: Ensemble) -> Found:
    """KL of the margins of unlearned and retrained models: the 95th percentile over the samples."""

    def between(a: Array, b: Array) -> Value:
        x = likelihood.klom(a, b)
        drawn = np.random.default_rng(audited.seed).integers(len(x), size=(DRAWS, len(x)))
        return Value(float(np.quantile(x, 0.95)), *interval(np.quantile(x[drawn], 0.95, axis=1)), len(x))

    return _compared(audited, ensemble, "p95", 4, between)
