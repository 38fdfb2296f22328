"""The rules of a verdict: thresholds with their reasons, and a title for every answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from purge.report.numbers import Level

# Two points of accuracy: about what two trainings from different seeds differ by anyway.
POINTS = 0.02
# A single class has a tenth of the test samples or fewer, so its accuracy varies more by chance.
CLASS_POINTS = 0.05
# Two retrained models differ by a few hundredths in the AUROC of the same attack.
AUROC = 0.05
# Five found in a hundred, beyond the one false alarm that is allowed anyway, are a finding.
RATE = 0.05
# Relearning twice as fast as a model that never knew is no accident of the order of the batches.
RATIO = 0.5
# Linear probes of two retrained models differ by a few points.
PROBE = 0.05
# Fewer samples than this on either side of an attack say nothing about it.
FEWEST = 10
# By chance one retraining may be twice as far off as another, or half as far again as the furthest of three.
FURTHER, FURTHER_OF_THREE = 2.0, 1.5

SIGNS: dict[Level, str] = {"shown": "✔", "failed": "✘", "unknown": "?"}
WORDS: dict[Level, str] = {"shown": "Shown", "failed": "Failed", "unknown": "Not known"}


@dataclass(frozen=True)
class Finding:
    """One thing that was shown, was contradicted, or could not be decided."""

    level: Level
    topic: str  # forgetting, damage, membership, robustness, distance or limits
    title: str
    text: str

    def __str__(self) -> str:
        return f"{SIGNS[self.level]} {WORDS[self.level]}: {self.title}. {self.text}"


class Rule(NamedTuple):
    """A question that the numbers of a report answer: the titles of its answers."""

    topic: str
    shown: str
    failed: str
    unknown: str
    missing: str = ""  # if there are no numbers

    def finding(self, level: Level, text: str, title: str = "") -> Finding:
        """The answer of that level; ``title`` replaces the usual one."""
        return Finding(level, self.topic, title or getattr(self, level), text)

    def not_measured(self, why: str) -> Finding:
        """No answer, and why."""
        return Finding("unknown", self.topic, self.missing, why)


CLASS = Rule(
    "forgetting", "It no longer recognises what was to be forgotten",
    "It still recognises what was to be forgotten", "It may still recognise what was to be forgotten",
    missing="Whether it forgot was not measured",
)  # fmt: skip
SAMPLES = Rule(
    "forgetting", "It treats the forgotten samples like ones it never saw",
    "It does not treat the forgotten samples like ones it never saw",
    "There are too few samples to say whether it forgot", missing="Whether it forgot was not measured",
)  # fmt: skip
KEPT = Rule(
    "damage", "What was to stay works as before", "What was to stay has suffered",
    "What was to stay may have suffered", missing="Whether the rest suffered was not measured",
)  # fmt: skip
WORST_CLASS = Rule(
    "damage", "No single class has suffered much", "A single class has suffered",
    "A single class may have suffered",
)  # fmt: skip
ATTACKED = Rule(
    "membership", "None of the attacks tells the forgotten samples from unseen ones",
    "An attack tells the forgotten samples from unseen ones",
    "There are too few samples to say whether forgotten ones can be told from unseen ones",
    missing="Whether forgotten samples can be told from unseen ones was not measured",
)  # fmt: skip
RELEARNED = Rule(
    "robustness", "It is not relearned much faster than by a model that never knew it",
    "It is relearned much faster than by a model that never knew it",
    "It may be relearned faster than by a model that never knew it",
)  # fmt: skip
INSIDE = Rule(
    "robustness", "Its inner layers reveal about as much as those of a model that never saw it",
    "Its inner layers can be told from those of a model that never saw it",
    "It may be possible to tell its inner layers from those of a model that never saw it",
)  # fmt: skip
DISTANCE = Rule(
    "distance", "It is as close to the retrained model as another retraining",
    "It is further from the retrained model than another retraining is",
    "It may be further from the retrained model than another retraining is",
    missing="Whether it is as close as another retraining was not measured",
)  # fmt: skip

# Membership attacks by the signal that they use; those with shadow models train models of their own.
SIGNALS = {"loss": "loss", "confidence": "confidence", "entropy": "entropy", "m_entropy": "modified entropy",
           "margin": "margin"}  # fmt: skip
SHADOWS = {"lira": "LiRA", "rmia": "RMIA", "u_lira": "U-LiRA"}
ATTACKS = {f"mia_{k}": v for k, v in SIGNALS.items()} | {f"{k}.auroc": v for k, v in SHADOWS.items()}
ALARMS = {f"tpr_1pct.{k}": v for k, v in SIGNALS.items()} | {f"{k}.tpr_1pct": v for k, v in SHADOWS.items()}


class Bound(NamedTuple):
    """A rule for the worst of several numbers: it may exceed the retrained model's by a margin."""

    rule: Rule
    margin: float
    values: Mapping[str, str]  # the names of the numbers, and {which} in the text
    text: str  # with {which} and {ours}, the worst number
    alone: float | None  # what counts as the retrained model's number without one; None: do not judge
    beside: str = ""  # what is said then in place of the retrained model's number
    alike: str = ""  # the title if the number is large, but no larger than the retrained model's


def _comes_back(when: str, text: str, *values: str) -> Bound:
    """A treatment that may bring back what was forgotten."""
    verbs = ("stays forgotten", "comes back", "may come back")
    rule = Rule("robustness", *(f"It {verb} when {when}" for verb in verbs))
    text += " changes the accuracy on what was forgotten by {ours.words}{ours.spread}"
    alike = "It comes back, but no more than in a model that never saw it"
    return Bound(rule, POINTS, dict.fromkeys(values, ""), text, alone=0.0, alike=alike)


ACCUSED = Bound(
    Rule(
        "membership", "Hardly any forgotten sample can be identified without many false accusations",
        "Some forgotten samples can be identified with few false accusations",
        "It may be possible to identify forgotten samples with few false accusations",
    ),
    RATE, ALARMS,
    "If one false accusation in a hundred is allowed, the best attack ({which}) finds {ours.words} of the "
    "forgotten samples{ours.spread}",
    alone=0.01, beside="guessing finds 1 %",
)  # fmt: skip
MEMBERS = Bound(
    Rule(
        "membership", "The forgotten samples do not look like training data",
        "The forgotten samples still look like training data",
        "The forgotten samples may still look like training data",
    ),
    RATE, {"mia_svc.confidence": "a support-vector machine", "mia_lr": "a regression"},
    "Having learned how the model treats retained and unseen data, {which} takes {ours.words} of the "
    "forgotten samples for training data{ours.spread}",
    alone=None, alike="They look no more like training data than in the retrained model",
)  # fmt: skip
TREATMENTS = (
    _comes_back(
        "BatchNorm is recalibrated",
        "Estimating the BatchNorm statistics again on retained data, as any redeployment may,",
        "bn_recal.delta",
    ),
    _comes_back(
        "the weights are rounded, pruned or disturbed",
        "Rounding to int8 or bf16, pruning, or slight noise on the weights, whichever brings back most,",
        "quantise.int8_delta", "quantise.bf16_delta", "prune.delta", "noise.delta",
    ),
    _comes_back(
        "training continues on retained data alone", "Further training on retained data alone",
        "relearn_retain.recovered",
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
