"""Small requests and settings for tests of shadow models."""

from __future__ import annotations

import torch

from purge.data.accept import as_samples
from purge.data.split import Split
from purge.engine.trainer import Recipe
from purge.methods import FineTune

CPU = torch.device("cpu")

QUICK = Recipe(epochs=2, batch_size=16, lr=0.05)
FINE = FineTune(epochs=1, batch_size=32)


def noise(n: int, seed: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels that can only be learnt by heart."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=g), torch.randint(classes, (n,), generator=g)


def request(forget=None, retain=None, test="new") -> Split:
    forget, retain = forget or noise(11, 0), retain or noise(40, 1)
    test = noise(30, 2) if test == "new" else test
    forget, retain, test = (None if s is None else as_samples(s, CPU, "s") for s in (forget, retain, test))
    gone = frozenset(forget.labels.tolist()) - frozenset(retain.labels.tolist())
    return Split(forget, retain, test, 3, gone)
