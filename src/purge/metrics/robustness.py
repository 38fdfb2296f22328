"""Does the forgetting survive what a deployed model goes through?"""

from __future__ import annotations

import copy

import numpy as np
import torch

from purge.data import batches
from purge.metrics.base import Metric, Part, Subject, mean_value
from purge.norm import batchnorms, recalibrate
from purge.result import Value
from purge.runtime import EVAL_BATCH, logits


def bn_recal(subject: Subject) -> Value | dict[str, Value]:
    """FA before and after the BatchNorm statistics are estimated anew on retain data."""
    if not batchnorms(subject.model):
        return Value.missing("the model has no BatchNorm statistics to recalibrate")
    if len(subject.split.retain) < 2:
        return Value.missing("statistics need at least two retain samples")
    part: Part = "same_class_test"
    before = subject.guesses(part) == subject.labels(part)
    attacked = copy.deepcopy(subject.model)
    generator = torch.Generator().manual_seed(subject.seed)
    order = torch.randperm(len(subject.split.retain), generator=generator)
    recalibrate(attacked, (x for x, _ in batches(subject.split.retain, EVAL_BATCH, order)))
    guesses = logits(attacked, subject.samples(part), subject.index(part)).argmax(1).cpu().numpy()
    after = guesses == subject.labels(part)
    return {
        "before": mean_value(before, subject.seed),
        "after": mean_value(after, subject.seed),
        "delta": mean_value(after.astype(np.float64) - before, subject.seed),
    }


ROBUSTNESS = [
    Metric("bn_recal", "recal", "FA before and after recalibrating BatchNorm on retain data",
           bn_recal, cost="train", needs=frozenset({"same_class_test"})),
]  # fmt: skip
