"""Gradient arithmetic against hand-computed numbers, and the guarantee as a property."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from purge.engine.optimizer import FlatOptimizer, FlatParameters
from purge.engine.projection import clipped, cosine, dot, flat, project, step


def test_arithmetic_by_hand():
    v = torch.tensor([3.0, -4.0])
    assert project(v, torch.tensor([0.0, 2.0])).tolist() == [3.0, 0.0]
    assert torch.equal(project(v, torch.zeros(2)), v), "there is nothing to project against"
    assert clipped(v, 1.0).tolist() == pytest.approx([0.6, -0.8])
    assert clipped(v / 10, 1.0).tolist() == pytest.approx([0.3, -0.4])
    assert clipped(v, 0.0).tolist() == [3.0, -4.0]
    assert float(cosine(torch.zeros(2), torch.ones(2))) == 0
    assert float(dot(torch.tensor([1e8, 1.0, -1e8]), torch.ones(3))) == 1.0  # float32 would lose it


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
        ("sgd", {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1}),
        ("adamw", {"momentum": 0.9, "weight_decay": 0.1}),
        ("adamw", {"momentum": 0.0}),
    ],
)
def test_descent_steps_as_torch_does(kind, how):
    torch.manual_seed(0)
    theta = torch.randn(50, dtype=torch.float64)
    p = nn.Parameter(theta.clone())
    if kind == "sgd":
        reference = torch.optim.SGD([p], lr=0.1, **how)
    else:
        betas = (how["momentum"], 0.999)
        decay = how.get("weight_decay", 0.0)
        reference = torch.optim.AdamW([p], lr=0.1, betas=betas, weight_decay=decay)
    ours = FlatOptimizer(kind, theta, lr=0.1, **how)
    for rate in (0.1, 0.1, 0.02, 0.3):
        p.grad = torch.randn_like(p)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        ours.rate.fill_(rate)
        theta = theta - ours.displacement(theta, p.grad)
        assert torch.allclose(theta, p, atol=1e-12)


def test_momentum_breaks_the_promise_of_gradient_space_and_update_space_keeps_it():
    """Two SGD steps: the first fills the momentum, the second must not follow it against retain."""
    # 0.1 · (0.9 · 1 + 1), and along retain 0.1 · 0.9 · (−1), or ten times what rounding may do
    for space, wanted in (("gradient", [0.19, -0.09]), ("update", [0.19, 0.0])):
        p, retain = nn.Parameter(torch.tensor([1.0, 1.0])), torch.tensor([0.0, 1.0])
        opt = FlatOptimizer("sgd", flat([p]), lr=0.1, momentum=0.9)
        step(FlatParameters([p]), opt, torch.tensor([1.0, -1.0]), torch.tensor([1.0, 0.0]), space=space)
        before = p.detach().clone()
        step(FlatParameters([p]), opt, torch.tensor([1.0, 0.0]), retain, space=space)
        moved = before - p.detach()
        assert moved.tolist() == pytest.approx(wanted, abs=1e-6)
        assert (float(dot(moved, retain)) >= 0) == (space == "update")


def test_none_follows_the_conflict_and_says_so():
    p = nn.Parameter(torch.tensor([1.0, 1.0]))
    opt = FlatOptimizer("sgd", flat([p]), lr=0.5)
    taken = step(FlatParameters([p]), opt, torch.tensor([0.0, -2.0]), torch.tensor([0.0, 1.0]), space="none")
    assert p.tolist() == [1.0, 2.0]
    assert not bool(taken.projected)
    assert float(taken.cosine) == pytest.approx(-1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_moves_no_weight_the_wrong_way_and_does_not_cost_the_step(dtype):
    """Safe must not mean standing still: nearly every conflicting step is taken."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(200).to(dtype))
    opt = FlatOptimizer("sgd", flat([p]), lr=0.05)
    taken = 0
    for _ in range(50):
        before, retain = flat([p]), torch.randn(200)
        step(FlatParameters([p]), opt, torch.randn(200) - retain, retain, space="update")
        assert float(dot(before - flat([p]), retain)) >= 0
        taken += float((before - flat([p])).norm()) > 0.1
    assert taken >= 48


# -- the mathematics of the guarantee, over all scales that a network can meet -----------------------


scales = st.integers(-12, 12).map(lambda e: 10.0**e)
seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(1, 64)

OPTIMIZERS = {
    "sgd": lambda p: FlatOptimizer("sgd", flat(p), lr=0.1),
    "momentum": lambda p: FlatOptimizer("sgd", flat(p), lr=0.1, momentum=0.9),
    "nesterov": lambda p: FlatOptimizer("sgd", flat(p), lr=0.1, momentum=0.9, nesterov=True),
    "decay": lambda p: FlatOptimizer("sgd", flat(p), lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: FlatOptimizer("adamw", flat(p), lr=0.01, momentum=0.9, weight_decay=0.1),
}


def draw(seed: int, n: int, *scale: float) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(n, generator=g) * s for s in scale]


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """⟨a, b⟩ / (‖a‖‖b‖) in float64."""
    a, b = a.double(), b.double()
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms > 0 else 0.0


@given(seeds, sizes, scales, scales)
def test_projection_is_safe(seed, n, sv, sr):
    v, r = draw(seed, n, sv, sr)
    assume(float(r.norm()) > 0)
    p = project(v, r)
    # What is left after cancelling can be small; the promise is relative to what went in.
    assert float(p.double() @ r.double()) >= -1e-6 * float(v.double().norm() * r.double().norm())


@given(seeds, sizes, scales, scales)
def test_projection_is_the_nearest_safe_vector(seed, n, sv, sr):
    v, r, other = draw(seed, n, sv, sr, sv)
    r64, o = r.double().numpy(), other.double().numpy()
    safe = o - min(0.0, o @ r64) / (r64 @ r64) * r64  # some other safe vector
    ours = np.linalg.norm(v.double().numpy() - project(v, r).double().numpy())
    assert ours <= np.linalg.norm(v.double().numpy() - safe) * (1 + 1e-5)


@settings(deadline=None, max_examples=60)
@given(seeds, sizes, scales, scales, scales, st.sampled_from(sorted(OPTIMIZERS)), st.booleans())
def test_every_applied_step_is_safe_in_update_space(seed, n, sp, sg, sr, optimizer, clip):
    params = [nn.Parameter(t) for t in draw(seed, n, sp, sp)]
    opt = OPTIMIZERS[optimizer](params)
    for k in range(4):  # momentum and Adam's moments need history
        g, r = draw(seed + k + 1, 2 * n, sg, sr)
        before = flat(params)
        taken = step(FlatParameters(params), opt, g, r, space="update", clip=1.0 if clip else 0.0)
        moved = before.double() - flat(params).double()
        assert relative(moved, r) >= -1e-12
        assert float(taken.cosine) >= -1e-12
