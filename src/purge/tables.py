"""Tables for people: they read plain dicts and lay them out; nothing is computed here."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PERCENT = (
    "ta",
    "ta_retain",
    "fa_train",
    "fa_test",
    "ra",
    "ua",
    "agreement",
    "destinations",
    "bn_recal",
)


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
    if name.split(".")[0] in PERCENT:
        return f"{100 * value:.1f} %"
    return f"{value:.3f}"


def audit_table(report: Mapping[str, Any]) -> Table:
    """An audit: one row per value, beside the retrained and the original model's."""
    others = [part for part in ("retrained", "original") if report[part]]
    names = report["info"].get("names") or []
    table = Table(title=_forgotten(report["info"]), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for name in ("value", "95 % interval", *others):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("note", overflow="fold")
    for name, v in report["values"].items():
        if name.startswith("destinations.") and not v["value"]:
            continue
        spread = "" if v["low"] is None else f"{number(name, v['low'])} … {number(name, v['high'])}"
        beside = [
            number(name, report[part][name]["value"]) if name in report[part] else "–" for part in others
        ]
        kind, _, which = name.partition(".")
        known = names[int(which)] if kind == "destinations" and names else which
        called = name if known == which else f"{name} ({known})"
        table.add_row(escape(called), number(name, v["value"]), spread, *beside, escape(v["why"]))
    return table


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
    return ", ".join(
        f"class {c} ({names[c]})" if names and names[c] != str(c) else f"class {c}" for c in classes
    )
