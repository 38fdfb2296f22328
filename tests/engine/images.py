"""A network and a few images to train it on."""

from __future__ import annotations

import torch
from torch import nn

import purge


def net():
    """Convolutions, BatchNorm and dropout, for digits."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def on_images(images, model=None, **changes):
    settings = {"epochs": 3, "batch_size": 16, "lr": 0.05, "progress": False, **changes}
    return purge.train(model or net(), images, **settings)
