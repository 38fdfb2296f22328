"""What the words of a report mean, for people who did not build the model.

A page prints the meaning of a term where it is first used and under each table, not in a tooltip: paper and
phones have none.
"""

from __future__ import annotations

import re
from collections.abc import Container

# term → (how it is recognised in a text, its meaning)
TERMS = {
    "retrained": (
        r"\b[Rr]etrain(ed|ing|ings)?\b",
        "a model trained from scratch without the data that was to be forgotten; how it behaves is the aim",
    ),
    "original": (r"\boriginal\b", "the model before anything was forgotten"),
    "forget set": (
        r"\bforget set\b|\bD_f\b|\bforget samples\b|\bforgotten samples\b",
        "the training samples that were to be forgotten (also D_f)",
    ),
    "retain set": (r"\bretain(ed)? (set|data)\b", "the training data that stays"),
    "FA": (r"\bFA\b|\bfa_", "forget accuracy: how often the model is right about what it was to forget"),
    "RA": (r"\bRA\b|\bra\b", "retain accuracy: how often it is right about the training data that stays"),
    "TA": (
        r"\bTA\b|\bTA_r\b|\bta_",
        "test accuracy: how often it is right about data it was not trained on; TA_r: about the classes "
        "that stay",
    ),
    "worst class": (
        r"\bworst",
        "of the classes that stay, the one with the lowest test accuracy; it need not be the one that "
        "lost most",
    ),
    "95 % interval": (
        r"95\s%",
        "the range that holds the true value in 95 of 100 such measurements on other samples",
    ),
    "points": (r"\d points", "differences of two percentages: 90 % and 88 % are 2 points apart"),
    "margin": (
        r"\bthe margin is|\bmargins\b",
        "the largest difference that counts as equal, fixed before the audit",
    ),
    "can tell": (
        r"\bcan tell\b|\bnot tell\b",
        "a test can tell if it fails the original model; one that passes even the original shows nothing",
    ),
    "membership attack": (
        r"\bmembership\b|\bMIA\b|\battacks? by\b|\bmia_",
        "a test that tries to tell from the model's answers whether a sample was in its training data",
    ),
    "loss, confidence, entropy, margin": (
        r"\battack by (the )?(loss|conf|entr|modif|marg)|\bby signal\b|\bmodified entropy\b",
        "as signals of an attack: different measures of how sure the model is of its answer",
    ),
    "AUROC": (
        r"\bAUROCs?\b",
        "how well an attack tells forgotten samples from unseen ones: 0.5 is guessing, 1 is always right "
        "(area under the receiver operating characteristic)",
    ),
    "TPR": (r"\bTPR\b|\btpr_", "true positive rate: the share of forgotten samples that an attack finds"),
    "FPR": (
        r"\bFPR\b|\bfalse positives?\b|\btpr_|\bfalse accusation|\bfalse alarm|\bwrongly accused\b",
        "false positive rate: the share of unseen samples that the attack accuses wrongly",
    ),
    "nearest class": (
        r"\bnearest class\b",
        "the class that forgotten images resemble most, to a model that never saw them",
    ),
    "shadow models": (
        r"\bshadow models?\b|\bLiRA\b|\bRMIA\b",
        "further models that an attacker trains, with and without the samples, to compare with",
    ),
    "LiRA, RMIA, U-LiRA": (r"\bLiRA\b|\bRMIA\b", "published attacks that use shadow models"),
    "non-members": (r"\bnon-members?\b", "samples that the model was not trained on"),
    "SVC": (
        r"\bSVC\b|\bsupport-vector machine\b",
        "support-vector classifier, a simple classifier used as an attack",
    ),
    "BatchNorm": (
        r"\bBatchNorm\b|\bbn_recal\b",
        "layers that rescale what passes through by stored means and variances; recalibrating estimates "
        "these again, and may bring forgotten data back",
    ),
    "int8, bf16": (
        r"\bint8\b|\bbf16\b",
        "shorter numbers for the weights, as devices use them to save memory",
    ),
    "pruned": (r"\bprun(ed|e)\b|\bsmallest \d", "the smallest weights are set to zero, to save memory"),
    "relearning": (r"\brelearn", "training further, to see how soon what was forgotten comes back"),
    "linear probe": (
        r"\bprobe\b",
        "a simple classifier that tries to read the forgotten class from a hidden layer",
    ),
    "hidden layers": (
        r"\bhidden layers?\b|\binner layers\b|\bpenultimate\b",
        "the steps inside the model before its answer; the penultimate is the last of them",
    ),
    "features": (r"\bfeatures\b", "the numbers that a hidden layer passes on for a sample"),
    "CKA": (r"\bCKA\b|\bcka\b", "similarity of two hidden layers: 0 none, 1 the same"),
    "KL, JS": (r"\bKL\b|\bJS\b", "how far two models' answers are apart: 0 is the same (in nats, a unit)"),
    "FID": (r"\bFréchet\b", "how far apart two clouds of features are: 0 is the same"),
    "cosine": (r"\bcosine\b", "how alike two directions are: 1 the same, 0 unrelated, −1 opposite"),
    "logit, log-odds": (r"\blogit\b|\blog-odds\b", "a probability on a scale without ends"),
    "correlation": (
        r"\bcorrelations?\b",
        "how far two sets of numbers rise and fall together: 1 fully, 0 not at all, −1 against each other",
    ),
    "trigger": (
        r"\btriggers?\b",
        "a mark that an attacker put into training samples, so that the model gives his label wherever it "
        "appears (a backdoor)",
    ),
    "calibration error": (
        r"\bcalibration error\b",
        "how far the model's confidence is from how often it is right",
    ),
    "gradient": (r"\bgradients?\b", "the direction in which a small change of the weights raises the loss"),
    "projected": (r"\bprojected\b", "a step that was turned so as not to raise the loss on retained data"),
    "retain loss": (
        r"\bretain loss\b|\bloss on (the )?retain",
        "how wrong the model is about the data that stays: lower is better",
    ),
    "(ε, δ)-unlearning": (
        r"\(ε, δ\)",
        "a proof that the model can hardly be told from a retrained one, by any test",
    ),
    "seed": (r"\bseeds?\b", "the number that fixes all chance in training; another one gives another model"),
}


def glosses(text: str, known: Container[str] = ()) -> dict[str, str]:
    """The terms in a text with their meaning, except those that the reader knows.

    >>> glosses("An AUROC of 0.6 in the original", known={"original"})["AUROC"][:29]
    'how well an attack tells forg'
    """
    return {
        term: meaning
        for term, (pattern, meaning) in TERMS.items()
        if term not in known and re.search(pattern, text)
    }
