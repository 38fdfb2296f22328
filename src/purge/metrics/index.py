"""Every metric of purge, a row each: what it is called, measured by, needs, and says to people."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from purge.metrics.metric import Limits, Metric, Need, Unit, Words

TEST: frozenset[Need] = frozenset({"test"})
SAME: frozenset[Need] = frozenset({"same_class_test"})
KEPT: frozenset[Need] = frozenset({"kept_class_test"})
RETRAINED: frozenset[Need] = frozenset({"retrained"})
ORIGINAL: frozenset[Need] = frozenset({"original"})
SHADOWS: frozenset[Need] = frozenset({"shadows"})
TRUTH: frozenset[Need] = frozenset({"truth"})
TRIGGERED: frozenset[Need] = frozenset({"triggered"})

SIGNALS = {"loss": "loss", "confidence": "confidence", "entropy": "entropy", "m_entropy": "modified entropy",
           "margin": "margin"}  # fmt: skip
RELEARNED = ("after", "recovered", "area", "steps")
RATES = ("auroc", "tpr_1pct", "tpr_01pct")
RATE_UNITS: dict[str, Unit] = {"tpr_1pct": "share", "tpr_01pct": "share"}

SHARE: Limits = (0, 1)
SIGNED: Limits = (-1, 1)
DISTANCE: Limits = (0, None)
JS: Limits = (0, math.log(2))

_damage = partial(Metric, unit="share", section="damage", limits=SHARE)
_forgetting = partial(Metric, section="forgetting", limits=SHARE)
_membership = partial(Metric, section="membership", limits=SHARE)
_distance = partial(Metric, section="distance", limits=SHARE)
_attack = partial(Metric, unit="share", section="robustness", cost="train", limits=SIGNED)


def _found_by(attack: str) -> Words:
    return Words(f"forgotten samples found by {attack} if one false accusation in a hundred is allowed")


def _auroc_of(attack: str, *, main: bool = False) -> Words:
    return Words(f"AUROC of the attack by {attack}", {"membership": attack}, main)


def _rates_of(attack: str, *, main: bool = False) -> dict[str, Words]:
    return {"auroc": _auroc_of(attack, main=main), "tpr_1pct": _found_by(attack)}


def _treated(row: str, sentence: str = "", *, runs: str = "") -> Words:
    """FA of a treated copy."""
    words = f"accuracy on what was forgotten after {sentence}" if sentence else ""
    return Words(words, {"robustness": row, **({"runs": runs} if runs else {})}, main=bool(runs))


def _disturbed(row: str) -> Words:
    how = "the weights are rounded, pruned or slightly disturbed, whichever brings back most"
    return _treated(row, how)


_rates = partial(Metric, section="membership", limits=SHARE, parts=RATES, units=RATE_UNITS)
_shadow = partial(Metric, section="membership", cost="shadow", limits=SHARE)

# Functions are given as module:function below purge.metrics, so that a list of metrics needs no torch.
_TABLE = [
    # accuracy
    _damage("ta", "TA", "accuracy on all test data", "accuracy:ta", needs=TEST),
    _damage("ta_retain", "TA_r", "accuracy on test data of the classes that stay", "accuracy:ta_retain",
            needs=KEPT, words=Words("accuracy on test data of the classes that stay", {
            "stays": "unseen ones of their classes", "runs": "accuracy on test data\nof what stays"},
            main=True)),
    _forgetting("fa_train", "FA_train", "accuracy on the forget set itself", "accuracy:fa_train",
                unit="share", words=Words("accuracy on the forgotten samples", {
                "forgotten": "forgotten samples"}, main=True)),
    _forgetting("fa_test", "FA", "accuracy on unseen data of the classes in the forget set",
                "accuracy:fa_test", unit="share", needs=SAME,
                words=Words("accuracy on unseen samples of their class", {
                "forgotten": "unseen ones of their classes", "robustness": "as it is",
                "runs": "accuracy on unseen data\nof what was forgotten"}, main=True)),
    _damage("ra", "RA", "accuracy on the retain set", "accuracy:ra", words=Words("accuracy on retained data",
            {"stays": "retained samples"}, main=True)),
    _forgetting("ua", "UA", "1 − accuracy on the forget set", "accuracy:unlearning_accuracy", unit="share"),
    _forgetting("destinations", "→", "where predictions on the forget set go, by class",
                "accuracy:destinations", parts="classes", unit="share"),
    _forgetting("clean_label", "clean", "share of the forget set that gets its right label, as truth has it",
                "accuracy:clean_label", unit="share", needs=TRUTH),
    _forgetting("attack_success", "ASR", "share of samples with a trigger that get the attacker's label",
                "accuracy:attack_success", unit="share", needs=TRIGGERED),
    # membership
    _membership("mia_loss", "MIA loss", "AUROC of −loss, forget against unseen same-class data",
                "membership:mia_loss", needs=SAME, words=_auroc_of("loss"), curve="loss"),
    _membership("mia_confidence", "MIA conf", "AUROC of the largest probability", "membership:mia_confidence",
                needs=SAME, words=_auroc_of("confidence"), curve="confidence"),
    _membership("mia", "MIA", "mean of the two AUROCs", "membership:mia", needs=SAME,
                words=Words(rows={"membership": "mean of loss and confidence",
                "runs": "membership attack\n(AUROC)"}, main=True)),
    _membership("mia_entropy", "MIA ent", "AUROC of −entropy", "membership:mia_entropy", needs=SAME,
                words=_auroc_of("entropy"), curve="entropy"),
    _membership("mia_m_entropy", "MIA m-ent", "AUROC of −modified entropy", "membership:mia_m_entropy",
                needs=SAME, words=_auroc_of("modified entropy"), curve="m_entropy"),
    _membership("mia_margin", "MIA margin", "AUROC of the logit of the label's probability",
                "membership:mia_margin", needs=SAME, words=_auroc_of("margin"), curve="margin"),
    _membership("tpr_1pct", "TPR@1%", "forget samples found at 1 % false positives, by signal",
                "membership:tpr_1pct", parts=tuple(SIGNALS), unit="share", needs=SAME, words={
                k: _found_by(signal) for k, signal in SIGNALS.items()}),
    _membership("tpr_01pct", "TPR@0.1%", "forget samples found at 0.1 % false positives, by signal",
                "membership:tpr_01pct", parts=tuple(SIGNALS), unit="share", needs=SAME),
    _membership("mia_svc", "MIA SVC", "forget samples that an SVC calls non-member, by feature",
                "membership:mia_svc", parts=("confidence", "correctness", "entropy", "m_entropy", "prob"),
                unit="share", needs=KEPT, words={
                "confidence": Words("forgotten samples that a support-vector machine takes for unseen data")
                }),
    _membership("mia_lr", "MIA LR", "forget samples that a logistic regression on entropy calls member",
                "membership:mia_lr", unit="share", needs=KEPT,
                words=Words("forgotten samples that a regression takes for training data")),
    _membership("mia_split", "MIA split", "accuracy of a logistic regression on loss, forget against unseen",
                "membership:mia_split", unit="share", needs=SAME),
    _rates("mia_quantile", "MIA quant", "attack by a threshold for each sample, from unseen data alone",
           "quantile:mia_quantile", needs=SAME, words=_rates_of("a threshold per sample"),
           curve="quantile"),
    _membership("nearest_class", "ΔNN", "forgotten images taken for their nearest class, less Retrain's",
                "nearest:nearest_class", parts=("taken", "auroc"), units={"taken": "share"}, ideal=0.0,
                needs=RETRAINED | KEPT, limits=SIGNED, words={"auroc": Words(
                "how much better than the retrained model's its answers tell forgotten images from those of "
                "the nearest class")}),
    _membership("leak_retained", "leak_r", "AUROC of the change since the original, retained against unseen",
                "leakage:leak_retained", parts=("loss", "confidence", "distance", "after"), needs=ORIGINAL |
                KEPT, words={
                "loss": Words("AUROC of the attack on retained samples by the change of their loss")}),
    # distance
    _distance("feature_cosine", "cos", "cosine of penultimate features with the retrained model's",
              "distance:feature_cosine", direction="higher", slack=0.1, ideal=1.0, needs=RETRAINED,
              limits=SIGNED),
    _distance("feature_l2", "L2", "distance of penultimate features from the retrained model's",
              "distance:feature_l2", direction="lower", ideal=0.0, needs=RETRAINED, limits=DISTANCE),
    _distance("feature_cosine_original", "cos₀", "cosine of penultimate features with the original's",
              "distance:feature_cosine_original", needs=ORIGINAL, limits=SIGNED),
    _distance("feature_l2_original", "L2₀", "distance of penultimate features from the original's",
              "distance:feature_l2_original", needs=ORIGINAL, limits=DISTANCE),
    _distance("hidden_change", "Δhidden", "penultimate features on D_f not told, linearly, by the original's",
              "distance:hidden_change", needs=ORIGINAL, words=Words("hidden layers")),
    _distance("output_change", "Δout", "JS(model, original) on the forget set, in nats",
              "distance:output_change", needs=ORIGINAL, limits=JS, words=Words("outputs")),
    _distance("fid_feat", "FID", "Fréchet distance of penultimate features to the retrained model's",
              "distance:fid_feat", direction="lower", ideal=0.0, needs=RETRAINED, limits=DISTANCE),
    _distance("agreement", "agree", "same prediction as the retrained model on the forget set",
              "distance:agreement", unit="share", direction="higher", slack=0.1, ideal=1.0, needs=RETRAINED,
              words=Words(main=True)),
    _distance("agreement_test", "agree_t", "same prediction as the retrained model on test data",
              "distance:agreement_test", unit="share", direction="higher", slack=0.1, ideal=1.0,
              needs=RETRAINED | TEST),
    _distance("kl_retrain", "KL", "KL(retrained ‖ model) on the forget set", "distance:kl_retrain",
              direction="lower", slack=0.01, ideal=0.0, needs=RETRAINED, limits=DISTANCE),
    _distance("js_retrain", "JS", "JS(model, retrained) on the forget set, in nats", "distance:js_retrain",
              direction="lower", slack=0.01, ideal=0.0, needs=RETRAINED, limits=JS),
    _distance("odds_correlation", "corr", "correlation of the label's log-odds with Retrain's on D_f",
              "distance:odds_correlation", direction="higher", ideal=1.0, needs=RETRAINED, limits=SIGNED),
    _distance("cka", "CKA", "similarity of representations with the retrained model's, by layer",
              "distance:cka", parts="layers", direction="higher", needs=RETRAINED),
    _distance("tow", "ToW", "closeness to the retrained model in forget, retain and test accuracy",
              "distance:tow", direction="higher", slack=0.1, ideal=1.0, needs=RETRAINED | TEST),
    _distance("retrain_gap", "gap", "mean difference from the retrained model in FA, RA, TA_r, MIA",
              "distance:retrain_gap", direction="lower", ideal=0.0, needs=RETRAINED, words=Words(rows={
              "runs": "mean gap to\nthe retrained model"}, main=True)),
    _distance("field_gap", "avg gap", "mean difference from the retrained model in UA, RA, TA_r, MIA SVC",
              "distance:field_gap", direction="lower", ideal=0.0, needs=RETRAINED | KEPT),
    # untrained
    _forgetting("zrf", "ZRF", "similarity on the forget set to an untrained copy of the model",
                "untrained:zrf"),
    _forgetting("rf_jsd", "RF-JSD", "JS of mean answers to D_f and the original's to unseen same-class data",
                "untrained:rf_jsd", needs=ORIGINAL | SAME, limits=JS),
    _forgetting("aus", "AUS", "test accuracy kept, divided by 1 + accuracy on what is forgotten",
                "untrained:aus", needs=ORIGINAL | SAME | KEPT, limits=(0, 2)),
    _distance("silhouette", "sil", "how far the forgotten samples lie apart among penultimate features",
              "probing:silhouette", needs=SAME | KEPT, limits=SIGNED),
    # damage
    _damage("class_accuracy", "TA_k", "accuracy on test data, by class", "damage:class_accuracy",
            parts="classes", needs=TEST),
    _damage("class_change", "ΔTA_k", "accuracy on test data, after − before, by class", "damage:class_change",
            parts="classes", needs=ORIGINAL | TEST, limits=SIGNED),
    _damage("worst_class", "worst", "lowest test accuracy of a class that stays, and which class",
            "damage:worst_class", parts=("accuracy", "class"), units={"class": "class"}, needs=KEPT,
            limits=DISTANCE, words={"accuracy": Words(main=True)}),
    _damage("largest_drop", "drop", "largest drop in test accuracy of a class that stays",
            "damage:largest_drop", needs=ORIGINAL | KEPT, limits=SIGNED),
    _damage("ece", "ECE", "calibration error on test data of the classes that stay", "damage:ece",
            unit="number", needs=KEPT),
    _damage("neighbours", "near", "test accuracy of the classes nearest to what is forgotten",
            "damage:neighbours", parts=("accuracy", "change"), needs=ORIGINAL | KEPT, limits=SIGNED),
    _distance("destinations_tv", "TV→", "difference from the retrained model in how D_f spreads over classes",
              "damage:destinations_tv", direction="lower", slack=0.1, ideal=0.0, needs=RETRAINED),
    # robustness
    _attack("bn_recal", "recal", "FA before and after recalibrating BatchNorm on retain data",
            "robustness:bn_recal", parts=("before", "after", "delta"), needs=SAME, words={"after": _treated(
            "BatchNorm recalibrated",
            "the BatchNorm statistics (running means and variances) are estimated again on retained data",
            runs="forgotten, after BatchNorm\nrecalibration")}),
    _attack("relearn_few", "relearn", "FA while fine-tuning on 50 forget samples mixed with retain data",
            "robustness:relearn_few", parts=RELEARNED, units={"steps": "steps"}, needs=SAME | KEPT,
            limits=(-1, None), words={"after": _treated("trained on a few forgotten samples")}),
    _attack("relearn_retain", "relearn_r", "FA while fine-tuning on retain data alone",
            "robustness:relearn_retain", parts=RELEARNED, units={"steps": "steps"}, needs=SAME | KEPT,
            limits=(-1, None), words={"after": _treated( "trained on retained data",
            "further training on retained data alone")}),
    _attack("relearn_ratio", "AIN", "steps to relearn with few samples, over the retrained model's",
            "robustness:relearn_ratio", unit="number", ideal=1.0, needs=RETRAINED | SAME | KEPT,
            limits=DISTANCE, words=Words(
            "steps to get it back from a few forgotten samples, with all marks in the last layer removed, "
            "over the retrained model's", main=True)),
    _attack("quantise", "quant", "FA with weights in int8 and in bf16, and the changes",
            "disturbed:quantise", parts=("int8", "bf16", "int8_delta", "bf16_delta"), needs=SAME,
            words={"int8": _disturbed("weights in int8"), "bf16": _disturbed("weights in bf16")}),
    _attack("prune", "prune", "FA without the smallest 20, 50 and 80 % of weights, and the largest rise",
            "disturbed:prune", parts=("20", "50", "80", "delta"), needs=SAME, words={
            k: _disturbed(f"smallest {k} % of weights removed") for k in ("20", "50", "80")}),
    _attack("noise", "noise", "FA with weight noise of 1 and 5 %, and the larger rise", "disturbed:noise",
            parts=("1pct", "5pct", "delta"), needs=SAME, words={f"{k}pct":
            _disturbed(f"{k} % noise on the weights") for k in ("1", "5")}),
    # probing
    _attack("probe", "probe", "linear probe of penultimate features: forgotten classes against the rest",
            "probing:probe", needs=SAME | KEPT),
    _attack("probe_gap", "Δprobe", "distance of the linear probe to the retrained model's",
            "probing:probe_gap", ideal=0.0, needs=RETRAINED | SAME | KEPT,
            words=Words("distance from the retrained model in what a linear probe reads from them")),
    _attack("head_refit", "refit", "FA and RA with the last layer refitted to all training data",
            "probing:head_refit", parts=("fa", "ra"), needs=SAME, words={
            "fa": _treated("last layer refitted")}),
    _attack("head_refit_gap", "Δrefit", "distance of FA with a refitted last layer to the retrained model's",
            "probing:head_refit_gap", ideal=0.0, needs=RETRAINED | SAME,
            words=Words("distance from the retrained model in what a new last layer reads from them")),
    # shadow
    _rates("lira", "LiRA", "likelihood-ratio attack: did the model see the forget set?", "shadow:lira",
           needs=SAME | SHADOWS, words=_rates_of("LiRA", main=True), curve="lira", cost="shadow"),
    _rates("rmia", "RMIA", "relative attack: does a forgotten sample stand out over unseen ones?",
           "shadow:rmia", needs=SAME | KEPT | SHADOWS, words=_rates_of("RMIA"), curve="rmia", cost="shadow"),
    _rates("u_lira", "U-LiRA", "likelihood-ratio attack: was the sample seen and unlearned, or never seen?",
           "shadow:u_lira", needs=SAME | SHADOWS, words=_rates_of("U-LiRA", main=True), curve="u_lira",
           cost="shadow"),
    _shadow("forgetting_score", "F", "how hard it is to tell unlearned from retrained models (NeurIPS 2023)",
            "shadow:forgetting_score", parts=("score", "retrain"), needs=SHADOWS),
    _shadow("klom", "KLoM", "KL of margins, unlearned from retrained models: the 95th percentile",
            "shadow:klom", parts=("p95", "retrain"), needs=SHADOWS, limits=DISTANCE),
]  # fmt: skip
METRICS: dict[str, Metric] = {m.name: replace(m, fn=f"purge.metrics.{m.fn}") for m in _TABLE}
