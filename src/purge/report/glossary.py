"""What the words of a report mean, for people who did not build the model.

A page prints the meaning of a term where it is first used and under each table, not in a tooltip: paper and
phones have none.
"""

from __future__ import annotations

import re
from collections.abc import Container

MEANINGS = {
    "retrained": "a model trained from scratch without the data that was to be forgotten; how it behaves is "
    "the aim",
    "original": "the model before anything was forgotten",
    "forget set": "the training samples that were to be forgotten (also D_f)",
    "retain set": "the training data that stays",
    "FA": "forget accuracy: how often the model is right about what it was to forget",
    "RA": "retain accuracy: how often it is right about the training data that stays",
    "TA": "test accuracy: how often it is right about data it was not trained on; TA_r: about the classes "
    "that stay",
    "worst class": "of the classes that stay, the one with the lowest test accuracy; it need not be the one "
    "that lost most",
    "95 % interval": "the range that holds the true value in 95 of 100 such measurements on other samples",
    "points": "differences of two percentages: 90 % and 88 % are 2 points apart",
    "margin": "the largest difference that counts as equal, fixed before the audit",
    "can tell": "a test can tell if it fails the original model; one that passes even the original shows "
    "nothing",
    "membership attack": "a test that tries to tell from the model's answers whether a sample was in its "
    "training data",
    "loss, confidence, entropy, margin": "as signals of an attack: different measures of how sure the model "
    "is of its answer",
    "AUROC": "how well an attack tells forgotten samples from unseen ones: 0.5 is guessing, 1 is always "
    "right (area under the receiver operating characteristic)",
    "TPR": "true positive rate: the share of forgotten samples that an attack finds",
    "FPR": "false positive rate: the share of unseen samples that the attack accuses wrongly",
    "nearest class": "the class that forgotten images resemble most, to a model that never saw them",
    "shadow models": "further models that an attacker trains, with and without the samples, to compare with",
    "LiRA, RMIA, U-LiRA": "published attacks that use shadow models",
    "non-members": "samples that the model was not trained on",
    "SVC": "support-vector classifier, a simple classifier used as an attack",
    "BatchNorm": "layers that rescale what passes through by stored means and variances; recalibrating "
    "estimates these again, and may bring forgotten data back",
    "int8, bf16": "shorter numbers for the weights, as devices use them to save memory",
    "pruned": "the smallest weights are set to zero, to save memory",
    "relearning": "training further, to see how soon what was forgotten comes back",
    "linear probe": "a simple classifier that tries to read the forgotten class from a hidden layer",
    "hidden layers": "the steps inside the model before its answer; the penultimate is the last of them",
    "features": "the numbers that a hidden layer passes on for a sample",
    "CKA": "similarity of two hidden layers: 0 none, 1 the same",
    "KL, JS": "how far two models' answers are apart: 0 is the same (in nats, a unit)",
    "FID": "how far apart two clouds of features are: 0 is the same",
    "cosine": "how alike two directions are: 1 the same, 0 unrelated, −1 opposite",
    "logit, log-odds": "a probability on a scale without ends",
    "correlation": "how far two sets of numbers rise and fall together: 1 fully, 0 not at all, −1 against "
    "each other",
    "trigger": "a mark that an attacker put into training samples, so that the model gives his label "
    "wherever it appears (a backdoor)",
    "calibration error": "how far the model's confidence is from how often it is right",
    "gradient": "the direction in which a small change of the weights raises the loss",
    "projected": "a step that was turned so as not to raise the loss on retained data",
    "retain loss": "how wrong the model is about the data that stays: lower is better",
    "(ε, δ)-unlearning": "a proof that the model can hardly be told from a retrained one, by any test",
    "seed": "the number that fixes all chance in training; another one gives another model",
}
PATTERNS = {  # how a term is recognised in a text, where it is not as the word itself or its plural
    "retrained": r"\b[Rr]etrain(ed|ing|ings)?\b",
    "forget set": r"\bforget set\b|\bD_f\b|\bforget samples\b|\bforgotten samples\b",
    "retain set": r"\bretain(ed)? (set|data)\b",
    "FA": r"\bFA\b|\bfa_",
    "RA": r"\bRA\b|\bra\b",
    "TA": r"\bTA\b|\bTA_r\b|\bta_",
    "worst class": r"\bworst",
    "95 % interval": r"95\s%",
    "points": r"\d points",
    "margin": r"\bthe margin is|\bmargins\b",
    "can tell": r"\bcan tell\b|\bnot tell\b",
    "membership attack": r"\bmembership\b|\bMIA\b|\battacks? by\b|\bmia_",
    "loss, confidence, entropy, margin": r"\battack by (the )?(loss|conf|entr|modif|marg)|\bby "
    r"signal\b|\bmodified entropy\b",
    "TPR": r"\bTPR\b|\btpr_",
    "FPR": r"\bFPR\b|\bfalse positives?\b|\btpr_|\bfalse accusation|\bfalse alarm|\bwrongly accused\b",
    "shadow models": r"\bshadow models?\b|\bLiRA\b|\bRMIA\b",
    "LiRA, RMIA, U-LiRA": r"\bLiRA\b|\bRMIA\b",
    "non-members": r"\bnon-members?\b",
    "SVC": r"\bSVC\b|\bsupport-vector machine\b",
    "BatchNorm": r"\bBatchNorm\b|\bbn_recal\b",
    "int8, bf16": r"\bint8\b|\bbf16\b",
    "pruned": r"\bprun(ed|e)\b|\bsmallest \d",
    "relearning": r"\brelearn",
    "linear probe": r"\bprobe\b",
    "hidden layers": r"\bhidden layers?\b|\binner layers\b|\bpenultimate\b",
    "CKA": r"\bCKA\b|\bcka\b",
    "KL, JS": r"\bKL\b|\bJS\b",
    "FID": r"\bFréchet\b",
    "logit, log-odds": r"\blogit\b|\blog-odds\b",
    "retain loss": r"\bretain loss\b|\bloss on (the )?retain",
    "(ε, δ)-unlearning": r"\(ε, δ\)",
}


def glosses(text: str, known: Container[str] = ()) -> dict[str, str]:
    """The terms in a text with their meaning, except those that the reader knows.

    >>> glosses("An AUROC of 0.6 in the original", known={"original"})["AUROC"][:29]
    'how well an attack tells forg'
    """
    return {
        term: meaning
        for term, meaning in MEANINGS.items()
        if term not in known and re.search(PATTERNS.get(term, rf"\b{term}s?\b"), text)
    }
