"""What several ranks do and one rank does too: the results must be equal."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import purge
from tests.nets import NETWORKS

SAMPLES = 301  # no batch of these divides evenly
QUIET = {"progress": False, "seed": 1}
METHODS: dict[str, dict[str, Any]] = {
    "train": {"epochs": 2, "batch_size": 47, "lr": 0.05},
    "retrain": {"epochs": 1, "batch_size": 47},
    "finetune": {"epochs": 1, "batch_size": 47},
    "l1-sparse": {"epochs": 1, "batch_size": 47},
    "not": {"epochs": 1, "batch_size": 47},
    "purge": {"steps": 9, "batch_size": 33},
    "purge-close": {"steps": 8, "batch_size": 33},
}


def digits(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    found = load_digits()
    images = torch.tensor(found.images / 16, dtype=dtype)[:SAMPLES, None]
    return images, torch.tensor(found.target)[:SAMPLES]


def parts(dtype: torch.dtype = torch.float32, *, classes: bool = True) -> Any:
    """What must go and what must stay."""
    x, y = digits(dtype)
    gone = y == 3 if classes else torch.arange(len(y)) % 23 == 0
    return (x[gone], y[gone]), (x[~gone], y[~gone])


def network(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return NETWORKS[name]().to(dtype).eval()


def run(method: str, net: str, dtype: torch.dtype, *, classes: bool = True, **more: Any) -> Any:
    model, settings = network(net, dtype), {**QUIET, **METHODS[method], **more}
    if method == "train":
        return purge.train(model, digits(dtype), **settings)
    return purge.unlearn(model, *parts(dtype, classes=classes), method=method, check=False, **settings)


def pixels() -> purge.Images:
    found = load_digits()
    whole = torch.tensor(found.images * 15).to(torch.uint8)[:SAMPLES, None]
    return purge.Images(whole, torch.tensor(found.target)[:SAMPLES], mean=(0.3,), std=(0.4,))


def moved(**how: Any) -> Any:
    """A training with images changed at random, in float64: in float32 a rounding error may decide a kink."""
    return purge.train(
        network("resnet-batchnorm", torch.float64), pixels(), **METHODS["train"], **QUIET, **how
    )


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


def odd(**settings: Any) -> Any:
    """Inputs in a dict, a single logit, and rare forms of BatchNorm."""
    torch.manual_seed(0)
    model = Two().double().eval()
    sets = [({"left": x, "right": x.flip(3)}, (y > 4).long()) for x, y in parts(torch.float64, classes=False)]
    return purge.unlearn(model, *sets, check=False, **QUIET, **settings)


def jobs() -> dict[str, tuple[Callable[[], Any], float]]:
    """What to compare, and how close two ranks must come to one."""
    found: dict[str, tuple[Callable[[], Any], float]] = {}
    for dtype, close in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        for net in ("mlp", "resnet-batchnorm", "resnet-groupnorm", "vit"):
            few = ("finetune", "purge") if net == "vit" else ("train", "finetune", "purge")  # it has dropout
            for method in METHODS if net == "resnet-batchnorm" else few:
                name = f"{method}, {net}, {dtype}"
                found[name] = (lambda m=method, n=net, d=dtype: run(m, n, d)), close
    double, vit = torch.float64, "vit"
    bn, gn = "resnet-batchnorm", "resnet-groupnorm"
    more: dict[str, Callable[[], Any]] = {
        "a batch of more than the companions": lambda: run("purge", bn, double, batch_size=201, steps=5),
        "single samples": lambda: run("purge", "vgg", double, classes=False),
        "parts of a batch": lambda: run("purge", vit, double, micro_batch=8),
        "training in parts": lambda: run("train", gn, double, micro_batch=8),
        "restart, blocks twice": lambda: run("purge", bn, double, checkpoint_activations=True),
        "frozen": lambda: run("finetune", bn, double, norm="frozen"),
        "stopped early": lambda: run("finetune", "mlp", double, early=True, forget_target=0.5, epochs=20),
        "moved": lambda: moved(augment="crop-flip", colour=0.2, ema=0.9, label_smoothing=0.1),
        "odd": lambda: odd(steps=6),
        "odd, finetune": lambda: odd(method="finetune", epochs=1, batch_size=61),
    }
    return found | {name: (job, 1e-10) for name, job in more.items()}


class Noisy(torch.utils.data.Dataset[Any]):
    """Items that draw random numbers whenever they are read, from all three generators."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        noise = torch.randn(()) + random.random() + np.random.rand()
        return self.x[i] + 0.1 * noise, int(self.y[i])


def own_numbers() -> dict[str, Callable[[], Any]]:
    """Where each rank draws random numbers for its own rows, so that only the bits of ranks are equal."""
    (forget, retain), usual = parts(), {"check": False, **QUIET}
    return {
        "noisy": lambda: purge.unlearn(network("resnet-batchnorm"), forget, Noisy(*retain), steps=6, **usual),
        "changed": lambda: purge.unlearn(
            network("vgg"), forget, retain, steps=6, augment=lambda x: x + 0.1 * torch.randn_like(x), **usual
        ),
        "dropout": lambda: purge.train(network("vgg"), retain, epochs=1, batch_size=61, **QUIET),
    }


def kept(result: Any) -> dict[str, Any]:
    """What of a result is compared."""
    weights = {name: t.clone() for name, t in result.model.state_dict().items()}
    return {"weights": weights, "history": result.history, "stopped_by": result.stopped_by}


def everything(folder: Path) -> None:
    """All of it on this rank, in one start."""
    found = {name: kept(job()) for name, (job, _) in jobs().items()}
    own = {name: kept(job()) for name, job in own_numbers().items()}
    torch.save({"shared": found, "own": own}, folder / f"{os.environ['RANK']}.pt")
