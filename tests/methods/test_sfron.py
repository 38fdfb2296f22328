"""SFR-on against a float64 computation written from the formulas; each batch is the whole of its set."""

from __future__ import annotations

import math

import pytest
import torch

import purge
from purge.core.settings import replace
from purge.methods import SFRon
from tests.reference import (
    NAMES,
    Net,
    assert_same,
    cross_entropy,
    each_cross_entropy,
    vectors,
)


def fisher(net, x, y):
    loss = cross_entropy(net(x, train=False), y)
    return [g**2 + 1e-15 for g in torch.autograd.grad(loss, list(net.w.values()))]


def sfron_reference(half_trained, s):
    model, (xf, yf), (xr, yr) = half_trained
    net = Net(model, s.norm)
    ratios = [f / r for f, r in zip(fisher(net, xf, yf), fisher(net, xr, yr), strict=True)]
    assert all(((q / s.saliency - 1).abs() > 1e-4).all() for q in ratios), "no mask may hang on rounding"
    masks = [(q >= s.saliency).double() for q in ratios]
    assert 0.1 < float(torch.cat([m.reshape(-1) for m in masks]).mean()) < 0.9
    for i in range(s.steps):
        before = {k: w.detach().clone() for k, w in net.w.items()}
        left = (1 + math.cos(math.pi * i / s.steps)) / 2
        optim = replace(s.optim, {"lr": s.optim.lr * left})
        if i % s.forget_every == 0:
            each = each_cross_entropy(net(xf), yf)
            power = each.detach() ** -s.adaptive
            up = (power * each).sum() / power.sum()
            factor = s.ascent * left
            g = [
                factor * m * d
                for m, d in zip(masks, torch.autograd.grad(up, list(net.w.values())), strict=True)
            ]
            size = float(torch.cat([d.reshape(-1) for d in g]).norm())
            scale = min(1.0, s.ascent_clip / size) if s.ascent_clip else 1.0
            # a loss whose gradient is the given one
            net.descend(-scale * sum((d * net.w[k]).sum() for d, k in zip(g, NAMES, strict=True)), optim)
        net.descend(cross_entropy(net(xr), yr), optim)
        with torch.no_grad():
            for k, w in net.w.items():
                w.copy_(before[k] + s.slow * (w - before[k]))
    return net.vectors


def sfron(half_trained, **changes):
    model, forget, retain = half_trained
    method = replace(SFRon(steps=5, forget_every=2, batch_size=96), {"ascent": 3.0, "lr": 0.03, **changes})
    return method, purge.unlearn(model, forget, retain, method=method, progress=False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "frozen"},
        {"slow": 0.4},
        {"adaptive": 0.0},
        {"adaptive": 1.5, "saliency": 3.0},
        {"ascent_clip": 0.2},
        {"ascent_clip": 0.0, "momentum": 0.0},
        {"forget_every": 1, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_sfron_is_the_formula(half_trained, changes):
    method, result = sfron(half_trained, **changes)
    assert_same(vectors(result.model), sfron_reference(half_trained, method), vectors(half_trained[0]))


def test_every_fifth_step_begins_with_an_ascent(toy):
    model, forget, retain, _ = toy
    result = purge.unlearn(model, forget, retain, method=SFRon(steps=12, batch_size=8), progress=False)
    climbs = [r["step"] for r in result.history[1:] if r["forget_loss"] is not None]
    assert climbs == [1, 6, 11]
    assert all(r["retain_loss"] is not None for r in result.history[1:])
