"""Tables for people: they read plain dicts and lay them out; nothing is computed here."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

# The metrics of an audit by what they tell, in the order in which they are read.
SECTIONS: dict[str, tuple[str, ...]] = {
    "forgetting": ("fa_test", "fa_train", "ua", "destinations", "zrf", "rf_jsd", "aus"),
    "damage": (
        "ta", "ta_retain", "ra", "worst_class", "worst_change", "neighbours", "ece", "class_accuracy",
        "class_change",
    ),
    "membership": (
        "mia", "mia_loss", "mia_confidence", "mia_entropy", "mia_m_entropy", "mia_margin", "tpr_1pct",
        "tpr_01pct", "mia_svc", "mia_lr", "mia_split", "lira", "rmia", "u_lira", "forgetting_score", "klom",
    ),
    "robustness": (
        "bn_recal", "relearn_few", "relearn_retain", "relearn_ratio", "quantise", "prune", "noise", "probe",
        "probe_gap", "head_refit", "head_refit_gap",
    ),
    "distance": (
        "retrain_gap", "tow", "agreement", "agreement_test", "destinations_tv", "kl_retrain", "js_retrain",
        "fid_feat", "cka", "feature_cosine", "feature_l2", "feature_cosine_original", "feature_l2_original",
        "silhouette",
    ),
}  # fmt: skip

BY_CLASS = ("destinations", "class_accuracy", "class_change")  # metrics whose parts are classes
ENORMOUS = 1e4  # from here on a number is written with a power of ten
MANY = 20  # classes; beyond this a table shows the forgotten ones alone

PERCENT = frozenset({
    "ta", "ta_retain", "fa_train", "fa_test", "ra", "ua", "agreement", "agreement_test", "destinations",
    "bn_recal", "class_accuracy", "class_change", "worst_class", "worst_change", "neighbours", "tpr_1pct",
    "tpr_01pct", "mia_svc", "mia_lr", "mia_split", "relearn_few", "relearn_retain", "probe", "probe_gap",
    "head_refit", "head_refit_gap", "quantise", "prune", "noise",
})  # fmt: skip


def as_text(table: Table, width: int = 118) -> str:
    """A table as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """A simple table: the first column left, the others as they come."""
    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def listing(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of names and words: every column left."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, no_wrap=i == 0)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def number(name: str, value: float | None) -> str:
    """A value as people read it: accuracies in percent, the rest as it is, a dash for none."""
    if value is None:
        return "–"
    part = name.partition(".")[2]
    if percent(name):
        return f"{100 * value:.1f} %"
    if abs(value) >= ENORMOUS:
        return f"{value:.2g}"
    return f"{value:.0f}" if part == "class" else f"{value:.1f}" if part == "steps" else f"{value:.3f}"


def percent(name: str) -> bool:
    """Is a value an accuracy or another share, to be read in percent?"""
    kind, _, part = name.partition(".")
    return part not in ("class", "steps") and (kind in PERCENT or part.startswith("tpr"))


def audit_table(report: Mapping[str, Any]) -> Table:
    """An audit: one row per value, beside the retrained and the original model's."""
    others = [part for part in ("retrained", "original", "floor") if report.get(part)]
    table = Table(title=_forgotten(report["info"]), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for name in ("value", "95 % interval", *others):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("note", overflow="fold")
    for name, v in report["values"].items():
        if telling(report, name):
            beside = [
                number(name, report[part][name]["value"]) if name in report[part] else "–" for part in others
            ]
            called = value_words(report["info"], name)
            table.add_row(
                escape(called), number(name, v["value"]), spread(name, v), *beside, escape(v["why"])
            )
    return table


def telling(report: Mapping[str, Any], name: str) -> bool:
    """Is a value worth a row? Not a class that nothing goes to, nor one of very many that stay."""
    kind, _, which = name.partition(".")
    if kind == "destinations" and not report["values"][name]["value"]:
        return False
    info = report["info"]
    many = kind in BY_CLASS and (info.get("classes") or 0) > MANY
    return not many or not which.isdecimal() or int(which) in (info.get("forget_classes") or [])


def spread(name: str, value: Mapping[str, Any]) -> str:
    """The interval of a value as text; empty where there is none."""
    if value["low"] is None or value["high"] is None:
        return ""
    return f"{number(name, value['low'])} … {number(name, value['high'])}"


def value_words(info: Mapping[str, Any], name: str) -> str:
    """The name of a value, with the name of the class that it is about.

    >>> value_words({"names": ["cat", "dog"]}, "destinations.1")
    'destinations.1 (dog)'
    """
    kind, _, which = name.partition(".")
    names = info.get("names") or []
    called = names[int(which)] if which.isdecimal() and int(which) < len(names) else which
    return name if kind not in BY_CLASS or called == which else f"{name} ({called})"


def _forgotten(info: Mapping[str, Any]) -> str | None:
    """What was to be forgotten, in words; None where the report does not tell."""
    if "forget_samples" not in info:
        return None
    classes = class_words(info.get("forget_classes") or [], info.get("names") or [])
    return escape(f"Forgotten: {info['forget_samples']} samples" + (f", {classes}" if classes else ""))


def class_words(classes: Sequence[int], names: Sequence[str]) -> str:
    """Classes as people call them.

    >>> class_words([0, 3], ["airplane", "automobile", "bird", "cat"])
    'class 0 (airplane), class 3 (cat)'
    """
    called = [names[c] if 0 <= c < len(names) else str(c) for c in classes]
    return ", ".join(
        f"class {c}" if name == str(c) else f"class {c} ({name})"
        for c, name in zip(classes, called, strict=True)
    )
