"""Tables for people, how a value is written and what it is called. Everything is read from plain dicts."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from textwrap import wrap
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from purge.core.errors import printable
from purge.verdict.numbers import Report, described, scaled, unit_of

# The sections of a report in reading order, and the question that each answers.
QUESTIONS = {
    "forgetting": "Does the model still recognise what was to be forgotten?",
    "damage": "Is everything else as good as it was?",
    "membership": "Can an attacker tell that the forgotten samples were once used for training?",
    "robustness": "Does the forgetting last when the model is redeployed, compressed or trained further?",
    "distance": "How far is the model from one that never saw the data?",
    "other": "What else was measured?",
}
ENORMOUS = 1e4  # from here on a number is written with a power of ten
WIDTH = 118  # of text that is not for a terminal
MANY = 20  # with more classes than this, a table shows only the forgotten ones


# -- values -----------------------------------------------------------------------------------


def shown(value: float | None, unit: str) -> str:
    """A value as text; a dash if there is none.

    >>> shown(0.25, "share"), shown(0.25, "number"), shown(7.0, "steps"), shown(3.0, "class")
    ('25.0 %', '0.250', '7.0', '3')
    """
    if value is None:
        return "–"
    if unit == "number" and abs(value) >= ENORMOUS:
        return f"{value:.2g}"
    return {"share": "{:.1f} %", "steps": "{:.1f}", "class": "{:.0f}"}.get(unit, "{:.3f}").format(
        scaled(value, unit)
    )


def flop_words(flop: int | None) -> str:
    """A number of floating-point operations as text.

    >>> flop_words(7 * 10**14), flop_words(2_500_000), flop_words(None)
    ('0.7 PFLOP', '0.0025 GFLOP', 'FLOP not counted')
    """
    if flop is None:
        return "FLOP not counted"
    prefix, size = next(((p, s) for p, s in (("P", 1e15), ("T", 1e12)) if flop >= s / 10), ("G", 1e9))
    return f"{flop / size:.2g} {prefix}FLOP" if flop < 100 * size else f"{flop / size:,.0f} {prefix}FLOP"


def section_of(report: Report, name: str) -> str:
    """The section of a value; "other" if its metric names none that is known."""
    section = described(report, name).get("section", "other")
    return section if section in QUESTIONS else "other"


def ordered(report: Report) -> list[str]:
    """The names of the values that deserve a row, in reading order.

    A class that nothing goes to deserves none, nor does one of very many that stay.
    """

    def telling(name: str) -> bool:
        kind, _, which = name.partition(".")
        if kind == "destinations" and not report["values"][name]["value"]:
            return False
        info, by_class = report["info"], described(report, name).get("parts") == "classes"
        listed = not by_class or (info.get("classes") or 0) <= MANY
        return listed or not which.isdecimal() or int(which) in (info.get("forget_classes") or [])

    return in_order(report, filter(telling, report["values"]))


def in_order(report: Report, names: Iterable[str]) -> list[str]:
    """Values in reading order: by section, and within one as the report lists its metrics."""
    sections, metrics = list(QUESTIONS), list(report.get("metrics") or {})

    def place(name: str) -> tuple[int, int]:
        kind = name.partition(".")[0]
        at = metrics.index(kind) if kind in metrics else len(metrics)
        return sections.index(section_of(report, name)), at

    return sorted(names, key=place)


def spread(value: Mapping[str, Any], unit: str) -> str:
    """The interval of a value as text; empty if there is none."""
    if value["low"] is None or value["high"] is None:
        return ""
    return f"{shown(value['low'], unit)} … {shown(value['high'], unit)}"


def value_words(report: Report, name: str) -> str:
    """The name of a value, with the name of the class if it is about one.

    >>> metrics = {"destinations": {"parts": "classes"}}
    >>> value_words({"metrics": metrics, "info": {"names": ["cat", "dog"]}}, "destinations.1")
    'destinations.1 (dog)'
    """
    which = name.partition(".")[2]
    names = report["info"].get("names") or []
    if described(report, name).get("parts") != "classes" or not which.isdecimal() or int(which) >= len(names):
        return name
    return name if names[int(which)] == which else f"{name} ({names[int(which)]})"


def whose_words(ids: int) -> str:
    """Samples that are named by whose they are; empty if none are.

    >>> whose_words(2)
    'all samples of 2 ids'
    """
    return f"all samples of {ids:,} id{'s' * (ids > 1)}" if ids else ""


def class_words(classes: Sequence[int], names: Sequence[str]) -> str:
    """Classes as people call them.

    >>> class_words([0, 3], ["airplane", "automobile", "bird", "cat"])
    'class 0 (airplane), class 3 (cat)'
    """
    called = {c: names[c] if 0 <= c < len(names) else str(c) for c in classes}
    return ", ".join(f"class {c}" if word == str(c) else f"class {c} ({word})" for c, word in called.items())


# -- what numbers are called, as their metrics say ------------------------------------------------


def words_of(report: Report, name: str) -> Mapping[str, Any]:
    """What the metric of a value says about it to people; empty if it says nothing."""
    words: Mapping[str, Any] = described(report, name).get("words") or {}
    return words.get(name.partition(".")[2]) or {}


def in_a_sentence(report: Report, name: str) -> str:
    """What a sentence calls a value."""
    return words_of(report, name).get("sentence") or described(report, name).get("about") or name


def rows_of(report: Report, figure: str) -> dict[str, str]:
    """The values that are rows of a figure, and what they are called there."""
    every = {name: words_of(report, name).get("rows") or {} for name in _names(report)}
    return {name: rows[figure] for name, rows in every.items() if figure in rows}


def main_values(report: Report) -> list[str]:
    """The values that a reader looks at first."""
    return [name for name in _names(report) if words_of(report, name).get("main")]


def curves(report: Report) -> dict[str, str]:
    """The ROC curves that attacks leave, by their keys, and what the attacks are called."""
    rows = {name.partition(".")[0]: words for name, words in rows_of(report, "membership").items()}
    keys = {name: metric.get("curve") for name, metric in (report.get("metrics") or {}).items()}
    return {key: rows.get(name, key) for name, key in keys.items() if key}


def _names(report: Report) -> list[str]:
    """Every value about which its metric says something, in reading order."""
    metrics = (report.get("metrics") or {}).items()
    said = [(kind, part) for kind, metric in metrics for part in metric.get("words") or {}]
    return in_order(report, [f"{kind}.{part}" if part else kind for kind, part in said])


# -- tables -----------------------------------------------------------------------------------


def as_text(table: Table, width: int = WIDTH) -> str:
    """A table as plain text in which nothing is cut: where it is too wide, its rows become blocks."""
    fitting = fitted(table, width)
    return fitting if isinstance(fitting, str) else _drawn(fitting, width)


def fitted(table: Table, width: int) -> Table | str:
    """The table, if every name and number in it is whole at this width, otherwise its rows as blocks."""
    tight = _with_short_heads(table)
    for candidate in (table, tight, _with_notes_below(tight)):
        if _words(_drawn(candidate, width)) == _words(_drawn(candidate, 100_000)):
            return candidate
    return _blocks(table, width)


def _drawn(table: Table, width: int) -> str:
    # In a notebook Rich would display what is printed and leave the file empty.
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False, force_jupyter=False)
    console.print(table)
    return file.getvalue().rstrip("\n")


def _words(text: str) -> list[str]:
    return sorted(word for word in text.split() if word.strip("─"))


def _with_short_heads(table: Table) -> Table:
    """The table with the titles of its columns in several lines, no wider than what is below them."""
    narrow = copy(table)
    narrow.columns, narrow.padding, narrow.show_edge = [], (0, 0, 0, 1), False
    for column in table.columns:
        widths = [len(_plain(cell)) for cell in column.cells]
        lines = _lines(_plain(column.header), max(widths, default=1))
        narrow.columns.append(replace(column, header=escape("\n".join(lines))))
    return narrow


def _with_notes_below(table: Table) -> Table:
    """The table with its last column below it, if that holds notes to a few of the rows."""
    if table.columns[-1].header != "note":
        return table
    narrow = copy(table)
    *narrow.columns, notes = table.columns
    rows = zip(table.columns[0].cells, notes.cells, strict=True)
    below = [f"{name}: {note}." for name, note in rows if note]
    narrow.caption = "\n".join([*([f"{table.caption}"] if table.caption else []), *below]) or None
    narrow.caption_justify = "left"
    return narrow


def _blocks(table: Table, width: int) -> str:
    """Each row as a block: what its first column says, and below it a line for each of the others."""
    heads = [_plain(column.header) for column in table.columns]
    indent = max((len(head) for head in heads[1:]), default=0) + 4 if len(heads) > 2 else 2
    blocks = ["\n".join(_lines(_plain(table.title), width))] if table.title else []
    for first, *rest in zip(*(map(_plain, column.cells) for column in table.columns), strict=True):
        lines = [first]
        for head, cell in zip(heads[1:], rest, strict=True):
            label = f"  {head}" if len(heads) > 2 else ""
            for line in _lines(cell, width - indent):
                lines.append(f"{label:{indent}}{line}")
                label = ""
        blocks.append("\n".join(lines))
    if table.caption:
        blocks.append("\n".join(_lines(_plain(table.caption), width)))
    return "\n\n".join(blocks)


def _lines(text: str, width: int) -> list[str]:
    """Text in lines that break between words only; a value stays with its unit."""
    joined = text.replace(" %", "\0%")
    lines = wrap(joined, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _plain(cell: Any) -> str:
    """What a cell, a head or a title shows."""
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


def listing(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of words: every column is aligned left."""
    return plain_table(columns, rows, justify="left")


def plain_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", *,
    justify: Literal["left", "right"] = "right",
) -> Table:  # fmt: skip
    """A table of numbers, which are never broken: the first column is aligned left, the others right."""
    table = Table(title=_cell(title) or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(_cell(name), justify=justify if i else "left", no_wrap=i == 0 or justify == "right")
    for row in rows:
        table.add_row(*map(_cell, row))
    return table


def audit_table(report: Report) -> Table:
    """An audit: one row per value, beside the retrained and the original model's."""
    others = [part for part in ("retrained", "original", "floor") if report.get(part)]
    info, title = report["info"], ""
    if info.get("forget_samples") is not None:
        classes = class_words(info.get("forget_classes") or [], info.get("names") or [])
        title = f"Forgotten: {info['forget_samples']} samples" + (f", {classes}" if classes else "")
    table = Table(title=_cell(title) or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for name in ("value", "95 % interval", *others):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("note", overflow="fold")
    if notes := copies_words(info):
        table.caption, table.caption_justify = escape(" ".join(f"{note}." for note in notes)), "left"
    for name in ordered(report):
        v, unit = report["values"][name], unit_of(report, name)
        beside = [shown(report[part].get(name, {}).get("value"), unit) for part in others]
        called = _cell(value_words(report, name))
        table.add_row(called, shown(v["value"], unit), spread(v, unit), *beside, _cell(v["why"]))
    return table


def _cell(text: str) -> str:
    """Text in a table as it is: neither rich nor the terminal may take it for a command."""
    return escape(printable(text))


def copies_words(info: Mapping[str, Any]) -> list[str]:
    """Copies between the sets of a request that were found and tolerated, in sentences without a full stop.

    >>> copies = {"exact": 1, "near": 3, "near_same_label": 3, "compared": 40}
    >>> copies_words({"copies": copies, "forget_samples": 40})
    ['3 of 40 forgotten samples have a near-identical copy among the retained ones']
    """
    copies, every, sentences = info.get("copies") or {}, info.get("forget_samples"), []
    near, exact = copies.get("near") or 0, copies.get("exact") or 0
    if n := near or exact:
        kind, of = ("a near-identical", copies.get("compared")) if near else ("an identical", every)
        looked = "" if of == every else f" that were compared (of {every})"
        has, same = "has" if n == 1 else "have", copies.get("near_same_label") or 0
        label = f", {same or 'none'} of them with the same label" if near and same != near else ""
        sentences.append(
            f"{n} of {of} forgotten samples{looked} {has} {kind} copy among the retained ones{label}"
        )
    for part, words in (("forget", "forgotten"), ("retain", "retained")):
        if n := copies.get(f"test_{part}"):
            are = "is" if n == 1 else "are"
            sentences.append(
                f"{n} of {info.get('test_samples')} test samples {are} also among the {words} ones"
            )
    return sentences
