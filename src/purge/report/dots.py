"""Values of several models as dots with their intervals, one row per value."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from purge.report import theme
from purge.report.theme import MODELS
from purge.verdict.numbers import Number, Numbers, Report, scaled

GAP = 0.26  # between two models of one row


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
