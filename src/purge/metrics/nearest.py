"""A forgotten class beside the class that it is most like.

Ali Ebrahimpour-Boroojeny, Yian Wang, Hari Sundaram: "On the Necessity of Output Distribution Reweighting for
Effective Class Unlearning" (2025, arXiv 2506.20893), the nearest-neighbour attack MIA-NN. A model that never
saw a class takes its images for a similar class; one that had the class and suppresses it deals them out
differently. The attack finds the class that retrained models answer most often, trains an SVM on the outputs
of the classes that stay to recognise that class, and counts how many images of the forgotten class it takes
for it. The number is compared with the retrained model's.

Where we differ: the nearest class comes from one retrained model (they use several); the forgotten images
are the forget set (they take test images of the class, which are fewer); outputs are taken among the classes
that stay, so that no mask on the forgotten class changes the number. ``auroc`` is ours.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax

from purge.metrics.accuracy import change
from purge.metrics.audited import AuditedModel, Hits, Part
from purge.metrics.bootstrap import Array, auroc, interval, rate_draws, some_rows
from purge.metrics.likelihood import margins
from purge.metrics.value import Missing, Value

LEAST = 10  # samples of the nearest class, and of the others, that the SVM learns from
LEARN, ASK = 2000, 5000  # samples that it learns from and is asked about, at most


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
    rows = rows[some_rows(len(rows), ASK, rng)]
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
