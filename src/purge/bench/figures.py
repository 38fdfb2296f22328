"""Figures of a bench: the columns of its tables as bars or lines, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from purge.bench.tables import PARTS, Column, Drawing, Sheet, chosen
from purge.report import theme
from purge.report.theme import BLUE, GREEN, INK, VERMILION, plain
from purge.verdict.numbers import scaled

if TYPE_CHECKING:
    import pandas as pd

COLOURS = (BLUE, VERMILION, GREEN, theme.PURPLE, theme.SKY, theme.ORANGE)
HATCHES = ("", "\\\\", "xx", "..", "++", "oo")
MARKERS = "osD^vP"
WIDE = 100  # numbers that differ by a larger factor get a logarithmic axis, unless they are shares


class Series(NamedTuple):
    """Bars of one look, or one line."""

    words: str
    colour: str  # of the paper's bars: the edge, as they are white
    hatch: str
    marker: str
    cells: pd.DataFrame  # mean, low, high and paper, numbered by the group that they stand in
    paper: bool


def draw(drawing: Drawing, sheets: Mapping[str, Sheet]) -> Figure:
    """The figure that was asked for."""
    if drawing.kind == "pipeline":
        return pipeline()
    found = sheets[drawing.table]
    cells = chosen(found.cells, drawing.only)
    columns = drawing.columns or found.table.columns
    if cells.empty:
        fig, (ax,) = theme.empty_axes(1, 1, height=1.2)
        ax.set_axis_off()
        ax.text(0.5, 0.5, "no job has such a row", ha="center", color=INK)
        return fig
    apart = "label" in found.table.rows and len(found.table.rows) > 1  # a colour for each label
    keys = [key for key in found.table.rows if not (apart and key == "label")]
    group = cells[keys].agg(" ".join, axis=1)
    if "label" not in found.table.rows:  # then nothing else tells a job's row from the original's
        group += cells["part"].map(lambda part: f" {PARTS[part]}" if part in PARTS else "")
    cells = cells.assign(group=group)
    groups = [*dict.fromkeys(cells["group"])]
    across = 1 if len(columns) == 1 or len(groups) > 14 else 2
    down = -(-len(columns) // across)
    fig, axes = theme.empty_axes(down, across, height=(2.4 + 0.09 * max(map(len, groups))) * down)
    for ax, column in zip(axes, columns, strict=False):
        series = _series(cells[cells["name"] == column], groups, apart)
        panel(ax, found.columns[column], [plain(group, 28) for group in groups], series, drawing.kind)
        if column.startswith("mia") and found.columns[column].unit == "number":  # an AUROC: 0.5 is chance
            ax.axhline(0.5, color=INK, linewidth=0.8, linestyle=(0, (1, 3)))
        if column in found.aims:
            aim = scaled(found.aims[column], found.columns[column].unit)
            ax.axhline(aim, color=INK, linewidth=0.8, linestyle="--", label="goal")
    for ax in axes[len(columns) :]:
        ax.set_axis_off()
    looks = max(axes, key=lambda ax: len(ax.get_legend_handles_labels()[0]))
    if looks.get_legend_handles_labels()[1] != ["ours"]:  # which needs no explanation
        theme.legend_below(fig, looks)
    return fig


def _series(cells: pd.DataFrame, groups: Sequence[str], apart: bool) -> list[Series]:
    """Ours, one look for each label if ``apart``, and the paper's in the same colour."""
    made: list[Series] = []
    new = 0
    for label in dict.fromkeys(cells["label"]) if apart else ["ours"]:
        own = cells[cells["label"] == label] if apart else cells
        own = own.set_index("group").reindex(groups).reset_index()
        known = theme.MODELS.get({"retrain": "retrained"}.get(label, label))  # coloured as in every report
        if known is not None:
            colour, hatch, marker = known.colour, known.hatch, known.marker
        else:
            turn = (new + new // 6) % 6  # colours come again with another hatch
            colour, hatch, marker = COLOURS[new % 6], HATCHES[turn], MARKERS[turn]
            new += 1
        words = plain(label, 28)
        made.append(Series(words, colour, hatch, marker, own, False))
        if own["paper"].notna().any():
            words = f"{words}, paper" if apart else "paper"
            made.append(Series(words, colour if apart else theme.GREY, "////", "x", own, True))
    return made


def panel(ax: Axes, column: Column, groups: Sequence[str], series: Sequence[Series], kind: str) -> None:
    """One column of a table: a group of bars, or a point of each line, per row."""
    scale = scaled(1.0, column.unit)
    width = min(0.8 / max(1, len(series)), 0.3)
    heights: list[float] = []
    for i, one in enumerate(series):
        stat = "paper" if one.paper else "mean"
        cells = one.cells.dropna(subset=[stat])
        if cells.empty:
            continue
        mean, low, high = (scale * cells[key].astype(float) for key in (stat, "low", "high"))
        heights += [*mean]
        spread = None if one.paper else [(mean - end).abs() for end in (low, high)]
        if kind == "lines":
            style = one.marker + ("--" if one.paper else "-")
            ax.errorbar(
                cells.index,
                mean,
                spread,
                fmt=style,
                color=one.colour,
                capsize=3,
                label=one.words,
                markersize=5,
            )
        else:
            ax.bar(
                cells.index + (i - (len(series) - 1) / 2) * width, mean, width,
                color="white" if one.paper else one.colour, hatch=one.hatch,
                edgecolor=one.colour if one.paper else INK, linewidth=0.5, label=one.words,
                yerr=spread, error_kw={"capsize": 2, "elinewidth": 0.8},
            )  # fmt: skip
    if column.unit != "share" and heights and 0 < WIDE * min(heights) < max(heights):
        ax.set_yscale("log")
    tight = sum(map(len, groups)) > 30
    ax.set_xticks(range(len(groups)), groups, rotation=45 if tight else 0, ha="right" if tight else "center")
    ax.set_xlim(-0.7, len(groups) - 0.3)
    ax.set_ylabel(column.heading + (" (%)" if column.unit == "share" else ""))


# -- the picture of the method ----------------------------------------------------------------

BOXES = {  # words, centre, colour of the frame
    "forget": ("forget batch\n$x_f$", (0.10, 0.75), VERMILION),
    "retain": ("retain batch\n$x_r$", (0.10, 0.25), BLUE),
    "model": ("model $\\theta$, statistics\nof the retain batch", (0.33, 0.5), INK),
    "lose": ("$g_f$: to the target,\nerase features", (0.57, 0.75), VERMILION),
    "keep": ("$g_r$: labels and\nthe original's outputs", (0.57, 0.25), BLUE),
    "project": ("project: keep\n$\\langle g, g_r\\rangle \\geq 0$", (0.80, 0.5), GREEN),
    "stop": ("stop at forget target\nor retain budget", (0.80, 0.12), INK),
}
ARROWS = (
    ("forget", "model"), ("retain", "model"), ("model", "lose"), ("model", "keep"), ("lose", "project"),
    ("keep", "project"), ("project", "stop"),
)  # fmt: skip


def pipeline() -> Figure:
    """One step of PURGE: two batches, two gradients, a projection, and when to stop."""
    fig, (ax,) = theme.empty_axes(1, 1, height=3.2)
    ax.set(xlim=(-0.01, 0.91), ylim=(0, 0.97))
    ax.set_axis_off()
    half = 0.095, 0.09
    for words, (x, y), colour in BOXES.values():
        box = FancyBboxPatch(
            (x - half[0], y - half[1]), 2 * half[0], 2 * half[1], boxstyle="round,pad=0.008",
            facecolor="white", edgecolor=colour, linewidth=1.4,
        )  # fmt: skip
        ax.add_patch(box)
        ax.text(x, y, words, ha="center", va="center", fontsize=8.5, color=INK)
    for a, b in ARROWS:
        (x, y), (u, v) = BOXES[a][1], BOXES[b][1]
        side = (half[0] + 0.012, 0.0) if u > x else (0.0, -half[1])
        ax.annotate(
            "", (u - side[0], v - side[1]), (x + side[0], y + side[1]),
            arrowprops={"arrowstyle": "->", "color": INK, "shrinkA": 4, "shrinkB": 4},
        )  # fmt: skip
    (u, top), (x, _) = BOXES["model"][1], BOXES["project"][1]
    top += half[1] + 0.015
    ax.plot([x, x, u, u], [top, 0.92, 0.92, top + 0.03], color=GREEN, linewidth=1.4)
    ax.annotate("", (u, top), (u, 0.9), arrowprops={"arrowstyle": "->", "color": GREEN, "linewidth": 1.4})
    words = "step, and the next pair of batches"
    ax.text((x + u) / 2, 0.93, words, ha="center", va="bottom", fontsize=8.5, color=INK)
    return fig
