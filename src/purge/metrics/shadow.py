"""Attacks by comparison with shadow models, and numbers about the unlearning method itself.

LiRA and RMIA ask whether a model was trained on the forget set, U-LiRA whether it was trained on it
and then unlearned. Members are the forget set, non-members unseen samples of the same classes; the aim
is the retrained model's value. The forgetting score and KLoM compare an ensemble of unlearned models
with one of retrained models: they are about the method, not about one model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from purge.core.errors import RunError
from purge.metrics import likelihood
from purge.metrics.bootstrap import DRAWS, Array, auroc, auroc_draws, interval, mean_value
from purge.metrics.ensemble import Ensemble, Shadows
from purge.metrics.likelihood import forgetting_scores, likelihood_ratio, typical_probability
from purge.metrics.membership import roc, tpr_value
from purge.metrics.subject import Subject
from purge.metrics.value import Value

__all__ = ["Ensemble", "Shadows"]

NO_METHOD = "no unlearning method was given to the shadow models (Shadows(method=…))"
Attack = Callable[[Subject, Ensemble], "Value | dict[str, Value]"]


def _with_shadows(attack: Attack, *, method: bool = False) -> Callable[[Subject], Value | dict[str, Value]]:
    """The metric of an attack; what keeps the shadow models from being made is its reason."""

    def fn(subject: Subject) -> Value | dict[str, Value]:
        assert subject.shadows is not None
        if method and subject.shadows.shadows.method is None:
            return Value.missing(NO_METHOD)
        try:
            return attack(subject, subject.shadows)
        except RunError as error:
            return Value.missing(str(error))

    return fn


def _told_apart(name: str, scores: Array, subject: Subject, ensemble: Ensemble) -> dict[str, Value]:
    """How well scores of the targets tell forgotten from unseen samples."""
    inside, outside = np.split(scores, [len(ensemble.forget)])
    subject.curves.setdefault("roc", {})[name] = roc(inside, outside)
    draws = auroc_draws(inside, outside, subject.seed)
    return {
        "auroc": Value(auroc(inside, outside), *interval(draws), len(scores)),
        "tpr_1pct": tpr_value(inside, outside, 0.01, subject.seed),
        "tpr_01pct": tpr_value(inside, outside, 0.001, subject.seed),
    }


def _lira(subject: Subject, ensemble: Ensemble) -> dict[str, Value]:
    n, shadows = ensemble.targets, ensemble.signals("original")
    scores = likelihood_ratio(ensemble.of(subject)[:n], shadows[:, :n], ensemble.inside)
    return _told_apart("lira", scores, subject, ensemble)


def _u_lira(subject: Subject, ensemble: Ensemble) -> dict[str, Value]:
    n, shadows = ensemble.targets, ensemble.signals("unlearned")
    scores = likelihood_ratio(ensemble.of(subject)[:n], shadows[:, :n], ensemble.inside)
    return _told_apart("u_lira", scores, subject, ensemble)


def _rmia(subject: Subject, ensemble: Ensemble) -> dict[str, Value]:
    n, shadows = ensemble.targets, ensemble.signals("original")
    x, z = np.split(ensemble.of(subject), [n])
    # A sample of the population may be a target as well: then half of the models have seen it.
    where = {row: at for at, row in enumerate(ensemble.unseen.tolist(), len(ensemble.forget))}
    seen = np.zeros((len(shadows), len(z)), dtype=bool)
    for at, row in enumerate(ensemble.population.tolist()):
        if row in where:
            seen[:, at] = ensemble.inside[:, where[row]]
    typical = typical_probability(shadows, np.concatenate([ensemble.inside, seen], 1))
    return _told_apart("rmia", likelihood.rmia(x, z, typical[:n], typical[n:]), subject, ensemble)


def _compared(
    subject: Subject, ensemble: Ensemble, name: str, least: int, between: Callable[[Array, Array], Value]
) -> dict[str, Value] | Value:
    """Unlearned models that had seen a sample against retrained ones, and retrained against retrained.

    Half of the retrained models stand for retraining, the other half for a method that is perfect: what
    the comparison says of these, ``retrain``, is as well as so few models can tell.
    """
    if subject.retrained is subject:
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


def _forgetting_score(subject: Subject, ensemble: Ensemble) -> dict[str, Value] | Value:
    def between(a: Array, b: Array) -> Value:
        return mean_value(forgetting_scores(a, b), subject.seed)

    return _compared(subject, ensemble, "score", 6, between)  # two models of a kind know no grade


def _klom(subject: Subject, ensemble: Ensemble) -> dict[str, Value] | Value:
    return _compared(subject, ensemble, "p95", 4, lambda a, b: _worst(likelihood.klom(a, b), subject.seed))


def _worst(x: Array, seed: int) -> Value:
    """The 95th percentile of N numbers with a bootstrap interval."""
    drawn = np.random.default_rng(seed).integers(len(x), size=(DRAWS, len(x)))
    return Value(float(np.quantile(x, 0.95)), *interval(np.quantile(x[drawn], 0.95, axis=1)), len(x))


MEMBERS = frozenset({"shadows", "same_class_test"})


lira = _with_shadows(_lira)
rmia = _with_shadows(_rmia)
u_lira = _with_shadows(_u_lira, method=True)
forgetting_score = _with_shadows(_forgetting_score, method=True)
klom = _with_shadows(_klom, method=True)
