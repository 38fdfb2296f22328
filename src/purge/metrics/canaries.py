"""A lower bound on ε from one model with canaries.

Thomas Steinke, Milad Nasr, Matthew Jagielski: "Privacy Auditing with One (1) Training Run" (2023, arXiv
2305.08846), Theorem 5.2. Each of m canaries was put into the training data by a fair coin. An attacker who
sees the model guesses r of the coins, those it is surest about, and v guesses are right. If everything that
turns coins into a model is (ε, δ)-differentially private, v is hardly larger than the number of heads among
r coins that show heads with probability e^ε / (1 + e^ε). An ε that makes v too unlikely is refuted.

What is bounded: all that happens between the coins and the model, so training *and* unlearning, if the
planted canaries were forgotten. With perfect forgetting the model would not depend on the coins, and ε would
be 0. A bound above 0 therefore shows, at its confidence and without a retrained model, that something was
left. A bound of 0 shows nothing: other guesses might do better.

Where we differ: several ways to guess are tried (all canaries, half and a fifth of them; those with the
higher score as planted, or, since some methods forget too much, those with the lower), and each at
1/6 of the allowed error (Bonferroni). The score is the logit of the planted label's probability.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from purge.core.errors import MetricError
from purge.data.planting import Canaries
from purge.metrics.audited import AuditedModel
from purge.metrics.bootstrap import Array
from purge.metrics.likelihood import Flags, margins
from purge.metrics.metric import Metric, Words
from purge.metrics.value import Value
from purge.models.forward import logits
from purge.models.inspect import device_of

SHARES = (1.0, 0.5, 0.2)  # of the canaries, the share that is guessed
LARGEST = 60.0  # an ε that no number of canaries refutes


def epsilon_canaries(planted: Canaries, *, confidence: float = 0.95, delta: float = 0.0) -> Metric:
    """The metric of an audit whose training data came from :func:`purge.plant_canaries`.

    Its numbers are ``epsilon``, the lower bound (n: the guesses that it rests on), and ``right``, the share
    of all canaries that are guessed right.

    Args:
        planted: what :func:`purge.plant_canaries` returned.
        confidence: of the bound, from 0.5 to below 1.
        delta: the δ of (ε, δ)-differential privacy.

    Returns:
        The metric, for ``metrics=`` of :func:`purge.audit`.

    Raises:
        MetricError: something else than planted canaries, or a number that is out of its range.

    Example:
        ```python
        planted = purge.plant_canaries(train, 200)
        model = purge.train(network, planted.data).model
        metrics = ["standard", purge.epsilon_canaries(planted)]
        report = purge.audit(result, forget, retain, test, metrics=metrics)
        ```
    """
    if not isinstance(planted, Canaries):
        fix = "pass what purge.plant_canaries returned"
        raise MetricError("the record of planted canaries", type(planted).__name__, fix)
    if not 0.5 <= confidence < 1:
        raise MetricError("a confidence from 0.5 to below 1", repr(confidence), "pass confidence=0.95")
    if not 0 <= delta < 1:
        raise MetricError("a delta from 0 to below 1", repr(delta), "pass delta=0")
    return Metric(
        name="epsilon_canaries",
        symbol="ε",
        about=f"lower bound on ε from {len(planted.included)} canaries, at {100 * confidence:g} % confidence",
        fn=partial(_measured, planted=planted, confidence=confidence, delta=delta),
        parts=("epsilon", "right"),
        units={"right": "share"},
        section="membership",
        direction="lower",
        ideal=0.0,
        docs=__doc__ or "",
        limits=(0, None),
        words={"epsilon": Words("lower bound on ε from the canaries, at the stated confidence")},
    )


def _measured(audited: AuditedModel, planted: Canaries, confidence: float, delta: float) -> dict[str, Value]:
    samples = planted.samples.to(device_of(audited.model))
    scores = logits(audited.model, samples).double().log_softmax(1).cpu().numpy()
    phi, included = margins(scores, samples.labels.numpy()), planted.included.numpy()
    bound, guesses = best_bound(phi, included, confidence, delta)
    return {"epsilon": Value(bound, n=guesses), "right": audited.mean(guessed(phi, included, len(phi)))}


def best_bound(phi: Array, included: Flags, confidence: float, delta: float) -> tuple[float, int]:
    """The largest lower bound among the ways to guess, and how many guesses it rests on."""
    m = len(phi)
    each = 1 - (1 - confidence) / (2 * len(SHARES))
    bounds = []
    for share in SHARES:
        guesses = max(1, round(share * m))
        for score in (phi, -phi):
            right = int(guessed(score, included, guesses).sum())
            bounds.append((epsilon_bound(right, guesses, m, each, delta), guesses))
    return max(bounds)


def guessed(phi: Array, included: Flags, guesses: int) -> Flags:
    """Which guesses (guesses,) are right: the upper half of them "planted", the lower half "left out".

    Canaries of equal score are taken in their order, of which the coins know nothing.
    """
    order = np.argsort(-phi, kind="stable")
    top = math.ceil(guesses / 2)
    right: Flags = np.concatenate([included[order[:top]], ~included[order[len(phi) - (guesses - top) :]]])
    return right


def epsilon_bound(right: int, guesses: int, canaries: int, confidence: float, delta: float = 0.0) -> float:
    """The ε below which so many right guesses have a probability of at most 1 − confidence.

    >>> round(epsilon_bound(100, 100, 100, 0.95), 3)
    3.493
    """
    error = 1 - confidence

    def excess(epsilon: float) -> float:
        return p_value(right, guesses, canaries, epsilon, delta) - error

    if excess(0.0) > 0:
        return 0.0
    return float(brentq(excess, 0.0, LARGEST, xtol=1e-9)) if excess(LARGEST) > 0 else LARGEST


def p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """The largest probability of ``right`` guesses or more that (ε, δ)-differential privacy allows.

    P[B ≥ v] + 2 m δ max_i P[v > B ≥ v − i] / i, where B is binomial with r guesses of e^ε / (1 + e^ε).
    """
    chance = 1 / (1 + math.exp(-epsilon))
    p = float(binom.sf(right - 1, guesses, chance))
    if delta and right:
        i = np.arange(1, right + 1)
        below = binom.cdf(right - 1, guesses, chance) - binom.cdf(right - 1 - i, guesses, chance)
        p += 2 * canaries * delta * float((below / i).max())
    return min(p, 1.0)
