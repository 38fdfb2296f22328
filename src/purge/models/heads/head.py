"""Linear heads that learn and forget rows exactly: ridge and logistic regression on fixed features."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from purge.core.errors import DataError, FileError, MethodError, PurgeError, RunError, brief
from purge.core.files import atomically, file_errors
from purge.core.settings import as_dict, normalise, replace, setting
from purge.models.heads import logistic
from purge.models.heads.logistic import Problem, Solution
from purge.models.heads.moments import Moments, joined, moments_of, parted, solved
from purge.models.heads.rows import Ledger, checked, numbers

Kind = Literal["ridge", "logistic"]
TOLERANCE = 1e-8  # how far, relative to its size, a head may be from that of the same rows in one go
FORMAT = "purge head 1"


@dataclass(frozen=True)
class HeadSettings:
    """How a head is fitted."""

    kind: Kind = setting("ridge", "ridge regression on targets ±1, or multinomial logistic regression")
    lam: float = setting(1.0, "λ: penalty of the weights, beside the sum over all rows", low=0)
    intercept: bool = setting(True, "a bias; free in ridge, penalised like a weight in logistic regression")

    def __post_init__(self) -> None:
        normalise(self)
        if self.kind == "logistic" and self.lam == 0:
            raise MethodError("lam above 0 for a logistic head", "0", "pass lam=1.0, say")


class Head(ABC):
    """A linear head that was fitted to rows of features; made by :func:`fit` or :func:`load`.

    ``weight`` (K, D) and ``bias`` (K,) are in float64. A call that is refused leaves the head as it was.
    """

    kind: ClassVar[Kind]
    weight: Tensor
    bias: Tensor

    def __init__(self, settings: HeadSettings, classes: int, ledger: Ledger | None) -> None:
        self.settings, self.classes, self._ledger = settings, classes, ledger

    def add(self, features: Any, labels: Any) -> None:
        """Learn more rows: the head is then that of all rows together."""
        x, y = checked(features, labels, width=self.width, classes=self.classes)
        new = [] if self._ledger is None else self._ledger.of(x, y)
        self._add(x, y)
        if self._ledger is not None:
            self._ledger.digests = self._ledger.digests + new

    def remove(self, features: Any, labels: Any) -> None:
        """Forget rows, given as they were added: the head is then that of the other rows alone.

        Rows that the head has not learned are refused (without ``track``, as far as their counts show it).
        """
        x, y = checked(features, labels, width=self.width, classes=self.classes)
        places = None if self._ledger is None else self._ledger.find(self._ledger.of(x, y))
        if len(y) >= self.rows:
            raise DataError(f"fewer than the {self.rows} rows of the head", str(len(y)), "keep at least one")
        self._remove(x, y, places)
        if self._ledger is not None and places is not None:
            self._ledger = self._ledger.without(places)

    def scores(self, features: Any) -> Tensor:
        """The logits (N, K) of rows, in float64."""
        return numbers(features, self.width).double() @ self.weight.T + self.bias

    def module(self, dtype: torch.dtype = torch.float32) -> nn.Linear:
        """The head as a layer."""
        made = nn.Linear(self.width, self.classes, bias=self.settings.intercept, dtype=dtype)
        self.copy_to(made)
        return made

    def copy_to(self, layer: nn.Linear) -> None:
        """Write the head into a layer of the same shape, rounded to the layer's type."""
        with torch.no_grad():
            layer.weight.copy_(self.weight)
            if layer.bias is not None:
                layer.bias.copy_(self.bias)

    def distance(self, weight: Tensor, bias: Tensor | None) -> float:
        """How far other weights are from this head, where its rows are: 0 is the same head.

        ‖ΔW‖ / ‖W‖ in the norm ‖W‖² = Σ_i ‖W x_i + b‖² + λ‖W‖².
        """
        shift = torch.zeros_like(self.bias) if bias is None else bias.detach().cpu().double()
        off = self._size(weight.detach().cpu().double() - self.weight, shift - self.bias)
        return float((off / self._size(self.weight, self.bias)).sqrt())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the head and what its next removal needs, as safetensors; of a logistic head its rows too."""
        tensors = {**self._state(), **({} if self._ledger is None else self._ledger.tensors())}
        about = {"format": FORMAT, "settings": json.dumps(as_dict(self.settings))}
        about["classes"] = str(self.classes)
        plain = {name: t.contiguous() for name, t in tensors.items()}
        with file_errors(Path(path)):
            atomically(Path(path), lambda p: save_file(plain, p, about))

    @property
    def width(self) -> int:
        """How many features a row has."""
        return self.weight.shape[1]

    @property
    @abstractmethod
    def counts(self) -> Tensor:
        """The rows of each class, (K,)."""

    @property
    def rows(self) -> int:
        """How many rows the head has learned."""
        return int(self.counts.sum())

    @property
    @abstractmethod
    def error(self) -> float:
        """About how far, relative to its size, it is from the head of the same rows fitted in one go."""

    def __repr__(self) -> str:
        size = f"{self.rows:,} rows, {self.width} → {self.classes}"
        return f"<{self.kind} head: {size}, λ {self.settings.lam:g}>"

    @abstractmethod
    def _add(self, x: Tensor, y: Tensor) -> None: ...

    @abstractmethod
    def _remove(self, x: Tensor, y: Tensor, places: list[int] | None) -> None: ...

    @abstractmethod
    def _size(self, weight: Tensor, bias: Tensor) -> Tensor: ...

    @abstractmethod
    def _state(self) -> dict[str, Tensor]: ...


class RidgeHead(Head):
    """Ridge regression. It keeps counts, class means and one matrix, no row; see :mod:`~.moments`."""

    kind = "ridge"

    def __init__(self, settings: HeadSettings, classes: int, ledger: Ledger | None, moments: Moments) -> None:
        super().__init__(settings, classes, ledger)
        self._take(moments, check=False)

    def _take(self, moments: Moments, *, check: bool = True) -> None:
        weight, bias, error = solved(moments, self.settings.lam, intercept=self.settings.intercept)
        if check and error > TOLERANCE:
            got = f"about {error:.0e}, since rows of this size were added and removed"
            fix = "fit the head anew on the rows that stay, or raise lam"
            raise RunError(f"a head that rounding has not moved by more than {TOLERANCE:.0e}", got, fix)
        self._moments, self.weight, self.bias, self._error = moments, weight, bias, error

    def _add(self, x: Tensor, y: Tensor) -> None:
        self._take(joined(self._moments, moments_of(x, y, self.classes)), check=False)

    def _remove(self, x: Tensor, y: Tensor, places: list[int] | None) -> None:
        self._take(parted(self._moments, moments_of(x, y, self.classes)))

    @property
    def counts(self) -> Tensor:
        """The rows of each class, (K,)."""
        return self._moments.counts.clone()

    @property
    def error(self) -> float:
        """About how far, relative to its size, it is from the head of the same rows fitted in one go."""
        return self._error

    def _size(self, weight: Tensor, bias: Tensor) -> Tensor:
        m = self._moments
        middle = weight @ m.mean + bias
        penalty = self.settings.lam * weight.square().sum()
        return ((weight @ m.scatter) * weight).sum() + m.n * middle.square().sum() + penalty

    def _state(self) -> dict[str, Tensor]:
        m = self._moments
        return {"counts": m.counts, "means": m.means, "scatter": m.scatter, "rounding": m.rounding}


class LogisticHead(Head):
    """Multinomial logistic regression. It keeps its rows; see :mod:`~.logistic`."""

    kind = "logistic"

    def __init__(
        self, settings: HeadSettings, classes: int, ledger: Ledger, problem: Problem,
        solution: Solution,
    ) -> None:  # fmt: skip
        super().__init__(settings, classes, ledger)
        self._take(problem, solution)

    def _take(self, problem: Problem, solution: Solution) -> None:
        self._problem, self._solution = problem, solution
        self.weight = solution.weight[:, :-1].clone() if self.settings.intercept else solution.weight
        bias = solution.weight[:, -1].clone()
        self.bias = bias if self.settings.intercept else torch.zeros_like(bias)

    def _add(self, x: Tensor, y: Tensor) -> None:
        p, more = self._problem, _with_ones(x, self.settings)
        both = p._replace(x=torch.cat([p.x, more]), y=torch.cat([p.y, y]), gram=p.gram + more.T @ more)
        self._take(both, logistic.minimum(both, self._solution))

    def _remove(self, x: Tensor, y: Tensor, places: list[int] | None) -> None:
        p, less = self._problem, _with_ones(x, self.settings)
        stays = torch.ones(len(p.y), dtype=torch.bool)
        stays[places] = False
        left = p._replace(x=p.x[stays], y=p.y[stays], gram=p.gram - less.T @ less)
        self._take(left, logistic.minimum(left, self._solution))

    @property
    def counts(self) -> Tensor:
        """The rows of each class, (K,)."""
        return torch.bincount(self._problem.y, minlength=self.classes)

    @property
    def error(self) -> float:
        """A bound of how far, relative to its size, it is from the minimum: ‖gradient‖ / λ‖W‖."""
        residual = float(logistic.objective(self._problem, self._solution.weight)[1].norm())
        return residual / self.settings.lam / max(float(self._solution.weight.norm()), 1e-300)

    def _size(self, weight: Tensor, bias: Tensor) -> Tensor:
        w = torch.cat([weight, bias[:, None]], 1) if self.settings.intercept else weight
        return ((w @ self._problem.gram) * w).sum() + self.settings.lam * w.square().sum()

    def _state(self) -> dict[str, Tensor]:
        p = self._problem
        return {"x": p.x, "y": p.y, "solution": self._solution.weight}


def fit(
    features: Any,
    labels: Any,
    *,
    kind: Kind = "ridge",
    lam: float = 1.0,
    intercept: bool = True,
    classes: int | None = None,
    track: bool = True,
) -> Head:
    """A linear head for rows of features (N, D) with labels (N,), from which rows can be deleted exactly.

    ``kind="ridge"`` keeps sums alone, and a removal takes milliseconds; ``"logistic"`` keeps its rows.
    ``lam`` is the penalty beside the sum over all rows: ``alpha`` of scikit-learn's Ridge, 1/C of its
    LogisticRegression. ``classes``: how many there are, where the largest label does not tell. ``track``:
    keep a keyed digest of each row, so that rows that were never added are refused.

    >>> x, y = torch.eye(4).repeat(3, 1), torch.arange(4).repeat(3)
    >>> head = fit(x, y)
    >>> head.remove(x[:2], y[:2])
    >>> head
    <ridge head: 10 rows, 4 → 4, λ 1>
    >>> torch.allclose(head.weight, fit(x[2:], y[2:]).weight)
    True
    """
    return fitted(features, labels, HeadSettings(kind, lam, intercept), classes=classes, track=track)


def fitted(
    features: Any, labels: Any, settings: HeadSettings, *, classes: int | None = None, track: bool = True,
    start: Head | None = None,
) -> Head:  # fmt: skip
    """:func:`fit` with settings as one object; ``start``: a head whose weights may be near."""
    if classes is not None and (not isinstance(classes, int) or isinstance(classes, bool)):
        raise DataError("a whole number as classes", brief(classes), "pass classes=10, say")
    x, y = checked(features, labels, classes=classes)
    k = int(y.max()) + 1 if classes is None else classes
    if k < 2:
        raise DataError("at least 2 classes", str(k), "pass classes=… if the rows are all of class 0")
    ledger = Ledger()
    if track or settings.kind == "logistic":  # which finds its rows by them
        ledger.digests = ledger.of(x, y)
    if settings.kind == "ridge":
        return RidgeHead(settings, k, ledger if track else None, moments_of(x, y, k))
    rows = _with_ones(x, settings)
    problem = Problem(rows, y, rows.T @ rows, settings.lam, k)
    near = start._solution if isinstance(start, LogisticHead) else logistic.from_nothing(problem)
    return LogisticHead(settings, k, ledger, problem, logistic.minimum(problem, near))


def _with_ones(x: Tensor, settings: HeadSettings) -> Tensor:
    x = x.double()
    return torch.cat([x, torch.ones_like(x[:, :1])], 1) if settings.intercept else x


# -- files ----------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Head:
    """Read a head that :meth:`Head.save` wrote; nothing in the file is executed."""
    file = Path(path)
    if not file.is_file():
        raise FileError(f"the file of a head at {file}", "nothing there", "check the path")
    try:
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, not a dict
    except (SafetensorError, OSError, ValueError):
        raise FileError(f"the file of a head at {file}", "a damaged or other file", "save it again") from None
    if about.get("format") != FORMAT:
        fix = "pass what head.save wrote"
        raise FileError(f"the file of a head at {file}", "safetensors of something else", fix)
    try:
        return _read(about, tensors)
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, RecursionError) as error:
        why = str(error) if isinstance(error, PurgeError) else "parts that do not fit each other"
        raise FileError(f"the file of a head at {file}", why.rstrip("."), "save it again") from None


def _read(about: Mapping[str, str], tensors: dict[str, Tensor]) -> Head:
    written, k = json.loads(about["settings"]), int(about["classes"])
    if not isinstance(written, dict):
        raise ValueError
    settings = replace(HeadSettings(), written)
    key, digests = tensors.pop("ledger.key", None), tensors.pop("ledger.digests", None)
    ledger = None if key is None or digests is None else Ledger.read(key, digests)
    for t in tensors.values():
        if t.is_floating_point() and not (t.dtype == torch.float64 and bool(torch.isfinite(t).all())):
            raise ValueError
    if settings.kind == "ridge":
        counts, means, scatter = tensors["counts"], tensors["means"], tensors["scatter"]
        width = means.shape[1]
        rows = int(counts.sum())
        fits = (
            counts.shape == (k,)
            and tensors["rounding"].shape == (width,)
            and means.shape == (k, width)
            and scatter.shape == (width, width)
        )
        if not fits or counts.dtype != torch.long or int(counts.min()) < 0 or rows < 1:
            raise ValueError
        if ledger is not None and len(ledger.digests) != rows:
            raise ValueError
        moments = Moments(counts, means, scatter, tensors["rounding"])
        return RidgeHead(settings, k, ledger, moments)
    x, y = checked(tensors["x"], tensors["y"], classes=k)
    width = x.shape[1]
    if ledger is None or len(ledger.digests) != len(y) or x.dtype != torch.float64:
        raise ValueError
    weight = tensors["solution"]
    if weight.shape != (k, width):
        raise ValueError
    problem = Problem(x, y, x.T @ x, settings.lam, k)
    solution = Solution(weight, logistic.curvature_at(problem, weight))
    return LogisticHead(settings, k, ledger, problem, solution)
