"""Membership inference: can forgotten samples be told from ones that were never seen?

Two kinds of attack. The first compares the forget set (members) with test data of the same classes
(non-members, weighted to the class shares of the members) by one signal: AUROC, TPR at a low FPR, or the
accuracy of a logistic regression; 0.5 (the FPR itself for a TPR) is indistinguishable. The second learns
what members look like from retain and test data and is then asked about the forget set; its answer is a
share. Either way the aim is the retrained model's value, which need not be 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from purge.metrics.audited import AuditedModel, Hits, Labels, Part, once
from purge.metrics.bootstrap import Array, Classes, effective, interval, matched, rate_draws, rates, wilson
from purge.metrics.likelihood import margins
from purge.metrics.value import Missing, Value

FPRS = (0.01, 0.001)
GRID = tuple(float(f"{fpr:.6g}") for fpr in np.geomspace(1e-4, 1, 61))  # where ROC curves are kept

LEAST = 10  # samples of each kind that an attack learns from, and forgotten ones behind a TPR
LEARN = 30_000  # of each kind, at most, for the SVC, whose cost is quadratic: more than its authors have
EXACT = 2000  # samples in all up to which it learns their features unrounded …
DIGITS = 3  # … and to how many digits above that; its kernel reaches from 1 to √K, so nothing is lost
CACHE = 500  # megabytes of kernel that it keeps
AT_ONCE = 1000  # answers that a thread gives
SPLITS, STUDENT = 10, 2.262  # random splits, and the 97.5 % point of Student's t with SPLITS − 1 degrees

SEEN: tuple[Part, Part] = ("forget", "same_class_test")  # members and non-members of a threshold attack
TAUGHT: tuple[Part, ...] = ("retain", "kept_class_test", "forget")  # … of one that learns, and its question

# -- signals: larger is more like a member -----------------------------------------------------


def minus_loss(log_probs: Array, y: Labels) -> Array:
    """log p_y, the negative cross entropy."""
    return log_probs[np.arange(len(y)), y]


def minus_entropy(log_probs: Array, y: Labels) -> Array:
    """Σ_j p_j log p_j."""
    entropy: Array = (np.exp(log_probs) * log_probs).sum(1)
    return entropy


def minus_m_entropy(log_probs: Array, y: Labels) -> Array:
    """(1 − p_y) log p_y + Σ_{j≠y} p_j log(1 − p_j): entropy that knows the label (Song & Mittal, 2021)."""
    rows, top = np.arange(len(y)), log_probs.argmax(1)
    p = np.exp(log_probs)
    small = p.copy()
    small[rows, top] = 0
    log_rest = np.log1p(-small)  # log(1 − p) of all classes, except for the largest p, which may round to 1
    log_rest[rows, top] = log_probs[rows, top] - margins(log_probs, top)
    terms = p * log_rest
    terms[rows, y] = np.exp(log_rest[rows, y]) * log_probs[rows, y]
    entropy: Array = terms.sum(1)
    return entropy


SIGNALS: dict[str, Callable[[Array, Labels], Array]] = {
    "loss": minus_loss,
    "confidence": lambda log_probs, y: log_probs.max(1),
    "entropy": minus_entropy,
    "m_entropy": minus_m_entropy,
    "margin": margins,  # log p_y − log(1 − p_y): ranks as the loss does, but also where p_y rounds to 1
}


# -- one signal, forget against unseen data of the same classes --------------------------------


class Attacks(NamedTuple):
    """What threshold attacks by some signals achieve: the AUROC, then the TPR at each of FPRS."""

    points: dict[str, Array]  # (1 + FPRS,)
    draws: dict[str, Array]  # (1 + FPRS, DRAWS), all from the same resamples
    members: int  # whose class has non-members
    others: int
    effective: float  # as many non-members of equal weight would tell as much

    def auroc(self, *signals: str) -> Value:
        """The AUROC of a signal; of several, their mean."""
        points, draws = ([of[name][0] for name in signals] for of in (self.points, self.draws))
        return Value(float(np.mean(points)), *interval(np.mean(draws, axis=0)), self.members + self.others)

    def tpr(self, signal: str, fpr: float) -> Value:
        """A TPR with its interval: that of the resamples, or Wilson's where it is wider.

        Resamples know that the threshold is estimated too, but not that 0 of n found is no proof of 0.
        """
        if why := self.too_few(fpr):
            return Value.missing(why)
        k = 1 + FPRS.index(fpr)
        tpr = float(self.points[signal][k])
        ends = [interval(self.draws[signal][k]), wilson(tpr, self.members)]
        return Value(tpr, min(e[0] for e in ends), max(e[1] for e in ends), self.members + self.others)

    def too_few(self, fpr: float) -> str:
        """Why a TPR at this FPR cannot be told from so many samples; empty if it can."""
        needs, least = f"a TPR at {100 * fpr:g} % FPR needs at least", round(1 / fpr)
        if self.others < least:
            return f"{needs} {least} non-members, and there are {self.others}"
        if self.effective < least / 2:
            weigh = f"{self.others} weigh as much as {self.effective:.0f}"
            return f"{needs} {least} non-members, and with the class shares of the forgotten samples {weigh}"
        return (
            ""
            if self.members >= LEAST
            else f"{needs} {LEAST} forgotten samples, and there are {self.members}"
        )


def threshold_attacks(
    pairs: Mapping[str, tuple[Array, Array]], seed: int, classes: Classes | None = None
) -> Attacks:
    """Attacks by scores of members and of others: larger is more like a member."""
    inside, outside = next(iter(pairs.values()))
    (w_in,), (w_out,) = matched(np.ones((1, len(inside))), np.ones((1, len(outside))), classes)
    return Attacks(
        {name: rates(*pair, FPRS, classes) for name, pair in pairs.items()},
        dict(zip(pairs, rate_draws([*pairs.values()], seed, FPRS, classes), strict=True)),
        int(w_in.sum()),
        int((w_out > 0).sum()),
        effective(w_out),
    )


def roc(inside: Array, outside: Array, classes: Classes | None = None) -> dict[str, list[float]]:
    """The ROC curve of scores on a fixed grid of FPRs."""
    return {"fpr": list(GRID), "tpr": rates(inside, outside, GRID, classes)[1:].round(6).tolist()}


def told_apart(
    audited: AuditedModel, curve: str, inside: Array, outside: Array, classes: Classes | None = None
) -> dict[str, Value]:
    """The AUROC and the rates of an attack by its scores of members and others; leaves its ROC curve."""
    audited.curves.setdefault("roc", {})[curve] = roc(inside, outside, classes)
    attack = threshold_attacks({curve: (inside, outside)}, audited.seed, classes)
    low = {"tpr_1pct": attack.tpr(curve, 0.01), "tpr_01pct": attack.tpr(curve, 0.001)}
    return {"auroc": attack.auroc(curve), **low}


@once
def attacks(audited: AuditedModel) -> Attacks:
    """The attacks by all signals; leaves the ROC curves."""
    (members, ya), (others, yb) = ((audited.log_probs(part), audited.labels(part)) for part in SEEN)
    pairs = {name: (signal(members, ya), signal(others, yb)) for name, signal in SIGNALS.items()}
    curves = {name: roc(*pair, (ya, yb)) for name, pair in pairs.items()}
    audited.curves.setdefault("roc", {}).update(curves)
    return threshold_attacks(pairs, audited.seed, (ya, yb))


def auroc_of(audited: AuditedModel, signals: tuple[str, ...]) -> Value:
    """AUROC of a signal, forget against unseen same-class data; of several, their mean."""
    return attacks(audited).auroc(*signals)


def tpr_of(audited: AuditedModel, fpr: float) -> Value | dict[str, Value]:
    """The share of the forget set that each signal finds at this FPR."""
    if why := attacks(audited).too_few(fpr):
        return Value.missing(why)
    return {name: attacks(audited).tpr(name, fpr) for name in SIGNALS}


mia = partial(auroc_of, signals=("loss", "confidence"))
mia_loss = partial(auroc_of, signals=("loss",))
mia_confidence = partial(auroc_of, signals=("confidence",))
mia_entropy = partial(auroc_of, signals=("entropy",))
mia_m_entropy = partial(auroc_of, signals=("m_entropy",))
mia_margin = partial(auroc_of, signals=("margin",))
tpr_1pct = partial(tpr_of, fpr=0.01)
tpr_01pct = partial(tpr_of, fpr=0.001)


def mia_split(audited: AuditedModel) -> Value:
    """Accuracy of a logistic regression on the loss, forget against as much unseen data of each class.

    Mean over 10 random splits, a tenth held out in each, as in the starting kit of the NeurIPS 2023
    challenge and in SCRUB. The splits overlap; the interval allows for it (Nadeau & Bengio, 2003).
    The regression is regularised: losses far below 1 all look the same to it.
    """
    from sklearn.linear_model import LogisticRegression  # takes long to import
    from sklearn.model_selection import StratifiedShuffleSplit, cross_val_score

    losses = [-minus_loss(audited.log_probs(part), audited.labels(part)) for part in SEEN]
    kinds = ("forget samples", "test samples of their classes")
    _check_learnable(dict(zip(kinds, map(len, losses), strict=True)))
    rng, labels = np.random.default_rng(audited.seed), [audited.labels(part) for part in SEEN]
    counts = {k: min(int((y == k).sum()) for y in labels) for k in np.intersect1d(labels[0], labels[1])}
    some = [
        np.concatenate([_shuffled(np.flatnonzero(y == k), most, rng) for k, most in counts.items()])
        for y in labels
    ]
    _check_learnable({f"{kind}, in pairs of a class": len(at) for kind, at in zip(kinds, some, strict=True)})
    n = len(some[0])
    x = np.concatenate([loss[at] for loss, at in zip(losses, some, strict=True)])[:, None]
    splits = StratifiedShuffleSplit(SPLITS, test_size=0.1, random_state=audited.seed)
    right = cross_val_score(LogisticRegression(), x, np.repeat([1, 0], n), cv=splits, scoring="accuracy")
    mean, reach = right.mean(), STUDENT * right.std(ddof=1) * np.sqrt(1 / SPLITS + 1 / 9)
    return Value(float(mean), float(max(mean - reach, 0)), float(min(mean + reach, 1)), 2 * n)


# -- taught by retain and test data, asked about the forget set --------------------------------


def called_members(attack: Any, inside: Array, outside: Array, queries: Array, *, exact: bool = True) -> Hits:
    """Which rows of ``asked`` a classifier calls members once it has learned both kinds.

    Not ``exact``: features are rounded, and rows that are then equal become one that counts as often.
    """
    x, kinds = np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)])
    counts, back = None, np.arange(len(queries))
    if not exact:
        both, at = np.unique(np.column_stack([x.round(DIGITS), kinds]), axis=0, return_inverse=True)
        x, kinds, counts = both[:, :-1], both[:, -1].astype(np.int64), np.bincount(at.ravel())
        queries, back = np.unique(queries.round(DIGITS), axis=0, return_inverse=True)
    attack.fit(x, kinds, sample_weight=counts)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # an SVC takes longer to answer than to learn
        answers = list(pool.map(attack.predict, np.array_split(queries, -(-len(queries) // AT_ONCE))))
    members: Hits = np.concatenate(answers)[back.ravel()] == 1
    return members


def mia_svc(audited: AuditedModel) -> dict[str, Value]:
    """Share of the forget set that an SVC calls NON-member, by each of five features (SalUn).

    SVC(C=3, rbf, gamma="auto") learns retain samples, drawn by the seed, against as many test samples of
    the classes that stay (all of them, if there are enough retain samples), and is asked about the whole
    forget set. From 2,000 samples on, features are rounded to 0.001 and equal ones counted, which changes
    fewer answers than another order of the samples does. ``confidence`` is the probability of the label.
    The interval is over forget samples alone.
    """
    from sklearn.svm import SVC  # takes long to import

    sizes, rng = [len(audited.labels(part)) for part in TAUGHT], np.random.default_rng(audited.seed)
    _check_learnable({"retain samples": sizes[0], "test samples of classes that stay": sizes[1]})
    n, rows = min(*sizes[:2], LEARN), [np.arange(size) for size in sizes]
    drawn = [_shuffled(rows[0], n, rng), _shuffled(rows[1], n, rng), rows[2]]
    seen = [
        _svc_features(audited.log_probs(part)[at], audited.labels(part)[at])
        for part, at in zip(TAUGHT, drawn, strict=True)
    ]

    def called(name: str) -> Hits:
        attack = SVC(C=3, kernel="rbf", gamma="auto", random_state=0, cache_size=CACHE)
        return called_members(attack, *(features[name] for features in seen), exact=2 * n <= EXACT)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # an SVC releases the GIL
        members = pool.map(called, seen[0])
    return {name: audited.mean(~called_member) for name, called_member in zip(seen[0], members, strict=True)}


def _svc_features(log_probs: Array, y: Labels) -> dict[str, Array]:
    """What the SVC looks at: (N, 1), or (N, K) for ``prob``."""
    p = np.exp(log_probs)
    single = {
        "confidence": p[np.arange(len(y)), y],
        "correctness": (log_probs.argmax(1) == y).astype(np.float64),
        "entropy": -minus_entropy(log_probs, y),
        "m_entropy": -minus_m_entropy(log_probs, y),
    }
    return {**{name: x[:, None] for name, x in single.items()}, "prob": p}


def mia_lr(audited: AuditedModel) -> Value:
    """Share of the forget set that a logistic regression on the entropy calls member (Bad Teacher, SSD).

    It learns all retain samples against all test data of the classes that stay, with balanced weights.
    """
    from sklearn.linear_model import LogisticRegression  # takes long to import

    seen = [-minus_entropy(audited.log_probs(part), audited.labels(part))[:, None] for part in TAUGHT]
    _check_learnable({"retain samples": len(seen[0]), "test samples of classes that stay": len(seen[1])})
    return audited.mean(called_members(LogisticRegression(class_weight="balanced"), *seen))


def _check_learnable(sizes: dict[str, int]) -> None:
    for kind, size in sizes.items():
        if size < LEAST:
            raise Missing(f"an attack learns from at least {LEAST} of each, not {size} {kind}")


def _shuffled(rows: Labels, most: int, rng: np.random.Generator) -> Labels:
    """All of the rows, or a random choice of so many in random order: classifiers see that order."""
    return rows if len(rows) <= most else rows[rng.choice(len(rows), most, replace=False)]
