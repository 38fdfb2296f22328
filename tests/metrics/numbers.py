"""A case whose numbers lie in the interior: untrained networks on five overlapping clouds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import log_softmax
from torch import nn

import purge

Data = tuple[torch.Tensor, torch.Tensor]
CLASSES = 5


def clouds(n: int, seed: int, classes: int = CLASSES) -> Data:
    """Classes that overlap."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    return torch.randn(n, 6, generator=g) + 1.5 * torch.eye(CLASSES, 6)[y], y


def network(seed: int, width: int = 16) -> nn.Module:
    """An MLP of nested modules that predicts each class now and then; its BatchNorm has seen other data."""
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU())
    model = nn.Sequential(first, nn.Sequential(nn.Linear(width, width), nn.ReLU()), nn.Linear(width, CLASSES))
    model[0][1].running_mean.copy_(2 * torch.randn(width))
    model[0][1].running_var.copy_(0.2 + torch.rand(width))
    model[0][1].num_batches_tracked.fill_(9)  # so that a cumulative average has to begin anew
    with torch.no_grad():
        model[1][0].bias.add_(1)
        model[-1].weight.mul_(6)
        model[-1].bias.sub_(model.eval()(clouds(300, 9)[0]).mean(0))
    return model


def raw(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    """What a network makes of inputs, in float64."""
    with torch.no_grad():
        return model(x).double().numpy()


def log_probs(model: nn.Module, data: Data) -> np.ndarray:
    return log_softmax(raw(model, data[0]), axis=1)


def probs(model: nn.Module, data: Data) -> np.ndarray:
    return np.exp(log_probs(model, data))


def features(model: nn.Sequential, data: Data) -> np.ndarray:
    return raw(model[:-1], data[0])


def guesses(model: nn.Module, data: Data) -> np.ndarray:
    return raw(model, data[0]).argmax(1)


def right(model: nn.Module, data: Data) -> np.ndarray:
    return guesses(model, data) == data[1].numpy()


def pick(data: Data, wanted: torch.Tensor) -> Data:
    return data[0][wanted], data[1][wanted]


@dataclass(frozen=True)
class Case:
    """An audit: three models, three sets, and what is known of bad data."""

    model: nn.Module
    retrained: nn.Module
    original: nn.Module
    forget: Data
    retain: Data
    test: Data
    truth: torch.Tensor
    triggered: Data

    @property
    def same(self) -> Data:
        return pick(self.test, torch.isin(self.test[1], self.forget[1]))

    @property
    def kept(self) -> Data:
        """Test data of classes that some retained sample has."""
        return pick(self.test, torch.isin(self.test[1], self.retain[1]))

    def of(self, role: str) -> Case:
        """The same audit of another of its models."""
        return replace(self, model=getattr(self, role))


def made(classes: list[int] | None = None, indices: Any = None) -> Case:
    forget, retain = purge.split(clouds(300, 0), classes=classes, indices=indices)
    test = clouds(700, 1)
    truth = (forget[1] + torch.arange(len(forget[1])) % 3) % CLASSES
    triggered = test[0] + 0.7, torch.full_like(test[1], 2)
    return Case(network(1), network(2), network(0), forget, retain, test, truth, triggered)


def audit(c: Case, metrics: Any = "standard", **changes: Any) -> purge.Report:
    """The audit of a case; its networks know nothing, so references are not checked."""
    return purge.audit(**{**vars(c), "metrics": metrics, "progress": False, "check": False, **changes})


def assert_like_scipy(value: purge.Value, *samples: np.ndarray, statistic: Any = np.mean) -> None:
    """Ends within 0.25 standard errors of SciPy's: a 90 % interval would be off by 0.31."""
    reference = stats.bootstrap(
        samples, statistic, n_resamples=10_000, method="percentile", batch=500, rng=np.random.default_rng(0)
    )
    ends, error = reference.confidence_interval, reference.standard_error
    assert (value.low, value.high) == pytest.approx((ends.low, ends.high), abs=0.25 * error)
    assert value.low <= value.value <= value.high
