"""Figures of a bench: the columns of its tables as bars or lines, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from purge.bench.schema import Drawing
from purge.bench.tables import Cell, Column, Row, Sheet, chosen
from purge.report import theme
from purge.verdict import scaled

WIDE = 100  # numbers that differ by a larger factor get a logarithmic axis, unless they are shares


class Look(NamedTuple):
    """How the bars and points of one label are drawn."""

    colour: str
    hatch: str
    marker: str


LOOKS = (  # of labels that have none in reports
    Look(theme.BLUE, "", "o"),
    Look(theme.VERMILION, "\\\\", "s"),
    Look(theme.GREEN, "xx", "D"),
    Look(theme.PURPLE, "..", "^"),
    Look(theme.SKY, "++", "v"),
    Look(theme.ORANGE, "oo", "P"),
)


class Series(NamedTuple):
    """Bars of one look, or one line."""

    words: str
    look: Look  # of the paper's bars, which are white, the colour is that of the edge
    cells: dict[str, Cell]  # by the group that they stand in
    paper: bool


def draw(drawing: Drawing, sheets: Mapping[str, Sheet]) -> Figure:
    """The figure of a drawing."""
    sheet = sheets[drawing.table]
    rows = [row for row in sheet.rows if chosen(row.keys, drawing.only)]
    columns = drawing.columns or sheet.table.columns
    if not rows:
        fig, (ax,) = theme.empty_axes(1, 1, height=1.2)
        ax.set_axis_off()
        ax.text(0.5, 0.5, "no job has such a row", ha="center", color=theme.INK)
        return fig
    apart = "label" in sheet.table.rows and len(sheet.table.rows) > 1  # a colour for each label
    groups = [*dict.fromkeys(_group(row, sheet, apart) for row in rows)]
    across = 1 if len(columns) == 1 or len(groups) > 14 else 2
    down = -(-len(columns) // across)
    fig, axes = theme.empty_axes(down, across, height=(2.4 + 0.09 * max(map(len, groups))) * down)
    for ax in axes[len(columns) :]:
        ax.set_axis_off()
    for name, ax in zip(columns, axes, strict=False):
        column = sheet.columns[name]
        panel(ax, column, groups, _series(rows, sheet, name, apart), drawing.kind)
        if name.startswith("mia") and column.unit == "number":  # an AUROC: 0.5 is chance
            ax.axhline(0.5, color=theme.INK, linewidth=0.8, linestyle=(0, (1, 3)))
        if name in sheet.aims:
            aim = scaled(sheet.aims[name], column.unit)
            ax.axhline(aim, color=theme.INK, linewidth=0.8, linestyle="--", label="goal")
    legend = max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[0]))
    if legend.get_legend_handles_labels()[1] != ["ours"]:  # which needs no explanation
        theme.legend_below(fig, legend)
    return fig


def _group(row: Row, sheet: Sheet, apart: bool) -> str:
    """The words below the bars of a row."""
    return " ".join(row.keys[by] for by in sheet.table.rows if not (apart and by == "label"))


def _series(rows: Sequence[Row], sheet: Sheet, column: str, apart: bool) -> list[Series]:
    """Ours, one look for each label if ``apart``, and the paper's in the same colour."""
    by_label: dict[str, dict[str, Cell]] = {}
    for row in rows:
        own = by_label.setdefault(row.keys["label"] if apart else "ours", {})
        own[_group(row, sheet, apart)] = row.cells[column]
    series: list[Series] = []
    new = 0
    for label, cells in by_label.items():
        known = theme.MODELS.get({"retrain": "retrained"}.get(label, label))  # coloured as in every report
        if known is not None:
            look = Look(known.colour, known.hatch, known.marker)
        else:
            turn = LOOKS[(new + new // 6) % 6]  # colours come again with another hatch
            look = Look(LOOKS[new % 6].colour, turn.hatch, turn.marker)
            new += 1
        words = theme.plain(label, 28)
        series.append(Series(words, look, cells, paper=False))
        if any(cell.paper is not None for cell in cells.values()):
            theirs = Look(look.colour if apart else theme.GREY, "////", "x")
            series.append(Series(f"{words}, paper" if apart else "paper", theirs, cells, paper=True))
    return series


def panel(ax: Axes, column: Column, groups: Sequence[str], series: Sequence[Series], kind: str) -> None:
    """One column of a table: a group of bars, or a point of each line, per row."""
    scale = scaled(1.0, column.unit)
    width = min(0.8 / max(1, len(series)), 0.3)
    heights: list[float] = []
    for i, one in enumerate(series):
        places, mean, below, above = [], [], [], []
        for place, group in enumerate(groups):
            cell = one.cells.get(group)
            value = None if cell is None else cell.paper if one.paper else cell.mean
            if cell is None or value is None:
                continue
            places.append(place)
            mean.append(scale * value)
            if not one.paper and cell.low is not None and cell.high is not None:
                # The mean of equal numbers may round past them.
                below.append(scale * max(0.0, value - cell.low))
                above.append(scale * max(0.0, cell.high - value))
        if not places:
            continue
        heights += mean
        spread = None if one.paper else [below, above]
        if kind == "lines":
            ax.errorbar(
                places, mean, spread, fmt=one.look.marker + ("--" if one.paper else "-"),
                color=one.look.colour, capsize=3, label=one.words, markersize=5,
            )  # fmt: skip
        else:
            ax.bar(
                [place + (i - (len(series) - 1) / 2) * width for place in places], mean, width,
                color="white" if one.paper else one.look.colour, hatch=one.look.hatch,
                edgecolor=one.look.colour if one.paper else theme.INK, linewidth=0.5, label=one.words,
                yerr=spread, error_kw={"capsize": 2, "elinewidth": 0.8},
            )  # fmt: skip
    if column.unit != "share" and heights and 0 < WIDE * min(heights) < max(heights):
        ax.set_yscale("log")
    words = [theme.plain(group, 28) for group in groups]
    tight = sum(map(len, words)) > 30
    ax.set_xticks(range(len(words)), words, rotation=45 if tight else 0, ha="right" if tight else "center")
    ax.set_xlim(-0.7, len(words) - 0.3)
    ax.set_ylabel(column.heading + (" (%)" if column.unit == "share" else ""))
