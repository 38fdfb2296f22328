"""What several ranks do and one rank does too: the results must be equal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import purge
import purge.api
from purge.methods.purge import restart
from tests.nets import NETWORKS

SAMPLES = 301  # no batch of these divides evenly

FAMILY: dict[str, dict[str, Any]] = {
    "purge": {"steps": 9, "batch_size": 33},
    "purge-close": {"steps": 8, "batch_size": 33},
    "purge-pull": {"min_steps": 5, "max_steps": 5, "batch_size": 31},
    "purge-paper": {"epochs": 2, "batch_size": 17},
}
SHORT = {"epochs": 1, "batch_size": 61}
OTHERS: dict[str, dict[str, Any]] = {
    "retrain": {"epochs": 1, "batch_size": 47},
    "unsir": {"noise_steps": 2, "min_steps": 4},
    "sfron": {"steps": 4, "batch_size": 31},
    "rum": {"methods": "none, finetune epochs=1, salun epochs=1"},
    "scrub": {**SHORT, "max_steps": 1},
    "scrub-small": {**SHORT, "max_steps": 1},
    "scrub-r": {**SHORT, "max_steps": 1},
    "pull of all opinions": {
        "min_steps": 4, "max_steps": 4, "batch_size": 31, "erasure": 0.1, "suppression": 0.1,
        "opinions": "own,layers,neighbours,copy", "relearn_epochs": 1,
    },
    "pull by ascent": {"epochs": 2, "batch_size": 17, "objective": "ga"},
    "pull of one sample a step": {"min_steps": 4, "max_steps": 4, "batch_size": 1},
}  # fmt: skip
PRESET = {
    "pull of all opinions": "purge-pull", "pull by ascent": "purge-paper",
    "pull of one sample a step": "purge-pull",
}  # fmt: skip
SINGLE = {*PRESET, "retrain", "finetune", "random-label", "scrub", "lotus", "rum", "scissorhands"}


class Job(NamedTuple):
    """A method on a network."""

    method: str
    network: str
    dtype: str
    classes: bool  # a class must go; otherwise single samples
    settings: dict[str, Any]


def jobs() -> dict[str, Job]:
    found = {}
    for network in ("resnet-batchnorm", "resnet-groupnorm", "vit"):
        for name, settings in FAMILY.items():
            for dtype in ("float32", "float64"):
                classes = dtype == "float64" or name == "purge"
                found[f"{name}, {network}, {dtype}"] = Job(name, network, dtype, classes, settings)
    parts, again = {**FAMILY["purge"], "micro_batch": 8}, {**FAMILY["purge"], "checkpoint_activations": True}
    found["purge in parts of a batch"] = Job("purge", "vit", "float64", True, parts)
    found["purge that computes blocks twice"] = Job("purge", "vit", "float64", True, again)
    shared = [
        name for name in purge.list_methods() if purge.methods.registry.METHODS[name].method.distributes
    ]
    for name in [*shared, *PRESET]:
        if name not in FAMILY:
            settings = OTHERS.get(name, SHORT)
            found[name] = Job(PRESET.get(name, name), "resnet-batchnorm", "float64", True, settings)
            if (
                name in SINGLE
            ):  # a network without BatchNorm, and one whose dropout is off in all but training
                kind = "resnet-groupnorm" if name == "retrain" else "vgg"
                found[f"{name}, samples"] = Job(PRESET.get(name, name), kind, "float64", False, settings)
    return found


def data(dtype: torch.dtype = torch.float32, *, test: bool = False) -> tuple[Tensor, Tensor]:
    found, rows = load_digits(), slice(SAMPLES, SAMPLES + 100) if test else slice(SAMPLES)
    return torch.tensor(found.images / 16, dtype=dtype)[rows, None], torch.tensor(found.target)[rows]


def parts(classes: bool, dtype: torch.dtype = torch.float32) -> Any:
    """What must go and what must stay."""
    x, y = data(dtype)
    gone = y == 3 if classes else torch.arange(len(y)) % 23 == 0
    return (x[gone], y[gone]), (x[~gone], y[~gone])


def network(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return NETWORKS[name]().to(dtype).eval()


def unlearned(job: Job) -> Any:
    dtype = getattr(torch, job.dtype)
    forget, retain = parts(job.classes, dtype)
    test = data(dtype, test=True) if job.method in ("lotus", "scrub-r") else None
    return purge.unlearn(
        network(job.network, dtype), forget, retain, test=test, method=job.method, seed=1, check=False,
        progress=False, **job.settings,
    )  # fmt: skip


def kept(result: Any) -> dict[str, Any]:
    """What of a result is compared."""
    return {
        "weights": {name: t.clone() for name, t in result.model.state_dict().items()},
        "history": result.history,
        "stopped_by": result.stopped_by,
    }


def images(size: int = SAMPLES) -> purge.Images:
    found = load_digits()
    pixels = torch.tensor(found.images * 15).to(torch.uint8)[:size, None]
    return purge.Images(pixels, torch.tensor(found.target)[:size], mean=(0.3,), std=(0.4,))


def more() -> dict[str, dict[str, Any]]:
    """Training, and unlearning with images changed at random."""
    # In float64: changed images meet kinks of ReLU, where a rounding error of float32 decides.
    net = network("resnet-batchnorm", torch.float64)
    recipe = {"epochs": 2, "batch_size": 47, "lr": 0.05}
    whole, quiet = images(), {"progress": False, "seed": 3}
    trained = purge.train(
        net, whole, augment="crop-flip", colour=0.2, ema=0.9, label_smoothing=0.1, **recipe, **quiet
    )
    forget, retain = purge.split(whole, classes=[1])
    changed = purge.unlearn(
        trained.model, forget, retain, augment="turn", steps=8, plain=0.5, check=False, **quiet
    )
    both = purge.unlearn(
        trained.model, forget, retain, method="salun", augment="crop-flip", epochs=1, check=False, **quiet
    )
    return {"training": kept(trained), "augmented": kept(changed), "both augmented": kept(both)}


class Two(nn.Module):
    """One logit, from a dict of two inputs, with BatchNorm that has no weights and one without statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16, affine=False), nn.ReLU())
        self.second = nn.Sequential(
            nn.Linear(64, 16), nn.BatchNorm1d(16, track_running_stats=False), nn.ReLU()
        )
        self.head = nn.Linear(32, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        both = [self.first(left.flatten(1)), self.second(right.flatten(1))]
        return self.head(torch.cat(both, 1))[:, 0]  # type: ignore[no-any-return]


def odd() -> dict[str, dict[str, Any]]:
    """Inputs in a dict, a single logit, rare forms of BatchNorm, half precision."""
    quiet = {"progress": False, "seed": 1, "check": False}
    x, y = data(torch.float64)
    torch.manual_seed(0)
    model, gone = Two().double().eval(), torch.arange(len(y)) % 23 == 0
    sides = {"left": x, "right": x.flip(3)}
    forget, retain = ({k: v[at] for k, v in sides.items()} for at in (gone, ~gone))
    labels = (y > 4).long()
    given = (forget, labels[gone]), (retain, labels[~gone])
    pulled = purge.unlearn(
        model, *given, method="purge-pull", min_steps=4, max_steps=4, batch_size=31, **quiet
    )
    tuned = purge.unlearn(model, *given, method="finetune", epochs=1, batch_size=61, **quiet)
    half = purge.unlearn(network("resnet-batchnorm"), *parts(True), steps=5, precision="bf16", **quiet)
    return {"pulled": kept(pulled), "tuned": kept(tuned), "half": kept(half)}


def audited() -> dict[str, float | None]:
    forget, retain = parts(True)
    models = [network("resnet-batchnorm", seed=seed) for seed in (0, 1)]
    report = purge.audit(
        models[0],
        forget,
        retain,
        data(test=True),
        retrained=models[1],
        metrics="standard",
        check=False,
        progress=False,
    )
    return {name: value.value for name, value in report.values.items()}


def steps_taken(name: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of each step of a restart on all of D_r: weights before and after it, and the retain gradient."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    real = restart.step

    def watched(params: Any, optimizer: Any, g: Tensor, retain: Tensor, **how: Any) -> Any:
        before = params.read()
        taken = real(params, optimizer, g, retain, **how)
        seen.append((before, params.read(), retain.clone()))
        return taken

    restart.step = watched  # type: ignore[assignment]
    try:
        settings = {"steps": 9, "batch_size": SAMPLES, "plain": 1.0, "kd": 0.0}
        unlearned(Job("purge", name, "float32", True, settings))
    finally:
        restart.step = real
    return seen


class Noisy(torch.utils.data.Dataset[Any]):
    """Items that draw random numbers whenever they are read, from all three generators."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        import random

        import numpy as np

        return self.x[i] + 0.1 * torch.randn(()) + 0.1 * random.random() + 0.1 * np.random.rand(), int(
            self.y[i]
        )


def random_parts() -> dict[str, dict[str, Any]]:
    """Dropout, items that are random and a function that is: each rank draws for its own rows."""
    forget, retain = parts(True)
    quiet = {"progress": False, "check": False, "seed": 2}
    noisy = purge.unlearn(
        network("vgg"), forget, Noisy(*retain), method="random-label", epochs=1, batch_size=61, **quiet
    )
    changed = purge.unlearn(
        network("vgg"), forget, retain, steps=6, augment=lambda x: x + 0.1 * torch.randn_like(x), **quiet
    )
    dropout = purge.train(network("vgg"), retain, epochs=1, batch_size=61, progress=False)
    return {"noisy": kept(noisy), "changed": kept(changed), "dropout": kept(dropout)}


def everything(folder: Path) -> None:
    """All of it on this rank, in one start."""
    rank = os.environ["RANK"]
    found: dict[str, Any] = {name: kept(unlearned(job)) for name, job in jobs().items()}
    found |= more() | odd()
    torch.save(
        {
            "results": found,
            "audit": audited(),
            "steps": {name: steps_taken(name) for name in ("resnet-batchnorm", "vit")},
            "random": random_parts(),
        },
        folder / f"{rank}.pt",
    )
