"""The shelf of audits: one entry per name, and panels of them."""

from __future__ import annotations

from collections.abc import Sequence

from purge.core.errors import MetricError, did_you_mean
from purge.metrics.metric import Metric, Unit
from purge.report.tables import shown

SHELF = [
    # accuracy
    Metric("ta", "TA", "accuracy on all test data", "purge.metrics.accuracy:ta", unit="share",
           section="damage", needs={"test"}),
    Metric("ta_retain", "TA_r", "accuracy on test data of the classes that stay",
           "purge.metrics.accuracy:ta_retain", unit="share", section="damage", needs={"kept_class_test"}),
    Metric("fa_train", "FA_train", "accuracy on the forget set itself", "purge.metrics.accuracy:fa_train",
           unit="share", section="forgetting"),
    Metric("fa_test", "FA", "accuracy on unseen data of the classes in the forget set",
           "purge.metrics.accuracy:fa_test", unit="share", section="forgetting",
           needs={"same_class_test"}),
    Metric("ra", "RA", "accuracy on the retain set", "purge.metrics.accuracy:ra", unit="share",
           section="damage"),
    Metric("ua", "UA", "1 − accuracy on the forget set", "purge.metrics.accuracy:unlearning_accuracy",
           unit="share", section="forgetting"),
    Metric("destinations", "→", "where predictions on the forget set go, by class",
           "purge.metrics.accuracy:destinations", parts="classes", unit="share", section="forgetting"),
    # membership
    Metric("mia_loss", "MIA loss", "AUROC of −loss, forget against unseen same-class data",
           "purge.metrics.membership:mia_loss", section="membership", needs={"same_class_test"}),
    Metric("mia_confidence", "MIA conf", "AUROC of the largest probability",
           "purge.metrics.membership:mia_confidence", section="membership", needs={"same_class_test"}),
    Metric("mia", "MIA", "mean of the two AUROCs", "purge.metrics.membership:mia", section="membership",
           needs={"same_class_test"}),
    Metric("mia_entropy", "MIA ent", "AUROC of −entropy", "purge.metrics.membership:mia_entropy",
           section="membership", needs={"same_class_test"}),
    Metric("mia_m_entropy", "MIA m-ent", "AUROC of −modified entropy",
           "purge.metrics.membership:mia_m_entropy", section="membership", needs={"same_class_test"}),
    Metric("mia_margin", "MIA margin", "AUROC of the logit of the label's probability",
           "purge.metrics.membership:mia_margin", section="membership", needs={"same_class_test"}),
    Metric("tpr_1pct", "TPR@1%", "forget samples found at 1 % false positives, by signal",
           "purge.metrics.membership:tpr_1pct",
           parts=("loss", "confidence", "entropy", "m_entropy", "margin"), unit="share",
           section="membership", needs={"same_class_test"}),
    Metric("tpr_01pct", "TPR@0.1%", "forget samples found at 0.1 % false positives, by signal",
           "purge.metrics.membership:tpr_01pct",
           parts=("loss", "confidence", "entropy", "m_entropy", "margin"), unit="share",
           section="membership", needs={"same_class_test"}),
    Metric("mia_svc", "MIA SVC", "forget samples that an SVC calls non-member, by feature",
           "purge.metrics.membership:mia_svc",
           parts=("confidence", "correctness", "entropy", "m_entropy", "prob"), unit="share",
           section="membership", needs={"kept_class_test"}),
    Metric("mia_lr", "MIA LR", "forget samples that a logistic regression on entropy calls member",
           "purge.metrics.membership:mia_lr", unit="share", section="membership",
           needs={"kept_class_test"}),
    Metric("mia_split", "MIA split", "accuracy of a logistic regression on loss, forget against unseen",
           "purge.metrics.membership:mia_split", unit="share", section="membership",
           needs={"same_class_test"}),
    # distance
    Metric("feature_cosine", "cos", "cosine of penultimate features with the retrained model's",
           "purge.metrics.distance:feature_cosine", section="distance", direction="higher", slack=0.1,
           ideal=1.0, needs={"retrained"}),
    Metric("feature_l2", "L2", "distance of penultimate features from the retrained model's",
           "purge.metrics.distance:feature_l2", section="distance", direction="lower", ideal=0.0,
           needs={"retrained"}),
    Metric("feature_cosine_original", "cos₀", "cosine of penultimate features with the original's",
           "purge.metrics.distance:feature_cosine_original", section="distance", needs={"original"}),
    Metric("feature_l2_original", "L2₀", "distance of penultimate features from the original's",
           "purge.metrics.distance:feature_l2_original", section="distance", needs={"original"}),
    Metric("fid_feat", "FID", "Fréchet distance of penultimate features to the retrained model's",
           "purge.metrics.distance:fid_feat", section="distance", direction="lower", ideal=0.0,
           needs={"retrained"}),
    Metric("agreement", "agree", "same prediction as the retrained model on the forget set",
           "purge.metrics.distance:agreement", unit="share", section="distance", direction="higher",
           slack=0.1, ideal=1.0, needs={"retrained"}),
    Metric("agreement_test", "agree_t", "same prediction as the retrained model on test data",
           "purge.metrics.distance:agreement_test", unit="share", section="distance", direction="higher",
           slack=0.1, ideal=1.0, needs={"retrained", "test"}),
    Metric("kl_retrain", "KL", "KL(retrained ‖ model) on the forget set",
           "purge.metrics.distance:kl_retrain", section="distance", direction="lower", slack=0.01,
           ideal=0.0, needs={"retrained"}),
    Metric("js_retrain", "JS", "JS(model, retrained) on the forget set, in nats",
           "purge.metrics.distance:js_retrain", section="distance", direction="lower", slack=0.01,
           ideal=0.0, needs={"retrained"}),
    Metric("cka", "CKA", "similarity of representations with the retrained model's, by layer",
           "purge.metrics.distance:cka", parts="layers", section="distance", direction="higher",
           needs={"retrained"}),
    Metric("tow", "ToW", "closeness to the retrained model in forget, retain and test accuracy",
           "purge.metrics.distance:tow", section="distance", direction="higher", slack=0.1, ideal=1.0,
           needs={"retrained", "test"}),
    Metric("retrain_gap", "gap", "mean difference to the retrained model in FA, RA, TA_r, MIA",
           "purge.metrics.distance:retrain_gap", section="distance", direction="lower", ideal=0.0,
           needs={"retrained"}),
    # untrained
    Metric("zrf", "ZRF", "likeness on the forget set to an untrained copy of the model",
           "purge.metrics.untrained:zrf", section="forgetting"),
    Metric("rf_jsd", "RF-JSD",
           "JS of mean answers to D_f from the original's to unseen data of its classes",
           "purge.metrics.untrained:rf_jsd", section="forgetting", needs={"original", "same_class_test"}),
    Metric("aus", "AUS", "test accuracy kept, divided by 1 + what is still known of the forgotten",
           "purge.metrics.untrained:aus", section="forgetting",
           needs={"kept_class_test", "original", "same_class_test"}),
    Metric("silhouette", "sil", "how far apart the forgotten lies among penultimate features",
           "purge.metrics.untrained:silhouette", section="distance",
           needs={"kept_class_test", "same_class_test"}),
    # damage
    Metric("class_accuracy", "TA_k", "accuracy on test data, by class",
           "purge.metrics.damage:class_accuracy", parts="classes", unit="share", section="damage",
           needs={"test"}),
    Metric("class_change", "ΔTA_k", "accuracy on test data, after − before, by class",
           "purge.metrics.damage:class_change", parts="classes", unit="share", section="damage",
           needs={"original", "test"}),
    Metric("worst_class", "worst", "lowest test accuracy of a class that stays, and which class",
           "purge.metrics.damage:worst_class", parts=("accuracy", "class"), unit="share",
           units={"class": "class"}, section="damage", needs={"kept_class_test"}),
    Metric("worst_change", "Δworst", "largest loss of test accuracy by a class that stays",
           "purge.metrics.damage:worst_change", unit="share", section="damage",
           needs={"kept_class_test", "original"}),
    Metric("ece", "ECE", "calibration error on test data of the classes that stay",
           "purge.metrics.damage:ece", section="damage", needs={"kept_class_test"}),
    Metric("neighbours", "near", "test accuracy of the classes nearest to what is forgotten",
           "purge.metrics.damage:neighbours", parts=("accuracy", "change"), unit="share",
           section="damage", needs={"kept_class_test", "original"}),
    Metric("destinations_tv", "TV→",
           "how differently from the retrained model's D_f is spread over classes",
           "purge.metrics.damage:destinations_tv", section="distance", direction="lower", slack=0.1,
           ideal=0.0, needs={"retrained"}),
    # robustness
    Metric("bn_recal", "recal", "FA before and after recalibrating BatchNorm on retain data",
           "purge.metrics.robustness:bn_recal", parts=("before", "after", "delta"), unit="share",
           section="robustness", cost="train", needs={"same_class_test"}),
    Metric("relearn_few", "relearn", "FA while fine-tuning on 50 forget samples mixed with retain data",
           "purge.metrics.robustness:relearn_few", parts=("after", "recovered", "area", "steps"),
           unit="share", units={"steps": "steps"}, section="robustness", cost="train",
           needs={"kept_class_test", "same_class_test"}),
    Metric("relearn_retain", "relearn_r", "FA while fine-tuning on retain data alone",
           "purge.metrics.robustness:relearn_retain", parts=("after", "recovered", "area", "steps"),
           unit="share", units={"steps": "steps"}, section="robustness", cost="train",
           needs={"kept_class_test", "same_class_test"}),
    Metric("relearn_ratio", "AIN", "steps to relearn with few samples, over the retrained model's",
           "purge.metrics.robustness:relearn_ratio", section="robustness", ideal=1.0, cost="train",
           needs={"kept_class_test", "retrained", "same_class_test"}),
    Metric("quantise", "quant", "FA with weights in int8 and in bf16, and the changes",
           "purge.metrics.robustness:quantise", parts=("int8", "bf16", "int8_delta", "bf16_delta"),
           unit="share", section="robustness", cost="train", needs={"same_class_test"}),
    Metric("prune", "prune", "FA without the smallest 20, 50 and 80 % of weights, and the largest rise",
           "purge.metrics.robustness:prune", parts=("20", "50", "80", "delta"), unit="share",
           section="robustness", cost="train", needs={"same_class_test"}),
    Metric("noise", "noise", "FA with weight noise of 1 and 5 %, and the larger rise",
           "purge.metrics.robustness:noise", parts=("1pct", "5pct", "delta"), unit="share",
           section="robustness", cost="train", needs={"same_class_test"}),
    # probing
    Metric("probe", "probe", "linear probe of penultimate features: forgotten classes against the rest",
           "purge.metrics.probing:probe", unit="share", section="robustness", cost="train",
           needs={"kept_class_test", "same_class_test"}),
    Metric("probe_gap", "Δprobe", "distance of the linear probe to the retrained model's",
           "purge.metrics.probing:probe_gap", unit="share", section="robustness", ideal=0.0, cost="train",
           needs={"kept_class_test", "retrained", "same_class_test"}),
    Metric("head_refit", "refit", "FA and RA with the last layer fitted anew to all training data",
           "purge.metrics.probing:head_refit", parts=("fa", "ra"), unit="share", section="robustness",
           cost="train", needs={"same_class_test"}),
    Metric("head_refit_gap", "Δrefit",
           "distance of FA with a refitted last layer to the retrained model's",
           "purge.metrics.probing:head_refit_gap", unit="share", section="robustness", ideal=0.0,
           cost="train", needs={"retrained", "same_class_test"}),
    # shadow
    Metric("lira", "LiRA", "likelihood-ratio attack: did the model see the forget set?",
           "purge.metrics.shadow:lira", parts=("auroc", "tpr_1pct", "tpr_01pct"),
           units={"tpr_1pct": "share", "tpr_01pct": "share"}, section="membership", cost="shadow",
           needs={"same_class_test", "shadows"}),
    Metric("rmia", "RMIA", "relative attack: does a forgotten sample stand out over unseen ones?",
           "purge.metrics.shadow:rmia", parts=("auroc", "tpr_1pct", "tpr_01pct"),
           units={"tpr_1pct": "share", "tpr_01pct": "share"}, section="membership", cost="shadow",
           needs={"kept_class_test", "same_class_test", "shadows"}),
    Metric("u_lira", "U-LiRA",
           "likelihood-ratio attack: was the sample seen and unlearned, or never seen?",
           "purge.metrics.shadow:u_lira", parts=("auroc", "tpr_1pct", "tpr_01pct"),
           units={"tpr_1pct": "share", "tpr_01pct": "share"}, section="membership", cost="shadow",
           needs={"same_class_test", "shadows"}),
    Metric("forgetting_score", "F",
           "how little unlearned models are told from retrained ones (NeurIPS 2023)",
           "purge.metrics.shadow:forgetting_score", parts=("score", "retrain"), section="membership",
           cost="shadow", needs={"shadows"}),
    Metric("klom", "KLoM", "KL of margins, unlearned from retrained models: the 95th percentile",
           "purge.metrics.shadow:klom", parts=("p95", "retrain"), section="membership", cost="shadow",
           needs={"shadows"}),
]  # fmt: skip
METRICS: dict[str, Metric] = {m.name: m for m in SHELF}

PANELS: dict[str, tuple[str, ...]] = {
    "quick": tuple(name for name, m in METRICS.items() if m.cost == "forward"),
    "standard": tuple(name for name, m in METRICS.items() if m.cost != "shadow"),
    "full": tuple(METRICS),
}


def unit_of(name: str) -> Unit:
    """The unit of a value by its name, as ``relearn_few.steps``; "number" if the metric is not known."""
    metric = METRICS.get(name.partition(".")[0])
    return "number" if metric is None else metric.unit_of(name)


def number(name: str, value: float | None) -> str:
    """A value as text, by the unit of its metric: ``number("fa_test", 0.25)`` is 25.0 %."""
    return shown(value, unit_of(name))


def resolve_metrics(metrics: str | Metric | Sequence[str | Metric]) -> list[Metric]:
    """A panel's name, a metric's name, a Metric, or a list of names and Metrics."""
    if not isinstance(metrics, (str, Metric, list, tuple)):
        raise MetricError("metrics by name or as Metric", type(metrics).__name__, "see purge.list_metrics()")
    given = [metrics] if isinstance(metrics, (str, Metric)) else list(metrics)
    wanted = [name for m in given for name in (PANELS.get(m, (m,)) if isinstance(m, str) else (m,))]
    found: list[Metric] = []
    for m in dict.fromkeys(wanted):
        if isinstance(m, str) and m not in METRICS:
            known = [*METRICS, *PANELS]
            raise MetricError("the name of a metric or panel", repr(m), did_you_mean(m, known))
        if not isinstance(m, (str, Metric)):
            raise MetricError("metrics by name or as Metric", type(m).__name__, "see purge.list_metrics()")
        found.append(METRICS[m] if isinstance(m, str) else m)
    names = [m.name for m in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise MetricError("metrics of different names", f"{twice[0]!r} twice", "rename yours")
    if not found:
        raise MetricError("at least one metric", "none", "pass metrics='standard'")
    return found


__all__ = ["METRICS", "PANELS", "Metric", "number", "resolve_metrics", "unit_of"]
