"""Membership inference: can forgotten samples be told from ones that were never seen?

Two kinds of attack. The first compares the forget set (members) with test data of the same classes
(non-members) by one signal: AUROC, TPR at a low FPR, or the accuracy of a logistic regression; 0.5 (the
FPR itself for a TPR) is indistinguishable. The second learns what members look like from retain and test
data and is then asked about the forget set; its answer is a share. Either way the aim is the retrained
model's value, which need not be 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from purge.metrics.bootstrap import Array, interval, mean_value, rate_draws, rates
from purge.metrics.metric import Metric
from purge.metrics.subject import Part, Subject
from purge.metrics.value import Value

SAME, KEPT = frozenset({"same_class_test"}), frozenset({"kept_class_test"})
FPRS = (0.01, 0.001)
GRID = tuple(float(f"{fpr:.6g}") for fpr in np.geomspace(1e-4, 1, 61))  # where ROC curves are kept

LEAST = 10  # samples of each kind that an attack learns from
LEARN = 1000  # at most so many of each kind for the SVC, whose cost is quadratic …
ASK = 5000  # … and so many forget samples that it is asked about
AT_ONCE = 1000  # answers that a thread gives
SPLITS, STUDENT = 10, 2.262  # random splits, and the 97.5 % point of Student's t with SPLITS − 1 degrees

# -- signals: larger is more like a member -----------------------------------------------------

Labels = NDArray[np.int64]


def minus_loss(log_probs: Array, y: Labels) -> Array:
    """log p_y, the negative cross entropy."""
    return log_probs[np.arange(len(y)), y]


def confidence(log_probs: Array, y: Labels) -> Array:
    """The logarithm of the largest probability."""
    found: Array = log_probs.max(1)
    return found


def minus_entropy(log_probs: Array, y: Labels) -> Array:
    """Σ_j p_j log p_j."""
    found: Array = (np.exp(log_probs) * log_probs).sum(1)
    return found


def minus_m_entropy(log_probs: Array, y: Labels) -> Array:
    """(1 − p_y) log p_y + Σ_{j≠y} p_j log(1 − p_j): entropy that knows the label (Song & Mittal, 2021)."""
    rows, top = np.arange(len(y)), log_probs.argmax(1)
    p = np.exp(log_probs)
    small = p.copy()
    small[rows, top] = 0
    log_rest = np.log1p(-small)  # log(1 − p) of all classes; the largest p may be 1 but for rounding
    log_rest[rows, top] = _log_others(log_probs, top)
    terms = p * log_rest
    terms[rows, y] = np.exp(log_rest[rows, y]) * log_probs[rows, y]
    found: Array = terms.sum(1)
    return found


def margin(log_probs: Array, y: Labels) -> Array:
    """log p_y − log(1 − p_y): ranks as the loss does, but also where p_y rounds to 1."""
    return minus_loss(log_probs, y) - _log_others(log_probs, y)


def _log_others(log_probs: Array, y: Labels) -> Array:
    """The logarithm of the sum of all probabilities but that of class y."""
    others = log_probs.copy()
    others[np.arange(len(y)), y] = -np.inf
    largest = others.max(1, keepdims=True)
    found: Array = largest[:, 0] + np.log(np.exp(others - largest).sum(1))
    return found


SIGNALS: dict[str, Callable[[Array, Labels], Array]] = {
    "loss": minus_loss,
    "confidence": confidence,
    "entropy": minus_entropy,
    "m_entropy": minus_m_entropy,
    "margin": margin,
}


# -- one signal, forget against unseen data of the same classes --------------------------------


def roc(inside: Array, outside: Array) -> dict[str, list[float]]:
    """The ROC curve of scores on a fixed grid of FPRs: the TPR of :func:`tpr_at` at each."""
    return {"fpr": list(GRID), "tpr": rates(inside, outside, GRID)[1:].round(6).tolist()}


def tpr_at(inside: Array, outside: Array, fpr: float) -> float:
    """The share of ``inside`` above a threshold that at most a share ``fpr`` of ``outside`` is above.

    Of all such thresholds the lowest; a score that ties with it is not above it.
    """
    return float(rates(inside, outside, [fpr])[1])


def tpr_value(inside: Array, outside: Array, fpr: float, seed: int) -> Value:
    """:func:`tpr_at` with a bootstrap interval; missing where ``outside`` is too few for such an FPR."""
    if why := _too_few(len(outside), fpr):
        return Value.missing(why)
    draws = rate_draws([(inside, outside)], seed, [fpr])[0, 1]
    return Value(tpr_at(inside, outside, fpr), *interval(draws), len(inside) + len(outside))


def _too_few(outside: int, fpr: float) -> str:
    """Why an FPR cannot be told from so many non-members; empty if it can."""
    least = round(1 / fpr)
    if outside >= least:
        return ""
    return f"an FPR of {100 * fpr:g} % needs at least {least} non-members, and there are {outside}"


def attacks(subject: Subject) -> dict[str, Value]:
    """AUROC and TPR of every signal, from one pass over the resamples; leaves the ROC curves."""
    parts: list[Part] = ["forget", "same_class_test"]
    given = [(subject.log_probs(part), subject.labels(part)) for part in parts]
    n, outside = sum(len(y) for _, y in given), len(given[1][1])
    pairs = {name: (signal(*given[0]), signal(*given[1])) for name, signal in SIGNALS.items()}
    subject.curves.setdefault("roc", {}).update({name: roc(*pair) for name, pair in pairs.items()})
    points = np.array([rates(*pair, FPRS) for pair in pairs.values()])
    draws = rate_draws(list(pairs.values()), subject.seed, FPRS)

    def value(point: Any, drawn: Array) -> Value:
        return Value(float(point), *interval(drawn), n)

    found = {"mia": value(points[:2, 0].mean(), draws[:2, 0].mean(0))}  # of loss and confidence
    for i, name in enumerate(pairs):
        found[f"mia_{name}"] = value(points[i, 0], draws[i, 0])
        for k, fpr in enumerate(FPRS, 1):
            why = _too_few(outside, fpr)
            found[f"{fpr:g} {name}"] = Value.missing(why) if why else value(points[i, k], draws[i, k])
    return found


ATTACKS = Metric("attacks", "attacks", "AUROC and TPR of every signal", attacks, needs=SAME)


def _attacks(subject: Subject) -> dict[str, Value]:
    """What :func:`attacks` finds, computed once for all metrics that are made of it."""
    found = subject.value(ATTACKS)
    assert isinstance(found, dict)
    return found


def true_positives(subject: Subject, fpr: float) -> Value | dict[str, Value]:
    """The share of the forget set that each signal finds at this FPR."""
    found = {name: _attacks(subject)[f"{fpr:g} {name}"] for name in SIGNALS}
    missing = [v for v in found.values() if v.value is None]
    return missing[0] if missing else found


def mia_split(subject: Subject) -> Value:
    """Accuracy of a logistic regression on the loss, forget against as much unseen same-class data.

    Mean over 10 random splits, a tenth held out in each, as in the starting kit of the NeurIPS 2023
    challenge and in SCRUB. The splits overlap; the interval allows for it (Nadeau & Bengio, 2003).
    The regression is regularised: losses far below 1 all look the same to it.
    """
    from sklearn.linear_model import LogisticRegression  # takes long to import
    from sklearn.model_selection import StratifiedShuffleSplit, cross_val_score

    parts: list[Part] = ["forget", "same_class_test"]
    losses = [-minus_loss(subject.log_probs(part), subject.labels(part)) for part in parts]
    if why := _unlearnable(losses, ("forget samples", "test samples of their classes")):
        return why
    n, rng = min(map(len, losses)), np.random.default_rng(subject.seed)
    x = np.concatenate([_some(loss, n, rng) for loss in losses])[:, None]
    splits = StratifiedShuffleSplit(SPLITS, test_size=0.1, random_state=subject.seed)
    right = cross_val_score(LogisticRegression(), x, np.repeat([1, 0], n), cv=splits, scoring="accuracy")
    mean, reach = right.mean(), STUDENT * right.std(ddof=1) * np.sqrt(1 / SPLITS + 1 / 9)
    return Value(float(mean), float(max(mean - reach, 0)), float(min(mean + reach, 1)), 2 * n)


# -- learnt from retain and test data, asked about the forget set ------------------------------


def called_members(attack: Any, inside: Array, outside: Array, asked: Array) -> NDArray[np.bool_]:
    """Which rows of ``asked`` a classifier calls members once it has learnt both kinds."""
    attack.fit(np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)]))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # an SVC takes longer to answer than to learn
        answers = list(pool.map(attack.predict, np.array_split(asked, -(-len(asked) // AT_ONCE))))
    found: NDArray[np.bool_] = np.concatenate(answers) == 1
    return found


def mia_svc(subject: Subject) -> Value | dict[str, Value]:
    """Share of the forget set that an SVC calls NON-member, by each of five features (SalUn).

    SVC(C=3, rbf, gamma="auto") learns retain samples against test data of the classes that stay, equally
    many and at most 1,000 of each, and is asked about at most 5,000 forget samples, all drawn by the
    seed. ``confidence`` is the probability of the label. The interval is over forget samples alone.
    """
    from sklearn.svm import SVC  # takes long to import

    parts: list[Part] = ["retain", "kept_class_test", "forget"]
    rows = [np.arange(len(subject.labels(part))) for part in parts]
    if why := _unlearnable(rows[:2], ("retain samples", "test samples of classes that stay")):
        return why
    n, rng = min(len(rows[0]), len(rows[1]), LEARN), np.random.default_rng(subject.seed)
    drawn = [_some(at, most, rng) for at, most in zip(rows, (n, n, ASK), strict=True)]
    seen = [
        _features(subject.log_probs(part)[at], subject.labels(part)[at])
        for part, at in zip(parts, drawn, strict=True)
    ]

    def called(name: str) -> NDArray[np.bool_]:
        attack = SVC(C=3, kernel="rbf", gamma="auto", random_state=0)
        return called_members(attack, *(features[name] for features in seen))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # an SVC works without holding up the others
        members = pool.map(called, seen[0])
    return {name: mean_value(~found, subject.seed) for name, found in zip(seen[0], members, strict=True)}


def _features(log_probs: Array, y: Labels) -> dict[str, Array]:
    """What the SVC looks at: (N, 1), or (N, K) for ``prob``."""
    p = np.exp(log_probs)
    single = {
        "confidence": p[np.arange(len(y)), y],
        "correctness": (log_probs.argmax(1) == y).astype(np.float64),
        "entropy": -minus_entropy(log_probs, y),
        "m_entropy": -minus_m_entropy(log_probs, y),
    }
    return {**{name: x[:, None] for name, x in single.items()}, "prob": p}


def mia_lr(subject: Subject) -> Value:
    """Share of the forget set that a logistic regression on the entropy calls member (Bad Teacher, SSD).

    It learns all retain samples against all test data of the classes that stay, with balanced weights.
    """
    from sklearn.linear_model import LogisticRegression  # takes long to import

    parts: list[Part] = ["retain", "kept_class_test", "forget"]
    seen = [-minus_entropy(subject.log_probs(part), subject.labels(part))[:, None] for part in parts]
    if why := _unlearnable(seen[:2], ("retain samples", "test samples of classes that stay")):
        return why
    return mean_value(called_members(LogisticRegression(class_weight="balanced"), *seen), subject.seed)


def _unlearnable(parts: Sequence[NDArray[Any]], names: Sequence[str]) -> Value | None:
    """Why an attack cannot learn from so few samples; None if it can."""
    few = [f"{len(part)} {name}" for part, name in zip(parts, names, strict=True) if len(part) < LEAST]
    return Value.missing(f"an attack learns from at least {LEAST} of each, not {few[0]}") if few else None


def _some(x: NDArray[Any], most: int, rng: np.random.Generator) -> NDArray[Any]:
    """A random choice of at most so many."""
    return x if len(x) <= most else x[rng.choice(len(x), most, replace=False)]


def mia(subject: Subject) -> Value:
    """The mean of the AUROCs of loss and confidence."""
    return _attacks(subject)["mia"]


def mia_loss(subject: Subject) -> Value:
    """AUROC of −loss, forget against unseen same-class data."""
    return _attacks(subject)["mia_loss"]


def mia_confidence(subject: Subject) -> Value:
    """AUROC of the largest probability."""
    return _attacks(subject)["mia_confidence"]


def mia_entropy(subject: Subject) -> Value:
    """AUROC of −entropy."""
    return _attacks(subject)["mia_entropy"]


def mia_m_entropy(subject: Subject) -> Value:
    """AUROC of −modified entropy."""
    return _attacks(subject)["mia_m_entropy"]


def mia_margin(subject: Subject) -> Value:
    """AUROC of the logit of the label's probability."""
    return _attacks(subject)["mia_margin"]


def tpr_1pct(subject: Subject) -> Value | dict[str, Value]:
    """The share of the forget set that each signal finds at 1 % false positives."""
    return true_positives(subject, 0.01)


def tpr_01pct(subject: Subject) -> Value | dict[str, Value]:
    """The share of the forget set that each signal finds at 0.1 % false positives."""
    return true_positives(subject, 0.001)
