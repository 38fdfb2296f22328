"""Every metric of purge, a row each; the panels made of them; and those of your own, by name."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from purge.core.errors import FileError, MetricError, did_you_mean
from purge.core.plugins import installed, loaded, named
from purge.metrics.metric import Limits, Metric, Need, Words
from purge.report.tables import shown
from purge.verdict.compare import Condition, read_condition

GROUP = "purge.metrics"  # entry points of installed packages: name = "package.module:METRIC"

# About bad data: metrics that need them join a panel if they are given.
EXTRA: frozenset[Need] = frozenset({"truth", "triggered"})

TEST: frozenset[Need] = frozenset({"test"})
SAME: frozenset[Need] = frozenset({"same_class_test"})
KEPT: frozenset[Need] = frozenset({"kept_class_test"})
RETRAINED: frozenset[Need] = frozenset({"retrained"})
ORIGINAL: frozenset[Need] = frozenset({"original"})
SHADOWS: frozenset[Need] = frozenset({"shadows"})

SIGNALS = {"loss": "loss", "confidence": "confidence", "entropy": "entropy", "m_entropy": "modified entropy",
           "margin": "margin"}  # fmt: skip
RELEARNED = ("after", "recovered", "area", "steps")

SHARE: Limits = (0, 1)
SIGNED: Limits = (-1, 1)
DISTANCE: Limits = (0, None)
JS: Limits = (0, math.log(2))

_damage = partial(Metric, unit="share", section="damage", limits=SHARE)
_forgetting = partial(Metric, section="forgetting", limits=SHARE)
_membership = partial(Metric, section="membership", limits=SHARE)
_distance = partial(Metric, section="distance", limits=SHARE)
_attack = partial(Metric, unit="share", section="robustness", cost="train", limits=SIGNED)
_shadow = partial(Metric, section="membership", cost="shadow", limits=SHARE)
_rates = partial(
    Metric, section="membership", limits=SHARE, parts=("auroc", "tpr_1pct", "tpr_01pct"),
    units={"tpr_1pct": "share", "tpr_01pct": "share"},
)  # fmt: skip


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


_disturbed = partial(
    _treated, sentence="the weights are rounded, pruned or slightly disturbed, whichever brings back most"
)

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
    _forgetting("ua", "UA", "1 − accuracy on the forget set", "accuracy:ua", unit="share"),
    _forgetting("destinations", "→", "where predictions on the forget set go, by class",
                "accuracy:destinations", parts="classes", unit="share"),
    _forgetting("clean_label", "clean", "share of the forget set that gets its right label, as truth has it",
                "accuracy:clean_label", unit="share", needs={"truth"}),
    _forgetting("attack_success", "ASR", "share of samples with a trigger that get the attacker's label",
                "accuracy:attack_success", unit="share", needs={"triggered"}),
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
           "attacks:mia_quantile", needs=SAME, words=_rates_of("a threshold per sample"),
           curve="quantile"),
    _membership("nearest_class", "ΔNN", "forgotten images taken for their nearest class, less Retrain's",
                "attacks:nearest_class", parts=("taken", "auroc"), units={"taken": "share"}, ideal=0.0,
                needs=RETRAINED | KEPT, limits=SIGNED, words={"auroc": Words(
                "how much better than the retrained model's its answers tell forgotten images from those of "
                "the nearest class")}),
    _membership("leak_retained", "leak_r", "AUROC of the change since the original, retained against unseen",
                "attacks:leak_retained", parts=("loss", "confidence", "distance", "after"), needs=ORIGINAL |
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
                "distance:zrf"),
    _forgetting("rf_jsd", "RF-JSD", "JS of mean answers to D_f and the original's to unseen same-class data",
                "distance:rf_jsd", needs=ORIGINAL | SAME, limits=JS),
    _forgetting("aus", "AUS", "test accuracy kept, divided by 1 + accuracy on what is forgotten",
                "distance:aus", needs=ORIGINAL | SAME | KEPT, limits=(0, 2)),
    _distance("silhouette", "sil", "how far the forgotten samples lie apart among penultimate features",
              "probing:silhouette", needs=SAME | KEPT, limits=SIGNED),
    # damage
    _damage("class_accuracy", "TA_k", "accuracy on test data, by class", "accuracy:class_accuracy",
            parts="classes", needs=TEST),
    _damage("class_change", "ΔTA_k", "accuracy on test data, after − before, by class",
            "accuracy:class_change", parts="classes", needs=ORIGINAL | TEST, limits=SIGNED),
    _damage("worst_class", "worst", "lowest test accuracy of a class that stays, and which class",
            "accuracy:worst_class", parts=("accuracy", "class"), units={"class": "class"}, needs=KEPT,
            limits=DISTANCE, words={"accuracy": Words(main=True)}),
    _damage("largest_drop", "drop", "largest drop in test accuracy of a class that stays",
            "accuracy:largest_drop", needs=ORIGINAL | KEPT, limits=SIGNED),
    _damage("ece", "ECE", "calibration error on test data of the classes that stay", "accuracy:ece",
            unit="number", needs=KEPT),
    _damage("neighbours", "near", "test accuracy of the classes nearest to what is forgotten",
            "accuracy:neighbours", parts=("accuracy", "change"), needs=ORIGINAL | KEPT, limits=SIGNED),
    _distance("destinations_tv", "TV→", "difference from the retrained model in how D_f spreads over classes",
              "accuracy:destinations_tv", direction="lower", slack=0.1, ideal=0.0, needs=RETRAINED),
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
            "robustness:quantise", parts=("int8", "bf16", "int8_delta", "bf16_delta"), needs=SAME,
            words={"int8": _disturbed("weights in int8"), "bf16": _disturbed("weights in bf16")}),
    _attack("prune", "prune", "FA without the smallest 20, 50 and 80 % of weights, and the largest rise",
            "robustness:prune", parts=("20", "50", "80", "delta"), needs=SAME, words={
            k: _disturbed(f"smallest {k} % of weights removed") for k in ("20", "50", "80")}),
    _attack("noise", "noise", "FA with weight noise of 1 and 5 %, and the larger rise", "robustness:noise",
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

_ALWAYS = {name: m for name, m in METRICS.items() if EXTRA.isdisjoint(m.needs)}
PANELS: dict[str, tuple[str, ...]] = {
    "quick": tuple(name for name, m in _ALWAYS.items() if m.cost == "forward"),
    "standard": tuple(name for name, m in _ALWAYS.items() if m.cost != "shadow"),
    "full": tuple(_ALWAYS),
}


def all_metrics() -> dict[str, Metric]:
    """The metrics of purge and of installed packages, by name; a package that does not load is left out."""
    metrics = dict(METRICS)
    for name in installed(GROUP):
        try:
            metrics.setdefault(name, find_metric(name))
        except MetricError as error:
            logging.getLogger("purge").warning("%s", error)
    return metrics


def list_metrics() -> dict[str, str]:
    """The metrics of the audit, also those of installed packages.

    Returns:
        Name → one line about it.

    Example:
        >>> list_metrics()["ra"]
        'accuracy on the retain set'
    """
    return {name: metric.about for name, metric in all_metrics().items()}


def find_metric(name: str) -> Metric:
    """A metric by name, of purge or of an installed package, or your own as ``module:NAME``."""
    if name in METRICS:
        return METRICS[name]
    if ":" in name:
        return _as_metric(named(name, MetricError), name)
    outside = installed(GROUP)
    if name not in outside:
        known = [*METRICS, *outside, *PANELS]
        fix = did_you_mean(name, known, "purge list metrics")
        raise MetricError("the name of a metric or panel", repr(name), fix)
    metric = _as_metric(loaded(outside[name], MetricError), name)
    if metric.name != name:
        fix = "give the entry point the name of its metric"
        raise MetricError(f"a metric named {name!r} from its entry point", repr(metric.name), fix)
    return metric


def _as_metric(candidate: Any, name: str) -> Metric:
    if not isinstance(candidate, Metric):
        fix = f"write {name.rpartition(':')[2]} = purge.Metric(name, symbol, about, function)"
        raise MetricError(f"a purge.Metric as {name}", type(candidate).__name__, fix)
    return candidate


def number(name: str, value: float | None) -> str:
    """A value as text, by the unit of its metric: ``number("fa_test", 0.25)`` is 25.0 %."""
    metric = METRICS.get(name.partition(".")[0])
    return shown(value, "number" if metric is None else metric.unit_of(name))


def resolve_metrics(
    metrics: str | Metric | Sequence[str | Metric], extra: Collection[Need] = ()
) -> list[Metric]:
    """The metrics that are meant by a name, a panel, a Metric, or a list of these.

    ``extra``: which of EXTRA were given; a panel then has the metrics that need them too.
    """
    requested: Sequence[Any] = metrics if isinstance(metrics, (list, tuple)) else [metrics]
    found: dict[Metric, None] = {}  # in order, each once
    for one in requested:
        if isinstance(one, Metric):
            found[one] = None
        elif isinstance(one, str):
            more = [name for name, m in METRICS.items() if EXTRA & {*extra} & {*m.needs}]
            found |= dict.fromkeys(map(find_metric, [*PANELS[one], *more] if one in PANELS else [one]))
        else:
            raise MetricError("metrics by name or as Metric", type(one).__name__, "see purge.list_metrics()")
    resolved = [*found]
    names = [m.name for m in resolved]
    if twice := [name for name in names if names.count(name) > 1]:
        raise MetricError("metrics of different names", f"{twice[0]!r} twice", "rename yours")
    if not resolved:
        raise MetricError("at least one metric", "none", "pass metrics='standard'")
    return resolved


def check_value_name(name: str, where: str, metric: Metric | None = None) -> None:
    """Refuse a name that no value of its metric has: a wrong part, or no part where there are several.

    ``where`` says in the message who asked for the value; ``metric`` is found by name if it is not given.
    """
    kind, _, part = name.partition(".")
    metric = metric or find_metric(kind)
    open_ended = {"classes": part.isdecimal(), "layers": bool(part)}  # known only once there is a model
    good = open_ended[metric.parts] if isinstance(metric.parts, str) else name in metric.names()
    if not good:
        raise FileError(f"a number of {kind} in {where}", repr(name), did_you_mean(name, metric.names()))


def read_conditions(texts: Sequence[str], wanted: Sequence[Metric]) -> list[Condition]:
    """The conditions of ``--fail-if`` for an audit of these metrics; one that can never hold is refused."""
    own = {metric.name: metric for metric in wanted}
    conditions = [read_condition(text, lambda n: (own.get(n) or find_metric(n)).describe()) for text in texts]
    for condition in conditions:
        if condition.sign is None:  # whatever is measured, there are findings
            continue
        check_value_name(condition.name, "--fail-if", own.get(condition.metric))
        if condition.metric not in own:
            fix = f"add {condition.metric} to --metrics"
            raise MetricError(f"{condition.name} to be measured", "none of it in this audit", fix)
    return conditions
