"""Membership by quantile regression: every sample has a threshold of its own, and no shadow model is trained.

Martin Bertran, Shuai Tang, Michael Kearns, Jamie Morgenstern, Aaron Roth, Zhiwei Steven Wu: "Scalable
Membership Inference Attacks via Quantile Regression" (2023, arXiv 2307.03694). A regression learns, from
samples that the model never saw, which score to expect of an input; a sample whose score lies in the upper
tail of what is expected of it is called a member. We use their Gaussian variant, which predicts a mean
and a spread. They train a network on the images; here a ridge regression looks at a few principal
components of the inputs and at the label, so it is weaker where the difficulty of an image is hard to see.
Features and outputs of the audited model are left out: they determine the score, so nothing would be left to
be surprised at.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from purge.data.inputs import Inputs, leaves
from purge.metrics.audited import AuditedModel, Hits, Labels
from purge.metrics.bootstrap import Array, some_rows
from purge.metrics.likelihood import LEAST_SPREAD, margins
from purge.metrics.membership import SEEN, told_apart
from purge.metrics.value import Missing, Value
from purge.models.forward import passing

LEAST = 20  # unseen samples that a regression learns from
MOST = 5000  # of either kind, at most, drawn by the seed
FOLDS = 5
SIDE, LENGTH = 8, 1024  # images are reduced to 8 × 8 per channel, other inputs to so many numbers
COMPONENTS, CLASSES = 16, 100  # columns for principal components and for classes, at most,
PER_COLUMN = 10  # and the unseen samples that each must have
PENALTIES = np.logspace(-1, 4, 11)
FLOOR = 1e-3  # of the overall spread, added before a logarithm


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
    if len(rows[1]) < LEAST:
        raise Missing(f"a regression learns from at least {LEAST} unseen samples, not {len(rows[1])}")
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
