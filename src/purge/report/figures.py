"""Figures of a report, drawn from plain dicts; nothing is measured here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from purge.core.errors import MetricError, did_you_mean
from purge.report.theme import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MODELS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Look,
    empty_axes,
    legend_below,
    plain,
    save,
)

MOST_CLASSES = 20  # more bars than this cannot be read
WINDOW = 20  # steps behind a running share
RASTER = 2000  # beyond this many points a scatter is embedded as an image: a page must stay small

Report = Mapping[str, Any]


SIGNALS = {
    "loss": Look("loss", BLUE, "o", "-", ""),
    "confidence": Look("confidence", ORANGE, "s", "--", ""),
    "entropy": Look("entropy", GREEN, "^", "-.", ""),
    "m_entropy": Look("modified entropy", VERMILION, "D", ":", ""),
    "margin": Look("margin", PURPLE, "v", (0, (5, 1)), ""),  # type: ignore[arg-type]
    "lira": Look("LiRA", INK, "P", "-", ""),
    "rmia": Look("RMIA", SKY, "X", "--", ""),
    "u_lira": Look("U-LiRA", GREY, "*", "-.", ""),
}


def draw(report: Report, name: str) -> Figure:
    """The figure of that name; an error of one line where the report has nothing to draw it from."""
    if name not in FIGURES:
        raise MetricError("the name of a figure", repr(name), did_you_mean(name, FIGURES))
    return FIGURES[name](report)


# -- the run ----------------------------------------------------------------------------------


def trajectory(report: Report) -> Figure:
    """Forget accuracy and retain loss at every check of the run, with its target and its budget."""
    history = _history(report)
    run = report["info"].get("run") or {}
    accuracy = _measured(history, "check_forget_accuracy")
    loss = _measured(history, "check_retain_loss")
    if not accuracy[0]:
        raise _absent("trajectory")
    fig, (top, bottom) = empty_axes(2, 1, height=4.8, sharex=True)
    top.plot(
        accuracy[0], _percent(accuracy[1]), color=BLUE, marker="o", markersize=4, label="forget accuracy"
    )
    _line(top, run.get("forget_target"), "target", scale=100)
    top.set_ylabel("accuracy on the\nforget set (%)")
    top.set_ylim(-3, 103)
    if loss[0]:
        bottom.plot(*loss, color=ORANGE, marker="s", markersize=4, label="retain loss")
    _line(bottom, run.get("retain_budget"), "budget")
    bottom.set_ylabel("loss on the\nretain set")
    if min(loss[1], default=0) > 0 and (run.get("retain_budget") or 0) > 5 * max(loss[1]):
        bottom.set_yscale("log")  # the budget would press the curve to the floor
        bottom.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        bottom.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    else:
        bottom.set_ylim(bottom=0)
    bottom.set_xlabel("step")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ax in (top, bottom):
        _legend(ax)
    return fig


def steps(report: Report) -> Figure:
    """How often a step had to be projected, and the angles between the gradients and the steps."""
    history = _history(report)
    projected = _measured(history, "projected")
    angles = {
        "displacement_cosine": ("step taken, with descent on the retain loss", BLUE, "-"),
        "cosine": ("forget with retain gradient", ORANGE, "--"),
    }
    found = {name: _measured(history, name) for name in angles}
    if not projected[0] and not any(at for at, _ in found.values()):
        raise _absent("steps")
    fig, (top, bottom) = empty_axes(2, 1, height=4.8, sharex=True)
    if projected[0]:
        top.plot(projected[0], _percent(running_share(projected[1])), color=GREEN, label="projected steps")
    top.set_ylabel(f"projected, of the\nlast {WINDOW} steps (%)")
    top.set_ylim(-3, 103)
    for name, (words, colour, line) in angles.items():
        if found[name][0]:
            bottom.plot(*found[name], color=colour, linestyle=line, linewidth=1.2, label=words)
    bottom.axhline(0, color=INK, linewidth=0.8)
    bottom.set_ylabel("cosine")
    bottom.set_ylim(-1.05, 1.05)
    bottom.set_xlabel("step")
    bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(bottom)
    return fig


def running_share(hits: Sequence[float], window: int = WINDOW) -> list[float]:
    """For every step the share of hits among it and those before it, ``window`` in all.

    >>> running_share([1, 0, 0, 1], window=2)
    [1.0, 0.5, 0.0, 0.5]
    """
    recent = [hits[max(0, i + 1 - window) : i + 1] for i in range(len(hits))]
    return [sum(map(float, part)) / len(part) for part in recent]


# -- attacks ----------------------------------------------------------------------------------


def roc(report: Report) -> Figure:
    """What each membership attack finds at each rate of false alarms, on log axes."""
    panels = {m: found for m in ("audited", "retrained") if (found := _curve(report, m, "roc"))}
    if "audited" not in panels:
        raise _absent("roc")
    lowest = _lowest_rate(report, panels)
    fig, axes = empty_axes(1, len(panels), height=4.2, width=None if len(panels) > 1 else 4.6, sharey=True)
    for ax, (model, found) in zip(axes, panels.items(), strict=True):
        for signal, curve in found.items():
            look = SIGNALS.get(signal, Look(signal, GREY, "", "-", ""))
            x, y = ([max(v, lowest) for v in curve[key]] for key in ("fpr", "tpr"))
            (line,) = ax.plot(x, y, color=look.colour, linestyle=look.line, linewidth=1.4, label=look.words)
            line.set(marker=look.marker, markersize=4, markevery=max(1, len(x) // 6))
        ax.plot([lowest, 1], [lowest, 1], color=INK, linewidth=0.8, linestyle=(0, (1, 3)), label="guessing")
        ax.set(xscale="log", yscale="log", xlim=(lowest, 1), ylim=(lowest, 1))
        for axis in (ax.xaxis, ax.yaxis):  # a log scale brings formatters of its own
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:g}"))
            axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        ax.set_title(MODELS[model].words, color=INK, fontsize=10)
        ax.set_xlabel("unseen samples wrongly accused (%)")
    axes[0].set_ylabel("forgotten samples found (%)")
    legend_below(fig, axes[0])
    return fig


def _lowest_rate(report: Report, panels: Mapping[str, Any]) -> float:
    """Where log axes begin: the power of ten at or below one false alarm among the unseen samples."""
    attack = _value(report, "values", "mia_loss")
    unseen = (attack["n"] or 0) - (report["info"].get("forget_samples") or 0) if attack else 0
    rates = [v for found in panels.values() for curve in found.values() for v in curve["fpr"] if v > 0]
    least = 1 / unseen if unseen > 0 else min(rates, default=1e-3)
    return min(1e-1, float(10 ** math.floor(math.log10(least))))


def membership(report: Report) -> Figure:
    """AUROC of every membership attack with its interval, beside the retrained model's."""
    rows = [(name, words) for name, words in ATTACKS.items() if _value(report, "values", name) is not None]
    if not rows:
        raise _absent("membership")
    return _dots(report, rows, models=("audited", "retrained"), label="AUROC (0.5: guessing)", line=0.5)


def robustness(report: Report) -> Figure:
    """Accuracy on the forgotten samples' classes after each treatment of the weights."""
    rows = [(name, words) for name, words in TREATMENTS.items() if _value(report, "values", name) is not None]
    if not any(name != "fa_test" for name, _ in rows):
        raise _absent("robustness")
    return _dots(report, rows, models=("audited", "retrained"), label="accuracy (%)", scale=100)


def relearn(report: Report) -> Figure:
    """Forget accuracy while the models are trained further, on a few forget samples or on none."""
    kinds = {"few": "a few forget samples\nmixed with retained data", "retain": "retained data alone"}
    found = {kind: _relearned(report, kind) for kind in kinds}
    shown = [kind for kind in kinds if "audited" in found[kind]]
    if not shown:
        raise _absent("relearn")
    fig, axes = empty_axes(1, len(shown), height=3.4, width=None if len(shown) > 1 else 4.6, sharey=True)
    for ax, kind in zip(axes, shown, strict=True):
        for model, curve in found[kind].items():
            look = MODELS[model]
            ax.plot(
                curve["step"], _percent(curve["forget_accuracy"]), color=look.colour, marker=look.marker,
                linestyle=look.line, markersize=4, label=look.words,
            )  # fmt: skip
        ax.set_title(kinds[kind], color=INK, fontsize=10)
        ax.set_xlabel("step of training")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set_ylim(-3, 103)
    axes[0].set_ylabel("accuracy on what was\nforgotten (%)")
    legend_below(fig, axes[0])
    return fig


# -- classes ----------------------------------------------------------------------------------


def classes(report: Report) -> Figure:
    """Accuracy of every class before and after, beside the retrained model's."""
    return _bars(report, "classes", "class_accuracy", ("original", "audited", "retrained"), "accuracy (%)")


def destinations(report: Report) -> Figure:
    """Which classes the forgotten samples are taken for, beside the retrained model's."""
    return _bars(
        report, "destinations", "destinations", ("audited", "retrained"), "share of the\nforget set (%)"
    )


def features(report: Report) -> Figure:
    """A 2-D view of the last hidden layer: where the forgotten samples lie among the others."""
    found = {m: c for m in MODELS if (c := _curve(report, m, "features"))}
    if "audited" not in found:
        raise _absent("features")
    fig, axes = empty_axes(1, len(found), height=3.2, width=None if len(found) > 1 else 4.6)
    palette = (SKY, ORANGE, GREEN, PURPLE, BLUE, GREY)
    for ax, (model, points) in zip(axes, found.items(), strict=True):
        rows = list(zip(points["x"], points["y"], points["label"], points["forgotten"], strict=True))
        kept = [(x, y, label) for x, y, label, gone in rows if not gone]
        gone = [(x, y) for x, y, _, gone in rows if gone]
        few = len({label for *_, label in kept}) <= MOST_CLASSES
        for label in sorted({label for *_, label in kept}):
            here = [(x, y) for x, y, its in kept if its == label]
            _scatter(ax, here, palette[int(label) % len(palette)], ".", 0.55, None, len(rows))
            if few:
                x, y = (sorted(axis)[len(here) // 2] for axis in zip(*here, strict=True))
                ax.annotate(_class(report, label), (x, y), ha="center", va="center", fontsize=8, color=INK)
        _scatter(ax, gone, VERMILION, "x", 0.9, "forgotten", len(rows))
        ax.set_title(MODELS[model].words, color=INK, fontsize=10)
        ax.set(xticks=[], yticks=[])
    legend_below(fig, axes[0])
    return fig


def _scatter(
    ax: Axes,
    points: list[tuple[float, float]],
    colour: str,
    marker: str,
    alpha: float,
    label: str | None,
    n: int,
) -> None:
    x, y = zip(*points, strict=True) if points else ((), ())
    ax.scatter(
        x, y, c=colour, marker=marker, s=14, alpha=alpha, linewidths=1, label=label, rasterized=n > RASTER
    )


def _bars(report: Report, figure: str, metric: str, models: Sequence[str], label: str) -> Figure:
    """A group of bars per class, one bar per model; of many classes those that tell most."""
    found = {m: shares for m in models if (shares := _by_class(report, m, metric))}
    if "audited" not in found:
        raise _absent(figure)
    forgotten = set(report["info"].get("forget_classes") or [])
    numbers = sorted({k for shares in found.values() for k in shares})
    there = [k for k in numbers if any(shares.get(k) is not None for shares in found.values())]
    if len(there) > MOST_CLASSES:
        by_news = sorted(there, key=lambda k: (k not in forgotten, -_news(found, k, metric)))
        there = sorted(by_news[:MOST_CLASSES])
    words = [_class(report, k) for k in there]
    longest = max(map(len, words), default=0)
    tight = longest * len(words) > 90
    fig, (ax,) = empty_axes(1, 1, height=3.4 + 0.08 * (longest + 12) * tight)
    width = 0.8 / len(found)
    for i, (model, shares) in enumerate(found.items()):
        look = MODELS[model]
        at = [j + (i - (len(found) - 1) / 2) * width for j in range(len(there))]
        high = _percent([shares.get(k) or 0.0 for k in there])
        ax.bar(
            at,
            high,
            width,
            color=look.colour,
            hatch=look.hatch,
            label=look.words,
            edgecolor=INK,
            linewidth=0.5,
        )
    gone = " (forgotten)" if tight else "\n(forgotten)"
    words = [word + gone if k in forgotten else word for k, word in zip(there, words, strict=True)]
    ax.set_xticks(range(len(there)), words, rotation=60 if tight else 0, ha="right" if tight else "center")
    if len(numbers) > len(there):
        ax.set_xlabel(f"{len(there)} of {len(numbers)} classes: the forgotten, and where most happens")
    ax.set_ylabel(label)
    ax.set_ylim(0, 103)
    legend_below(fig, ax)
    return fig


def _news(found: Mapping[str, Mapping[int, float | None]], k: int, metric: str) -> float:
    """How much a class has to tell: its share, or how far its accuracy moved."""
    after = found["audited"].get(k) or 0.0
    others = [shares.get(k) or 0.0 for model, shares in found.items() if model != "audited"]
    if metric == "destinations" or not others:
        return max([after, *others])
    return max(abs(after - other) for other in others)


# -- several runs -----------------------------------------------------------------------------

KEY_VALUES = {
    "fa_test": ("accuracy on unseen data\nof what was forgotten (%)", 100),
    "ta_retain": ("accuracy on test data\nof what stays (%)", 100),
    "mia": ("membership attack\n(AUROC)", 1),
    "bn_recal.after": ("forgotten, after BatchNorm\nrecalibration (%)", 100),
    "retrain_gap": ("mean gap to\nthe retrained model", 1),
}


def comparison(reports: Mapping[str, Report]) -> Figure:
    """The main numbers of several runs, one row per run, with intervals and the retrained model's."""
    shown = [n for n in KEY_VALUES if any(_value(r, "values", n) is not None for r in reports.values())]
    if not shown:
        raise MetricError("one of the main values in these reports", "none", "audit with metrics='standard'")
    fig, axes = empty_axes(
        1, len(shown), height=1.5 + 0.34 * len(reports), width=1.75 * len(shown) + 1.2, sharey=True
    )
    at = {run: -i for i, run in enumerate(reports)}
    for ax, name in zip(axes, shown, strict=True):
        label, scale = KEY_VALUES[name]
        for run, report in reports.items():
            _dot(ax, report, "values", name, at[run], scale, MODELS["audited"])
            _dot(ax, report, "retrained", name, at[run], scale, MODELS["retrained"])
        ax.set_xlabel(label, fontsize=8.5)
        ax.set_ylim(-len(reports) + 0.4, 0.6)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        if name == "retrain_gap":
            ax.set_xlim(0, 1.1 * ax.get_xlim()[1])
    axes[0].set_yticks(list(at.values()), [plain(run) for run in at])
    legend_below(fig, axes[0])
    return fig


def _dots(
    report: Report,
    rows: Sequence[tuple[str, str]],
    *,
    models: Sequence[str],
    label: str,
    scale: float = 1,
    line: float | None = None,
) -> Figure:
    """One row per value: a dot with its interval for each model."""
    fig, (ax,) = empty_axes(1, 1, height=1.3 + 0.32 * len(rows))
    for i, (name, _) in enumerate(rows):
        for model in models:
            part = "values" if model == "audited" else model
            shift = 0.13 if model == "audited" else -0.13
            _dot(ax, report, part, name, -i + shift, scale, MODELS[model])
    if line is not None:
        ax.axvline(line, color=INK, linewidth=0.8, linestyle=(0, (1, 3)))
    ax.set_yticks([-i for i in range(len(rows))], [words for _, words in rows])
    ax.set_xlabel(label)
    if scale == 100:
        ax.set_xlim(-3, 103)
    legend_below(fig, ax)
    return fig


def _dot(ax: Axes, report: Report, part: str, name: str, at: float, scale: float, look: Look) -> None:
    value = _value(report, part, name)
    if value is None:
        return
    v, low, high = (None if x is None else scale * x for x in (value["value"], value["low"], value["high"]))
    assert v is not None
    spread = None if low is None or high is None else [[max(0.0, v - low)], [max(0.0, high - v)]]
    known = {text.get_label() for text in ax.containers}
    ax.errorbar(
        [v], [at], xerr=spread, fmt=look.marker, color=look.colour, markersize=6, capsize=3,
        markeredgecolor=INK, markeredgewidth=0.5, label=None if look.words in known else look.words,
    )  # fmt: skip


ATTACKS = {
    "mia_loss": "loss",
    "mia_confidence": "confidence",
    "mia_entropy": "entropy",
    "mia_m_entropy": "modified entropy",
    "mia_margin": "margin",
    "mia": "mean of loss and confidence",
    "lira.auroc": "LiRA",
    "rmia.auroc": "RMIA",
    "u_lira.auroc": "U-LiRA",
}


TREATMENTS = {
    "fa_test": "as it is",
    "bn_recal.after": "BatchNorm recalibrated",
    "quantise.int8": "weights in int8",
    "quantise.bf16": "weights in bf16",
    "prune.20": "smallest 20 % of weights gone",
    "prune.50": "smallest 50 % of weights gone",
    "prune.80": "smallest 80 % of weights gone",
    "noise.1pct": "1 % noise on the weights",
    "noise.5pct": "5 % noise on the weights",
    "relearn_retain.after": "trained on retained data",
    "relearn_few.after": "trained on a few forgotten samples",
    "head_refit.fa": "last layer fitted anew",
}

FIGURES: dict[str, Callable[[Report], Figure]] = {
    "trajectory": trajectory,
    "steps": steps,
    "classes": classes,
    "destinations": destinations,
    "membership": membership,
    "roc": roc,
    "robustness": robustness,
    "relearn": relearn,
    "features": features,
}

# What a figure is called, and what it shows: for captions, and for people who cannot see it.
CAPTIONS = {
    "trajectory": (
        "The run",
        "Accuracy on the forget set and loss on the retain set at every check of the run. It stops at the "
        "target, or when the loss exceeds the budget.",
    ),
    "steps": (
        "The steps",
        "Above, how many of the last steps had to be projected so as not to raise the retain loss. Below, "
        "the cosine of the step that was really taken with descent on the retain loss (not below 0 where the "
        "guarantee holds), and of the forget with the retain gradient.",
    ),
    "classes": (
        "Classes",
        "Accuracy of each class on test data: the original model, this model, and the one retrained without "
        "the forgotten data.",
    ),
    "destinations": (
        "Destinations",
        "Which classes the forgotten samples are taken for now. A model that never saw them has its own "
        "opinion of them; the closer the bars, the less this model stands out.",
    ),
    "membership": (
        "Membership attacks",
        "How well each attack tells forgotten samples from unseen ones, with 95 % intervals. 0.5 is "
        "guessing; the aim is to be where the retrained model is.",
    ),
    "roc": (
        "Membership attacks at few false alarms",
        "The share of forgotten samples that an attack finds at each share of unseen samples it wrongly "
        "accuses, on logarithmic axes: the left edge is where an accusation would be believed.",
    ),
    "robustness": (
        "Robustness",
        "Accuracy on what was forgotten after the weights were treated as deployed models are, or attacked. "
        "A few forgotten samples, or a last layer fitted to them, bring it back in any model: only a "
        "difference to the retrained one counts.",
    ),
    "relearn": (
        "Relearning",
        "How quickly what was forgotten comes back when the models are trained further. A model that really "
        "forgot needs as long as the retrained one.",
    ),
    "features": (
        "Features",
        "A two-dimensional view of the last hidden layer. Each panel is turned and scaled by itself: look "
        "at whether the forgotten samples keep a cluster of their own.",
    ),
}

# What is missing where a figure cannot be drawn, and what helps.
MISSING = {
    "trajectory": ("checks in the history of the run", "audit the purge.Result, or use purge report RUN"),
    "steps": ("projections and cosines in the history", "unlearn with the method purge"),
    "classes": ("accuracies by class", "audit with test data and metrics='standard'"),
    "destinations": ("destinations of the forget set", "audit with metrics='standard'"),
    "membership": ("membership attacks", "audit with test data of the forgotten classes"),
    "roc": ("curves of membership attacks", "audit with test data of the forgotten classes"),
    "robustness": ("treatments of the weights", "audit with metrics='standard'"),
    "relearn": ("relearning curves", "audit with metrics='standard'"),
    "features": ("a view of the features", "audit a model whose last layer can be found"),
}


def _absent(figure: str) -> MetricError:
    what, fix = MISSING[figure]
    return MetricError(f"{what} in this report", "none", fix)


# -- files ------------------------------------------------------------------------------------


def save_all(reports: Mapping[str, Report], folder: Path) -> list[Path]:
    """Write every figure that can be drawn; of several reports each into a folder of its own."""
    found = []
    for name, report in reports.items():
        into = folder / re.sub(r"[^\w.-]+", "_", name).strip("._") if len(reports) > 1 else folder
        into.mkdir(parents=True, exist_ok=True)
        for figure in FIGURES:
            try:
                found += save(draw(report, figure), into, figure)
            except MetricError:  # nothing to draw it from: the page says so
                continue
    if len(reports) > 1:
        found += save(comparison(reports), folder, "comparison")
    return found


# -- parts ------------------------------------------------------------------------------------


def _legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, fontsize=9, labelcolor=INK)


def _line(ax: Axes, at: float | None, words: str, scale: float = 1) -> None:
    """A limit of the run; nothing where it had none."""
    if at is not None:
        ax.axhline(scale * at, color=VERMILION, linestyle="--", linewidth=1.2, label=words)


def _history(report: Report) -> Mapping[str, Sequence[Any]]:
    return _curve(report, "audited", "history") or {}


def _curve(report: Report, model: str, name: str) -> Any:
    return ((report.get("curves") or {}).get(model) or {}).get(name)


def _relearned(report: Report, kind: str) -> dict[str, Mapping[str, Sequence[float]]]:
    curves = {model: (_curve(report, model, "relearn") or {}).get(kind) for model in MODELS}
    return {model: curve for model, curve in curves.items() if curve}


def _measured(history: Mapping[str, Sequence[Any]], name: str) -> tuple[list[float], list[float]]:
    """The steps at which something was measured, and what was."""
    column = history.get(name) or []
    at = (history.get("step") if column else None) or range(len(column))
    pairs = [(step, float(v)) for step, v in zip(at, column, strict=True) if v is not None]
    return [step for step, _ in pairs], [v for _, v in pairs]


def _value(report: Report, part: str, name: str) -> Mapping[str, Any] | None:
    """A value that is there, or None."""
    found = (report.get(part) or {}).get(name)
    return found if found is not None and found["value"] is not None else None


def _by_class(report: Report, model: str, metric: str) -> dict[int, float | None]:
    values = report["values" if model == "audited" else model] or {}
    return {
        int(k): v["value"]
        for name, v in values.items()
        for kind, _, k in [name.partition(".")]
        if kind == metric and k.isdigit()
    }


def _class(report: Report, number: int) -> str:
    """What a class is called."""
    names = report["info"].get("names") or []
    return plain(names[number] if 0 <= number < len(names) else str(number))


def _percent(values: Sequence[float]) -> list[float]:
    return [100 * v for v in values]
