"""Gradient arithmetic against hand-computed numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from purge.engine.optimizer import FlatOptimizer, FlatParameters
from purge.engine.projection import clipped, cosine, dot, flat, project, step


def test_projection_removes_exactly_the_conflicting_component():
    assert project(torch.tensor([3.0, -4.0]), torch.tensor([0.0, 2.0])).tolist() == [3.0, 0.0]


def test_nothing_to_project_against_a_zero_gradient():
    v = torch.tensor([3.0, -4.0])
    assert torch.equal(project(v, torch.zeros(2)), v)


def test_clip_shortens_long_vectors_only():
    assert clipped(torch.tensor([3.0, 4.0]), 1.0).tolist() == pytest.approx([0.6, 0.8])
    assert clipped(torch.tensor([0.3, 0.4]), 1.0).tolist() == pytest.approx([0.3, 0.4])
    assert clipped(torch.tensor([3.0, 4.0]), 0.0).tolist() == [3.0, 4.0]


def test_cosine_of_zero_is_zero_not_nan():
    assert float(cosine(torch.zeros(2), torch.ones(2))) == 0


def test_dot_sees_what_float32_summation_would_lose():
    a = torch.tensor([1e8, 1.0, -1e8])
    assert float(dot(a, torch.ones(3))) == 1.0


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
        ("sgd", {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
        ("adamw", {"momentum": 0.9, "weight_decay": 0.1}),
        ("adamw", {"momentum": 0.0}),
    ],
)
def test_descent_steps_as_torch_does(kind, settings):
    torch.manual_seed(0)
    theta = torch.randn(50, dtype=torch.float64)
    p = nn.Parameter(theta.clone())
    if kind == "sgd":
        reference = torch.optim.SGD([p], lr=0.1, **settings)
    else:
        betas = (settings["momentum"], 0.999)
        decay = settings.get("weight_decay", 0.0)
        reference = torch.optim.AdamW([p], lr=0.1, betas=betas, weight_decay=decay)
    ours = FlatOptimizer(kind, theta, lr=0.1, **settings)
    for rate in (0.1, 0.1, 0.02, 0.3):
        p.grad = torch.randn_like(p)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        ours.rate.fill_(rate)
        theta = theta - ours.displacement(theta, p.grad)
        assert torch.allclose(theta, p, atol=1e-12)


def _momentum_against_retain(space: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two SGD steps: the first fills the momentum, the second must not follow it against retain."""
    p = nn.Parameter(torch.tensor([1.0, 1.0]))
    opt = FlatOptimizer("sgd", flat([p]), lr=0.1, momentum=0.9)
    step(FlatParameters([p]), opt, torch.tensor([1.0, -1.0]), torch.tensor([1.0, 0.0]), space=space)
    before, retain = p.detach().clone(), torch.tensor([0.0, 1.0])
    step(FlatParameters([p]), opt, torch.tensor([1.0, 0.0]), retain, space=space)
    return before - p.detach(), retain


def test_momentum_breaks_the_promise_of_gradient_space():
    moved, retain = _momentum_against_retain("gradient")
    assert float(dot(moved, retain)) == pytest.approx(-0.09)  # 0.1 · 0.9 · (−1)


def test_update_space_keeps_it():
    moved, retain = _momentum_against_retain("update")
    assert float(dot(moved, retain)) >= 0
    # 0.1 · (0.9 · 1 + 1), and nothing along retain but for ten times what rounding may do
    assert moved.tolist() == pytest.approx([0.19, 0.0], abs=1e-6)


def test_none_follows_the_conflict_and_says_so():
    p = nn.Parameter(torch.tensor([1.0, 1.0]))
    opt = FlatOptimizer("sgd", flat([p]), lr=0.5)
    taken = step(FlatParameters([p]), opt, torch.tensor([0.0, -2.0]), torch.tensor([0.0, 1.0]), space="none")
    assert p.tolist() == [1.0, 2.0]
    assert not bool(taken.projected)
    assert float(taken.cosine) == pytest.approx(-1.0)


def test_a_bfloat16_weight_is_not_moved_the_wrong_way_by_rounding():
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(500).bfloat16())
    opt = FlatOptimizer("sgd", flat([p]), lr=0.05)
    for _ in range(20):
        before, retain = flat([p]), torch.randn(500)
        step(FlatParameters([p]), opt, torch.randn(500), retain, space="update")
        assert float(dot(before - flat([p]), retain)) >= 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_does_not_cost_the_step(dtype):
    """Safe must not mean standing still: nearly every conflicting step is taken."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(200).to(dtype))
    opt = FlatOptimizer("sgd", flat([p]), lr=0.05)
    taken = 0
    for _ in range(50):
        before, retain = flat([p]), torch.randn(200)
        step(FlatParameters([p]), opt, torch.randn(200) - retain, retain, space="update")
        taken += float((before - flat([p])).norm()) > 0.1
    assert taken >= 48
