"""Tables of a bench as Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
import re
from typing import Any

from purge.bench.tables import KEYS, STATS, Column, Sheet
from purge.core.errors import printable


def _ours(column: Column, cell: Any) -> str:
    """The mean of a cell, its range if there is one, and whether the goal is met."""
    mean, low, high = (column.text(v) for v in (cell.mean, cell.low, cell.high))
    words = mean if low == high else f"{mean} ({low.removesuffix(' %')} – {high})"
    if math.isnan(cell.missed_by):  # no goal
        return words
    if cell.missed_by == 0:
        return f"{words} ✓"
    margin = column.text(cell.missed_by)
    return f"{words} ✗ by {margin}" if margin != column.text(0) else f"{words} ✗ narrowly"


def laid_out(found: Sheet) -> tuple[list[str], list[list[str]]]:
    """Headings and rows as text; the paper's column beside each of ours that the paper reports."""
    table = found.table
    heads = [KEYS[by] for by in table.rows]
    aims = ["aim", *[""] * (len(heads) - 1)]
    texts = [[row[i] for row in found.rows] for i in range(len(heads))]  # by column
    for name in table.columns:
        column, cells = found.columns[name], found.of(name)
        heads.append(column.heading)
        aims.append(table.aims[name].words(found.aims[name], column) if name in found.aims else "")
        texts.append([_ours(column, cell) for cell in cells.itertuples()])
        if cells["paper"].notna().any():
            heads.append("paper")
            aims.append("")
            texts.append([column.text(value) for value in cells["paper"]])
    if not found.aims:
        return heads, [[*row] for row in zip(*texts, strict=True)]
    missed = zip(*(found.of(column)["missed_by"] for column in found.aims), strict=True)
    judged = [[by for by in row if not math.isnan(by)] for row in missed]
    texts.append([f"{row.count(0.0)} of {len(row)}" if row else "" for row in judged])
    return [*heads, "goals met"], [[*aims, ""], *([*row] for row in zip(*texts, strict=True))]


def as_markdown(found: Sheet) -> str:
    """A table for a README."""
    heads, body = laid_out(found)
    rows = [heads, ["---"] * len(heads), *body]
    lines = ["| " + " | ".join(map(_in_markdown, row)) + " |" for row in rows]
    title = [f"**{_in_markdown(found.table.title)}**", ""] if found.table.title else []
    return "\n".join([*title, *lines, "", _in_markdown(found.note)]).strip() + "\n"


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


def as_latex(found: Sheet) -> str:
    """A table for a paper; it needs the packages booktabs and amssymb."""
    heads, body = laid_out(found)
    n = len(found.table.rows)
    rows = [" & ".join(map(_in_latex, row)) + r" \\" for row in (heads, *body)]
    title = [f"{found.table.title.rstrip('.')}."] if found.table.title else []
    caption = _in_latex(" ".join([*title, *filter(None, [found.note])]))
    return "\n".join(
        [
            r"\begin{table}[t]", r"\centering", r"\small",
            rf"\begin{{tabular}}{{{'l' * n}{'r' * (len(heads) - n)}}}", r"\toprule", rows[0], r"\midrule",
            *rows[1:], r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}",
            rf"\label{{tab:{found.table.name}}}", r"\end{table}", "",
        ]
    )  # fmt: skip


def _in_csv(text: str) -> str:
    """Text that a spreadsheet takes for text: what begins like a formula gets an apostrophe in front.

    >>> _in_csv("=1+1"), _in_csv("-5"), _in_csv("purge")
    ("'=1+1", '-5', 'purge')
    """
    formula = text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n")
    return f"'{text}" if formula and not re.fullmatch(r"[-+]?\d+(\.\d*)?%?", text) else text


def as_csv(found: Sheet) -> str:
    """All numbers unrounded, accuracies as fractions."""
    import pandas as pd

    keys = pd.DataFrame(found.rows, columns=[*found.table.rows])
    parts = [found.of(column)[STATS].reset_index(drop=True) for column in found.table.columns]
    for column, cells in zip(found.table.columns, parts, strict=True):
        if column == "steps":  # whole numbers, but for their mean
            whole = cells[["low", "high"]].map(lambda v: str(v).removesuffix(".0"), na_action="ignore")
            cells[["low", "high"]] = whole
    names = [f"{c}.{stat}".removesuffix(".mean") for c in found.table.columns for stat in STATS]
    keys = keys.map(_in_csv)
    wide = pd.concat([keys, *parts], axis=1).set_axis([*keys.columns, *map(_in_csv, names)], axis=1)
    return str(wide.to_csv(index=False, lineterminator="\n"))


FORMS = {"md": as_markdown, "tex": as_latex, "csv": as_csv}  # by file ending
