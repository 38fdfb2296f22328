"""What the cost of forgetting grows with: results/scaling.json, docs/scaling.svg and docs/scaling.png.

uv run python benchmarks/scaling.py --data-dir DIR                # CIFAR-10; needs a GPU; minutes
uv run python benchmarks/scaling.py --data-dir DIR retain batch   # some of it; the other rows stay
uv run python benchmarks/scaling.py --table                       # print the tables
uv run python benchmarks/scaling.py --plot                        # draw the figure

Whole calls of `purge.unlearn` by the preset `purge`, made to take 40 steps and to end for no reason
before that; its checks are as usual. One thing is varied at a time, around ResNet-18 at 32×32, class 0,
and 128 samples of each set per step. Weights are untrained: only the cost is looked at. Median of three
calls after a warm-up.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from base_models import commit
from baselines import FORGET
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from speed import measured
from torch import nn

import purge
from purge.core.files import write_json
from purge.engine.seeding import seeded
from purge.report.theme import BLUE, GREEN, INK, ORANGE, PURPLE, empty_axes, save
from purge.result import environment
from purge.runs.folder import build_for

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "scaling.json"
STEPS = {"steps": 40}
RUNS = 3
AXES = {
    "retain": ("retained samples", BLUE, "o"),
    "forget": ("samples to forget", ORANGE, "s"),
    "batch": ("batch, of each set", GREEN, "D"),
    "model": ("model", PURPLE, ""),
}
RETAIN = (1 / 5, 1, 10)  # of the retain set
FORGOTTEN = (1 / 100, 1 / 10, 1)  # of the class; then three classes
BATCHES = (32, 64, 128, 256, 512)
MODELS = (
    "resnet18@32", "resnet50@32", "resnet18@224", "resnet50@224", "timm:vit_base_patch16_224@224",
)  # fmt: skip


class Case(NamedTuple):
    """One row: what is varied, its value, and all that a call needs."""

    axis: str
    value: int | str
    model: str
    forget: purge.Images
    retain: purge.Images
    settings: dict[str, Any]


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    """What is to be measured, in order; images of another size are loaded when it is their turn."""
    train = loaded(asked, None)
    forget, retain = purge.split(train, classes=[FORGET])
    name = asked.models[0].partition("@")[0]
    if "retain" in asked.axes:
        for share in RETAIN:
            part = tiled(retain, round(share)) if share > 1 else some(retain, share)
            yield Case("retain", len(part), name, forget, part, {})
    if "forget" in asked.axes:
        for share in FORGOTTEN:
            part = some(forget, share)
            yield Case("forget", len(part), name, part, retain, {})
        three, rest = purge.split(train, classes=[FORGET, FORGET + 1, FORGET + 2])
        yield Case("forget", len(three), name, three, rest, {})
    for size in BATCHES if "batch" in asked.axes else ():
        yield Case("batch", size, name, forget, retain, {"batch_size": size})
    for model in asked.models if "model" in asked.axes else ():
        name, _, size = model.rpartition("@")
        sized = loaded(asked, int(size))
        yield Case("model", model, name, *purge.split(sized, classes=[FORGET]), {})


def loaded(asked: argparse.Namespace, size: int | None) -> purge.Images:
    train, _ = purge.load(asked.data, data_dir=asked.data_dir, size=size, progress=False)
    return train.to(asked.device)


def some(images: purge.Images, share: float) -> purge.Images:
    """A share of the images, drawn at random."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images.select(order[: max(1, round(share * len(images)))])


def tiled(images: purge.Images, times: int) -> purge.Images:
    """Each image so many times, every copy counting as an image of its own."""
    return purge.Images(
        images.pixels.repeat(times, 1, 1, 1), images.labels.repeat(times), mean=images.mean, std=images.std,
        size=images.size, channels=images.channels, names=images.names,
    )  # fmt: skip


def untrained(name: str, images: purge.Images) -> tuple[nn.Module, str]:
    """A model, and what it is called; without timm, its ViT-B/16 is torchvision's."""
    with seeded(0, torch.device("cpu")):
        if name == "timm:vit_base_patch16_224" and find_spec("timm") is None:
            from torchvision.models import vit_b_16

            return vit_b_16(num_classes=len(images.names)), "torchvision:vit_b_16"
        return build_for(name, images), name


def row(case: Case, device: str) -> dict[str, Any]:
    model, called = untrained(case.model, case.forget)
    model = model.to(device).eval()
    about = {
        "axis": case.axis, "value": case.value, "model": called, "size": case.forget.shape[1],
        "parameters": sum(p.numel() for p in model.parameters()), "forget": len(case.forget),
        "retain": len(case.retain), "commit": commit(),
    }  # fmt: skip

    def call() -> purge.Result:
        return purge.unlearn(model, case.forget, case.retain, progress=False, **STEPS, **case.settings)

    try:
        _, facts = measured(call, RUNS)
    except (purge.PurgeError, torch.OutOfMemoryError) as error:
        return {**about, "error": str(error).splitlines()[0]}
    return {**about, **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("axes", nargs="*", help=f"what to vary: {', '.join(AXES)}; default: each of them")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--models", nargs="+", default=MODELS, help="NAME@SIZE; the first in all other axes")
    parser.add_argument("--table", action="store_true", help="print the tables of what was measured")
    parser.add_argument("--plot", action="store_true", help="draw what was measured")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the figure goes")
    asked = parser.parse_args()
    if wrong := set(asked.axes) - set(AXES):
        parser.error(f"expected any of {', '.join(AXES)} but got {', '.join(sorted(wrong))}")
    asked.axes = asked.axes or list(AXES)
    if not (asked.table or asked.plot):
        measure(asked)
    content = json.loads(asked.out.read_text())
    if asked.plot:
        print(*save(figure(content), asked.docs, "scaling"), sep="\n")
    else:
        print(table(content))


def measure(asked: argparse.Namespace) -> None:
    old = json.loads(asked.out.read_text())["rows"] if asked.out.is_file() else []
    rows = [r for r in old if r["axis"] not in asked.axes]
    for case in cases(asked):
        rows.append(row(case, asked.device))
        print({k: v for k, v in rows[-1].items() if k != "seconds_all"}, flush=True)
        about = {"data": asked.data, "class": FORGET, "settings": STEPS, "commit": commit()}
        ordered = sorted(rows, key=lambda r: list(AXES).index(r["axis"]))
        write_json(asked.out, {**about, **environment(), "rows": ordered})


def table(content: dict) -> str:
    """A Markdown table per thing that was varied; times are those of the row before."""
    parts = []
    for axis, (words, _, _) in AXES.items():
        lines = [f"| {words} | seconds | range | to the row before | memory (GB) |", "|---|---|---|---|---|"]
        before = None
        for r in (r for r in content["rows"] if r["axis"] == axis):
            called = label(r) if axis == "model" else f"{r['value']:,}"
            if "error" in r:
                lines.append(f"| {called} | {r['error']} |  |  |  |")
                continue
            each, held = r["seconds_all"], r["memory"]
            growth = "–" if before is None or axis == "model" else f"{r['seconds'] / before:.2f} ×"
            memory = f"{held['allocated'] / 1e9:.2f}" if held else "–"
            spread = f"{min(each):.2f}–{max(each):.2f}"
            lines.append(f"| {called} | {r['seconds']:.2f} | {spread} | {growth} | {memory} |")
            before = r["seconds"]
        parts.append("\n".join(lines) if len(lines) > 2 else "")
    return "\n\n".join(filter(None, parts))


def label(r: dict[str, Any]) -> str:
    known = {"timm:vit_base_patch16_224": "ViT-B/16", "torchvision:vit_b_16": "ViT-B/16"}
    return f"{known.get(r['model'], r['model'].replace('resnet', 'ResNet-'))}, {r['size']}×{r['size']}"


# -- the figure -----------------------------------------------------------------------------------


def figure(content: dict) -> Figure:
    """Four panels: seconds against each thing that was varied, on a log axis; models as bars."""
    fig, axes = empty_axes(2, 2, height=4.6)
    for ax, axis in zip(axes, AXES, strict=True):
        rows = [r for r in content["rows"] if r["axis"] == axis and "error" not in r]
        (bars if axis == "model" else line)(ax, axis, rows)
    return fig


def line(ax: Axes, axis: str, rows: list[dict[str, Any]]) -> None:
    words, colour, marker = AXES[axis]
    x, seconds = [r["value"] for r in rows], [r["seconds"] for r in rows]
    ax.plot(x, seconds, color=colour, marker=marker, markersize=5, markeredgecolor=INK, markeredgewidth=0.5)
    ax.set(xscale="log", xlabel=words, ylabel="seconds", ylim=(0, 1.25 * max(seconds, default=1)))
    ax.xaxis.set_major_locator(FixedLocator(x))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.tick_params(axis="x", labelsize=8)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{round(v):,}"))


def bars(ax: Axes, axis: str, rows: list[dict[str, Any]]) -> None:
    seconds = [r["seconds"] for r in rows]
    ax.barh(range(len(rows)), seconds, 0.6, color=AXES[axis][1], edgecolor=INK, linewidth=0.5)
    for at, s in enumerate(seconds):
        ax.annotate(
            f"{s:.2g}", (s, at), (3, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK
        )
    ax.set_yticks(range(len(rows)), [label(r) for r in rows])
    ax.invert_yaxis()
    low, high = min(seconds, default=0.1), max(seconds, default=1)
    ax.set(xscale="log", xlabel="seconds", xlim=(10 ** math.floor(math.log10(low)), 2 * high))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


if __name__ == "__main__":
    main()
