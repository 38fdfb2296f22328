"""Convolution transpose against a float64 computation; each batch is the whole retain set."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purge
from purge.core.errors import MethodError
from purge.core.settings import replace
from purge.methods import ConvolutionTranspose
from tests.nets import plain_mlp


@pytest.fixture
def case():
    """A network without normalisation: a 3×3, a 1×3 and a 1×1 convolution; samples of four classes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, (1, 3)), nn.ReLU(), nn.Conv2d(3, 2, 1),
        nn.Flatten(), nn.Linear(2 * 6 * 4, 4),
    ).double()  # fmt: skip
    data = torch.randn(24, 1, 6, 6).double(), torch.arange(24) % 4
    return model, *purge.split(data, classes=[0])


def reference(case, s):
    model, _, (x, y) = case
    w = {k: v.detach().clone() for k, v in model.named_parameters()}
    w["0.weight"] = w["0.weight"].transpose(2, 3)
    w = {k: v.requires_grad_() for k, v in w.items()}
    velocity = {k: torch.zeros_like(v) for k, v in w.items()}
    for e in range(s.epochs):
        h = F.conv2d(x, w["0.weight"], w["0.bias"], padding=1).clamp_min(0)
        h = F.conv2d(h, w["2.weight"], w["2.bias"]).clamp_min(0)
        z = F.conv2d(h, w["4.weight"], w["4.bias"]).flatten(1) @ w["6.weight"].T + w["6.bias"]
        loss = -(z - z.logsumexp(1, keepdim=True))[range(len(y)), y].mean()
        rate = s.optim.lr * (1 + math.cos(math.pi * e / s.epochs)) / 2
        grads = torch.autograd.grad(loss, list(w.values()))
        with torch.no_grad():
            for (k, v), g in zip(w.items(), grads, strict=True):
                velocity[k] = s.optim.momentum * velocity[k] + g + s.optim.weight_decay * v
                v -= rate * velocity[k]
    return torch.cat([v.detach().reshape(-1) for v in w.values()])


def test_kernels_are_turned_over_and_then_trained(case):
    model, forget, retain = case
    method = replace(ConvolutionTranspose(batch_size=24), {"lr": 0.1})
    result = purge.unlearn(model, forget, retain, method=method, progress=False)
    got = torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])
    assert torch.allclose(got, reference(case, method), atol=1e-6)


def test_a_network_without_kernels_to_turn_is_refused_in_one_line(toy, case):
    _, forget, retain, _ = toy
    with pytest.raises(
        MethodError,
        match=r"Expected a convolution .* for convolution-transpose, got Sequential, .* Fix: .*msg",
    ):
        purge.unlearn(plain_mlp(), forget, retain, method="convolution-transpose", progress=False)
    model, forget, retain = case
    model[0].weight.requires_grad_(False)  # what takes no gradient is not changed
    with pytest.raises(MethodError, match="none that is trained"):
        purge.unlearn(model, forget, retain, method="convolution-transpose", progress=False)
