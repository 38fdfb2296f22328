"""Data and audits for tests that compute a number themselves: overlapping clouds, and what a network says."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

import purge

Data = tuple[torch.Tensor, torch.Tensor]


def noise(n: int, seed: int) -> Data:
    """Three classes that overlap."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    return torch.randn(n, 6, generator=g) + y[:, None] / 2, y


def raw(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    """What a network makes of inputs, in float64."""
    with torch.no_grad():
        return model(x).double().numpy()


def features(model: nn.Sequential, x: torch.Tensor) -> np.ndarray:
    return raw(model[:-1], x)


def guesses(model: nn.Module, data: Data) -> np.ndarray:
    return raw(model, data[0]).argmax(1)


def accuracy(model: nn.Module, data: Data) -> float:
    return float(np.mean(guesses(model, data) == data[1].numpy()))


def pick(data: Data, wanted: torch.Tensor) -> Data:
    return data[0][wanted], data[1][wanted]


def audit(c: SimpleNamespace, **changes) -> purge.Report:
    """The audit of a case; its networks know nothing, so references are not checked."""
    given = {k: v for k, v in vars(c).items() if k in ("original", "retrained", "metrics")} | changes
    parts = [given.pop(k, getattr(c, k)) for k in ("model", "forget", "retain", "test")]
    return purge.audit(*parts, **given, progress=False, check=False)
