"""The mathematics of the guarantee, over all scales that a network can meet."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from purge.engine.optimizer import FlatOptimizer, FlatParameters
from purge.engine.projection import flat, project, step

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


def test_without_the_projection_the_same_steps_are_not_safe():
    """The property above can fail: gradient space does fail it as soon as there is momentum."""
    worst = {}
    for space in ("none", "gradient", "update"):
        params = [nn.Parameter(t) for t in draw(0, 32, 1.0, 1.0)]
        opt = OPTIMIZERS["decay"](params)
        cosines = []
        for k in range(20):
            g, r = draw(k + 1, 64, 1.0, 1.0)
            cosines.append(float(step(FlatParameters(params), opt, g, r, space=space).cosine))
        worst[space] = min(cosines)
    assert worst["none"] < -0.05
    assert worst["gradient"] < -0.05
    assert worst["update"] >= -1e-12
