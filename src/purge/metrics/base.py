"""What a metric is, the model it looks at, and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from purge.data import Samples, batches
from purge.errors import MetricError, ModelError, did_you_mean, expected
from purge.hooks import capture_input, pooled
from purge.models import anatomy
from purge.result import Value
from purge.runtime import EVAL_BATCH, evaluating, logits
from purge.splits import Split

Array = NDArray[np.float64]
Part = Literal["forget", "retain", "test", "same_class_test", "kept_class_test"]

NEEDS = ("retrained", "original", "test", "same_class_test", "kept_class_test")
DRAWS = 1000  # bootstrap resamples behind every interval


@dataclass(frozen=True)
class Metric:
    """A number about a model. ``needs`` names what must be given for it to exist."""

    name: str
    symbol: str
    about: str
    fn: Callable[[Subject], Value | dict[str, Value]]
    ideal: float | Literal["retrain"] = "retrain"
    cost: Literal["forward", "train", "shadow"] = "forward"
    needs: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for need in self.needs:
            if need not in NEEDS:
                raise MetricError(expected("needs that are known", repr(need), did_you_mean(need, NEEDS)))


class Subject:
    """A model under audit; each forward pass is made once and kept.

    ``same_class_test`` are the test samples of classes that occur in the forget set,
    ``kept_class_test`` those of classes that are not forgotten altogether.
    """

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        *,
        seed: int = 0,
        retrained: Subject | None = None,
        original: Subject | None = None,
    ) -> None:
        self.model, self.split, self.seed = model, split, seed
        self.retrained, self.original = retrained, original
        self._logits: dict[str, Tensor] = {}
        self._values: dict[Metric, Value | dict[str, Value]] = {}

    def why_not(self, need: str) -> str:
        """The reason why something needed is missing; empty if it is there."""
        if need in ("retrained", "original"):
            other = getattr(self, need)
            if other is self:
                return f"this is the {need} model itself"
            return "" if other is not None else f"no {need} model was given to compare with"
        if need.endswith("test") and self.split.test is None:
            return "no test data was given"
        if need == "same_class_test" and not len(self.index(need)):
            return "the test data has no sample of the forgotten classes"
        if need == "kept_class_test" and not len(self.index(need)):
            return "the test data has no sample of a retained class"
        return ""

    def samples(self, part: Part) -> Samples:
        """The data set that a part belongs to."""
        found = getattr(self.split, "test" if part.endswith("test") else part)
        assert found is not None, "ask why_not() first"
        return found  # type: ignore[no-any-return]

    def index(self, part: Part | str) -> Tensor:
        """Which samples of their data set make up a part."""
        labels = self.samples(part).labels  # type: ignore[arg-type]
        if part == "same_class_test":
            return torch.isin(labels, self.split.forget.labels.unique()).nonzero()[:, 0]
        if part == "kept_class_test":
            gone = torch.tensor(sorted(self.split.forget_classes), dtype=torch.long)
            return (~torch.isin(labels, gone)).nonzero()[:, 0]
        return torch.arange(len(labels))

    def labels(self, part: Part) -> NDArray[np.int64]:
        """The labels (N,) of a part."""
        return self.samples(part).labels[self.index(part)].numpy()

    def log_probs(self, part: Part) -> Array:
        """Log-softmax of the logits (N, K) of a part, in float64."""
        whole = "test" if part.endswith("test") else part
        if whole not in self._logits:
            found = logits(self.model, self.samples(whole)).cpu()
            if not bool(torch.isfinite(found).all()):
                raise ModelError(
                    expected("finite logits", f"NaN or infinity on {whole}", "check weights and inputs")
                )
            self._logits[whole] = found.double().log_softmax(1)
        return self._logits[whole][self.index(part)].numpy()

    def guesses(self, part: Part) -> NDArray[np.int64]:
        """The predicted classes (N,) of a part."""
        found: NDArray[np.int64] = self.log_probs(part).argmax(1)
        return found

    @cached_property
    def forget_features(self) -> Array | None:
        """Penultimate features (N, D) of the forget set; None where no head could be found."""
        samples = self.split.forget
        x, _ = samples.take(torch.arange(min(2, len(samples))))
        head = anatomy(self.model, x).head
        if head is None:
            return None
        found = []
        with evaluating(self.model), capture_input(self.model.get_submodule(head)) as seen:
            for x, _ in batches(samples, EVAL_BATCH):
                self.model(x)
                found.append(pooled(seen[0]).float().cpu())
        return torch.cat(found).double().numpy()

    def value(self, metric: Metric) -> Value | dict[str, Value]:
        """The metric of this model, computed once."""
        if metric not in self._values:
            reasons = [why for need in sorted(metric.needs) if (why := self.why_not(need))]
            found = Value.missing("; ".join(dict.fromkeys(reasons))) if reasons else metric.fn(self)
            if not isinstance(found, Value) and not (isinstance(found, dict) and found):
                raise MetricError(
                    expected(
                        f"a Value or a dict of Values from {metric.name}",
                        type(found).__name__,
                        "return purge.Value(number), or Value.missing(reason)",
                    )
                )
            self._values[metric] = found
        return self._values[metric]


def mean_value(x: Any, seed: int) -> Value:
    """The mean of N numbers with a 95 % bootstrap interval."""
    x = np.asarray(x)
    n = len(x)
    if x.dtype == np.bool_:  # the resampled number of hits is binomial: no need to resample
        draws = np.random.default_rng(seed).binomial(n, x.mean(), DRAWS) / n
    else:
        draws = np.concatenate([counts @ x / n for counts in resamples(n, seed)])
    return Value(float(x.mean()), *interval(draws), n)


def interval(draws: Array) -> tuple[float, float]:
    """The middle 95 % of bootstrap draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def auroc(inside: Array, outside: Array) -> float:
    """P(a score of ``inside`` > one of ``outside``), ties counted half."""
    return float(_weighted_auroc(inside, outside, np.ones((1, len(inside))), np.ones((1, len(outside))))[0])


def auroc_draws(inside: Array, outside: Array, seed: int) -> Array:
    """Bootstrap draws of the AUROC; equal sizes and seeds give the same resamples."""
    draws_in, draws_out = resamples(len(inside), seed), resamples(len(outside), seed + 1)
    parts = [_weighted_auroc(inside, outside, a, b) for a, b in zip(draws_in, draws_out, strict=True)]
    return np.concatenate(parts)


def resamples(n: int, seed: int) -> Iterator[Array]:
    """How often each of n samples is drawn in each bootstrap resample, 50 resamples at a time."""
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS // 50):
        drawn = rng.integers(n, size=(50, n)) + n * np.arange(50)[:, None]
        yield np.bincount(drawn.ravel(), minlength=50 * n).reshape(50, n).astype(np.float64)


def _weighted_auroc(inside: Array, outside: Array, w_in: Array, w_out: Array) -> Array:
    scores, group = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    a = _group_sums(w_in, group[: len(inside)], len(scores))
    b = _group_sums(w_out, group[len(inside) :], len(scores))
    below = b.cumsum(1) - b
    found: Array = (a * (below + b / 2)).sum(1) / (a.sum(1) * b.sum(1))
    return found


def _group_sums(w: Array, group: NDArray[np.int64], groups: int) -> Array:
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    found = np.zeros((len(w), groups))
    found[:, ordered[starts]] = np.add.reduceat(w[:, order], starts, axis=1)
    return found
