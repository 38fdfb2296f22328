"""Figures of a bench: the columns of its tables as bars or lines, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from purge.bench.results import Row, Sheet, chosen
from purge.bench.schema import Drawing
from purge.report import theme
from purge.verdict import scaled

WIDE = 100  # numbers that differ by a larger factor get a logarithmic axis, unless they are shares


# Of labels that have none in reports: colour, hatch of bars, marker of points.
LOOKS = (
    (theme.BLUE, "", "o"),
    (theme.VERMILION, "\\\\", "s"),
    (theme.GREEN, "xx", "D"),
    (theme.PURPLE, "..", "^"),
    (theme.SKY, "++", "v"),
    (theme.ORANGE, "oo", "P"),
)


class Series(NamedTuple):
    """Bars of one look, or one line."""

    words: str
    colour: str  # of the paper's bars, which are white, that of the edge
    hatch: str
    marker: str
    paper: bool
    points: list[tuple[int, float, float, float]]  # place, number, and how far its range goes down and up


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
    below = [" ".join(row.keys[by] for by in sheet.table.rows if not apart or by != "label") for row in rows]
    groups = [*dict.fromkeys(below)]
    placed = [(groups.index(group), row) for group, row in zip(below, rows, strict=True)]
    across = 1 if len(columns) == 1 or len(groups) > 14 else 2
    down = -(-len(columns) // across)
    fig, axes = theme.empty_axes(down, across, height=(2.4 + 0.09 * max(map(len, groups))) * down)
    for ax in axes[len(columns) :]:
        ax.set_axis_off()
    for name, ax in zip(columns, axes, strict=False):
        unit = sheet.columns[name].unit
        panel(ax, unit, _series(placed, name, scaled(1.0, unit), apart), drawing.kind)
        _explain(ax, name, sheet, [theme.plain(group, 28) for group in groups])
    legend = max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[0]))
    if legend.get_legend_handles_labels()[1] != ["ours"]:  # which needs no explanation
        theme.legend_below(fig, legend)
    return fig


def _explain(ax: Axes, name: str, sheet: Sheet, words: Sequence[str]) -> None:
    """What a panel shows, the words below its bars, and lines for chance and for the goal."""
    column = sheet.columns[name]
    angle, end = (45, "right") if sum(map(len, words)) > 30 else (0, "center")
    ax.set_xticks(range(len(words)), words, rotation=angle, ha=end)
    ax.set_xlim(-0.7, len(words) - 0.3)
    ax.set_ylabel(column.heading + (" (%)" if column.unit == "share" else ""))
    if name.startswith("mia") and column.unit == "number":  # an AUROC: 0.5 is chance
        ax.axhline(0.5, color=theme.INK, linewidth=0.8, linestyle=(0, (1, 3)))
    if name in sheet.aims:
        aim = scaled(sheet.aims[name], column.unit)
        ax.axhline(aim, color=theme.INK, linewidth=0.8, linestyle="--", label="goal")


def _series(placed: Sequence[tuple[int, Row]], column: str, scale: float, apart: bool) -> list[Series]:
    """Ours, one look for each label if ``apart``, and the paper's in the same colour."""
    series: list[Series] = []
    new = count()
    for label in dict.fromkeys(row.keys["label"] if apart else "ours" for _, row in placed):
        known = theme.MODELS.get({"retrain": "retrained"}.get(label, label))  # coloured as in every report
        if known is not None:
            colour, hatch, marker = known.colour, known.hatch, known.marker
        else:  # colours come again with another hatch
            i = next(new)
            colour, (_, hatch, marker) = LOOKS[i % 6][0], LOOKS[(i + i // 6) % 6]
        own = [(place, row.cells[column]) for place, row in placed if not apart or row.keys["label"] == label]
        ours = [
            # The mean of equal numbers may round past them.
            (place, scale * c.mean, scale * max(0.0, c.mean - c.low), scale * max(0.0, c.high - c.mean))
            for place, c in own
            if c.mean is not None and c.low is not None and c.high is not None
        ]
        theirs = [(place, scale * c.paper, 0.0, 0.0) for place, c in own if c.paper is not None]
        words = theme.plain(label, 28)
        series.append(Series(words, colour, hatch, marker, False, ours))
        if theirs:
            edge, words = (colour, f"{words}, paper") if apart else (theme.GREY, "paper")
            series.append(Series(words, edge, "////", "x", True, theirs))
    return series


def panel(ax: Axes, unit: str, series: Sequence[Series], kind: str) -> None:
    """One column of a table: a group of bars, or a point of each line, per row."""
    width = min(0.8 / len(series), 0.3)
    for i, one in enumerate(series):
        if not one.points:
            continue
        places, numbers, below, above = zip(*one.points, strict=True)
        spread = None if one.paper else [below, above]
        if kind == "lines":
            ax.errorbar(
                places, numbers, spread, fmt=one.marker + ("--" if one.paper else "-"), color=one.colour,
                capsize=3, label=one.words, markersize=5,
            )  # fmt: skip
        else:
            left = (i - (len(series) - 1) / 2) * width
            ax.bar(
                [place + left for place in places], numbers, width, yerr=spread, label=one.words,
                color="white" if one.paper else one.colour, edgecolor=one.colour if one.paper else theme.INK,
                hatch=one.hatch, linewidth=0.5, error_kw={"capsize": 2, "elinewidth": 0.8},
            )  # fmt: skip
    heights = [number for one in series for _, number, _, _ in one.points]
    if unit != "share" and heights and 0 < WIDE * min(heights) < max(heights):
        ax.set_yscale("log")
