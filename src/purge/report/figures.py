"""Figures of an audit, drawn from plain dicts; nothing is measured here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from purge.core.errors import MetricError, did_you_mean
from purge.report import theme
from purge.report.overview import UNTREATED, draw_dot, draw_rows, rows_there
from purge.report.run_figures import percent, steps, trajectory
from purge.report.tables import curves, rows_of
from purge.report.theme import MODELS, SeriesStyle, empty_axes, legend_below, plain, save
from purge.verdict.numbers import Numbers, Report, scaled

MOST_CLASSES = 20  # more bars than this cannot be read
MARKERS, LINES = "os^DvXP*<>hdp", ("-", "--", "-.", ":")
RASTER = 2000  # with more points than this a scatter is embedded as an image, to keep the page small
UNKNOWN = SeriesStyle("", theme.GREY, "", "-", "")  # of a curve that no metric of the report says it leaves


def looks(report: Report) -> dict[str, SeriesStyle]:
    """How each attack's curve is drawn, however many there are: no two have the same colour and marker."""
    n = len(theme.COLOURS)
    return {
        key: SeriesStyle(words, theme.COLOURS[i % n], MARKERS[(i + i // n) % len(MARKERS)], LINES[i % 4], "")
        for i, (key, words) in enumerate(curves(report).items())
    }


# -- attacks ----------------------------------------------------------------------------------


def roc(report: Report) -> Figure | None:
    """The forgotten samples that an attack finds, at each share of unseen samples it wrongly accuses.

    The axes are logarithmic: at the left edge an accusation would be believed.
    """
    panels = {m: attacks for m in ("audited", "retrained") if (attacks := Numbers(report).curve(m, "roc"))}
    if "audited" not in panels:
        return None
    attack = Numbers(report).get("mia_loss")  # axes begin at or below one false alarm among unseen samples
    unseen = (attack.n or 0) - (report["info"].get("forget_samples") or 0) if attack else 0
    rates = [v for attacks in panels.values() for curve in attacks.values() for v in curve["fpr"] if v > 0]
    least = 1 / unseen if unseen > 0 else min(rates, default=1e-3)
    lowest, look_of = min(1e-1, float(10 ** math.floor(math.log10(least)))), looks(report)
    fig, axes = _side_by_side([MODELS[m].words for m in panels], height=3.4, sharey=True)
    for ax, attacks in zip(axes, panels.values(), strict=True):
        for signal, curve in attacks.items():
            look = look_of.get(signal) or UNKNOWN._replace(words=signal)
            x, y = ([max(v, lowest) for v in curve[key]] for key in ("fpr", "tpr"))
            (line,) = ax.plot(x, y, color=look.colour, linestyle=look.line, linewidth=1.4, label=look.words)
            line.set(marker=look.marker, markersize=4, markevery=max(1, len(x) // 6))
        ax.plot(
            [lowest, 1], [lowest, 1], color=theme.INK, linewidth=0.8, linestyle=(0, (1, 3)), label="guessing"
        )
        ax.set(xscale="log", yscale="log", xlim=(lowest, 1), ylim=(lowest, 1))
        for axis in (ax.xaxis, ax.yaxis):  # a log scale sets its own formatters
            axis.set_major_locator(LogLocator(numticks=6))
            axis.set_major_formatter(FuncFormatter(lambda v, _: f"{scaled(v, 'share'):g}"))
            axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
        ax.set_xlabel("unseen samples\nwrongly accused (%)")
    axes[0].set_ylabel("forgotten samples found (%)")
    legend_below(fig, axes[0])
    return fig


def membership(report: Report) -> Figure | None:
    """How well each attack tells forgotten samples from unseen ones, with 95 % intervals.

    0.5 is guessing; the aim is to be where the retrained model is.
    """
    fig = _dots(report, rows_of(report, "membership"), "AUROC (0.5: guessing)")
    if fig is not None:
        fig.axes[0].axvline(0.5, color=theme.INK, linewidth=0.8, linestyle=(0, (1, 3)))
    return fig


def robustness(report: Report) -> Figure | None:
    """Accuracy on what was forgotten after the weights were treated as deployed models are, or attacked.

    Training on a few forgotten samples or refitting the last layer brings it back in any model: only a
    difference from the retrained model counts.
    """
    rows = rows_of(report, "robustness")
    treated = [name for name in rows if name != UNTREATED]
    return _dots(report, rows, "accuracy") if Numbers(report).beside(treated) else None


def _dots(report: Report, rows: Mapping[str, str], label: str) -> Figure | None:
    """One row per value: this model beside the retrained one."""
    there = rows_there(report, rows)
    if not there:
        return None
    lines = sum(1 + words.count("\n") for words in there.values())
    fig, (ax,) = empty_axes(1, 1, height=1.2 + 0.15 * (len(there) + lines), width=theme.NARROW)
    draw_rows(ax, report, there, ("audited", "retrained"), label)
    legend_below(fig, ax)
    return fig


def relearn(report: Report) -> Figure | None:
    """How quickly what was forgotten comes back when the models are trained further.

    A model that really forgot needs as long as the retrained one.
    """
    kinds = {"few": "a few forgotten samples\namong retained data", "retain": "retained data alone"}
    curves = {
        kind: {m: curve for m in MODELS if (curve := Numbers(report).curve(m, "relearn").get(kind))}
        for kind in kinds
    }
    drawn = {kind: of for kind, of in curves.items() if "audited" in of}
    if not drawn:
        return None
    fig, axes = _side_by_side([kinds[kind] for kind in drawn], height=3.2, sharey=True)
    for ax, of in zip(axes, drawn.values(), strict=True):
        for model, curve in of.items():
            look = MODELS[model]
            ax.plot(
                curve["step"], percent(curve["forget_accuracy"]), color=look.colour, marker=look.marker,
                linestyle=look.line, markersize=4, label=look.words,
            )  # fmt: skip
        ax.set(xlabel="step of training", ylim=(-3, 103))
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes[0].set_ylabel("accuracy on what was\nforgotten (%)")
    legend_below(fig, axes[0])
    return fig


def _side_by_side(
    titles: Sequence[str], *, height: float, above: float = 0.0, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """Panels with a title each, two in a row."""
    rows, columns = math.ceil(len(titles) / 2), min(2, len(titles))
    fig, axes = empty_axes(rows, columns, height=height * rows + above, width=theme.NARROW, sharey=sharey)
    for spare in axes[len(titles) :]:
        spare.remove()
    axes = axes[: len(titles)]
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, color=theme.INK, fontsize=9.5)
    return fig, axes


# -- classes ----------------------------------------------------------------------------------


def classes(report: Report) -> Figure | None:
    """Accuracy on test data, by class: the original, this and the retrained model."""
    return _bars(report, "class_accuracy", ("original", "audited", "retrained"), "accuracy (%)")


def destinations(report: Report) -> Figure | None:
    """Which classes the forgotten samples are taken for now.

    A model that never saw them has its own view of them; the closer the bars, the less this model stands
    out.
    """
    return _bars(report, "destinations", ("audited", "retrained"), "share of the\nforget set (%)")


def _bars(report: Report, metric: str, models: Sequence[str], label: str) -> Figure | None:
    """A group of bars per class, one bar per model; of many classes, those with the most to tell."""
    numbers, part_of = Numbers(report), {"audited": "values"}
    bars = {
        m: {k: v.value for k, v in of.items()}
        for m in models
        if (of := numbers.by_class(part_of.get(m, m), metric))
    }
    if "audited" not in bars:
        return None
    forgotten = set(report["info"].get("forget_classes") or [])
    every, there = _classes_to_show(bars, forgotten, metric)
    words = [_class(report, k) for k in there]
    longest = max(map(len, words))
    tight = longest * len(words) > 45 or (len(words) > 6 and len(forgotten & set(there)) > 1)
    fig, (ax,) = empty_axes(1, 1, height=3.1 + 0.07 * (longest + 12) * tight, width=theme.NARROW)
    width = 0.8 / len(bars)
    for i, (model, shares) in enumerate(bars.items()):
        look = MODELS[model]
        at = [j + (i - (len(bars) - 1) / 2) * width for j in range(len(there))]
        ax.bar(
            at, percent([shares.get(k, 0.0) for k in there]), width, color=look.colour, hatch=look.hatch,
            label=look.words, edgecolor=theme.INK, linewidth=0.5,
        )  # fmt: skip
    mark, turned, end = (" (forgotten)", 60, "right") if tight else ("\n(forgotten)", 0, "center")
    words = [word + mark * (k in forgotten) for k, word in zip(there, words, strict=True)]
    ax.set_xticks(range(len(there)), words, rotation=turned, ha=end)
    if len(every) > len(there):
        note = f"{len(there)} of {len(every)} classes: the forgotten ones\nand those that changed most"
        ax.set_xlabel(note)
    ax.set(ylabel=label, ylim=(0, 103))
    legend_below(fig, ax)
    return fig


def _classes_to_show(
    bars: Mapping[str, Mapping[int, float]], forgotten: set[int], metric: str
) -> tuple[list[int], list[int]]:
    """All classes, and those with the most to tell: by their share, or by how far their accuracy moved."""

    def news(k: int) -> float:
        after = bars["audited"].get(k, 0.0)
        others = [shares.get(k, 0.0) for model, shares in bars.items() if model != "audited"]
        if metric == "destinations" or not others:
            return max([after, *others])
        return max(abs(after - other) for other in others)

    every = sorted({k for shares in bars.values() for k in shares})
    by_news = sorted(every, key=lambda k: (k not in forgotten, -news(k)))
    return every, sorted(by_news[:MOST_CLASSES])


def features(report: Report) -> Figure | None:
    """A two-dimensional view of the last hidden layer.

    Each panel is rotated and scaled on its own: look at whether the forgotten samples keep a cluster of
    their own.
    """
    views = {m: c for m in MODELS if (c := Numbers(report).curve(m, "features"))}
    if "audited" not in views:
        return None
    fig, axes = _side_by_side([MODELS[m].words for m in views], height=2.4)
    palette = [colour for colour in theme.COLOURS if colour not in (theme.VERMILION, theme.INK)]
    for ax, view in zip(axes, views.values(), strict=True):
        clouds: dict[int, list[tuple[float, float]]] = {}  # by class; −1: the forgotten samples
        for x, y, label, forgot in zip(view["x"], view["y"], view["label"], view["forgotten"], strict=True):
            clouds.setdefault(-1 if forgot else label, []).append((x, y))
        forgotten = clouds.pop(-1, [])
        crowd = len(view["x"]) > RASTER
        for label, cloud in sorted(clouds.items()):
            x, y = zip(*cloud, strict=True)
            ax.scatter(
                x, y, c=palette[int(label) % len(palette)], marker=".", s=14, alpha=0.55, rasterized=crowd
            )
            if len(clouds) <= MOST_CLASSES:
                middle = tuple(sorted(axis)[len(cloud) // 2] for axis in (x, y))
                ax.annotate(
                    _class(report, label), middle, ha="center", va="center", fontsize=8, color=theme.INK
                )
        x, y = zip(*forgotten, strict=True) if forgotten else ((), ())
        ax.scatter(x, y, c=theme.VERMILION, marker="x", s=14, alpha=0.9, label="forgotten", rasterized=crowd)
        ax.set(xticks=[], yticks=[])
    legend_below(fig, axes[0])
    return fig


# -- all of them ------------------------------------------------------------------------------


class Plot(NamedTuple):
    """A figure by name: how it is drawn, its title, what it needs, and how to get that."""

    draw: Callable[[Report], Figure | None]  # None: the report has nothing to draw it from
    title: str
    needs: str
    fix: str

    @property
    def caption(self) -> str:
        """What it shows, also for people who cannot see it."""
        return " ".join((self.draw.__doc__ or "").split())


_STANDARD, _TEST = "audit with metrics='standard'", "audit with test data of the forgotten classes"
PLOTS = {
    "trajectory": Plot(trajectory, "The run", "checks in the history of the run",
                       "audit the purge.Result, or use purge report RUN"),
    "steps": Plot(steps, "The steps", "projections and cosines in the history",
                  "unlearn with the method purge"),
    "classes": Plot(classes, "Classes", "accuracies by class",
                    "audit with test data and metrics='standard'"),
    "destinations": Plot(destinations, "Destinations", "destinations of the forget set", _STANDARD),
    "membership": Plot(membership, "Membership attacks", "membership attacks", _TEST),
    "roc": Plot(roc, "Membership attacks with few false alarms", "curves of membership attacks", _TEST),
    "robustness": Plot(robustness, "Robustness", "treatments of the weights", _STANDARD),
    "relearn": Plot(relearn, "Relearning", "relearning curves", _STANDARD),
    "features": Plot(features, "Features", "a view of the features",
                     "audit a model whose last layer can be found"),
}  # fmt: skip


def draw(report: Report, name: str) -> Figure:
    """The figure of that name; an error if the report has nothing to draw it from."""
    if name not in PLOTS:
        raise MetricError("the name of a figure", repr(name), did_you_mean(name, PLOTS))
    figure = PLOTS[name].draw(report)
    if figure is None:
        raise MetricError(f"{PLOTS[name].needs} in this report", "none", PLOTS[name].fix)
    return figure


def save_all(reports: Mapping[str, Report], folder: Path) -> list[Path]:
    """Write every figure that can be drawn; several reports get a folder each."""
    files = []
    for name, report in reports.items():
        into = folder / re.sub(r"[^\w.-]+", "_", name).strip("._") if len(reports) > 1 else folder
        into.mkdir(parents=True, exist_ok=True)
        for figure, plot in PLOTS.items():
            if (drawn := plot.draw(report)) is not None:
                files += save(drawn, into, figure)
    if len(reports) > 1:
        files += save(comparison(reports), folder, "comparison")
    return files


def comparison(reports: Mapping[str, Report]) -> Figure:
    """The main numbers of several runs, one row per run, with intervals and the retrained model's."""
    runs = [Numbers(report) for report in reports.values()]
    rows = {name: words for of in runs for name, words in rows_of(of.report, "runs").items()}
    there = {name: v.unit for name in rows for of in runs if (v := of.get(name))}
    if not there:
        raise MetricError("one of the main values in these reports", "none", "audit with metrics='standard'")
    height = 1.2 + 0.34 * len(reports)
    fig, axes = _side_by_side([""] * len(there), height=height, above=0.3, sharey=True)
    for ax, (name, unit) in zip(axes, there.items(), strict=True):
        for i, of in enumerate(runs):
            draw_dot(ax, of.get(name), "audited", 0.12 - i)
            draw_dot(ax, of.get(name, "retrained"), "retrained", -0.12 - i)
        ax.set_xlabel(rows[name] + " (%)" * (unit == "share"), fontsize=8.5)
        ax.set_ylim(-len(reports) + 0.4, 0.6)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        if name == "retrain_gap":
            ax.set_xlim(0, 1.1 * ax.get_xlim()[1])
    axes[0].set_yticks([-i for i in range(len(reports))], [plain(run) for run in reports])
    legend_below(fig, axes[0])
    return fig


def _class(report: Report, number: int) -> str:
    """The name of a class."""
    names = report["info"].get("names") or []
    return plain(names[number] if 0 <= number < len(names) else str(number))
