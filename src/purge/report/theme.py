"""How every figure looks, and how it is written.

The colours are those of Okabe and Ito, which colour-blind people can tell apart; every series also has
its own marker, line or hatch, so that the figures survive a black-and-white printer.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from purge.core.files import atomically, below

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#1B1F24", "#7F868E")
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, INK, GREY = COLOURS
WIDTH = 7.2  # inches
NARROW = 4.2  # of the figures of a page: a phone shows their letters at nearly full size


class SeriesStyle(NamedTuple):
    """How one model is drawn in every figure."""

    words: str
    colour: str
    marker: str
    line: str
    hatch: str


MODELS = {
    "original": SeriesStyle("original", GREY, "^", ":", "//"),
    "audited": SeriesStyle("this model", BLUE, "o", "-", ""),
    "retrained": SeriesStyle("retrained", ORANGE, "s", "--", ".."),
}


class NotebookFigure(Figure):
    """A figure that a notebook displays, without pyplot and its global state."""

    def _repr_png_(self) -> bytes:
        return as_png(self)


def empty_axes(
    rows: int,
    columns: int,
    *,
    height: float,
    width: float = WIDTH,
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """A figure with empty axes in the common style."""
    fig = NotebookFigure(figsize=(width, height), layout="constrained")
    axes = list(fig.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).flat)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(INK)
        ax.tick_params(colors=INK, labelsize=9)
        ax.xaxis.label.set(color=INK, fontsize=9.5)
        ax.yaxis.label.set(color=INK, fontsize=9.5)
        ax.grid(True, color=GREY, alpha=0.25, linewidth=0.6)
        ax.set_axisbelow(True)
    return fig, axes


def legend_below(fig: Figure, ax: Axes) -> None:
    """Put the legend of one of the axes below all of them."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        most = 5 if fig.get_figwidth() > NARROW else 3
        columns = math.ceil(len(labels) / math.ceil(len(labels) / most))
        fig.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9,
            labelcolor=INK,
        )  # fmt: skip


def plain(words: str, most: int = 20) -> str:
    """Text of the user as a figure can show it: no formula, nothing unprintable, not too long."""
    shown = "".join(c if c.isprintable() else " " for c in words)
    return (shown if len(shown) <= most else shown[: most - 1] + "…").replace("$", r"\$")


# -- files ------------------------------------------------------------------------------------


def _written(figure: Figure, form: str, metadata: dict[str, Any] | None = None) -> bytes:
    """A figure as a file: text stays text, ids are the same each time, letters without a glyph no matter."""
    file, settings = io.BytesIO(), {"svg.fonttype": "none", "svg.hashsalt": "purge"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format=form, dpi=150 if form == "png" else "figure", metadata=metadata)
    return file.getvalue()


def as_png(figure: Figure) -> bytes:
    """A figure as PNG."""
    return _written(figure, "png")


def as_svg(figure: Figure) -> str:
    """A figure as SVG, without a date."""
    return _written(figure, "svg", {"Date": None, "Creator": None, "Format": None, "Type": None}).decode()


def as_inline_svg(figure: Figure, name: str, words: str) -> str:
    """A figure as an <svg> element for a page, without a background and in the page's own colours.

    Ids start with ``name``, because a page has several figures. Screen readers read ``words``.
    """
    figure.patch.set_alpha(0)
    for ax in figure.axes:
        ax.patch.set_alpha(0)
    svg = as_svg(figure)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, count=1, flags=re.S)  # it would apply to the whole page
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"(\.\d\d)\d{3,}", r"\1", svg)  # a hundredth of a point is enough
    for colour, page in ((INK, "currentColor"), (BLUE, "var(--blue)"), (VERMILION, "var(--vermilion)")):
        svg = svg.replace(colour.lower(), page)  # so that it follows the page's dark mode
    label = words.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and as SVG."""
    files = [below(folder, name, ending=ending) for ending in (".png", ".svg")]
    atomically(files[0], lambda p: p.write_bytes(as_png(figure)))
    atomically(files[1], lambda p: p.write_text(as_svg(figure), encoding="utf-8"))
    return files
