"""Values of several models as dots with their intervals, and an audit in one figure of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from purge.report import theme
from purge.report.sentences import why_missing
from purge.report.tables import rows_of
from purge.report.theme import MODELS, empty_axes
from purge.verdict.numbers import Number, Numbers, Report, scaled

GAP = 0.26  # between two models of one row
ACCURACY = "accuracy"
UNTREATED = "fa_test"  # stands beside what treatments of the weights make of it


def rows_there(report: Report, rows: Mapping[str, str]) -> dict[str, str]:
    """Those of the rows whose value was measured, with their words broken into short lines."""
    numbers = Numbers(report)
    return {name: textwrap.fill(words, 20) for name, words in rows.items() if numbers.get(name)}


def draw_rows(ax: Axes, report: Report, rows: Mapping[str, str], models: Sequence[str], label: str) -> None:
    """One row per value of the same unit: a dot with its interval for each model that has one."""
    numbers = Numbers(report)
    for i, name in enumerate(rows):
        for j, model in enumerate(models):
            number = numbers.get(name, "values" if model == "audited" else model)
            draw_dot(ax, number, model, -i + GAP * ((len(models) - 1) / 2 - j))
    ax.set_yticks([-i for i in range(len(rows))], list(rows.values()))
    share = any(v.unit == "share" for v in numbers.beside(rows))
    ax.set_xlabel(label + " (%)" * share)
    if share:
        ax.set_xlim(-3, 103)


def draw_dot(ax: Axes, number: Number | None, model: str, at: float) -> None:
    """A number with its interval; nothing if it was not measured."""
    if number is None:
        return
    look, v = MODELS[model], scaled(number.value, number.unit)
    ends = (v - scaled(number.low, number.unit), scaled(number.high, number.unit) - v)
    known = {container.get_label() for container in ax.containers}
    ax.errorbar(
        [v], [at], xerr=[[max(0.0, end)] for end in ends] if number.sure else None, fmt=look.marker,
        color=look.colour, markersize=6, capsize=3, markeredgecolor=theme.INK, markeredgewidth=0.5,
        label=None if look.words in known else look.words,
    )  # fmt: skip


# -- an audit in one figure ------------------------------------------------------------------------


class Panel(NamedTuple):
    """One quarter of the figure: its title, whose rows it has, and what the axis is."""

    title: str
    figure: str
    label: str = ACCURACY


PANELS = (
    Panel("What was forgotten", "forgotten"),
    Panel("What stays", "stays"),
    Panel("Membership attacks", "membership", "AUROC (0.5: guessing)"),
    Panel("Forgotten, after treatment", "robustness"),
)


def _rows(report: Report, panel: Panel) -> dict[str, str]:
    rows = rows_of(report, panel.figure)
    return {k: v for k, v in rows.items() if (panel.figure, k) != ("robustness", UNTREATED)}


def overview(report: Report) -> Figure:
    """Four panels: this model beside the retrained and the original one; a panel without numbers says why."""
    there = [rows_there(report, _rows(report, panel)) for panel in PANELS]
    lines = [sum(1 + words.count("\n") for words in rows.values()) + len(rows) for rows in there]
    tall = [max(pair) for pair in (lines[:2], lines[2:])]
    fig, axes = empty_axes(2, 2, height=2.2 + 0.16 * sum(max(4, n) for n in tall), width=8.2)
    axes[0].get_gridspec().set_height_ratios([max(4, n) + 4 for n in tall])  # type: ignore[union-attr]
    for ax, panel, rows in zip(axes, PANELS, there, strict=True):
        ax.set_title(panel.title, color=theme.INK, fontsize=10.5)
        if not rows:
            _say_why(ax, report, panel)
            continue
        draw_rows(ax, report, rows, tuple(MODELS), panel.label)
        ax.set_ylim(0.5 - len(rows), 0.5)
        if panel.label != ACCURACY:
            ax.axvline(0.5, color=theme.INK, linewidth=0.8, linestyle=(0, (1, 3)))
    shown = {
        label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    known = [look.words for look in MODELS.values() if look.words in shown]
    if known:  # one legend for all panels: not every panel has every model
        fig.legend(
            [shown[words] for words in known], known, loc="outside lower center", ncols=len(known),
            frameon=False, fontsize=9, labelcolor=theme.INK,
        )  # fmt: skip
    return fig


def _say_why(ax: Axes, report: Report, panel: Panel) -> None:
    """A panel without numbers: the reason that the audit gave for the first of them it was asked for."""
    numbers = Numbers(report)
    first = next((name for name in _rows(report, panel) if numbers.raw(name)), None)
    why = why_missing(report, first) if first else "Not asked for: audit with metrics='standard'."
    words = textwrap.fill(theme.plain(why, 240), 34)
    ax.text(
        0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", fontsize=9, color=theme.INK
    )  # fmt: skip
    ax.set_axis_off()
