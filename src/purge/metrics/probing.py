"""What do the features still say? A probe for the forgotten classes, and a refitted last layer.

The features of a retrained model also separate a class that it never saw: only the difference to it means
anything.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from purge.metrics.audited import AuditedModel, Hits, Labels, once
from purge.metrics.bootstrap import Array, interval, mean_draws, some_rows
from purge.metrics.value import Missing, Value
from purge.models.inspect import device_of

PROBED = 1_000  # samples of each side, at most
FOLDS = 5
SIDE = 600  # samples of each side that the silhouette looks at
POINTS = 600  # in the 2-D view of features, at most a quarter of them forgotten

NONE_KEPT = "no features of unseen samples of the forgotten classes are among those that were kept"

Labelled = tuple[Array, Labels]  # features (N, D) and labels (N,)


def forgotten_and_others(audited: AuditedModel) -> tuple[Labelled, Labelled]:
    """Unseen samples of the forgotten classes, and of the others.

    Where single samples were forgotten: these, and unseen samples of the same classes.
    """
    if not (classes := sorted(audited.split.forget_classes)):
        return audited.labelled_features("forget"), audited.labelled_features("same_class_test")
    x, y = audited.labelled_features("test")
    forgotten = np.isin(y, classes)
    return (x[forgotten], y[forgotten]), (x[~forgotten], y[~forgotten])


def distance_between(ours: Hits, theirs: Hits, seed: int) -> Value:
    """|difference of two means over the same samples|, with the interval of the difference folded."""
    change = ours.astype(np.float64) - theirs
    low, high = interval(mean_draws(change, seed))
    ends = abs(low), abs(high)
    return Value(abs(float(change.mean())), 0.0 if low <= 0 <= high else min(ends), max(ends), len(change))


# -- a linear probe ----------------------------------------------------------------------------


def probe(audited: AuditedModel) -> Value:
    """Balanced accuracy of a linear classifier on penultimate features, in five folds.

    Unseen samples of the forgotten classes against equally many of the others, at most 1,000 of each.
    Where single samples were forgotten: these against unseen ones of the same classes, equally many of
    each class.
    """
    return audited.mean(_probe(audited))


def probe_gap(audited: AuditedModel) -> Value:
    """|probe − that of the retrained model|, on the same samples."""
    return distance_between(*audited.beside(_probe), audited.seed)


@once
def _probe(audited: AuditedModel) -> Hits:
    return separated(*_sides(audited))


def _sides(audited: AuditedModel) -> tuple[Array, Array]:
    """Two equally large sets of features to be told apart, chosen by the seed."""
    rng, (inside, outside) = np.random.default_rng(audited.seed), forgotten_and_others(audited)
    if audited.split.forget_classes:
        a, b = (rng.permutation(len(y)) for _, y in (inside, outside))
    else:
        a, b = _matched(inside[1], outside[1], rng)
    n = min(len(a), len(b), PROBED)
    if n < 2:
        raise Missing("a probe needs at least two samples of each side")
    return inside[0][a[:n]], outside[0][b[:n]]


def _matched(ya: Labels, yb: Labels, rng: np.random.Generator) -> tuple[Labels, Labels]:
    """Rows of two sets, paired by class in random order, so that no class tells one from the other."""
    pairs = [np.empty((2, 0), dtype=np.int64)]
    for c in np.intersect1d(ya, yb):
        a, b = (rng.permutation(np.flatnonzero(y == c)) for y in (ya, yb))
        n = min(len(a), len(b))
        pairs.append(np.stack([a[:n], b[:n]]))
    mixed = rng.permutation(np.concatenate(pairs, 1), axis=1)
    return mixed[0], mixed[1]


def separated(inside: Array, outside: Array) -> Hits:
    """Which of two sets (N, D) of features a linear classifier that did not see them gets right: (2N,).

    Logistic regression (C = 1) on standardised features, in five folds: a unit's scale does not matter.
    """
    from joblib import parallel_config  # type: ignore[import-untyped]  # comes with scikit-learn
    from sklearn.exceptions import ConvergenceWarning  # takes long to import
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

    n = len(inside)
    x, y = np.concatenate([inside, outside]), np.repeat([True, False], n)
    x -= x.mean(0)
    std = x.std(0)
    x /= np.where(std > 0, std, 1.0)
    model, folds = LogisticRegression(C=1.0, max_iter=1000), StratifiedKFold(min(FOLDS, n))
    threads = parallel_config("threading", n_jobs=torch.get_num_threads())  # the products in a fold are small
    with warnings.catch_warnings(), threadpool_limits(1, "blas"), threads:
        warnings.simplefilter("ignore", ConvergenceWarning)
        right: Hits = cross_val_predict(model, x, y, cv=folds) == y
    return right


# -- the last layer, fitted again --------------------------------------------------------------


def head_refit(audited: AuditedModel) -> dict[str, Value]:
    """FA and RA once the last layer alone is refitted to all training data, including the forgotten.

    A retrained model gets the class back as well, as far as its features tell it from others. Of a
    large set, the features that the audit keeps stand for all of it.
    """
    return {name: audited.mean(hits) for name, hits in _refit(audited).items()}


def head_refit_gap(audited: AuditedModel) -> Value:
    """|FA with a refitted head − that of the retrained model|, on the same samples."""
    return distance_between(*audited.beside(lambda s: _refit(s)["fa"]), audited.seed)


@once
def _refit(audited: AuditedModel) -> dict[str, Hits]:
    retain, forget = audited.labelled_features("retain"), audited.labelled_features("forget")
    unseen = audited.labelled_features("same_class_test")
    if not len(unseen[1]):
        raise Missing(NONE_KEPT)
    sizes = len(audited.split.retain) / len(retain[1]), len(audited.split.forget) / len(forget[1])
    weight = np.repeat(sizes, [len(retain[1]), len(forget[1])])
    x = np.concatenate([retain[0], forget[0]], dtype=np.float32, casting="same_kind")
    arrays = x, np.concatenate([retain[1], forget[1]]), weight.astype(np.float32)
    x_, y_, weight_ = (torch.from_numpy(a).to(device_of(audited.model)) for a in arrays)
    fitted = fit_head(x_, y_, weight_, audited.split.classes)
    w, b = (t.double().cpu().numpy() for t in fitted)
    return {name: (x @ w.T + b).argmax(1) == y for name, (x, y) in (("fa", unseen), ("ra", retain))}


def fit_head(x: Tensor, y: Tensor, weight: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The weights (K, D) and biases (K,) of a multinomial logistic regression (C = 1).

    ``weight`` says how many samples each row stands for. Features are standardised for the fit; the
    result is for features as they are.
    """
    total = weight.sum()
    mean = weight @ x / total
    std = (weight @ (x - mean) ** 2 / total).sqrt()
    std = torch.where(std > 0, std, torch.ones_like(std))
    x = (x - mean) / std
    # On the CPU even if x is not: the solver takes many small steps with these, and reads each.
    w = torch.zeros(classes, x.shape[1], dtype=x.dtype, requires_grad=True)
    b = torch.zeros(classes, dtype=x.dtype, requires_grad=True)
    solver = torch.optim.LBFGS([w, b], max_iter=100, tolerance_grad=1e-4, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        at_x = w.to(x.device)
        each = F.cross_entropy(F.linear(x, at_x, b.to(x.device)), y, reduction="none")
        penalised = (weight @ each + at_x.square().sum() / 2) / total
        penalised.backward()
        return penalised

    with torch.enable_grad():
        solver.step(loss)
    unscaled = w.detach().to(x.device) / std
    return unscaled, b.detach().to(x.device) - unscaled @ mean


# -- the shape of the features -----------------------------------------------------------------


def silhouette(audited: AuditedModel) -> Value:
    """How far the forgotten samples lie apart among penultimate features: −1 to 1, 0 is mixed.

    The mean silhouette of two groups: test data of the forgotten classes against the other test data;
    where single samples are forgotten, D_f against unseen data of the same classes. At most 600 of each,
    chosen by the seed. A retrained model may well keep an unseen class together, so its value is the
    aim; groups that are not round can be told apart all the same: see probe.
    """
    from sklearn.metrics import silhouette_score  # takes long to import

    (forgotten, labels), others = forgotten_and_others(audited)
    rest, y = others if audited.split.forget_classes else audited.labelled_features("test")
    rng = np.random.default_rng(audited.seed)
    groups = [x[some_rows(len(x), SIDE, rng)] for x in (forgotten, others[0])]
    shown = some_rows(len(forgotten), POINTS // 4, rng)
    beside = some_rows(len(rest), POINTS - len(shown), rng)
    at = plane(np.concatenate([forgotten[shown], rest[beside]]))
    audited.curves["features"] = {
        "x": [float(f"{v:.4g}") for v in at[:, 0]],
        "y": [float(f"{v:.4g}") for v in at[:, 1]],
        "label": [int(k) for k in (*labels[shown], *y[beside])],
        "forgotten": [1] * len(shown) + [0] * len(beside),
    }
    sizes = [len(x) for x in groups]
    if min(sizes) < 2:
        raise Missing("two groups need at least two samples each")
    return Value(float(silhouette_score(np.concatenate(groups), np.repeat([1, 0], sizes))), n=sum(sizes))


def plane(x: Array) -> Array:
    """The two principal components (N, 2) of features (N, D); in each the largest entry is positive."""
    x = x - x.mean(0)
    values, vectors = np.linalg.eigh(x @ x.T)  # (N, N) with N ≤ 600: cheaper than the SVD of wide features
    components: Array = vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0))
    largest = components[np.abs(components).argmax(0), np.arange(components.shape[1])]
    return components * np.where(largest < 0, -1.0, 1.0)
