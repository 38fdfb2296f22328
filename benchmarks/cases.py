"""What the benchmarks of many requests share: data with a network and a recipe, and one request measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from base_models import commit
from torch import Tensor, nn

import purge
from purge.auditor import Auditor
from purge.core.files import write_json
from purge.data.catalog import DATASETS
from purge.engine.seeding import seeded
from purge.methods.registry import METHODS
from purge.result import environment
from purge.runs.folder import build_for

SMALL = 16  # images below this size are for a small convolutional network
STEPS = 8  # at least so many steps in an epoch
PER_EPOCH = 0.9  # seconds of an epoch of CIFAR-10 on one H200, for an estimate
Methods = Mapping[str, tuple[str, Mapping[str, Any]]]  # called → the method and its settings
Found = dict[str, dict[str, Any]]  # model → its numbers
OURS: Methods = {"purge": ("purge", {}), "purge, close": ("purge", {"budget": "close"})}
RETRAINED, AGAIN = "Retrain", "second retraining"


@dataclass(frozen=True)
class Setup:
    """Data, and how models are trained on it."""

    data: str
    train: purge.Images
    test: purge.Images
    device: str
    epochs: int
    trial: bool = False  # a small network on few images, only to try a script

    def fresh(self, seed: int) -> nn.Module:
        """An untrained network: ResNet-18, or a small one with BatchNorm for small images."""
        with seeded(seed, torch.device("cpu")):
            if self.trial or self.train.shape[1] < SMALL:
                return small_network(self.train.shape[0])
            return build_for("resnet18", self.train)

    @property
    def recipe(self) -> dict[str, Any]:
        """The data set's own, for so many epochs."""
        return {**DATASETS[self.data].recipe, "epochs": self.epochs}

    def trained(self, data: purge.Images, seed: int) -> purge.Result:
        """A model trained on some of the data."""
        recipe = {"batch_size": 128, **self.recipe}
        recipe["batch_size"] = max(2, min(recipe["batch_size"], len(data) // STEPS))
        return purge.train(self.fresh(seed), data, seed=seed, device=self.device, progress=False, **recipe)

    def unlearned(
        self,
        model: nn.Module,
        parts: tuple[purge.Images, purge.Images],
        method: str,
        settings: Mapping[str, Any],
    ) -> purge.Result:
        """The result of a method, which is told how the model was trained if it can use that."""
        how = self.recipe.get("augment") if METHODS[method].method.augments else None
        return purge.unlearn(
            model, *parts, test=self.test, method=method, device=self.device, augment=how,
            check=not self.trial, progress=False, **settings,
        )  # fmt: skip

    def measured(
        self,
        train: purge.Images,
        rows: Tensor,
        original: purge.Result,
        methods: Methods,
        metrics: list[str],
        seed: int,
        **known: Any,
    ) -> Found:
        """The numbers of the original, of each method and of two retrainings for a request: some rows.

        ``mia_gap`` is the distance of ``mia_loss`` to Retrain's. ``known``: truth and triggered, of an audit.
        """
        forget, retain = purge.split(train, indices=rows)
        again = [self.trained(retain, seed + i) for i in (1, 2)]
        auditor = Auditor(
            forget, retain, self.test, original=original, retrained=again, device=self.device,
            check=not self.trial, **known,
        )  # fmt: skip
        found: Found = {"original": {}}
        for called, (method, settings) in methods.items():
            result = self.unlearned(original.model, (forget, retain), method, settings)
            report = auditor.audit(result, metrics=metrics, progress=False)
            found[called] = {**_numbers(report.values), "seconds": result.seconds, "steps": result.steps}
        found["original"] = _numbers(report.original)
        found[RETRAINED] = {**_numbers(report.retrained), "seconds": again[0].seconds}
        found[AGAIN] = {**_numbers(report.floor), "seconds": again[1].seconds}
        for numbers in found.values():
            if "mia_loss" in metrics:
                numbers["mia_gap"] = abs(numbers["mia_loss"] - report.retrained["mia_loss"].value)
        return found


def small_network(channels: int) -> nn.Module:
    """Two convolutions with BatchNorm for small images; it can learn wrong labels by heart."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def _numbers(values: Mapping[str, purge.Value]) -> dict[str, Any]:
    return {name: value.value for name, value in values.items()}


def changed(data: purge.Images, pixels: Tensor, labels: Tensor) -> purge.Images:
    """Images of other pixels or labels, prepared as the given ones are."""
    return purge.Images(
        pixels, labels, mean=data.mean, std=data.std, size=data.size, channels=data.channels, names=data.names
    )


def mislabelled(data: purge.Images, share: float, seed: int) -> tuple[purge.Images, Tensor]:
    """The same images with another label, each equally likely, on a share of them; and which these are."""
    g = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(data), generator=g)[: round(share * len(data))].sort().values
    labels, classes = data.labels.clone(), len(data.names)
    labels[rows] = (labels[rows] + torch.randint(1, classes, (len(rows),), generator=g)) % classes
    return changed(data, data.pixels, labels), rows


# -- the command and its file --------------------------------------------------------------------


def options(about: str, out: Path, *, epochs: int) -> argparse.ArgumentParser:
    """The options that each of them has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--seeds", type=int, help="how many; default: 3, or 1 for a ResNet-18")
    parser.add_argument(
        "--epochs", type=int, help=f"of each training; {epochs} for digits, else the recipe's"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="ROW", help="some rows; those of the others stay in the file"
    )
    parser.add_argument(
        "--samples", type=int, help="only so many images and a small network, to try the script"
    )
    parser.add_argument("--plan", action="store_true", help="say how many models would be trained, no more")
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    parser.set_defaults(small_epochs=epochs)
    return parser


def prepare(asked: argparse.Namespace) -> Setup:
    """The data that was asked for, on the device."""
    parts = purge.load(asked.data, data_dir=asked.data_dir, progress=False)
    if asked.samples:
        g = torch.Generator().manual_seed(0)
        parts = tuple(part.select(torch.randperm(len(part), generator=g)[: asked.samples]) for part in parts)
    train, test = (part.to(asked.device) for part in parts)
    small = train.shape[1] < SMALL
    epochs = asked.epochs or (asked.small_epochs if small else DATASETS[asked.data].recipe["epochs"])
    asked.seeds = asked.seeds or (3 if small else 1)
    if small:
        torch.set_num_threads(1)  # more do not help so small a network
    return Setup(asked.data, train, test, asked.device, epochs, trial=bool(asked.samples))


def plan(setup: Setup, trainings: int) -> str:
    """What a call costs."""
    said = f"{trainings} trainings of {setup.epochs} epochs"
    if setup.train.shape[1] < SMALL:
        return said
    return f"{said}: at most {trainings * setup.epochs * PER_EPOCH / 60:.0f} minutes on one H200"


class File:
    """The JSON of a benchmark. Each call is a run in it, whose rows take the place of earlier ones."""

    def __init__(self, path: Path, setup: Setup) -> None:
        self.path = path
        self.before = json.loads(path.read_text())["runs"] if path.is_file() else []
        self.run = {
            "data": setup.data, "epochs": setup.epochs, "train": len(setup.train), "commit": commit(),
            **environment(), "rows": [],
        }  # fmt: skip

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row and write the file: a call that is cut off keeps what it has."""
        self.run["rows"].append(rounded(row))
        new = {(self.run["data"], r["case"], r["seed"]) for r in self.run["rows"]}
        old = [{**run, "rows": [r for r in run["rows"] if (run["data"], r["case"], r["seed"]) not in new]}
               for run in self.before]  # fmt: skip
        write_json(self.path, {"runs": [*(run for run in old if run["rows"]), self.run]})


def rounded(value: Any) -> Any:
    """Five digits are enough for a file that is read by people too."""
    if isinstance(value, Mapping):
        return {key: rounded(v) for key, v in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def rows_by_case(content: Mapping[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of all seeds of each case: (data, case) → rows."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in content["runs"]:
        for row in run["rows"]:
            found.setdefault((run["data"], row["case"]), []).append(row)
    return found


def mean(rows: Iterable[Mapping[str, Any]], model: str, key: str) -> float | None:
    """The mean over seeds of a number of a model; None if a seed has none."""
    values = [row["models"].get(model, {}).get(key) for row in rows]
    return None if not values or None in values else sum(values) / len(values)
