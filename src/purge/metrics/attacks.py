"""Attacks by quantile regression, on forgotten classes beside their nearest one, and on retained samples.

:func:`mia_quantile` is of Martin Bertran, Shuai Tang, Michael Kearns, Jamie Morgenstern, Aaron Roth, Zhiwei
Steven Wu: "Scalable Membership Inference Attacks via Quantile Regression" (2023, arXiv 2307.03694). Every
sample has a threshold of its own, and no shadow model is trained: a regression learns, from samples that the
model never saw, which score to expect of an input; a sample whose score lies in the upper tail of what is
expected of it is called a member. We use their Gaussian variant, which predicts a mean and a spread. They
train a network on the images; here a ridge regression looks at a few principal components of the inputs and
at the label, so it is weaker where the difficulty of an image is hard to see. Features and outputs of the
audited model are left out: they determine the score, so nothing would be left to be surprised at.

:func:`nearest_class` is the nearest-neighbour attack MIA-NN of Ali Ebrahimpour-Boroojeny, Yian Wang, Hari
Sundaram: "On the Necessity of Output Distribution Reweighting for Effective Class Unlearning" (2025, arXiv
2506.20893). A model that never saw a class takes its images for a similar class; one that had the class and
suppresses it deals them out differently. The attack finds the class that retrained models answer most often,
trains an SVM on the outputs of the classes that stay to recognise that class, and counts how many images of
the forgotten class it takes for it. The number is compared with the retrained model's. Where we differ: the
nearest class comes from one retrained model (they use several); the forgotten images are the forget set (they
take test images of the class, which are fewer); outputs are taken among the classes that stay, so that no
mask on the forgotten class changes the number. ``auroc`` is ours.

:func:`leak_retained` turns an attack of Min Chen, Zhikun Zhang, Tianhao Wang, Michael Backes, Mathias
Humbert, Yang Zhang: "When Machine Unlearning Jeopardizes Privacy" (2021, arXiv 2005.02205) on what was to
stay. Whoever kept a copy of the original and sees the unlearned model can compare the two; they find deleted
samples that way. Unlearning that trains on retained data once more may give those away too: they move, and
unseen samples do not.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import log_softmax
from torch import Tensor

from purge.data.inputs import Inputs, leaves
from purge.metrics.accuracy import change
from purge.metrics.audited import AuditedModel, Hits, Labels, Part
from purge.metrics.bootstrap import Array, auroc, interval, rate_draws, rates, some_rows
from purge.metrics.likelihood import LEAST_SPREAD, margins
from purge.metrics.membership import LEAST, SEEN, told_apart
from purge.metrics.value import Missing, Value
from purge.models.forward import passing

MOST = 5000  # samples of either kind, at most, drawn by the seed
RETAINED: tuple[Part, Part] = ("retain", "kept_class_test")  # members and non-members of leak_retained
LEARN = 2000  # samples that the SVM of nearest_class learns from, at most
# Of the quantile regression:
LEAST_UNSEEN = 20  # samples that it learns from
FOLDS = 5
SIDE, LENGTH = 8, 1024  # images are reduced to 8 × 8 per channel, other inputs to so many numbers
COMPONENTS, CLASSES = 16, 100  # columns for principal components and for classes, at most,
PER_COLUMN = 10  # and the unseen samples that each must have
PENALTIES = np.logspace(-1, 4, 11)
FLOOR = 1e-3  # of the overall spread, added before a logarithm


# -- a threshold for each sample ---------------------------------------------------------------


def mia_quantile(audited: AuditedModel) -> dict[str, Value]:
    """Attack by a score relative to what is expected of the sample: forget against unseen same-class data.

    The score is the logit of the label's probability, φ. A regression on unseen samples predicts its mean
    and spread from the input (principal components, distance from them) and the label; a sample counts by
    (φ − mean) / spread. Of five folds, each is scored by the regression on the other four, and a fifth of
    the forget set along with it: no sample is judged by a regression that has seen it, and forgotten and
    unseen samples are treated alike, so 0.5 is what a model gets that saw neither. The interval is over
    samples; the regressions are not fitted again.
    """
    rng = np.random.default_rng(audited.seed)
    rows = [some_rows(len(audited.labels(part)), MOST, rng) for part in SEEN]
    if len(rows[1]) < LEAST_UNSEEN:
        raise Missing(f"a regression learns from at least {LEAST_UNSEEN} unseen samples, not {len(rows[1])}")
    labels, phi, inputs = [], [], []
    for part, at in zip(SEEN, rows, strict=True):
        labels.append(audited.labels(part)[at])
        phi.append(margins(audited.log_probs(part)[at], labels[-1]))
        index = audited.index(part)[torch.from_numpy(at)]
        inputs += [reduced(x) for x, _ in passing(audited.samples(part), index)]
    unseen = np.repeat([False, True], [len(at) for at in rows])
    folds = np.concatenate([rng.permutation(len(at)) % FOLDS for at in rows])
    design = described(torch.cat(inputs).double().numpy(), np.concatenate(labels), unseen)
    scores = surprise(np.concatenate(phi), design, unseen, folds)
    return told_apart(audited, "quantile", scores[~unseen], scores[unseen])


def surprise(phi: Array, design: Array, unseen: Hits, folds: Labels) -> Array:
    """(φ − mean) / spread of all samples (N,), as predicted from the unseen samples of other folds."""
    from sklearn.linear_model import RidgeCV  # takes long to import

    known = phi[unseen]
    phi = (phi - np.median(known)) / max(float(known.std()), LEAST_SPREAD)
    scores = np.zeros(len(phi))
    for fold in np.unique(folds[unseen]):
        learn, ask = unseen & (folds != fold), folds == fold
        mean = RidgeCV(PENALTIES).fit(design[learn], phi[learn])
        gaps = np.log(np.abs(phi[learn] - mean.predict(design[learn])) + FLOOR)
        spread = RidgeCV(PENALTIES).fit(design[learn], gaps)
        scores[ask] = (phi[ask] - mean.predict(design[ask])) / np.exp(spread.predict(design[ask]))
    return scores


def described(x: Array, y: Labels, unseen: Hits) -> Array:
    """What a regression sees of N samples, in columns of unit spread.

    Principal components of the inputs (as many as the unseen samples can carry), the logarithm of the
    distance from them, which is large for unusual inputs, and a column for each class that is frequent.
    """
    centred = x - x.mean(0)
    size = float(np.sqrt((centred**2).sum(1).mean()))
    most = min(COMPONENTS, int(unseen.sum()) // PER_COLUMN, x.shape[1])
    classes, counts = np.unique(y[unseen], return_counts=True)
    most_frequent = np.argsort(-counts, kind="stable")[:CLASSES]
    frequent = np.sort(classes[most_frequent[counts[most_frequent] >= PER_COLUMN]])
    _, axes = np.linalg.eigh(centred.T @ centred / max(size, LEAST_SPREAD) ** 2)
    components = centred @ axes[:, ::-1][:, :most]
    rest = np.sqrt(np.maximum((centred**2).sum(1) - (components**2).sum(1), 0.0))
    design = np.column_stack(
        [components, np.log(rest + FLOOR * max(size, LEAST_SPREAD)), y[:, None] == frequent]
    ).astype(np.float64)
    design -= design.mean(0)
    spread = design.std(0)
    flat = spread <= 1e-9 * max(size, 1.0)
    design[:, flat] = 0.0
    return design / np.where(flat, 1.0, spread)


def reduced(x: Inputs) -> Tensor:
    """A batch of inputs of any kind as numbers (N, D) on the CPU; large ones are averaged."""
    flat = []
    for t in leaves(x):
        t = t.float()
        if t.ndim == 4:
            t = F.adaptive_avg_pool2d(t, (min(SIDE, t.shape[2]), min(SIDE, t.shape[3])))
        t = t.reshape(len(t), -1)
        flat.append(F.adaptive_avg_pool1d(t[:, None], LENGTH)[:, 0] if t.shape[1] > LENGTH else t)
    return torch.cat(flat, 1).cpu()


# -- a forgotten class beside the class that it is most like -----------------------------------------


def nearest_class(audited: AuditedModel) -> dict[str, Value]:
    """Is a forgotten class taken for its nearest one as the retrained model takes it? Model − retrained.

    The nearest class is the one that the retrained model gives most probability on the images of a forgotten
    class. ``taken``: the share of the forget set that an SVM on a model's outputs calls that class; it has
    learned to from unseen samples of the classes that stay. ``auroc``: the chance that an unseen sample of
    the nearest class is given more of that class than a forgotten image is, as the models are not equally
    sure. Outputs are probabilities among the classes that stay: a mask on the forgotten class leaves the
    numbers of the untouched original. Two retrained models differ too: compare with the floor. The
    intervals are over samples; the SVM is not fitted again.
    """
    other = audited.other("retrained")
    near = nearest(other)
    ours, theirs = (_answers(s, near) for s in (audited, other))
    pairs = [ours[1:], theirs[1:]]
    values, draws = [auroc(*pair) for pair in pairs], rate_draws(pairs, audited.seed)[:, 0]
    audited.curves["nearest_class"] = {
        "class": {str(u): k for u, k in near.items()},
        "taken": [float(ours[0].mean()), float(theirs[0].mean())],
        "auroc": values,
    }
    n = sum(map(len, pairs[0]))
    return {
        "taken": change(ours[0], theirs[0], audited.seed),
        "auroc": Value(values[0] - values[1], *interval(draws[0] - draws[1]), n),
    }


def nearest(audited: AuditedModel) -> dict[int, int]:
    """Each forgotten class → the class that stays to which the model gives its images, in the mean."""
    there = np.unique(audited.labels("kept_class_test"))
    p, y = np.exp(among_kept(audited, "forget")), audited.labels("forget")
    return {u: int(there[p[y == u].mean(0)[there].argmax()]) for u in sorted(audited.split.forget_classes)}


def _answers(audited: AuditedModel, near: dict[int, int]) -> tuple[Hits, Array, Array]:
    """Which forgotten images (N,) an SVM takes for their nearest class, and how likely each is to be of it.

    The likelihoods (M,) of unseen samples of that class come first: the logit of its probability.
    """
    from sklearn.pipeline import make_pipeline  # takes long to import
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    rng, y = np.random.default_rng(audited.seed), audited.labels("forget")
    rows = np.flatnonzero(np.isin(y, [*near]))
    rows = rows[some_rows(len(rows), MOST, rng)]
    forgotten, y = among_kept(audited, "forget")[rows], y[rows]
    unseen, labels = among_kept(audited, "kept_class_test"), audited.labels("kept_class_test")
    finite = np.isfinite(unseen[0])
    taken, likeness, usual = np.zeros(len(y), dtype=bool), np.zeros(len(y)), []
    for u, k in near.items():
        own, like = y == u, labels == k
        if (least := min(int(like.sum()), int((~like).sum()))) < LEAST:
            raise Missing(f"an SVM learns from at least {LEAST} samples of each kind, not {least}")
        drawn = [rng.permutation(np.flatnonzero(kind))[: LEARN // 2] for kind in (like, ~like)]
        learn = np.sort(np.concatenate(drawn))
        svm = make_pipeline(StandardScaler(), SVC(class_weight="balanced", random_state=0))
        svm.fit(unseen[learn][:, finite], like[learn])
        taken[own] = svm.predict(forgotten[own][:, finite])
        likeness[own] = margins(forgotten[own], np.full(int(own.sum()), k))
        usual.append(margins(unseen[like], labels[like]))
    return taken, np.concatenate(usual), likeness


def among_kept(audited: AuditedModel, part: Part) -> Array:
    """Log-probabilities (N, K) among the classes that stay; −∞ for those that do not."""
    log_probs, forgotten = audited.log_probs(part), sorted(audited.split.forget_classes)
    if not forgotten:
        raise Missing("no class is forgotten as a whole")
    if log_probs.shape[1] - len(forgotten) < 2:
        raise Missing("a nearest class needs two classes that stay")
    log_probs[:, forgotten] = -np.inf
    return np.asarray(log_softmax(log_probs, axis=1))


# -- retained samples --------------------------------------------------------------------------


def leak_retained(audited: AuditedModel) -> dict[str, Value]:
    """AUROC of the change from the original model: retained samples against unseen ones of kept classes.

    ``loss``: how much the logit of the label's probability rose; ``confidence``: how much the largest
    probability did; ``distance``: how little the output moved (total variation). ``after`` is the attack
    by the loss of the unlearned model alone: where another part is farther from 0.5, the pair tells more
    than one model does. Below 0.5 an attacker reverses the answer. Each number is ranked among the unseen
    samples of its own class, so that it does not matter if a class is harder or more frequent.
    """
    original, rng = audited.other("original"), np.random.default_rng(audited.seed)
    members, others = (some_rows(len(audited.labels(part)), MOST, rng) for part in RETAINED)
    y, unseen = (audited.labels(part)[rows] for part, rows in zip(RETAINED, (members, others), strict=True))
    inside, outside = (
        changes(audited.log_probs(part)[rows], original.log_probs(part)[rows], labels)
        for part, rows, labels in zip(RETAINED, (members, others), (y, unseen), strict=True)
    )
    known = np.isin(y, unseen)
    if not known.any():
        raise Missing("the test data has no sample of a class in the retain set")
    pairs = [
        (ranked(inside[name][known], y[known], x, unseen), ranked(x, unseen, x, unseen))
        for name, x in outside.items()
    ]
    n, draws = int(known.sum()) + len(unseen), rate_draws(pairs, audited.seed)[:, 0]
    return {
        name: Value(float(rates(*pair)[0]), *interval(drawn), n)
        for name, pair, drawn in zip(outside, pairs, draws, strict=True)
    }


def changes(after: Array, before: Array, y: Labels) -> dict[str, Array]:
    """The signals (N,) of two models' log-probabilities (N, K); larger is more like a member."""
    return {
        "loss": margins(after, y) - margins(before, y),
        "confidence": after.max(1) - before.max(1),
        "distance": -np.abs(np.exp(after) - np.exp(before)).sum(1) / 2,
        "after": margins(after, y),
    }


def ranked(x: Array, y: Labels, reference: Array, labels: Labels) -> Array:
    """The share of the reference samples of its class that each number (N,) exceeds; ties count half.

    >>> ranked(np.array([2.0, 2.0]), np.array([0, 1]), np.arange(4.0), np.array([0, 0, 0, 1])).tolist()
    [0.8333333333333334, 0.0]
    """
    ranks = np.zeros(len(x))
    for k in np.unique(y):
        own, sorted_reference = y == k, np.sort(reference[labels == k])
        below, upto = (np.searchsorted(sorted_reference, x[own], side) for side in ("left", "right"))
        ranks[own] = (below + upto) / (2 * len(sorted_reference))
    return ranks
