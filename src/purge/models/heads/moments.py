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

import math
from typing import NamedTuple

import torch
from torch import Tensor

from purge.core.errors import DataError, MethodError
from purge.models.heads.rows import chunks

EPSILON = torch.finfo(torch.float64).eps
SINGULAR = 1e-13  # smallest share of the largest eigenvalue at which a matrix can still be solved with


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
    width = x.shape[1]
    zero = torch.zeros(width, width, dtype=torch.float64)
    total = Moments(torch.zeros(classes, dtype=torch.long), zero.new_zeros(classes, width), zero, zero[0])
    for part, labels in chunks(x, y):
        total = joined(total, _of_chunk(part, labels, classes))
    return total


def _of_chunk(x: Tensor, y: Tensor, classes: int) -> Moments:
    counts = torch.bincount(y, minlength=classes)
    sums = x.new_zeros(classes, x.shape[1]).index_add_(0, y, x)
    centred = x - x.mean(0)
    return Moments(
        counts, sums / counts.clamp_min(1).double()[:, None], centred.T @ centred, x.new_zeros(x.shape[1])
    )


def joined(a: Moments, b: Moments) -> Moments:
    """The moments of two sets of rows together."""
    if not a.n or not b.n:
        return a if a.n else b
    counts = a.counts + b.counts
    means = a.means + (b.counts.double() / counts.clamp_min(1))[:, None] * (b.means - a.means)
    apart = b.mean - a.mean
    scatter = a.scatter + b.scatter + (a.n * b.n / (a.n + b.n)) * torch.outer(apart, apart)
    return _rounded(Moments(counts, means, scatter, a.rounding), a)


def parted(whole: Moments, less: Moments) -> Moments:
    """The moments of what is left when some rows go."""
    counts = whole.counts - less.counts
    if bool((counts < 0).any()):
        k = int((counts < 0).nonzero()[0, 0])
        got = f"{int(less.counts[k])}"
        fix = "remove only rows that were added, with their labels"
        raise DataError(f"at most the {int(whole.counts[k])} rows of class {k} that the head has", got, fix)
    left = int(counts.sum())
    if not left:
        raise DataError("at least one row that stays", "none", "delete the head instead")
    share = (less.counts.double() / counts.clamp_min(1))[:, None]
    means = torch.where(counts[:, None] > 0, whole.means - share * (less.means - whole.means), 0.0)
    apart = less.mean - whole.mean
    scatter = whole.scatter - less.scatter - (whole.n * less.n / left) * torch.outer(apart, apart)
    rest = _rounded(Moments(counts, means, scatter, whole.rounding), whole)
    if bool((scatter.diagonal() < -100 * rest.rounding).any()):
        got = "rows that vary more than all rows of the head do"
        raise DataError("rows that the head has learned", got, "remove only rows that were added")
    return rest


def _rounded(now: Moments, before: Moments) -> Moments:
    """Add what this step may have rounded away; errors of steps add up like those of a random walk."""
    size = torch.maximum(now.scatter.diagonal(), before.scatter.diagonal()).clamp_min(0)
    lever = before.mean.abs() * (before.n * size).sqrt()  # of a mean that is far from zero
    return now._replace(rounding=torch.hypot(before.rounding, EPSILON * (size + lever)))


class Solved(NamedTuple):
    """A ridge head and how far it may be from that of the same rows in one go."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    error: float  # relative, an estimate


def solved(m: Moments, lam: float, *, intercept: bool) -> Solved:
    """The ridge head of moments; a matrix that cannot be solved with is refused."""
    n, mean = m.n, m.mean
    if intercept:
        gram, cross = m.scatter, 2 * m.counts.double()[:, None] * (m.means - mean)
    else:
        gram = m.scatter + n * torch.outer(mean, mean)
        cross = 2 * m.counts.double()[:, None] * m.means - n * mean
    gram = gram + lam * torch.eye(len(gram), dtype=torch.float64)
    gram = (gram + gram.T) / 2
    factor, failed = torch.linalg.cholesky_ex(gram)
    smallest = 0.0 if int(failed) else _smallest(factor)
    if smallest <= SINGULAR * float(gram.diagonal().max()):
        got = f"lam={lam:g} with {n} rows of {len(gram)} features, which leave it open"
        raise MethodError("features that determine the head", got, "raise lam, 1.0 say")
    weight = torch.cholesky_solve(cross.T, factor)
    weight = weight + torch.cholesky_solve(cross.T - gram @ weight, factor)  # once more for what was rounded
    bias = 2 * m.counts.double() / n - 1 - mean @ weight if intercept else weight.new_zeros(len(m.counts))
    off = torch.cholesky_solve(_tried(m.rounding) @ weight, factor)
    return Solved(weight.T.contiguous(), bias, float(off.norm() / weight.norm().clamp_min(1e-300)))


def _tried(rounding: Tensor) -> Tensor:
    """A random error (D, D) of the scatter, as large as rounding may have made it."""
    d, scale = len(rounding), rounding.sqrt()
    drawn = torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return scale[:, None] * (drawn + drawn.T) * scale


def _smallest(factor: Tensor) -> float:
    """About the smallest eigenvalue of a matrix with this Cholesky factor, by inverse iteration."""
    v = torch.randn(len(factor), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    v /= v.norm()
    size = 1.0
    for _ in range(8):
        v = torch.cholesky_solve(v, factor)
        size = float(v.norm())
        if not math.isfinite(size) or size == 0:
            return 0.0
        v /= size
    return 1 / size
