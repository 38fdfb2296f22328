"""The rules of a verdict, as a table: which numbers answer a question, and how near is near enough.

This is the only file with a threshold of a verdict. Every rule compares the model with one that was retrained
without the data. ``shown``: the whole interval of the difference lies within the margin, and the same test
tells the original model from the retrained one. ``failed``: the whole interval lies beyond the margin.
``unknown``: neither. Two intervals that overlap prove nothing. The words for all of it are in ``report``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Level(StrEnum):
    """What an audit says about a question."""

    SHOWN = "shown"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Question(StrEnum):
    """The three questions that a verdict answers."""

    MEMORY = "memory"  # is what was to go still known?
    DISTANCE = "distance"  # can the model be told from a retrained one?
    RETAINED = "retained"  # is what was to stay still there?


class Topic(StrEnum):
    """The kind of evidence."""

    FORGETTING = "forgetting"
    DAMAGE = "damage"
    MEMBERSHIP = "membership"
    ROBUSTNESS = "robustness"
    DISTANCE = "distance"
    LIMITS = "limits"  # what was not or cannot be checked


class Part(StrEnum):
    """Which part of a request a finding is about; the other two occur where a request mixes both."""

    WHOLE = "whole"
    CLASSES = "classes"
    SAMPLES = "samples"


# Two points of accuracy: about what two trainings from different seeds differ by anyway.
POINTS = 0.02
# One sample in twenty: a share of what was forgotten that chance in training does not explain.
FORGOTTEN = 0.05
# One in ten: a single class has few test samples, and a treated copy of a model is measured on them alone.
CLASS_POINTS = 0.10
# Two retrained models differ by a few hundredths in the AUROC of the same attack.
AUROC = 0.05
# Five found in a hundred, beyond those that the same attack finds in a model that never saw them.
RATE = 0.05
# Honest retrainings relearn within a fifth of each other's steps; one that remembers needs much fewer.
RATIO = 0.2
# Linear probes of two retrained models differ by a few points.
PROBE = 0.05
# By chance one retraining may be twice as far off as another, or half as far again as the furthest of three.
FURTHER, FURTHER_OF_THREE = 2.0, 1.5
# Forgetting moves outputs and hidden layers; hiding it behind the outputs leaves the hidden layers where they
# were, and new BatchNorm statistics or a new last layer move them by under a thousandth of what retraining
# does. On digits (tests/fakes.py), as shares of it: further retrainings moved hidden layers by .86 to 1.13,
# purge by .6 (a class) and .4 (40 samples), salun by .34 and .16, and a plain fine-tuning, which forgets
# little, by .01 and .003.
MOVED_LEAST = {
    Part.CLASSES: {"hidden_change": 0.05, "output_change": 0.05},
    Part.SAMPLES: {"hidden_change": 0.0005, "output_change": 0.01},
}
# The attack on fewer samples of an earlier request jumps about too much to tell that they came back.
FEWEST = 10

# Distances that decide nothing: it is not known how often the first would accuse an honest retraining; the
# others, as papers define them, change with the scale that hidden units are written in.
NOT_JUDGED = frozenset({"odds_correlation", "feature_cosine", "feature_l2", "fid_feat", "cka"})

# Membership attacks: by a signal of the model; with a threshold or shadow models of their own.
SIGNALS = ("loss", "confidence", "entropy", "m_entropy", "margin")
SHADOWS = ("lira", "rmia", "u_lira")
LEARNED = ("mia_quantile", *SHADOWS)
ATTACKS = (*(f"mia_{name}" for name in SIGNALS), *(f"{name}.auroc" for name in LEARNED))
ALARMS = (*(f"tpr_1pct.{name}" for name in SIGNALS), *(f"{name}.tpr_1pct" for name in LEARNED))

Side = Literal["both", "above", "below"]  # which differences from the retrained model count against a model
BOTH_KINDS = frozenset({Part.CLASSES, Part.SAMPLES})
OF_CLASSES, OF_SAMPLES = frozenset({Part.CLASSES}), frozenset({Part.SAMPLES})


@dataclass(frozen=True)
class Rule:
    """A question, and the numbers that answer it; one without numbers is decided in ``findings``."""

    name: str
    topic: Topic
    question: Question | None
    numbers: tuple[str, ...] = ()
    margin: float = 0.0
    side: Side = "both"
    aim: float | None = None  # what to compare with, if it is not the retrained model's number
    fallback: Literal["", "original", "chance"] = ""  # … or without a retrained model: it can only fail
    power: bool = True  # must the same test tell the original from the retrained model?
    expected: bool = False  # is it a finding, too, that none of its numbers was measured?
    decides: bool = False  # may the headline rest on it where it is shown?
    kinds: frozenset[Part] = BOTH_KINDS  # of requests that it is about


FORGETTING, MEMBERSHIP = (Topic.FORGETTING, Question.MEMORY), (Topic.MEMBERSHIP, Question.MEMORY)
ROBUSTNESS, DAMAGE = (Topic.ROBUSTNESS, Question.MEMORY), (Topic.DAMAGE, Question.RETAINED)
LIMITS = (Topic.LIMITS, None)

RECOGNISED = Rule(
    "recognised", *FORGETTING, ("fa_train", "fa_test"), FORGOTTEN, "above", fallback="chance", expected=True,
    decides=True, kinds=OF_CLASSES,
)  # fmt: skip
RIGHT_AS_OFTEN = Rule(
    "right_as_often", *FORGETTING, ("fa_train",), FORGOTTEN, expected=True, decides=True, kinds=OF_SAMPLES
)
KEPT = Rule(
    "kept", *DAMAGE, ("ta_retain", "ra"), POINTS, "below", fallback="original", power=False, expected=True
)
WORST_CLASS = Rule("worst_class", *DAMAGE, (), CLASS_POINTS, "below", fallback="original", power=False)
ATTACKED = Rule("attacked", *MEMBERSHIP, ATTACKS, AUROC, expected=True, decides=True)
ACCUSED = Rule("accused", *MEMBERSHIP, ALARMS, RATE, "above")
MEMBERS = Rule("members", *MEMBERSHIP, ("mia_svc.confidence", "mia_lr"), RATE, kinds=OF_SAMPLES)
NEAREST = Rule("nearest", *MEMBERSHIP, ("nearest_class.auroc",), 2 * AUROC, aim=0.0, kinds=OF_CLASSES)
LEAKED = Rule("leaked", *MEMBERSHIP, ("leak_retained.loss",), AUROC, "above", power=False)
CANARIES = Rule("canaries", *MEMBERSHIP, ("epsilon_canaries.epsilon",), 0.0, "above", aim=0.0, decides=True)
RELEARNED = Rule("relearned", *ROBUSTNESS, ("relearn_ratio",), RATIO, "below", aim=1.0, kinds=OF_CLASSES)
INSIDE = Rule(
    "inside", *ROBUSTNESS, ("probe_gap", "head_refit_gap"), PROBE, "above", aim=0.0, kinds=OF_CLASSES
)


def _comes_back(name: str, *numbers: str) -> Rule:
    """A treatment of the weights that may bring back what was forgotten."""
    return Rule(name, *ROBUSTNESS, numbers, CLASS_POINTS, "above", fallback="chance", kinds=OF_CLASSES)


TREATMENTS = (
    _comes_back("recalibrated", "bn_recal.after"),
    _comes_back("disturbed", "quantise.int8", "quantise.bf16", "prune.20", "prune.50", "prune.80",
                "noise.1pct", "noise.5pct"),
    _comes_back("trained_on", "relearn_retain.after"),
)  # fmt: skip
MEMBERSHIP_RULES = (ATTACKED, ACCUSED, MEMBERS, NEAREST, LEAKED, CANARIES)

# Decided by more than a margin:
EXACT = Rule("exact", *FORGETTING)
SAME_WEIGHTS = Rule("same_weights", *FORGETTING)
MOVED = Rule("moved", *FORGETTING, ("hidden_change", "output_change"))
ANSWERS_MOVED = Rule("answers_moved", *FORGETTING)  # the layers moved, the answers did not
COPIES_STAY = Rule("copies_stay", *FORGETTING)
BLOCKED = Rule("blocked", *ROBUSTNESS)  # it cannot be relearned, though a retrained model can
LASTS = Rule("lasts", *ROBUSTNESS)
DISTANCE = Rule("distance", Topic.DISTANCE, Question.DISTANCE)
COPIES_TESTED = Rule("copies_tested", *LIMITS)
NO_REFERENCE = Rule("no_reference", *LIMITS)
NO_SHADOWS = Rule("no_shadows", *LIMITS)
AUGMENTED = Rule("augmented", *LIMITS)
NOT_COMPUTED = Rule("not_computed", *LIMITS)
NO_GUARANTEE = Rule("no_guarantee", *LIMITS)
