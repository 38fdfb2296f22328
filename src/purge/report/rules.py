"""The rules of a verdict, as a table: which numbers answer a question, and how near is near enough.

Every rule compares the model with one that was retrained without the data. ``shown``: the whole interval of
the difference lies within the margin, and the same test tells the original model from the retrained one.
``failed``: the whole interval lies beyond the margin. ``unknown``: neither. Two intervals that overlap prove
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from purge.report.numbers import Level

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
    "classes": {"hidden_change": 0.05, "output_change": 0.05},
    "samples": {"hidden_change": 0.0005, "output_change": 0.01},
}

# Distances that decide nothing: it is not known how often the first would accuse an honest retraining; the
# others, as papers define them, change with the scale that hidden units are written in.
NOT_JUDGED = frozenset({"odds_correlation", "feature_cosine", "feature_l2", "fid_feat", "cka"})

SIGNS: dict[Level, str] = {"shown": "✔", "failed": "✘", "unknown": "?"}
WORDS: dict[Level, str] = {"shown": "Shown", "failed": "Failed", "unknown": "Not known"}

Side = Literal["both", "above", "below"]  # which differences from the retrained model count against a model


@dataclass(frozen=True)
class Finding:
    """One thing that was shown, was contradicted, or could not be decided."""

    level: Level
    topic: str  # forgetting, damage, membership, robustness, distance or limits
    title: str
    text: str
    next: str = ""  # what would decide it, if it is not known

    def __str__(self) -> str:
        more = f" To decide it: {self.next}." if self.next else ""
        return f"{SIGNS[self.level]} {WORDS[self.level]}: {self.title}. {self.text}{more}"


@dataclass(frozen=True)
class Rule:
    """A question, the numbers that answer it, and the titles of its answers."""

    topic: str
    shown: str
    failed: str
    unknown: str
    numbers: Mapping[str, str]  # name → what it is about, in words
    margin: float
    side: Side = "both"
    aim: float | None = None  # what to compare with, if it is not the retrained model's number
    fallback: Literal["", "original", "chance"] = ""  # … or without a retrained model: it can only fail
    power: bool = True  # must the same test tell the original from the retrained model?
    missing: str = ""  # the title if there are no numbers; empty: no finding
    kinds: frozenset[str] = frozenset({"classes", "samples"})  # of requests that it is about


OF_CLASSES, OF_SAMPLES = frozenset({"classes"}), frozenset({"samples"})

# Membership attacks by the signal that they use; those with shadow models train models of their own.
SIGNALS = {"loss": "loss", "confidence": "confidence", "entropy": "entropy", "m_entropy": "modified entropy",
           "margin": "margin"}  # fmt: skip
SHADOWS = {"lira": "LiRA", "rmia": "RMIA", "u_lira": "U-LiRA"}
LEARNED = {"mia_quantile": "a threshold for each sample", **SHADOWS}
ATTACKS = {f"mia_{k}": v for k, v in SIGNALS.items()} | {f"{k}.auroc": v for k, v in LEARNED.items()}
ALARMS = {f"tpr_1pct.{k}": v for k, v in SIGNALS.items()} | {f"{k}.tpr_1pct": v for k, v in LEARNED.items()}

CLASS = Rule(
    "forgetting", "It no longer recognises what was to be forgotten",
    "It still recognises what was to be forgotten", "It may still recognise what was to be forgotten",
    {"fa_train": "accuracy on the forgotten samples", "fa_test": "accuracy on unseen samples of their class"},
    FORGOTTEN, "above", fallback="chance", missing="Whether it forgot was not measured", kinds=OF_CLASSES,
)  # fmt: skip
SAMPLES = Rule(
    "forgetting", "It is right about the forgotten samples as often as a model that never saw them",
    "It is not right about the forgotten samples as often as a model that never saw them",
    "Accuracy does not tell whether it forgot",
    {"fa_train": "accuracy on the forgotten samples"}, FORGOTTEN,
    missing="Whether it forgot was not measured", kinds=OF_SAMPLES,
)  # fmt: skip
KEPT = Rule(
    "damage", "What was to stay works as before", "What was to stay has suffered",
    "What was to stay may have suffered",
    {"ta_retain": "accuracy on test data of the classes that stay", "ra": "accuracy on retained data"},
    POINTS, "below", fallback="original", power=False, missing="Whether the rest suffered was not measured",
)  # fmt: skip
WORST_CLASS = Rule(
    "damage", "No single class has suffered much", "A single class has suffered",
    "A single class may have suffered", {}, CLASS_POINTS, "below", fallback="original", power=False,
)  # fmt: skip
ATTACKED = Rule(
    "membership", "No attack that finds them in the original tells the forgotten samples from unseen ones",
    "An attack tells the forgotten samples from unseen ones",
    "It is open whether forgotten samples can be told from unseen ones",
    {name: f"AUROC of the attack by {words}" for name, words in ATTACKS.items()}, AUROC,
    missing="Whether forgotten samples can be told from unseen ones was not measured",
)  # fmt: skip
ACCUSED = Rule(
    "membership", "Hardly any forgotten sample can be identified without many false accusations",
    "Some forgotten samples can be identified with few false accusations",
    "It is open whether forgotten samples can be identified with few false accusations",
    {name: f"forgotten samples found by {w} if one false accusation in a hundred is allowed"
     for name, w in ALARMS.items()}, RATE, "above",
)  # fmt: skip
MEMBERS = Rule(
    "membership", "The forgotten samples look no more like training data than in the retrained model",
    "The forgotten samples do not look as they do to a model that never saw them",
    "It is open whether the forgotten samples still look like training data",
    {"mia_svc.confidence": "forgotten samples that a support-vector machine takes for unseen data",
     "mia_lr": "forgotten samples that a regression takes for training data"}, RATE, kinds=OF_SAMPLES,
)  # fmt: skip
NEAREST = Rule(
    "membership", "It answers images of the forgotten class as a model that never saw it does",
    "Its answers to images of the forgotten class give away that it once knew it",
    "It is open whether its answers to images of the forgotten class give away that it once knew it",
    {"nearest_class.auroc": "how much better than the retrained model's its answers tell forgotten images "
     "from those of the nearest class"}, 2 * AUROC, aim=0.0, kinds=OF_CLASSES,
)  # fmt: skip
LEAKED = Rule(
    "membership", "Comparing it with the original does not expose retained samples",
    "Comparing it with the original exposes retained samples",
    "It is open whether comparing it with the original exposes retained samples",
    {"leak_retained.loss": "AUROC of the attack on retained samples by the change of their loss"}, AUROC,
    "above", power=False,
)  # fmt: skip
CANARIES = Rule(
    "membership", "The planted canaries are no longer found",
    "Planted canaries that had to be forgotten are still found",
    "It is open whether planted canaries are still found",
    {"epsilon_canaries.epsilon": "lower bound on ε from the canaries, at the stated confidence"}, 0.0,
    "above", aim=0.0,
)  # fmt: skip
RELEARNED = Rule(
    "robustness", "It is not relearned faster than by a model that never knew it",
    "It is relearned faster than by a model that never knew it",
    "It is open whether it is relearned faster than by a model that never knew it",
    {"relearn_ratio": "steps to get it back from a few forgotten samples, with all marks in the last layer "
     "removed, over the retrained model's"}, RATIO, "below", aim=1.0, kinds=OF_CLASSES,
)  # fmt: skip
INSIDE = Rule(
    "robustness", "Its inner layers reveal about as much as those of a model that never saw it",
    "Its inner layers can be told from those of a model that never saw it",
    "It is open whether its inner layers can be told from those of a model that never saw it",
    {"probe_gap": "distance from the retrained model in what a linear probe reads from them",
     "head_refit_gap": "distance from the retrained model in what a new last layer reads from them"},
    PROBE, "above", aim=0.0, kinds=OF_CLASSES,
)  # fmt: skip
MOVED = Rule(
    "forgetting", "Its outputs and hidden layers are no longer the original's",
    "Its hidden layers are still the original's", "It is open whether its hidden layers have changed",
    {"hidden_change": "hidden layers", "output_change": "outputs"}, 0.0,
)  # fmt: skip
DISTANCE = Rule(
    "distance", "It is as close to the retrained model as another retraining",
    "It is further from the retrained model than another retraining is",
    "It may be further from the retrained model than another retraining is", {}, 0.0,
    missing="Whether it is as close as another retraining was not measured",
)  # fmt: skip


def _comes_back(when: str, after: str, *names: str) -> Rule:
    """A treatment that may bring back what was forgotten."""
    return Rule(
        "robustness", f"It stays forgotten when {when}", f"It comes back when {when}",
        f"It may come back when {when}", dict.fromkeys(names, f"accuracy on what was forgotten {after}"),
        CLASS_POINTS, "above", fallback="chance", kinds=OF_CLASSES,
    )  # fmt: skip


MEMBERSHIP = (ATTACKED, ACCUSED, MEMBERS, NEAREST, LEAKED, CANARIES)
TREATMENTS = (
    _comes_back(
        "BatchNorm is recalibrated",
        "after the BatchNorm statistics (running means and variances) are estimated again on retained data",
        "bn_recal.after",
    ),
    _comes_back(
        "the weights are rounded, pruned or disturbed",
        "after the weights are rounded, pruned or slightly disturbed, whichever brings back most",
        "quantise.int8", "quantise.bf16", "prune.20", "prune.50", "prune.80", "noise.1pct", "noise.5pct",
    ),
    _comes_back(
        "training continues on retained data alone", "after further training on retained data alone",
        "relearn_retain.after",
    ),
)  # fmt: skip

LIMITS = Finding(
    "unknown",
    "limits",
    "What no audit can show",
    "It shows what its attacks would have found, not that no attack exists; it is no mathematical guarantee "
    "such as (ε, δ)-unlearning. It covers this one model, not copies, backups, logs or other models that saw "
    "the data. Its intervals cover the choice of samples, not of training seeds.",
)
