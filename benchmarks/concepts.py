"""The figures of docs/concepts, from real models: results/concepts.json and docs/images/concept_*.svg.

uv run python benchmarks/concepts.py            # two cores, no GPU, some minutes
uv run python benchmarks/concepts.py --draw     # draw the numbers that are there

Digits, a small ResNet. A class is forgotten for all figures but `membership`, where 100 of 400 training
images are: a model that has seen few images knows them by heart, which is what an attack looks for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from base_models import commit
from matplotlib.figure import Figure

import purge
from purge.core.files import write_json, write_text
from purge.demo import ASCENT_ON_DIGITS, MODEL, PAPER_ON_DIGITS
from purge.models.forward import logits
from purge.report import theme
from purge.result import environment
from purge.runs.make import fresh_model

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "concepts.json"
FIGURES = ROOT / "docs" / "images"
SEEDS = (0, 10, 20)
EPOCHS = 25
METHODS: dict[str, dict[str, Any]] = {
    "purge": {"check_every": 2},
    "purge-paper": {**PAPER_ON_DIGITS, "check_every": 2},
    "gradient-ascent": ASCENT_ON_DIGITS,
}
RECALIBRATED = ("retrained", "purge", "purge-paper", "gradient-ascent")
NEAR = ("original", "purge", "second retraining")
WIDTH = 5.6  # inches: on a phone, letters of wider figures are too small
FEW, FORGOTTEN = 400, 100  # training images of `membership`, and those of them that must go


def main() -> None:
    if "--draw" not in sys.argv:
        OUT.parent.mkdir(exist_ok=True)
        write_json(OUT, {"seeds": SEEDS, "commit": commit(), **environment(), **measured()})
    content = json.loads(OUT.read_text())
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        figure = draw(content)
        for ax in figure.axes:
            ax.title.set_fontsize(10)
        path = FIGURES / f"concept_{name}.svg"
        write_text(path, theme.as_svg(figure))
        print(path)


# -- the numbers ---------------------------------------------------------------------------------------


def measured(epochs: int = EPOCHS, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    """All that is drawn: steps of the first seed, and a row for each seed and model."""
    steps, rows = {}, []
    for seed in seeds:
        found, histories = a_class(seed, epochs)
        rows += [{"seed": seed, **row} for row in found]
        steps = steps or histories
    return {"steps": steps, "rows": rows, "losses": losses(seeds[0], 4 * epochs)}


def a_class(seed: int, epochs: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Class 0 forgotten by each method: what an audit finds beside two retrainings, and every step."""
    data, test = purge.load("digits")
    forget, retain = purge.split(data, classes=[0])
    models = {
        name: trained(part, seed + i, epochs)
        for i, (name, part) in enumerate(
            {"original": data, "retrained": retain, "second retraining": retain}.items()
        )
    }
    histories = {}
    for name, settings in METHODS.items():
        done = purge.unlearn(
            models["original"], forget, retain, method=name, seed=seed, progress=False, **settings
        )
        models[name] = done.model
        keys = ("step", "check_forget_accuracy", "check_retain_loss", "displacement_cosine")
        histories[name] = {key: [row.get(key) for row in done.history] for key in keys}
    rows = []
    for name, model in models.items():
        others = {} if name == "retrained" else {"retrained": models["retrained"]}
        report = purge.audit(
            model, forget, retain, test, seed=seed, progress=False,
            metrics=["fa_test", "ta_retain", "bn_recal", "agreement", "kl_retrain"], **others,
        )  # fmt: skip
        keys = ("fa_test", "ta_retain", "bn_recal.before", "bn_recal.after", "agreement", "kl_retrain")
        rows.append({"model": name, **{key: report[key].value for key in keys}})
    return rows, histories


def losses(seed: int, epochs: int) -> dict[str, Any]:
    """The loss of each forgotten and each unseen image, and how well an attack by loss tells them apart."""
    data, test = purge.load("digits")
    few = data.select(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:FEW])
    forget, retain = purge.split(few, indices=range(FORGOTTEN))
    original = trained(few, seed, epochs)
    done = purge.unlearn(original, forget, retain, test=test, seed=seed, progress=False, budget="close")
    models = {"original": original, "unlearned": done.model, "retrained": trained(retain, seed + 1, epochs)}
    found = {}
    for name, model in models.items():
        report = purge.audit(model, forget, retain, test, metrics=["mia_loss"], seed=seed, progress=False)
        value = report["mia_loss"]
        found[name] = {
            "forgotten": loss_of_each(model, forget), "unseen": loss_of_each(model, test),
            "mia_loss": value.value, "low": value.low, "high": value.high,
        }  # fmt: skip
    return found


def trained(data: purge.Images, seed: int, epochs: int) -> torch.nn.Module:
    return purge.train(
        fresh_model(MODEL, data, seed=seed), data, seed=seed, epochs=epochs, progress=False
    ).model


def loss_of_each(model: torch.nn.Module, data: purge.Images) -> list[float]:
    z, y = logits(model, data), data.labels
    return torch.nn.functional.cross_entropy(z.float(), y, reduction="none").tolist()


# -- the figures ---------------------------------------------------------------------------------------


def of(content: dict[str, Any], model: str, key: str) -> list[float]:
    """A number of a model, for each seed, in percent."""
    return [100 * row[key] for row in content["rows"] if row["model"] == model]


def forgetting(content: dict[str, Any]) -> Figure:
    """Accuracy on the forgotten images and loss on the retained ones, step by step."""
    fig, (left, right) = theme.empty_axes(1, 2, width=WIDTH, height=2.7)
    at = content["steps"]["purge"]
    checks = [i for i, value in enumerate(at["check_forget_accuracy"]) if value is not None]
    steps = [at["step"][i] for i in checks]
    left.plot(steps, [100 * at["check_forget_accuracy"][i] for i in checks], color=theme.BLUE, marker="o",
              markersize=3)  # fmt: skip
    left.set(xlabel="step", ylabel="accuracy (%)", title="images of the forgotten class", ylim=(-4, 104))
    right.plot(
        steps, [at["check_retain_loss"][i] for i in checks], color=theme.ORANGE, marker="s", markersize=3
    )
    right.set(xlabel="step", ylabel="loss", title="images that stay", ylim=(0, None))
    return fig


def floor(content: dict[str, Any]) -> Figure:
    """How far models are from a retraining, and how far another retraining is."""
    fig, (left, right) = theme.empty_axes(1, 2, width=WIDTH, height=2.5)
    for ax, key, scale, title in (
        (left, "agreement", 100, "same answer as retrained,\non forgotten images (%)"),
        (right, "kl_retrain", 1, "distance of probabilities\n(KL divergence)"),
    ):
        for i, name in enumerate(NEAR):
            found = [scale * row[key] for row in content["rows"] if row["model"] == name]
            colour = (theme.GREY, theme.BLUE, theme.ORANGE)[i]
            ax.barh(i, np.mean(found), color=colour, alpha=0.35, height=0.6)
            ax.plot(found, [i] * len(found), "o", color=colour, markersize=5)
        ax.set_yticks(range(len(NEAR)), NEAR if ax is left else [""] * len(NEAR))
        ax.set(title=title, xlim=(0, None))
        ax.invert_yaxis()
    return fig


def membership(content: dict[str, Any]) -> Figure:
    """Losses of forgotten and of unseen images under three models."""
    fig, axes = theme.empty_axes(1, 3, width=WIDTH, height=2.7, sharex=True)
    every = [x for m in content["losses"].values() for part in ("forgotten", "unseen") for x in m[part]]
    bins = np.linspace(np.log10(max(min(every), 1e-7)), np.log10(max(every)), 28)
    for ax, (name, found) in zip(axes, content["losses"].items(), strict=True):
        for part, colour, hatch in (("unseen", theme.GREY, "//"), ("forgotten", theme.BLUE, "")):
            values = np.log10(np.maximum(found[part], 1e-7))
            ax.hist(values, bins, weights=np.full(len(values), 100 / len(values)), color=colour, alpha=0.55,
                    hatch=hatch, label=part)  # fmt: skip
        ax.set(title=f"{name}\nattack: {found['mia_loss']:.2f}", xlabel="loss (log10)")
    top = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(0, top)
    axes[0].set_ylabel("share of images (%)")
    theme.legend_below(fig, axes[0])
    return fig


def recalibration(content: dict[str, Any]) -> Figure:
    """Accuracy on the forgotten class before and after BatchNorm saw retained images once."""
    fig, (ax,) = theme.empty_axes(1, 1, width=WIDTH, height=2.7)
    for i, name in enumerate(RECALIBRATED):
        before, after = of(content, name, "bn_recal.before"), of(content, name, "bn_recal.after")
        ax.barh(i - 0.19, np.mean(before), height=0.34, color=theme.GREY, label="before" if i == 0 else None)
        ax.barh(i + 0.19, np.mean(after), height=0.34, color=theme.VERMILION, hatch="//",
                label="after one pass" if i == 0 else None)  # fmt: skip
        for values, side in ((before, -0.19), (after, 0.19)):
            ax.plot(values, [i + side] * len(values), "o", color=theme.INK, markersize=3)
            ax.annotate(f"{np.mean(values):.0f} %", (max(values), i + side), (5, 0), va="center", fontsize=8,
                        textcoords="offset points")  # fmt: skip
    ax.set_yticks(range(len(RECALIBRATED)), RECALIBRATED)
    ax.set(xlabel="accuracy on unseen images of the forgotten class (%)", xlim=(0, 118))
    ax.invert_yaxis()
    ax.legend(frameon=False, loc="upper right", fontsize=8)
    return fig


def guarantee(content: dict[str, Any]) -> Figure:
    """The cosine of every step with descent on the retain loss of its batch."""
    fig, axes = theme.empty_axes(1, 2, width=WIDTH, height=2.7, sharey=True)
    for ax, name in zip(axes, ("purge-paper", "purge"), strict=True):
        at = content["steps"][name]
        steps = [(s, c) for s, c in zip(at["step"], at["displacement_cosine"], strict=True) if c is not None]
        for raising, colour, mark in ((False, theme.BLUE, "o"), (True, theme.VERMILION, "x")):
            points = [(s, c) for s, c in steps if (c < 0) == raising]
            if points:
                ax.plot(*zip(*points, strict=True), mark, color=colour, markersize=4)
        raised = sum(c < 0 for _, c in steps)
        ax.axhline(0, color=theme.INK, linewidth=0.8)
        ax.set(
            title=f"{name}: {raised} of {len(steps)} steps\nraise the retain loss",
            xlabel="step",
        )
    axes[0].set_ylabel("cosine with descent")
    return fig


DRAWINGS = {
    "forgetting": forgetting,
    "floor": floor,
    "membership": membership,
    "recalibration": recalibration,
    "guarantee": guarantee,
}


if __name__ == "__main__":
    main()
