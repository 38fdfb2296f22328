"""Training: the base model, and the retrained reference by the same recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from purge.data import Samples
from purge.models import logits_of
from purge.progress import progress_line
from purge.runtime import EVAL_BATCH, logits
from purge.settings import normalise, setting


@dataclass(frozen=True)
class Recipe:
    """SGD with Nesterov momentum and a one-cycle learning rate."""

    epochs: int = setting(30, "passes over the training data", low=1)
    lr: float = setting(0.1, "peak learning rate", above=0, high=1e38)
    batch_size: int = setting(128, "samples per step", low=1)
    momentum: float = setting(0.9, "momentum", low=0, high=0.999)
    weight_decay: float = setting(5e-4, "weight decay", low=0)

    def __post_init__(self) -> None:
        normalise(self)


def fit(
    model: nn.Module, samples: Samples, recipe: Recipe, *, seed: int, progress: bool, title: str
) -> list[dict[str, float]]:
    """Train ``model`` in place; the mean loss of each epoch is returned."""
    n = len(samples)
    size = min(recipe.batch_size, n)
    per_epoch = max(1, n // size)  # the last, smaller batch is left out: BatchNorm dislikes it
    optimizer = torch.optim.SGD(
        model.parameters(),
        recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: one_cycle(i, recipe.epochs * per_epoch))
    generator = torch.Generator().manual_seed(seed)
    model.train()
    losses = []
    with progress_line(title, recipe.epochs, progress) as advance:
        for _ in range(recipe.epochs):
            total = torch.zeros((), device=next(model.parameters()).device)
            for part in torch.randperm(n, generator=generator)[: per_epoch * size].split(size):
                x, y = samples.take(part)
                loss = F.cross_entropy(logits_of(model(x)).float(), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.detach()
            losses.append(total / per_epoch)
            advance(1, "")
    model.eval()
    return [{"epoch": i + 1, "loss": float(v)} for i, v in enumerate(losses)]


def one_cycle(step: int, total: int) -> float:
    """Share of the peak learning rate: up in a straight line for a quarter, then down as a cosine.

    >>> [round(one_cycle(i, 8), 2) for i in range(8)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    up = max(1, total // 4)
    if step < up:
        return (step + 1) / up
    return 0.5 * (1 + math.cos(math.pi * (step - up) / max(1, total - up)))


def diverged(model: nn.Module, samples: Samples, history: list[dict[str, float]]) -> bool:
    """Did the loss, or what the model now returns, stop being numbers?"""
    few = torch.arange(min(len(samples), EVAL_BATCH))
    finite = torch.isfinite(logits(model, samples, few)).all()
    return not (bool(finite) and all(math.isfinite(row["loss"]) for row in history))
