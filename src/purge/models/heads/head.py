"""Linear heads that learn and forget rows exactly: ridge and logistic regression on fixed features."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
from purge.models.heads.rows import KeptRows, checked, numbers

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

    ``weight`` (K, D) and ``bias`` (K,) are in float64; ``counts`` (K,) are the rows of each class. A call
    that is refused leaves the head as it was.
    """

    weight: Tensor
    bias: Tensor
    counts: Tensor

    def __init__(self, settings: HeadSettings, classes: int) -> None:
        self.settings, self.classes, self._ledger = settings, classes, KeptRows()

    def add(self, features: Any, labels: Any) -> None:
        """Learn more rows: the head is then that of all rows together."""
        x, y = checked(features, labels, width=self.width, classes=self.classes)
        self._add(x, y)
        self._ledger.digests += self._ledger.of(x, y)

    def remove(self, features: Any, labels: Any) -> None:
        """Forget rows, given as they were added: the head is then that of the other rows alone.

        Rows that the head has not learned are refused.
        """
        x, y = checked(features, labels, width=self.width, classes=self.classes)
        places = {*self._ledger.find(self._ledger.of(x, y))}
        if len(y) >= self.rows:
            raise DataError(f"fewer than the {self.rows} rows of the head", str(len(y)), "keep at least one")
        self._remove(x, y, places)
        self._ledger.digests = [d for i, d in enumerate(self._ledger.digests) if i not in places]

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
        plain = {name: t.contiguous() for name, t in {**self._state(), **self._ledger.tensors()}.items()}
        settings = json.dumps(as_dict(self.settings))
        about = {"format": FORMAT, "settings": settings, "classes": str(self.classes)}
        with file_errors(Path(path)):
            atomically(Path(path), lambda p: save_file(plain, p, about))

    @property
    def width(self) -> int:
        """How many features a row has."""
        return self.weight.shape[1]

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
        return f"<{self.settings.kind} head: {size}, λ {self.settings.lam:g}>"

    @abstractmethod
    def _add(self, x: Tensor, y: Tensor) -> None: ...

    @abstractmethod
    def _remove(self, x: Tensor, y: Tensor, places: set[int]) -> None: ...

    @abstractmethod
    def _size(self, weight: Tensor, bias: Tensor) -> Tensor: ...

    @abstractmethod
    def _state(self) -> dict[str, Tensor]: ...


class RidgeHead(Head):
    """Ridge regression. It keeps counts, class means and one matrix, no row; see :mod:`~.moments`."""

    error: float = 0.0

    def __init__(self, settings: HeadSettings, moments: Moments) -> None:
        super().__init__(settings, len(moments.counts))
        self._take(moments)

    def _take(self, moments: Moments, most: float = torch.inf) -> None:
        weight, bias, error = solved(moments, self.settings.lam, intercept=self.settings.intercept)
        if error > most:
            got = f"about {error:.0e}, since rows of this size were added and removed"
            fix = "fit the head anew on the rows that stay, or raise lam"
            raise RunError(f"a head that rounding has not moved by more than {most:.0e}", got, fix)
        self._moments, self.counts = moments, moments.counts
        self.weight, self.bias, self.error = weight, bias, error

    def _add(self, x: Tensor, y: Tensor) -> None:
        self._take(joined(self._moments, moments_of(x, y, self.classes)))

    def _remove(self, x: Tensor, y: Tensor, places: set[int]) -> None:
        self._take(parted(self._moments, moments_of(x, y, self.classes)), TOLERANCE)

    def _size(self, weight: Tensor, bias: Tensor) -> Tensor:
        m = self._moments
        middle = weight @ m.mean + bias
        penalty = self.settings.lam * weight.square().sum()
        return ((weight @ m.scatter) * weight).sum() + m.n * middle.square().sum() + penalty

    def _state(self) -> dict[str, Tensor]:
        return self._moments._asdict()


class LogisticHead(Head):
    """Multinomial logistic regression. It keeps its rows; see :mod:`~.logistic`."""

    def __init__(self, settings: HeadSettings, problem: Problem, solution: Solution) -> None:
        super().__init__(settings, problem.classes)
        self._take(problem, solution)

    def _take(self, problem: Problem, solution: Solution) -> None:
        self._problem, self._solution = problem, solution
        self.counts = torch.bincount(problem.y, minlength=self.classes)
        self.weight, self.bias = solution.weight, solution.weight.new_zeros(self.classes)
        if self.settings.intercept:
            self.weight, self.bias = solution.weight[:, :-1].clone(), solution.weight[:, -1].clone()

    def _add(self, x: Tensor, y: Tensor) -> None:
        p = self._problem
        both = p._replace(x=torch.cat([p.x, _with_ones(x, self.settings)]), y=torch.cat([p.y, y]))
        self._take(both, logistic.minimum(both, self._solution))

    def _remove(self, x: Tensor, y: Tensor, places: set[int]) -> None:
        p = self._problem
        stays = torch.ones(len(p.y), dtype=torch.bool)
        stays[list(places)] = False
        left = p._replace(x=p.x[stays], y=p.y[stays])
        self._take(left, logistic.minimum(left, self._solution))

    @property
    def error(self) -> float:
        """A bound of how far, relative to its size, it is from the minimum: ‖gradient‖ / λ‖W‖."""
        residual = float(logistic.objective(self._problem, self._solution.weight)[1].norm())
        return residual / self.settings.lam / max(float(self._solution.weight.norm()), 1e-300)

    def _size(self, weight: Tensor, bias: Tensor) -> Tensor:
        w = torch.cat([weight, bias[:, None]], 1) if self.settings.intercept else weight
        return (self._problem.x @ w.T).square().sum() + self.settings.lam * w.square().sum()

    def _state(self) -> dict[str, Tensor]:
        return {"x": self._problem.x, "y": self._problem.y, "solution": self._solution.weight}


def fit(
    features: Any,
    labels: Any,
    *,
    kind: Kind = "ridge",
    lam: float = 1.0,
    intercept: bool = True,
    classes: int | None = None,
) -> Head:
    """A linear head for rows of features (N, D) with labels (N,), from which rows can be deleted exactly.

    ``kind="ridge"`` keeps sums alone, and a removal takes milliseconds; ``"logistic"`` keeps its rows.
    ``lam`` is the penalty beside the sum over all rows: ``alpha`` of scikit-learn's Ridge, 1/C of its
    LogisticRegression. ``classes``: how many there are, where the largest label does not tell.

    >>> x, y = torch.eye(4).repeat(3, 1), torch.arange(4).repeat(3)
    >>> head = fit(x, y)
    >>> head.remove(x[:2], y[:2])
    >>> head
    <ridge head: 10 rows, 4 → 4, λ 1>
    >>> torch.allclose(head.weight, fit(x[2:], y[2:]).weight)
    True
    """
    return fitted(features, labels, HeadSettings(kind, lam, intercept), classes=classes)


def fitted(
    features: Any, labels: Any, settings: HeadSettings, *, classes: int | None = None, track: bool = True,
    start: Head | None = None,
) -> Head:  # fmt: skip
    """:func:`fit` with settings as one object; ``start``: a head whose weights may be near.

    Without ``track`` its rows are not noted: nothing is to be removed from it.
    """
    x, y = checked(features, labels, classes=classes if type(classes) is int else None)
    k = int(y.max()) + 1 if classes is None else classes
    if type(k) is not int or k < 2:
        raise DataError("2 or more classes, a whole number", brief(k), "pass classes=10, say")
    head: Head
    if settings.kind == "ridge":
        head = RidgeHead(settings, moments_of(x, y, k))
    else:
        problem = Problem(_with_ones(x, settings), y, settings.lam, k)
        near = start._solution if isinstance(start, LogisticHead) else None
        head = LogisticHead(settings, problem, logistic.minimum(problem, near))
    head._ledger.digests = head._ledger.of(x, y) if track else []
    return head


def _with_ones(x: Tensor, settings: HeadSettings) -> Tensor:
    x = x.double()
    return torch.cat([x, torch.ones_like(x[:, :1])], 1) if settings.intercept else x


def load(path: str | os.PathLike[str]) -> Head:
    """Read a head that :meth:`Head.save` wrote; nothing in the file is executed."""
    file = Path(path)
    try:
        with safe_open(file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118, not a dict
            return _rebuilt(opened.metadata() or {}, tensors)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
        got = str(error).rstrip(".") if isinstance(error, PurgeError) else "a damaged or other file"
        got = got if file.is_file() else "nothing there"
        raise FileError(f"the file of a head at {file}", got, "pass what head.save wrote") from None


def _rebuilt(about: Mapping[str, str], tensors: dict[str, Tensor]) -> Head:
    """The head in a file, or some error: its parts may not fit each other."""
    settings, k = replace(HeadSettings(), {**json.loads(about["settings"])}), int(about["classes"])
    ledger = KeptRows.read(tensors.pop("ledger.key"), tensors.pop("ledger.digests"))
    floats = [t for t in tensors.values() if t.is_floating_point()]
    fits = about["format"] == FORMAT
    fits &= all(t.dtype == torch.float64 and bool(t.isfinite().all()) for t in floats)
    head: Head
    if settings.kind == "ridge":
        m = Moments(**{name: tensors[name] for name in Moments._fields})
        width = m.means.shape[1]
        fits &= [t.shape for t in m] == [(k,), (k, width), (width, width), (width,)]
        fits &= m.counts.dtype == torch.long and int(m.counts.min()) >= 0 < m.n
        head = RidgeHead(settings, m)
    else:
        x, y = checked(tensors["x"], tensors["y"], classes=k)
        problem, weight = Problem(x, y, settings.lam, k), tensors["solution"]
        fits &= weight.shape == (k, x.shape[1])
        head = LogisticHead(settings, problem, Solution(weight, logistic.curvature_at(problem, weight)))
    if not fits or len(ledger.digests) != head.rows:
        raise ValueError
    head._ledger = ledger
    return head
