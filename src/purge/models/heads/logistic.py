"""Multinomial logistic regression to the last digits, and removals with a certificate.

::

    minimise  L(W) = Σ_i −log softmax(W x_i)[y_i] + λ/2 ‖W‖² + ⟨B, W⟩        (x ends in a 1 for the intercept)

by Newton's method; each step solves H V = −g by conjugate gradients. Their preconditioner is C + λI, where
C = Σ_i c_i x_i x_iᵀ with the mean curvature c_i = (1 − ‖p_i‖²)/K of some earlier step. λ > 0 makes L strongly
convex, so there is one minimum, also where a class has no row.

Certified removal: Guo, Goldstein, Hannun, van der Maaten, "Certified Data Removal from Machine Learning
Models", ICML 2020, arXiv:1911.03030. B ~ N(0, σ²) is drawn at training. Rows whose losses have the gradient
Δ go by one Newton step::

    W⁻ = W + V,    H V = Δ,    H = ∇²L of the rows that stay
    β grows by  ‖X‖₂ · γ/2 · (Σ_i ‖V x_i‖⁴)^½,    at most  γ n m² R⁵ / λ²      (m rows of norm ≤ R go, n stay)

(ε, δ)-removal holds as long as β ≤ σε/c with c = √(2 log(1.5/δ)), their Theorem 3; then one must train anew.

Where we differ: one softmax over all classes instead of one-vs-rest, so γ = 1/√2 here bounds the third
derivative of log-sum-exp (theirs, 1/4, that of the logistic loss): with class probabilities p it is
E[(u − ū)(v − v̄)²] ≤ (max u − min u)·(max v − min v)²/4 ≤ ‖u‖‖v‖²/√2. λ is the penalty of the whole sum,
theirs is λ·n, so Δ has no term of the penalty. Our bound keeps (Σ‖V x_i‖⁴)^½ where theirs goes on to
‖V‖·‖X V‖ for rows of norm 1, and the ½ of the integral. What the training and the linear solve leave of the
gradient is counted in β too.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from purge.core.errors import RunError
from purge.models.heads.rows import CHUNK

GAMMA = 1 / math.sqrt(2)
STEP = 1e-9  # Newton's method ends after a step of this relative length; the next would be its square
MOST_NEWTON, MOST_CG, MANY_CG, FORCING = 100, 2000, 12, 1e-3


class Problem(NamedTuple):
    """Rows in float64 that end in a 1 (or not), their labels, and the objective's constants."""

    x: Tensor  # (N, D)
    y: Tensor  # (N,)
    gram: Tensor  # XᵀX (D, D)
    lam: float
    noise: Tensor  # B (K, D)


class Solution(NamedTuple):
    """Weights, the norm of what is left of the gradient there, and about the curvature."""

    weight: Tensor  # (K, D)
    residual: float
    curvature: Tensor  # C (D, D)


def from_nothing(p: Problem) -> Solution:
    """Weights of 0, where every class is as likely: the start of a training."""
    k = len(p.noise)
    return Solution(torch.zeros_like(p.noise), 0.0, (1 - 1 / k) / k * p.gram)


def minimum(p: Problem, start: Solution) -> Solution:
    """The minimum of the objective, from a start that may be near."""
    w, curvature = start.weight, start.curvature
    value, g = objective(p, w)
    for _ in range(MOST_NEWTON):
        step, _, slow = newton_step(p, w, -g, curvature, most=MANY_CG)
        if slow:  # the curvature is from too far away
            curvature = curvature_at(p, w)
            step, _, _ = newton_step(p, w, -g, curvature, begin=step)
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
            return Solution(w, float(g.norm()), curvature)
    fix = "raise lam, or bring the features to a similar scale"
    raise RunError(f"a minimum within {MOST_NEWTON} Newton steps", "none", fix)


def objective(p: Problem, w: Tensor) -> tuple[float, Tensor]:
    """L(W) and its gradient (K, D)."""
    value, g = 0.5 * p.lam * float(w.square().sum()) + float((p.noise * w).sum()), p.lam * w + p.noise
    for x, y in zip(p.x.split(CHUNK), p.y.split(CHUNK), strict=True):
        logp = (x @ w.T).log_softmax(1)
        value -= float(logp.gather(1, y[:, None]).sum())
        g = g + pulls(logp, y).T @ x
    return value, g


def pulls(logp: Tensor, y: Tensor) -> Tensor:
    """The gradient of each row's loss in its logits, (N, K)."""
    out = logp.exp()
    return out.scatter_add_(1, y[:, None], -torch.ones_like(out[:, :1]))


def curvature_at(p: Problem, w: Tensor) -> Tensor:
    """C at these weights, (D, D)."""
    found = torch.zeros_like(p.gram)
    for x in p.x.split(CHUNK):
        c = (1 - (x @ w.T).softmax(1).square().sum(1)) / len(w)
        found += x.T @ (c[:, None] * x)
    return found


class Step(NamedTuple):
    """V with H V = rhs, the norm of what is left, and whether that is more than was asked for."""

    v: Tensor
    rest: float
    unfinished: bool


def newton_step(
    p: Problem, w: Tensor, rhs: Tensor, curvature: Tensor, *, exactly: float = FORCING, most: int = MOST_CG,
    begin: Tensor | None = None,
) -> Step:  # fmt: skip
    """Solve H V = rhs by preconditioned conjugate gradients."""
    probs = [(x @ w.T).softmax(1) for x in p.x.split(CHUNK)]
    eye = torch.eye(len(p.gram), dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(curvature + p.lam * eye)
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
        if float(r.norm()) <= exactly * size or rs <= 0:
            break
        h = times_h(direction)
        rate = rs / float((direction * h).sum())
        v, r = v + rate * direction, r - rate * h
        s = torch.cholesky_solve(r.T, factor).T
        rs, before = float((r * s).sum()), rs
        direction = s + (rs / before) * direction
    rest = float(r.norm())
    return Step(v, rest, rest > exactly * size and rs > 0)


class Removal(NamedTuple):
    """A certified removal that was computed and not yet made."""

    weight: Tensor  # (K, D)
    bound: float  # what it adds to β
    worst: float  # what it could add at most, whatever the data


def removal(left: Problem, gone: tuple[Tensor, Tensor], now: Solution) -> Removal:
    """One Newton step that takes rows out, and the bound of what it leaves of the gradient."""
    (x, y), w = gone, now.weight
    pull = pulls((x @ w.T).log_softmax(1), y).T @ x
    v, rest, _ = newton_step(left, w, pull, now.curvature, exactly=1e-10)
    moved = torch.cat([(part @ v.T).norm(dim=1) for part in left.x.split(CHUNK)])
    largest = math.sqrt(float(torch.linalg.eigvalsh(left.gram)[-1]))
    bound = 0.5 * GAMMA * largest * float(moved.pow(4).sum().sqrt()) + rest
    radius = max(float(part.norm(dim=1).max()) for part in (*left.x.split(CHUNK), x))
    worst = GAMMA * len(left.x) * len(x) ** 2 * radius**5 / left.lam**2 + rest
    return Removal(w + v, bound, worst)


def budget(sigma: float, epsilon: float, delta: float) -> float:
    """How large β may grow: σε / √(2 log(1.5/δ)).

    >>> round(budget(1.0, 1.0, 1e-4), 4)
    0.228
    """
    return sigma * epsilon / math.sqrt(2 * math.log(1.5 / delta))
