"""Tables of a bench as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re

from purge.bench.results import Cell, Column, Sheet
from purge.bench.schema import KEYS, Goal
from purge.core.errors import printable


def laid_out(sheet: Sheet) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as text; the paper's column beside each of ours that the paper reports."""
    goals = {goal.column: goal for goal in sheet.table.goals}
    heads, aims = [KEYS[by] for by in sheet.table.rows], ["aim"]
    aims += [""] * (len(heads) - 1)
    lines = [[*sheet.key(row)] for row in sheet.rows]
    for name, column in sheet.columns.items():
        cells = [row.cells[name] for row in sheet.rows]
        heads.append(column.heading)
        aims.append(_aim(goals[name], sheet.aims[name], column) if name in sheet.aims else "")
        for line, cell in zip(lines, cells, strict=True):
            line.append(_ours(column, cell))
        if any(cell.paper is not None for cell in cells):
            heads.append("paper")
            aims.append("")
            for line, cell in zip(lines, cells, strict=True):
                line.append(column.text(cell.paper))
    if not sheet.aims:
        return heads, lines
    for line, row in zip(lines, sheet.rows, strict=True):
        judged = [missed for name in sheet.aims if (missed := row.cells[name].missed_by) is not None]
        line.append(f"{judged.count(0.0)} of {len(judged)}" if judged else "")
    return [*heads, "goals met"], [[*aims, ""], *lines]


def _ours(column: Column, cell: Cell) -> str:
    """The mean of a cell, its range if there is one, and whether the goal is met."""
    mean, low, high = (column.text(v) for v in (cell.mean, cell.low, cell.high))
    words = mean if low == high else f"{mean} ({low.removesuffix(' %')} – {high})"
    if cell.missed_by is None:
        return words
    if cell.missed_by == 0:
        return f"{words} ✓"
    margin = column.text(cell.missed_by)
    return f"{words} ✗ by {margin}" if margin != column.text(0) else f"{words} ✗ narrowly"


def _aim(goal: Goal, aim: float, column: Column) -> str:
    if goal.side == "near":
        return f"{column.text(aim)} ± {column.text(goal.slack)}"
    sign, edge = ("≥", aim - goal.slack) if goal.side == "least" else ("≤", aim + goal.slack)
    return f"{sign} {column.text(edge)}"


def as_markdown(sheet: Sheet) -> str:
    """A table for a README."""
    heads, body = laid_out(sheet)
    rows = [heads, ["---"] * len(heads), *body]
    lines = ["| " + " | ".join(map(_in_markdown, row)) + " |" for row in rows]
    title = [f"**{_in_markdown(sheet.table.title)}**", ""] if sheet.table.title else []
    return "\n".join([*title, *lines, "", _in_markdown(sheet.note)]).strip() + "\n"


def _in_markdown(text: str) -> str:
    """Text that Markdown shows as it is: labels come from files, and a page would obey HTML and links."""
    plain = " ".join(printable(text).split("\n")).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|`\[\]])", r"\\\1", plain)


TEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "×": r"$\times$",
    "→": r"$\to$", "Δ": r"$\Delta$", "α": r"$\alpha$", "₀": "$_0$", "≤": r"$\leq$",
    "≥": r"$\geq$", "±": r"$\pm$", "✓": r"$\checkmark$", "✗": r"$\times$",
})  # fmt: skip


def _in_latex(text: str) -> str:
    return " ".join(printable(text).split()).translate(TEX)


def as_latex(sheet: Sheet) -> str:
    """A table for a paper; it needs the packages booktabs and amssymb."""
    heads, body = laid_out(sheet)
    n = len(sheet.table.rows)
    rows = [" & ".join(map(_in_latex, row)) + r" \\" for row in (heads, *body)]
    title = [f"{sheet.table.title.rstrip('.')}."] if sheet.table.title else []
    caption = _in_latex(" ".join([*title, *filter(None, [sheet.note])]))
    return "\n".join(
        [
            r"\begin{table}[t]", r"\centering", r"\small",
            rf"\begin{{tabular}}{{{'l' * n}{'r' * (len(heads) - n)}}}", r"\toprule", rows[0], r"\midrule",
            *rows[1:], r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}",
            rf"\label{{tab:{sheet.table.name}}}", r"\end{table}", "",
        ]
    )  # fmt: skip


def _in_csv(text: str) -> str:
    """Text that a spreadsheet takes for text: what begins like a formula gets an apostrophe in front.

    >>> _in_csv("=1+1"), _in_csv("-5"), _in_csv("purge")
    ("'=1+1", '-5', 'purge')
    """
    formula = text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n")
    return f"'{text}" if formula and not re.fullmatch(r"[-+]?\d+(\.\d*)?%?", text) else text


def as_csv(sheet: Sheet) -> str:
    """All numbers unrounded, accuracies as fractions."""
    stats = ("mean", "low", "high", "n", "paper", "missed_by")
    names = [f"{column}.{stat}".removesuffix(".mean") for column in sheet.table.columns for stat in stats]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*sheet.table.rows, *map(_in_csv, names)])
    for row in sheet.rows:
        numbers: list[float | str | None] = []
        for column in sheet.table.columns:
            cell = row.cells[column]
            for stat in stats:
                value = getattr(cell, stat)
                whole = column == "steps" and stat in ("low", "high")  # the mean of some is a fraction
                numbers.append(str(value).removesuffix(".0") if whole and value is not None else value)
        writer.writerow([*map(_in_csv, sheet.key(row)), *numbers])
    return text.getvalue()


FORMS = {"md": as_markdown, "tex": as_latex, "csv": as_csv}  # by file ending
