"""Figures of a run: what happened while a model was unlearned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from purge.report import theme
from purge.report.numbers import Numbers
from purge.report.tables import Report, scaled

WINDOW = 20  # steps in a running share


def trajectory(report: Report) -> Figure | None:
    """Accuracy on the forget set and loss on the retain set at every check of the run.

    It stops at the target, or when the loss exceeds the budget.
    """
    history, run = Numbers(report).curve("audited", "history"), report["info"].get("run") or {}
    at, accuracy = _measured(history, "check_forget_accuracy")
    loss_at, loss = _measured(history, "check_retain_loss")
    if not at:
        return None
    fig, top, bottom = _two_rows()
    top.plot(at, percent(accuracy), color=theme.BLUE, marker="o", markersize=4, label="forget accuracy")
    top.set_ylabel("accuracy on the\nforget set (%)")
    if loss_at:
        bottom.plot(loss_at, loss, color=theme.ORANGE, marker="s", markersize=4, label="retain loss")
    bottom.set_ylabel("loss on the\nretain set")
    target, budget = run.get("forget_target"), run.get("retain_budget")
    for ax, limit, words in ((top, target and scaled(target, "share"), "target"), (bottom, budget, "budget")):
        if limit is not None:
            ax.axhline(limit, color=theme.VERMILION, linestyle="--", linewidth=1.2, label=words)
        _legend(ax)
    if min(loss, default=0) > 0 and (budget or 0) > 5 * max(loss):
        bottom.set_yscale("log")  # on a linear scale the budget would flatten the curve
        bottom.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        bottom.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    else:
        bottom.set_ylim(bottom=0)
    return fig


def steps(report: Report) -> Figure | None:
    """Above, how many of the last steps had to be projected so as not to raise the retain loss.

    Below, the cosine of the step actually taken with descent on the retain loss (never below 0 where the
    guarantee holds), and of the forget gradient with the retain gradient.
    """
    history = Numbers(report).curve("audited", "history")
    at, projected = _measured(history, "projected")
    angles = {
        "displacement_cosine": ("step taken, with descent on the retain loss", theme.BLUE, "-"),
        "cosine": ("forget with retain gradient", theme.ORANGE, "--"),
    }
    found = {name: found for name in angles if (found := _measured(history, name))[0]}
    if not at and not found:
        return None
    fig, top, bottom = _two_rows()
    top.plot(at, percent(running_share(projected)), color=theme.GREEN, label="projected steps")
    top.set_ylabel(f"projected, of the\nlast {WINDOW} steps (%)")
    for name, curve in found.items():
        words, colour, line = angles[name]
        bottom.plot(*curve, color=colour, linestyle=line, linewidth=1.2, label=words)
    bottom.axhline(0, color=theme.INK, linewidth=0.8)
    bottom.set(ylabel="cosine", ylim=(-1.05, 1.05))
    _legend(bottom)
    return fig


def running_share(hits: Sequence[float], window: int = WINDOW) -> list[float]:
    """For every step the share of hits among the last ``window`` steps, itself included.

    >>> running_share([1, 0, 0, 1], window=2)
    [1.0, 0.5, 0.0, 0.5]
    """
    recent = [hits[max(0, i + 1 - window) : i + 1] for i in range(len(hits))]
    return [sum(map(float, part)) / len(part) for part in recent]


def _two_rows() -> tuple[Figure, Axes, Axes]:
    """Two axes over the steps of a run; the upper one is in percent."""
    fig, (top, bottom) = theme.empty_axes(2, 1, height=4.4, width=theme.NARROW, sharex=True)
    top.set_ylim(-3, 103)
    bottom.set_xlabel("step")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    return fig, top, bottom


def _legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=9, labelcolor=theme.INK)


def _measured(history: Mapping[str, Sequence[Any]], name: str) -> tuple[list[float], list[float]]:
    """The steps at which something was measured, and the values."""
    column = history.get(name) or []
    at = (history.get("step") if column else None) or range(len(column))
    pairs = [(step, float(v)) for step, v in zip(at, column, strict=True) if v is not None]
    return [step for step, _ in pairs], [v for _, v in pairs]


def percent(shares: Sequence[float]) -> list[float]:
    """Shares as figures show them."""
    return [scaled(v, "share") for v in shares]
