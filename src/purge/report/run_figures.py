"""Figures of a run: what happened while a model was unlearned."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from purge.report import theme
from purge.verdict.numbers import Numbers, Report, scaled

WINDOW = 20  # steps in a running share
MOST_MARKED = 40  # points that are marked one by one

LOSSES = {
    "loss": ("training data", theme.BLUE, "-"),
    "retain_loss": ("retained batch", theme.ORANGE, "-"),
    "forget_loss": ("forgotten batch", theme.BLUE, "--"),
    "check_retain_loss": ("retain set, at checks", theme.INK, ":"),
}
Curve = tuple[list[float], list[float]]  # steps, and what was measured at them
COSINES = {
    "displacement_cosine": ("step taken, with descent on the retain loss", theme.BLUE, "-"),
    "cosine": ("forget with retain gradient", theme.ORANGE, "--"),
}


def trajectory(report: Report) -> Figure | None:
    """Accuracy on the forget set and loss on the retain set at every check of the run.

    It stops at the target, or when the loss exceeds the budget.
    """
    history, run = Numbers(report).curve("audited", "history"), report["info"].get("run") or {}
    checks, budget = _measured(history, "check_forget_accuracy"), run.get("retain_budget")
    at, loss = _measured(history, "check_retain_loss")
    if not checks[0]:
        return None
    fig, top, bottom = _two_rows()
    _forget_accuracy(top, checks, run.get("forget_target"))
    if at:
        bottom.plot(at, loss, color=theme.ORANGE, marker="s", markersize=4, label="retain loss")
    bottom.set_ylabel("loss on the\nretain set")
    if budget is not None:
        bottom.axhline(budget, color=theme.VERMILION, linestyle="--", linewidth=1.2, label="budget")
    _legend(bottom)
    if min(loss, default=0) > 0 and (budget or 0) > 5 * max(loss):
        _log_scale(bottom)  # on a linear scale the budget would flatten the curve
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
    curves = {name: curves for name in COSINES if (curves := _measured(history, name))[0]}
    if not at and not curves:
        return None
    fig, top, bottom = _two_rows()
    top.plot(at, percent(running_share(projected)), color=theme.GREEN, label="projected steps")
    top.set_ylabel(f"projected, of the\nlast {WINDOW} steps (%)")
    for name, curve in curves.items():
        words, colour, line = COSINES[name]
        bottom.plot(*curve, color=colour, linestyle=line, linewidth=1.2, label=words)
    _cosine_axis(bottom)
    _legend(bottom)
    return fig


def whole_run(report: Report) -> Figure:
    """A run in one figure: losses, accuracy on the forget set at the checks, and cosines.

    What was not measured has no panel: a training has losses only.
    """
    history, run = Numbers(report).curve("audited", "history"), report["info"].get("run") or {}
    losses, cosines = (
        {look: curve for name, look in looks.items() if (curve := _measured(history, name))[0]}
        for looks in (LOSSES, COSINES)
    )
    checks = _measured(history, "check_forget_accuracy")
    kinds = {"loss": losses, "checks": checks[0], "cosine": cosines}
    panels = [kind for kind, curves in kinds.items() if curves]
    rows = max(1, len(panels))
    fig, axes = theme.empty_axes(rows, 1, height=0.8 + 1.8 * rows, width=9.2, sharex=True)
    if not panels:
        axes[0].text(0.5, 0.5, "This run has no history.", ha="center", va="center", color=theme.INK)
        axes[0].set_axis_off()
        return fig
    for ax, kind in zip(axes, panels, strict=True):
        if kind == "checks":
            _forget_accuracy(ax, checks, run.get("forget_target"), beside=True)
            continue
        for (words, colour, line), (at, values) in (losses if kind == "loss" else cosines).items():
            dots = "o" if len(at) <= MOST_MARKED else ""
            words = textwrap.fill(words, 22)
            ax.plot(at, values, color=colour, linestyle=line, marker=dots, markersize=3.5, label=words)
        _legend(ax, beside=True)
        if kind == "cosine":
            _cosine_axis(ax)
            continue
        ax.set_ylabel("loss")
        every = [v for _, values in losses.values() for v in values]
        if min(every) > 0 and max(every) > 100 * min(every):
            _log_scale(ax)  # on a linear scale the large one would flatten the others
    axes[-1].set_xlabel("step" if "step" in history else "epoch")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return fig


def _forget_accuracy(ax: Axes, checks: Curve, target: float | None, *, beside: bool = False) -> None:
    """The accuracy on the forget set at every check, and the target."""
    at, accuracy = checks
    ax.plot(at, percent(accuracy), color=theme.BLUE, marker="o", markersize=4, label="forget accuracy")
    if target is not None:
        line = scaled(target, "share")
        ax.axhline(line, color=theme.VERMILION, linestyle="--", linewidth=1.2, label="target")
    ax.set(ylabel="accuracy on the\nforget set (%)", ylim=(-3, 103))
    _legend(ax, beside=beside)


def _cosine_axis(ax: Axes) -> None:
    ax.axhline(0, color=theme.INK, linewidth=0.8)
    ax.set(ylabel="cosine", ylim=(-1.05, 1.05))


def _log_scale(ax: Axes) -> None:
    """A logarithmic scale with plain numbers."""
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


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


def _legend(ax: Axes, *, beside: bool = False) -> None:
    """A legend within the axes, or beside them where curves would run through it."""
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if beside else {}
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=9, labelcolor=theme.INK, **place)


def _measured(history: Mapping[str, Sequence[Any]], name: str) -> Curve:
    """The steps at which something was measured, and the values."""
    column, epochs = history.get(name) or [], history.get("epoch") or []
    at: Sequence[int] = history.get("step") or range(len(column))
    if "step" not in history and epochs:  # shards that were trained one by one count through
        at = epochs if list(epochs) == sorted(set(epochs)) else range(1, len(epochs) + 1)
    pairs = [(step, float(v)) for step, v in zip(at, column, strict=False) if v is not None]
    return [step for step, _ in pairs], [v for _, v in pairs]


def percent(shares: Sequence[float]) -> list[float]:
    """Shares as figures show them."""
    return [scaled(v, "share") for v in shares]
