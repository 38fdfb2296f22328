"""Attacks that compare with shadow models, and metrics of the unlearning method itself.

LiRA and RMIA ask whether a model was trained on the forget set, U-LiRA whether it was trained on it
and then unlearned. Members are the forget set, non-members unseen samples of the same classes; the ideal
is the retrained model's value. The forgetting score and KLoM compare an ensemble of unlearned models
with one of retrained models: they are about the method, not about one model.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import nn

from purge.core.errors import MethodError
from purge.core.settings import normalise, setting
from purge.engine.precision import Precision
from purge.engine.trainer import Recipe
from purge.methods.base import Method
from purge.metrics import likelihood
from purge.metrics.audited import AuditedModel
from purge.metrics.bootstrap import DRAWS, Array, interval, mean_value
from purge.metrics.ensemble import Ensemble, Kind
from purge.metrics.likelihood import forgetting_scores, likelihood_ratio, typical_probability
from purge.metrics.membership import told_apart
from purge.metrics.metric import Measured
from purge.metrics.value import Value


@dataclass(frozen=True)
class Shadows:
    """How shadow models are made, which attacks on membership compare a model with.

    Args:
        number: models of each kind, an even number.
        recipe: how the original was trained.
        method: how the audited model was unlearned; None: no attack on unlearning.
        fresh: an untrained model; None: the audited one with weights drawn anew.
        cache: folder where they are kept; None: $PURGE_CACHE/shadows.
        precision: of unlearning; None: that of the audited Result, or of the device.

    Example:
        ```python
        trained = purge.train(network, train)
        result = purge.unlearn(trained, forget, retain)
        shadows = purge.Shadows(recipe=trained.method, method=result.method)
        report = purge.audit(result, forget, retain, test, metrics="full", shadows=shadows)
        ```
    """

    number: int = setting(16, "models of each kind, an even number", low=4)
    recipe: Recipe = Recipe()
    method: Method | None = None
    fresh: nn.Module | None = None
    cache: str | os.PathLike[str] | None = None
    precision: Precision | None = None

    def __post_init__(self) -> None:
        if isinstance(self.cache, os.PathLike):
            object.__setattr__(self, "cache", os.fspath(self.cache))
        normalise(self)
        if self.number % 2:
            raise MethodError(
                "an even number of shadow models, since half of them see each sample",
                str(self.number),
                f"pass number={self.number + 1}",
            )
        if self.method is not None and (kept := self.method.needs & {"shards", "updates"}):
            raise MethodError(
                "a method that works on any trained model, for shadow models",
                f"{type(self.method).__name__}, which needs the {min(kept)} of its training",
                "leave method out",
            )


def _ensemble(audited: AuditedModel) -> Ensemble:
    assert audited.shadows is not None  # the metrics say that they need it
    return audited.shadows


def _of_targets(name: str, scores: Array, audited: AuditedModel, ensemble: Ensemble) -> dict[str, Value]:
    """How well scores of the targets tell forgotten from unseen samples."""
    inside, outside = np.split(scores, [len(ensemble.forget)])
    return told_apart(audited, name, inside, outside, ensemble.target_classes)


def _lira(audited: AuditedModel, name: str, kind: Kind) -> Measured:
    ensemble = _ensemble(audited)
    n, shadows = ensemble.targets, ensemble.signals(kind)
    scores = likelihood_ratio(ensemble.of(audited)[:n], shadows[:, :n], ensemble.inside)
    return _of_targets(name, scores, audited, ensemble)


lira = partial(_lira, name="lira", kind="original")
u_lira = partial(_lira, name="u_lira", kind="unlearned")


def rmia(audited: AuditedModel) -> Measured:
    """The relative attack: each target against a population of unseen samples."""
    ensemble = _ensemble(audited)
    n, shadows = ensemble.targets, ensemble.signals("original")
    x, z = np.split(ensemble.of(audited), [n])
    # A sample of the population may also be a target: then half of the models have seen it.
    where = {row: at for at, row in enumerate(ensemble.unseen.tolist(), len(ensemble.forget))}
    seen = np.zeros((len(shadows), len(z)), dtype=bool)
    for at, row in enumerate(ensemble.population.tolist()):
        if row in where:
            seen[:, at] = ensemble.inside[:, where[row]]
    typical = typical_probability(shadows, np.concatenate([ensemble.inside, seen], 1))
    return _of_targets("rmia", likelihood.rmia(x, z, typical[:n], typical[n:]), audited, ensemble)


def _compared(
    audited: AuditedModel, name: str, least: int, between: Callable[[Array, Array], Value]
) -> Measured:
    """Compare unlearned models that had seen a sample with retrained ones, and retrained with retrained.

    Half of the retrained models stand for retraining, the other half for a perfect method: its value,
    ``retrain``, is the best that so few models can show.
    """
    if audited.retrained is audited:
        return Value.missing("this is about the unlearning method, not about one model")
    ensemble = _ensemble(audited)
    number, forget = ensemble.shadows.number, len(ensemble.forget)
    if number < least:
        return Value.missing(f"this needs at least {least} shadow models, and there are {number}")
    if ensemble.targets < 2:
        return Value.missing("a single sample cannot be divided among shadow models")
    inside = ensemble.inside[:, :forget]  # half of the models have each sample
    unlearned = ensemble.signals("unlearned")[:, :forget].T[inside.T].reshape(forget, number // 2).T
    perfect, retrained = np.split(ensemble.signals("retrained")[:, :forget], 2)
    return {name: between(unlearned, retrained), "retrain": between(perfect, retrained)}


def forgetting_score(audited: AuditedModel) -> Measured:
    """How hard unlearned models are to tell from retrained ones, sample by sample."""

    def between(a: Array, b: Array) -> Value:
        return mean_value(forgetting_scores(a, b), audited.seed)

    return _compared(audited, "score", 6, between)  # two models of a kind cannot be graded


def klom(audited: AuditedModel) -> Measured:
    """KL of the margins of unlearned and retrained models: the 95th percentile over the samples."""

    def between(a: Array, b: Array) -> Value:
        x = likelihood.klom(a, b)
        drawn = np.random.default_rng(audited.seed).integers(len(x), size=(DRAWS, len(x)))
        return Value(float(np.quantile(x, 0.95)), *interval(np.quantile(x[drawn], 0.95, axis=1)), len(x))

    return _compared(audited, "p95", 4, between)
