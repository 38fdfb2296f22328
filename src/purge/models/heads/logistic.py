"""Multinomial logistic regression to the last digits.

::

    minimise  L(W) = Σ_i −log softmax(W x_i)[y_i] + λ/2 ‖W‖²        (x ends in a 1 for the intercept)

by Newton's method; each step solves H V = −g by conjugate gradients. Their preconditioner is C + λI, where
C = Σ_i c_i x_i x_iᵀ with the mean curvature c_i = (1 − ‖p_i‖²)/K of some earlier step. λ > 0 makes L strongly
convex, so there is one minimum, also where a class has no row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from purge.core.errors import RunError
from purge.models.heads.rows import CHUNK

STEP = 1e-9  # Newton's method ends after a step of this relative length; the next would be its square
MOST_NEWTON, MOST_CG, MANY_CG, FORCING = 100, 2000, 12, 1e-3


class Problem(NamedTuple):
    """Rows in float64 that end in a 1 (or not), their labels, and the objective's constants."""

    x: Tensor  # (N, D)
    y: Tensor  # (N,)
    lam: float
    classes: int


class Solution(NamedTuple):
    """Weights, and about the curvature there."""

    weight: Tensor  # (K, D)
    curvature: Tensor  # C (D, D)


def minimum(p: Problem, start: Solution | None = None) -> Solution:
    """The minimum of the objective, from a start that may be near, or from weights of 0."""
    if start is None:
        zero = p.x.new_zeros(p.classes, p.x.shape[1])
        start = Solution(zero, curvature_at(p, zero))
    w, curvature = start
    value, g = objective(p, w)
    for _ in range(MOST_NEWTON):
        step, slow = newton_step(p, w, -g, curvature, most=MANY_CG)
        if slow:  # the curvature is from too far away
            curvature = curvature_at(p, w)
            step, _ = newton_step(p, w, -g, curvature, begin=step)
        length, slope = float(step.norm()), float((g * step).sum())
        rate, new = 1.0, w + step
        then = objective(p, new)
        last = length <= STEP * (1 + float(w.norm()))
        while not last and then[0] > value + 1e-4 * rate * slope + 1e-12 * abs(value) and rate > 1e-6:
            rate /= 2
            new = w + rate * step
            then = objective(p, new)
        w, (value, g) = new, then
        if last:
            return Solution(w, curvature)
    fix = "raise lam, or bring the features to a similar scale"
    raise RunError(f"a minimum within {MOST_NEWTON} Newton steps", "none", fix)


def objective(p: Problem, w: Tensor) -> tuple[float, Tensor]:
    """L(W) and its gradient (K, D)."""
    value, g = 0.5 * p.lam * float(w.square().sum()), p.lam * w
    for x, y in zip(p.x.split(CHUNK), p.y.split(CHUNK), strict=True):
        logp = (x @ w.T).log_softmax(1)
        value -= float(logp.gather(1, y[:, None]).sum())
        each = logp.exp()  # the gradient of each row's loss in its logits, (N, K)
        each.scatter_add_(1, y[:, None], -torch.ones_like(each[:, :1]))
        g = g + each.T @ x
    return value, g


def curvature_at(p: Problem, w: Tensor) -> Tensor:
    """C at these weights, (D, D)."""
    total = p.x.new_zeros(p.x.shape[1], p.x.shape[1])
    for x in p.x.split(CHUNK):
        c = (1 - (x @ w.T).softmax(1).square().sum(1)) / len(w)
        total += x.T @ (c[:, None] * x)
    return total


def newton_step(
    p: Problem, w: Tensor, rhs: Tensor, curvature: Tensor, *, most: int = MOST_CG, begin: Tensor | None = None
) -> tuple[Tensor, bool]:
    """V with H V = rhs by preconditioned conjugate gradients, and whether they ended too early."""
    probs = [(x @ w.T).softmax(1) for x in p.x.split(CHUNK)]
    factor, failed = torch.linalg.cholesky_ex(curvature + p.lam * torch.eye(len(curvature)).double())
    if int(failed):
        got = f"lam={p.lam:g} for features as large as {float(p.x.abs().max()):.1g}"
        raise RunError("an objective that can be minimised", got, "scale the features down, or raise lam")

    def times_h(v: Tensor) -> Tensor:
        out = p.lam * v
        for x, q in zip(p.x.split(CHUNK), probs, strict=True):
            z = q * (x @ v.T)
            out = out + (z - q * z.sum(1, keepdim=True)).T @ x
        return out

    v = torch.zeros_like(w) if begin is None else begin
    r = rhs.clone() if begin is None else rhs - times_h(v)
    s = torch.cholesky_solve(r.T, factor).T
    direction, rs, size = s, float((r * s).sum()), float(rhs.norm())
    for _ in range(most):
        if float(r.norm()) <= FORCING * size or rs <= 0:
            break
        h = times_h(direction)
        rate = rs / float((direction * h).sum())
        v, r = v + rate * direction, r - rate * h
        s = torch.cholesky_solve(r.T, factor).T
        rs, before = float((r * s).sum()), rs
        direction = s + (rs / before) * direction
    return v, float(r.norm()) > FORCING * size and rs > 0
