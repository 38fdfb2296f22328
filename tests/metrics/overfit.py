"""Noisy digits and small networks that learn them by heart, for attacks to find something."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from purge.data.accept import accepted
from purge.metrics.audited import AuditedModel
from purge.models.checks import make_split

Pair = tuple[Tensor, Tensor]


def noisy_digits(train: int = 400, noise: float = 0.3, seed: int = 0) -> tuple[Pair, Pair]:
    """(train, test) of 8×8 digits, flat, with pixel noise."""
    x, y = (torch.from_numpy(a) for a in load_digits(return_X_y=True))
    g = torch.Generator().manual_seed(seed)
    x = x.float() / 16 + noise * torch.randn(x.shape, generator=g)
    order = torch.randperm(len(y), generator=g)
    first, rest = order[:train], order[train:]
    return (x[first], y[first].long()), (x[rest], y[rest].long())


def by_heart(data: Pair, seed: int, steps: int = 150, start: nn.Module | None = None) -> nn.Module:
    """An MLP after so many full-batch steps of Adam."""
    torch.manual_seed(seed)
    model = start or nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    return model.eval()


def audited(
    model: nn.Module, forget: Pair, retain: Pair, test: Pair | None, *, triggered: Pair | None = None,
    truth: Tensor | None = None, seed: int = 0, **others: AuditedModel | None,
) -> AuditedModel:  # fmt: skip
    """A model under audit, beside others."""
    sets = {"forget": forget, "retain": retain, "test": test, "triggered": triggered}
    given = accepted({name: data for name, data in sets.items() if data is not None})
    made = AuditedModel(model, make_split(model, given, torch.device("cpu"), truth=truth), seed=seed)
    for name, other in others.items():
        setattr(made, name, other)
    return made
