"""What do the features still say? A probe for the forgotten classes, and the last layer fitted anew.

The features of a retrained model separate a class that it never saw, too: only the difference to it means
anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from purge.metrics.bootstrap import Array, mean_value
from purge.metrics.robustness import SAME, Hits, distance_between, once
from purge.metrics.subject import Part, Subject
from purge.metrics.value import Value
from purge.models.inspect import device_of

PROBED = 1_000  # samples of each side, at most
FOLDS = 5

NO_FEATURES = "no layer that makes the logits was found, so there are no features"
NONE_KEPT = "no features of unseen samples of the forgotten classes are among those that were kept"


@once
def _probe(subject: Subject) -> Hits | str:
    sides = _sides(subject)
    return sides if isinstance(sides, str) else separated(*sides)


def separated(inside: Array, outside: Array) -> Hits:
    """Which of two sets (N, D) of features a linear classifier that did not see them puts right: (2N,).

    Logistic regression (C = 1) on the features as they are, in ``FOLDS`` folds.
    """
    from sklearn.exceptions import ConvergenceWarning  # takes long to import
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

    n = len(inside)
    x, y = np.concatenate([inside, outside]), np.repeat([True, False], n)
    x -= x.mean(0)  # the intercept is not penalised: nothing changes, but the solver is faster
    folds = list(StratifiedKFold(min(FOLDS, n)).split(x, y))

    def hits(fold: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Hits:
        seen, unseen = fold
        model = LogisticRegression(C=1.0, max_iter=1000).fit(x[seen], y[seen])
        found: Hits = model.predict(x[unseen]) == y[unseen]
        return found

    # A thread for each fold: products this small gain nothing from more.
    with (
        warnings.catch_warnings(),
        threadpool_limits(1, "blas"),
        ThreadPoolExecutor(torch.get_num_threads()) as pool,
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = list(pool.map(hits, folds))
    order = np.concatenate([unseen for _, unseen in folds])
    return np.concatenate(found)[order.argsort()]


def _sides(subject: Subject) -> tuple[Array, Array] | str:
    """Two equally large, seeded sets of features to be told apart."""
    rng, gone = np.random.default_rng(subject.seed), sorted(subject.split.forget_classes)
    parts: tuple[Part, Part] = ("test", "test") if gone else ("forget", SAME)
    inside, outside = (_known(subject, part) for part in parts)
    if inside is None or outside is None:
        return NO_FEATURES
    if gone:
        there = np.isin(inside[1], gone)
        a, b = (rng.permutation(np.flatnonzero(side)) for side in (there, ~there))
    else:
        a, b = _matched(inside[1], outside[1], rng)
    n = min(len(a), len(b), PROBED)
    if n < 2:
        return "a probe needs at least two samples of each side"
    return inside[0][a[:n]], outside[0][b[:n]]


def _matched(
    ya: NDArray[np.int64], yb: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of two sets, paired by class in random order, so that no class tells one from the other."""
    pairs = [np.empty((2, 0), dtype=np.int64)]
    for c in np.intersect1d(ya, yb):
        a, b = (rng.permutation(np.flatnonzero(y == c)) for y in (ya, yb))
        n = min(len(a), len(b))
        pairs.append(np.stack([a[:n], b[:n]]))
    mixed = rng.permutation(np.concatenate(pairs, 1), axis=1)
    return mixed[0], mixed[1]


def probe(subject: Subject) -> Value:
    """Balanced accuracy of a linear classifier on penultimate features, in five folds.

    Unseen samples of the forgotten classes against equally many of the others, ``PROBED`` of each at
    most. Where single samples were forgotten: these against unseen ones of the same classes, as many
    of each class.
    """
    hits = _probe(subject)
    return Value.missing(hits) if isinstance(hits, str) else mean_value(hits, subject.seed)


def probe_gap(subject: Subject) -> Value:
    """|probe − that of the retrained model|, on the same samples."""
    return _gap(subject, _probe)


def _gap(subject: Subject, hits: Callable[[Subject], Hits | str]) -> Value:
    assert subject.retrained is not None
    ours, theirs = hits(subject), hits(subject.retrained)
    if isinstance(ours, str) or isinstance(theirs, str):
        return Value.missing(ours if isinstance(ours, str) else f"retrained model: {theirs}")
    return distance_between(ours, theirs, subject.seed)


def fit_head(x: Tensor, y: Tensor, weight: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The weights (K, D) and biases (K,) of a multinomial logistic regression (C = 1).

    ``weight`` says how many samples each row stands for. Features are standardised for the fit; what
    is returned is for features as they are.
    """
    total = weight.sum()
    mean = weight @ x / total
    std = (weight @ (x - mean) ** 2 / total).sqrt()
    std = torch.where(std > 0, std, torch.ones_like(std))
    x = (x - mean) / std
    # On the CPU, though x may not be: the solver takes many small steps with these, and reads each.
    w = torch.zeros(classes, x.shape[1], dtype=x.dtype, requires_grad=True)
    b = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    solver = torch.optim.LBFGS([w, b], max_iter=100, tolerance_grad=1e-4, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        at_x = w.to(x.device)
        each = F.cross_entropy(F.linear(x, at_x, b.to(x.device)), y, reduction="none")
        found = (weight @ each + at_x.square().sum() / 2) / total
        found.backward()
        return found

    with torch.enable_grad():
        solver.step(loss)
    found = w.detach().to(x.device) / std
    return found, b.detach().to(x.device) - found @ mean


@once
def _refit(subject: Subject) -> dict[str, Hits] | str:
    retain, forget, unseen = (_known(subject, part) for part in ("retain", "forget", SAME))
    if retain is None or forget is None or unseen is None:
        return NO_FEATURES
    if not len(unseen[1]):
        return NONE_KEPT
    stands_for = [
        len(samples) / len(x)
        for samples, (x, _) in ((subject.split.retain, retain), (subject.split.forget, forget))
    ]
    weight = np.repeat(stands_for, [len(retain[0]), len(forget[0])])
    x, y, wt = (
        torch.from_numpy(a).to(device_of(subject.model))
        for a in (
            np.concatenate([retain[0], forget[0]], dtype=np.float32, casting="same_kind"),
            np.concatenate([retain[1], forget[1]]),
            weight.astype(np.float32),
        )
    )
    fitted = fit_head(x, y, wt, subject.split.classes)
    w, b = (t.double().cpu().numpy() for t in fitted)
    return {name: (x @ w.T + b).argmax(1) == y for name, (x, y) in (("fa", unseen), ("ra", retain))}


def _known(subject: Subject, part: Part) -> tuple[Array, NDArray[np.int64]] | None:
    """The features (N, D) that are kept of a part, and their labels."""
    x = subject.features(part)
    return None if x is None else (x, subject.labels(part)[subject.featured(part)])


def head_refit(subject: Subject) -> Value | dict[str, Value]:
    """FA and RA once the last layer alone is fitted anew, to all training data, the forgotten included.

    A retrained model gets the class back as well, as far as its features tell it from others. Of a
    large set the features that the audit keeps stand for all of it.
    """
    hits = _refit(subject)
    if isinstance(hits, str):
        return Value.missing(hits)
    return {name: mean_value(h, subject.seed) for name, h in hits.items()}


def head_refit_gap(subject: Subject) -> Value:
    """|FA with a refitted head − that of the retrained model|, on the same samples."""

    def fa(s: Subject) -> Hits | str:
        hits = _refit(s)
        return hits if isinstance(hits, str) else hits["fa"]

    return _gap(subject, fa)
