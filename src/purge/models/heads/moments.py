"""What ridge regression needs to know of its rows: counts, class means and the scatter matrix.

One-vs-rest on targets ±1, with the intercept left free::

    minimise  Σ_i ‖W x_i + b − t_i‖² + λ‖W‖²,     t_ik = +1 if y_i = k, else −1
    (S + λI) Wᵀ = C,    b = t̄ − W x̄
    S = Σ (x_i − x̄)(x_i − x̄)ᵀ,    C_k = Σ (x_i − x̄)(t_ik − t̄_k) = 2 n_k (x̄_k − x̄)

Sets of rows are joined and parted by the formulas of Chan, Golub and LeVeque (1979), which subtract means
first: S of a whole is S_1 + S_2 + (n_1 n_2 / n) d dᵀ with d = x̄_2 − x̄_1. After a removal the moments are
those of the rows that stay, whatever came and went.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.linalg.lapack import dpocon
from torch import Tensor

from purge.core.errors import MethodError
from purge.models.heads.rows import chunks

EPSILON = torch.finfo(torch.float64).eps
SINGULAR = 1e-14  # the smallest reciprocal condition number of a matrix that can still be solved with


class Moments(NamedTuple):
    """Sums over rows, in float64."""

    counts: Tensor  # (K,) int64, rows of each class
    means: Tensor  # (K, D) of each class; 0 where it has no row
    scatter: Tensor  # (D, D) about the mean of all
    rounding: Tensor  # (D,) what rounding may have done to the scatter's diagonal so far

    @property
    def n(self) -> int:
        """How many rows there are."""
        return int(self.counts.sum())

    @property
    def mean(self) -> Tensor:
        """The mean (D,) of all rows."""
        return (self.counts.double() / max(self.n, 1)) @ self.means


def moments_of(x: Tensor, y: Tensor, classes: int) -> Moments:
    """The moments of rows (N, D) with labels (N,)."""
    total = None
    for rows, labels in chunks(x, y):
        counts = torch.bincount(labels, minlength=classes)
        sums = rows.new_zeros(classes, x.shape[1]).index_add_(0, labels, rows)
        centred = rows - rows.mean(0)
        means = sums / counts.clamp_min(1).double()[:, None]
        part = Moments(counts, means, centred.T @ centred, rows.new_zeros(x.shape[1]))
        total = part if total is None else joined(total, part)
    assert total is not None  # rows are never empty
    return total


def joined(a: Moments, b: Moments) -> Moments:
    """The moments of two sets of rows together."""
    counts = a.counts + b.counts
    means = a.means + (b.counts.double() / counts.clamp_min(1))[:, None] * (b.means - a.means)
    apart = b.mean - a.mean
    scatter = a.scatter + b.scatter + (a.n * b.n / (a.n + b.n)) * torch.outer(apart, apart)
    return _rounded(Moments(counts, means, scatter, a.rounding), a)


def parted(whole: Moments, less: Moments) -> Moments:
    """The moments of what is left when some rows, not all, go."""
    counts = whole.counts - less.counts
    share = (less.counts.double() / counts.clamp_min(1))[:, None]
    means = torch.where(counts[:, None] > 0, whole.means - share * (less.means - whole.means), 0.0)
    apart = less.mean - whole.mean
    scatter = whole.scatter - less.scatter
    scatter = scatter - (whole.n * less.n / (whole.n - less.n)) * torch.outer(apart, apart)
    return _rounded(Moments(counts, means, scatter, whole.rounding), whole)


def _rounded(now: Moments, before: Moments) -> Moments:
    """Add what this step may have rounded away; errors of steps add up like those of a random walk."""
    size = torch.maximum(now.scatter.diagonal(), before.scatter.diagonal()).clamp_min(0)
    lever = before.mean.abs() * (before.n * size).sqrt()  # of a mean that is far from zero
    return now._replace(rounding=torch.hypot(before.rounding, EPSILON * (size + lever)))


def solved(m: Moments, lam: float, *, intercept: bool) -> tuple[Tensor, Tensor, float]:
    """The ridge head of moments: weights (K, D), biases (K,) and about the relative error of both.

    A matrix that cannot be solved with is refused.
    """
    n, mean = m.n, m.mean
    if intercept:
        gram, cross = m.scatter, 2 * m.counts.double()[:, None] * (m.means - mean)
    else:
        gram = m.scatter + n * torch.outer(mean, mean)
        cross = 2 * m.counts.double()[:, None] * m.means - n * mean
    gram = gram + lam * torch.eye(len(gram), dtype=torch.float64)
    gram = (gram + gram.T) / 2
    factor, failed = torch.linalg.cholesky_ex(gram)
    size = float(gram.abs().sum(0).max())
    if int(failed) or not dpocon(factor.numpy(), size, uplo="L")[0] > SINGULAR:
        got = f"lam={lam:g} with {n} rows of {len(gram)} features, which leave it open"
        raise MethodError("features that determine the head", got, "raise lam, 1.0 say")
    weight = torch.cholesky_solve(cross.T, factor)
    weight = weight + torch.cholesky_solve(cross.T - gram @ weight, factor)  # once more for what was rounded
    bias = 2 * m.counts.double() / n - 1 - mean @ weight if intercept else weight.new_zeros(len(m.counts))
    # How far would a random error of the scatter, as large as rounding may have made it, move the head?
    scale = m.rounding.sqrt()
    drawn = torch.randn(gram.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    off = torch.cholesky_solve((scale[:, None] * (drawn + drawn.T) * scale) @ weight, factor)
    return weight.T.contiguous(), bias, float(off.norm() / weight.norm().clamp_min(1e-300))
