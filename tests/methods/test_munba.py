"""MUNBa against a float64 computation of the bargain, written with the published form of its weights."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import purge
from purge.core.settings import replace
from purge.methods import Munba
from purge.methods.munba import bargained
from tests.reference import (
    Net,
    assert_same,
    cross_entropy,
    vectors,
)


def published(g_r, g_f, guard):
    """α as the authors' code has it; with no guard, as the paper."""
    a, b, d = float(g_r @ g_r), float(g_r @ g_f), float(g_f @ g_f)
    alpha_r = math.sqrt((a * d - b * math.sqrt(a * d)) / (a * a * d - a * b * b + guard))
    return alpha_r, (1 - a * alpha_r**2) / (b * alpha_r + guard)


def flat_grad(loss, net):
    found = torch.autograd.grad(loss, list(net.w.values()), retain_graph=True)
    return torch.cat([g.reshape(-1) for g in found])


def munba_reference(half_trained, s, wrong):
    model, (xf, _), (xr, yr) = half_trained
    net = Net(model, s.norm)
    for _ in range(s.epochs):
        keep = cross_entropy(net(xr), yr)
        lose = cross_entropy(net(xf), wrong)
        g_r, g_f = flat_grad(keep, net), flat_grad(lose, net)
        alpha_r, alpha_f = published(g_r, g_f, 0.0 if s.exact else 1e-8)
        size = float((alpha_r * g_r + alpha_f * g_f).norm())
        scale = min(1.0, s.bargain_clip / size) if s.bargain_clip else 1.0
        net.descend(scale * (alpha_r * keep + alpha_f * lose), s.optim)
    return net.vectors


def munba(half_trained, monkeypatch, **changes):
    """What the method does when chance gives all forgotten samples the label 2, whatever their order."""
    model, forget, retain = half_trained
    drawn = torch.randint
    monkeypatch.setattr(  # digests of samples draw from a range with two ends
        torch,
        "randint",
        lambda *args, **more: torch.full(args[1], 2) if len(args) == 2 else drawn(*args, **more),
    )
    method = replace(Munba(batch_size=96, epochs=3), {"lr": 0.05, **changes})
    wrong = torch.full((len(forget[1]),), 2)
    return method, wrong, purge.unlearn(model, forget, retain, method=method, progress=False)


@pytest.mark.parametrize(
    "changes",
    [{}, {"exact": True}, {"norm": "frozen"}, {"bargain_clip": 0.0}, {"bargain_clip": 0.3, "momentum": 0.0}],
    ids=str,
)
def test_munba_is_the_formula(half_trained, monkeypatch, changes):
    method, wrong, result = munba(half_trained, monkeypatch, **changes)
    assert_same(vectors(result.model), munba_reference(half_trained, method, wrong), vectors(half_trained[0]))


@pytest.mark.parametrize("length", [1e-6, 1.0, 1e3])
def test_both_sides_gain_alike_whatever_the_lengths(length):
    """The Nash solution: GᵀG α = 1/α, so each side gains the inverse of its weight."""
    torch.manual_seed(0)
    g_r, g_f = length * torch.randn(50).double(), torch.randn(50).double()
    g, c = bargained(g_r, g_f, exact=True)
    alpha_r, alpha_f = published(g_r, g_f, 0.0)
    assert torch.allclose(g, alpha_r * g_r + alpha_f * g_f, rtol=1e-6)
    assert float(g @ g_r) == pytest.approx(1 / alpha_r)
    assert float(g @ g_f) == pytest.approx(1 / alpha_f)
    assert float(g.norm()) == pytest.approx(math.sqrt(2))
    assert float(c) == pytest.approx(float(nn.functional.cosine_similarity(g_r, g_f, 0)))


@pytest.mark.parametrize("exact", [True, False])
def test_where_there_is_no_bargain_the_forget_gradient_gets_a_tenth(exact):
    g = torch.tensor([3.0, 4.0])
    zero = torch.zeros(2)
    assert torch.allclose(bargained(g, zero, exact=exact)[0], g)
    assert torch.allclose(bargained(zero, g, exact=exact)[0], 0.1 * g)
    assert torch.allclose(bargained(g, -g, exact=True)[0], 0.9 * g)


def test_an_epoch_bargains_first_and_then_trains_on(toy):
    """All retained samples are the same one, so that the steps do not depend on their order."""
    model, forget, (xr, yr), _ = toy
    forget = (forget[0][:8], forget[1][:8])
    same = (xr[:1].repeat(24, 1), yr[:1].repeat(24))
    method = Munba(batch_size=8, epochs=2, norm="frozen")
    result = purge.unlearn(model, forget, same, method=method, progress=False)
    assert [r["forget_loss"] is None for r in result.history[1:]] == [False, True, True] * 2
    assert result.steps == 6
    few = purge.unlearn(model, same, forget, method=method, progress=False)  # D_f has more batches
    assert [r["forget_loss"] is None for r in few.history[1:]] == [False] * 6
