"""MSG against a float64 computation written from the formulas.

Where it is computed, the new weights are a known number instead of a random one, all of D_r is drawn
(D_f has as many samples), and each batch is the whole of its set.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import purge
from purge.core.settings import replace
from purge.methods import MaskedSmallGradients
from tests.nets import small_conv
from tests.reference import (
    Net,
    assert_same,
    cross_entropy,
    vectors,
)

FRESH = 0.07


def gradient(net, x, y, step=None):
    """Of the summed loss; a pass in training mode moves the running statistics."""
    return torch.autograd.grad(len(y) * cross_entropy(net(x, train=step), y), list(net.w.values()))


def msg_reference(even, s):
    model, forget, retain = even
    net = Net(model, s.norm)
    kept, lost = gradient(net, *retain), gradient(net, *forget)
    pace = {k: torch.ones_like(w) for k, w in net.w.items()}
    with torch.no_grad():
        for (k, w), a, b in zip(net.w.items(), kept, lost, strict=True):
            if k in ("0.weight", "3.weight"):
                g = (a - b).abs().reshape(-1)
                at = g.argsort()[: round(s.share * len(g))]
                drawn = torch.zeros(len(g), dtype=torch.bool)
                drawn[at] = True
                drawn = drawn.view(w.shape)
                w.copy_(torch.where(drawn, FRESH, w))
                pace[k] = torch.where(drawn, 1.0, s.kept)
    middle = (s.epochs + 1) // 2
    for e in range(1, s.epochs + 1):
        part = e / middle if e <= middle else (s.epochs + 1 - e) / (s.epochs + 1 - middle)
        optim = replace(s.optim, {"lr": s.optim.lr * part})
        loss = cross_entropy(net(retain[0]), retain[1])
        grads = torch.autograd.grad(loss, list(net.w.values()))
        net.descend(sum((pace[k] * g * net.w[k]).sum() for k, g in zip(net.w, grads, strict=True)), optim)
    return net.vectors


@pytest.fixture
def even(half_trained):
    """As many samples to forget as to retain."""
    model, (xf, yf), (xr, yr) = half_trained
    n = min(len(yf), len(yr))
    return model, (xf[:n], yf[:n]), (xr[:n], yr[:n])


def msg(even, monkeypatch, **changes):
    model, forget, retain = even
    monkeypatch.setattr(nn.init, "kaiming_normal_", lambda t, **_: t.fill_(FRESH))
    method = replace(MaskedSmallGradients(batch_size=96, epochs=4), {"lr": 0.05, **changes})
    return method, purge.unlearn(model, forget, retain, method=method, progress=False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "frozen"},
        {"share": 0.6, "kept": 0.3},
        {"epochs": 5, "momentum": 0.0},
        {"weight_decay": 0.1},
    ],
    ids=str,
)
def test_msg_is_the_formula(even, monkeypatch, changes):
    method, result = msg(even, monkeypatch, **changes)
    assert_same(vectors(result.model), msg_reference(even, method), vectors(even[0]))


def test_new_weights_come_from_fan_out_and_only_in_convolutions():
    torch.manual_seed(0)
    model = small_conv()
    data = torch.randn(40, 1, 8, 8), torch.arange(40) % 10
    forget, retain = purge.split(data, classes=[0])
    still = {"lr": 1e-12, "weight_decay": 0.0, "epochs": 1}
    result = purge.unlearn(model, forget, retain, method="msg", progress=False, share=1.0, **still)
    now, was = dict(result.model.named_parameters()), dict(model.named_parameters())
    changed = {k for k in was if not torch.allclose(now[k], was[k], atol=1e-6)}
    assert changed == {"0.weight", "3.weight"}
    for k, fan_out in (("0.weight", 4 * 9), ("3.weight", 6 * 9)):
        assert float(now[k].detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.3)
    some = purge.unlearn(model, forget, retain, method="msg", progress=False, share=0.25, **still).model
    moved = (some[3].weight - model[3].weight).abs() > 1e-6
    assert int(moved.sum()) == round(0.25 * model[3].weight.numel())
