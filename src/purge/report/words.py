"""The words of a verdict, as tables: titles of findings, and what would help. Numbers bring their own.

They decide nothing: reword one, and no level, exit code or gate changes.
"""

from __future__ import annotations

from purge.verdict.findings import Headline, Help, WhyOpen
from purge.verdict.rules import Level, Part

SIGNS = {Level.SHOWN: "✔", Level.FAILED: "✘", Level.UNKNOWN: "?"}
LEVELS = {Level.SHOWN: "Shown", Level.FAILED: "Failed", Level.UNKNOWN: "Not known"}
PARTS = {Part.CLASSES: "The classes", Part.SAMPLES: "The single samples"}

SHOWN, FAILED, UNKNOWN = Level.SHOWN, Level.FAILED, Level.UNKNOWN
NOT_MEASURED = WhyOpen.MEASUREMENT


def _stays(when: str) -> dict[Level | WhyOpen, str]:
    """The titles of a treatment that may bring back what was forgotten."""
    return {
        SHOWN: f"It stays forgotten when {when}",
        FAILED: f"It comes back when {when}",
        UNKNOWN: f"It may come back when {when}",
    }


TITLES: dict[str, dict[Level | WhyOpen, str]] = {  # rule → level, or what is missing → title
    "recognised": {
        SHOWN: "It no longer recognises what was to be forgotten",
        FAILED: "It still recognises what was to be forgotten",
        UNKNOWN: "It may still recognise what was to be forgotten",
        NOT_MEASURED: "Whether the model forgot was not measured",
    },
    "right_as_often": {
        SHOWN: "It is right about the forgotten samples as often as a model that never saw them",
        FAILED: "It is not right about the forgotten samples as often as a model that never saw them",
        UNKNOWN: "Accuracy does not tell whether the model forgot",
        NOT_MEASURED: "Whether the model forgot was not measured",
    },
    "kept": {
        SHOWN: "What was to stay works as before",
        FAILED: "What was to stay has suffered",
        UNKNOWN: "What was to stay may have suffered",
        NOT_MEASURED: "Whether the rest suffered was not measured",
    },
    "worst_class": {
        SHOWN: "No single class has suffered much",
        FAILED: "A single class has suffered",
        UNKNOWN: "A single class may have suffered",
    },
    "attacked": {
        SHOWN: "No attack that finds them in the original tells the forgotten samples from unseen ones",
        FAILED: "An attack tells the forgotten samples from unseen ones",
        UNKNOWN: "It is open whether forgotten samples can be told from unseen ones",
        NOT_MEASURED: "Whether forgotten samples can be told from unseen ones was not measured",
    },
    "accused": {
        SHOWN: "Hardly any forgotten sample can be identified without many false accusations",
        FAILED: "Some forgotten samples can be identified with few false accusations",
        UNKNOWN: "It is open whether forgotten samples can be identified with few false accusations",
    },
    "members": {
        SHOWN: "The forgotten samples look no more like training data than in the retrained model",
        FAILED: "The forgotten samples do not look as they do to a model that never saw them",
        UNKNOWN: "It is open whether the forgotten samples still look like training data",
    },
    "nearest": {
        SHOWN: "It answers images of the forgotten class as a model that never saw it does",
        FAILED: "Its answers to images of the forgotten class give away that it once knew it",
        UNKNOWN: "It is open whether its answers to images of the forgotten class give away that it once "
        "knew it",
    },
    "leaked": {
        SHOWN: "Comparing it with the original does not expose retained samples",
        FAILED: "Comparing it with the original exposes retained samples",
        UNKNOWN: "It is open whether comparing it with the original exposes retained samples",
    },
    "canaries": {
        SHOWN: "The planted canaries are no longer found",
        FAILED: "Planted canaries that had to be forgotten are still found",
        UNKNOWN: "It is open whether planted canaries are still found",
    },
    "relearned": {
        SHOWN: "It is not relearned faster than by a model that never knew it",
        FAILED: "It is relearned faster than by a model that never knew it",
        UNKNOWN: "It is open whether it is relearned faster than by a model that never knew it",
    },
    "blocked": {FAILED: "It cannot be relearned, while a model that never knew it can be"},
    "inside": {
        SHOWN: "Its inner layers reveal about as much as those of a model that never saw it",
        FAILED: "Its inner layers can be told from those of a model that never saw it",
        UNKNOWN: "It is open whether its inner layers can be told from those of a model that never saw it",
    },
    "recalibrated": _stays("BatchNorm is recalibrated"),
    "disturbed": _stays("the weights are rounded, pruned or disturbed"),
    "trained_on": _stays("training continues on retained data alone"),
    "lasts": {
        NOT_MEASURED: "Whether the forgetting lasts was not measured",
        WhyOpen.FORGETTING: "There is no forgetting that could last",
        WhyOpen.METHOD: "Whether single samples come back was not measured",
    },
    "exact": {
        SHOWN: "The deletion is exact, on features that were declared frozen",
        UNKNOWN: "The head forgot exactly; whether the features know the samples is open",
    },
    "same_weights": {FAILED: "Its weights are the original's"},
    "moved": {
        SHOWN: "Its outputs and hidden layers are no longer the original's",
        FAILED: "Its hidden layers are still the original's",
    },
    "answers_moved": {FAILED: "It still answers as the original does"},
    "distance": {
        SHOWN: "It is as close to the retrained model as another retraining",
        FAILED: "It is further from the retrained model than another retraining is",
        UNKNOWN: "It may be further from the retrained model than another retraining is",
        WhyOpen.FLOOR: "Whether it is as close as another retraining was not measured",
    },
    "copies_stay": {UNKNOWN: "Copies of forgotten samples were retained"},
    "copies_tested": {UNKNOWN: "Some test samples were trained on"},
    "no_reference": {UNKNOWN: "There was nothing to compare with"},
    "no_shadows": {UNKNOWN: "Attacks with shadow models were not run"},
    "augmented": {UNKNOWN: "The data changes at random when it is read"},
    "not_computed": {UNKNOWN: "Some numbers could not be computed"},
    "no_guarantee": {UNKNOWN: "What no audit can show"},
}

TEXTS = {  # of findings that have no numbers
    "same_weights": "Every weight equals the original's, so nothing was forgotten, whatever the numbers say.",
    "no_reference": "No model retrained without the data was given. So it cannot be known whether this one "
    "behaves like a model that never saw the data, which is the only complete yardstick: nothing about "
    "forgetting can be shown, it can only fail. A retrained model adds the difference to it, with a margin, "
    "for every number here.",
    "no_shadows": "LiRA, RMIA and U-LiRA, the sharpest attacks known, train models of their own to compare "
    "with. They were not run.",
    "no_guarantee": "It shows what its attacks would have found, not that no attack exists; it is no "
    "mathematical guarantee such as (ε, δ)-unlearning. It covers this one model, not copies, backups, logs "
    "or other models that saw the data. Its intervals cover the choice of samples, not of training seeds.",
    "no_forgetting": "What is still recognised cannot come back, so attacks that try to bring it back say "
    "nothing.",
    "no_method": "Recalibration, rounding, pruning and relearning are judged by the accuracy on whole "
    "classes. Here single samples were forgotten, whose classes stay, so these attacks do not tell.",
}
HELP = {
    Help.RETRAINED: "audit it beside a model that was retrained without the data (--retrained RUN)",
    Help.ORIGINAL: "audit it beside the original model (--original RUN)",
    Help.MORE_SAMPLES: "measure on more samples",
    Help.SHARPER_ATTACKS: "measure on more samples, or with attacks by shadow models (--metrics full)",
    Help.SECOND_RETRAINED: "audit with two retrained models",
    Help.SHADOW_MODELS: "attack it by shadow models (--metrics full)",
    Help.FROZEN_FEATURES: "unlearn with frozen=True if the features were never trained on this data",
    Help.REMOVED_COPIES: "remove these copies from the retained data and unlearn again",
}
HEADLINES = {
    Headline.CONTRADICTED: "This audit contradicts the deletion",
    Headline.DAMAGED: "The model was damaged",
    Headline.TOLD_APART: "The model can be told from a retrained one",
    Headline.NOT_CONTRADICTED: "No test of this audit contradicts the deletion",
    Headline.OPEN: "This audit cannot say whether {parts} were forgotten",
}
