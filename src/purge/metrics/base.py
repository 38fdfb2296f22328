"""What a metric is, the model it looks at, and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from purge.data import Samples
from purge.errors import MetricError, ModelError, did_you_mean, expected
from purge.hooks import capture, capture_input, pooled
from purge.models import Anatomy, anatomy, logits_of
from purge.result import Value
from purge.runtime import device_of, evaluating, passing
from purge.splits import Split

if TYPE_CHECKING:
    from purge.metrics.shadow import Ensemble

Array = NDArray[np.float64]
Part = Literal["forget", "retain", "test", "same_class_test", "kept_class_test"]

NEEDS = ("retrained", "original", "test", "same_class_test", "kept_class_test", "shadows")
FEATURE_SAMPLES = 10_000  # of a larger set, features are kept for a seeded choice of this many
DRAWS = 1000  # bootstrap resamples behind every interval
REMEMBERED = 20_000  # of as many samples, at most, resamples are drawn once and kept (a byte per number)


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


class Outputs(NamedTuple):
    """What one forward pass over a data set left behind, on the CPU."""

    log_probs: Tensor  # (N, K), float64
    rows: NDArray[np.int64]  # the samples whose features were kept, in order
    features: Tensor | None  # (rows, D) penultimate features; None where no head could be found
    blocks: dict[str, Tensor]  # layer → its output, pooled: (rows, its width)


class Subject:
    """A model under audit; each forward pass is made once and kept.

    ``same_class_test`` are the test samples of classes that occur in the forget set,
    ``kept_class_test`` those of classes that are not forgotten altogether. ``curves`` is where a
    metric leaves what cannot be said in a number (plain lists and dicts, for the figures).
    """

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        *,
        seed: int = 0,
        retrained: Subject | None = None,
        original: Subject | None = None,
        shadows: Ensemble | None = None,
    ) -> None:
        self.model, self.split, self.seed = model, split, seed
        self.retrained, self.original, self.shadows = retrained, original, shadows
        self.curves: dict[str, Any] = {}
        self._outputs: dict[str, Outputs] = {}
        self._index: dict[str, Tensor] = {}
        self._values: dict[Metric, Value | dict[str, Value]] = {}

    def why_not(self, need: str) -> str:
        """The reason why something needed is missing; empty if it is there."""
        if need in ("retrained", "original"):
            other = getattr(self, need)
            if other is self:
                return f"this is the {need} model itself"
            return "" if other is not None else f"no {need} model was given to compare with"
        if need == "shadows":
            return "" if self.shadows is not None else "no shadow models were asked for"
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
        if part not in self._index:
            self._index[part] = self._rows_of(part)
        return self._index[part]

    def _rows_of(self, part: Part | str) -> Tensor:
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
        whole = self._seen(part).log_probs.numpy()
        found: Array = whole[self.index(part).numpy()] if part.endswith("_test") else whole.copy()
        return found

    def guesses(self, part: Part) -> NDArray[np.int64]:
        """The predicted classes (N,) of a part."""
        found: NDArray[np.int64] = self.log_probs(part).argmax(1)
        return found

    def featured(self, part: Part) -> NDArray[np.int64]:
        """The positions within a part of the samples that :meth:`features` has, in order."""
        return np.flatnonzero(np.isin(self.index(part).numpy(), self._seen(part).rows))

    def features(self, part: Part) -> Array | None:
        """Penultimate features (N, D) of a part; None where no head could be found."""
        return self._of(part, self._seen(part).features)

    def blocks(self, part: Part) -> dict[str, Array]:
        """The pooled outputs (N, width) of the layers that erasure looks at, by layer."""
        found = {name: self._of(part, h) for name, h in self._seen(part).blocks.items()}
        return {name: h for name, h in found.items() if h is not None}

    @cached_property
    def anatomy(self) -> Anatomy:
        """Where the head and the blocks of the model are."""
        samples = self.split.forget
        x, _ = samples.take(torch.arange(min(2, len(samples))))
        return anatomy(self.model, x)

    def _of(self, part: Part, kept: Tensor | None) -> Array | None:
        if kept is None:
            return None
        found = kept.numpy()
        if part.endswith("_test"):
            found = found[np.isin(self._seen(part).rows, self.index(part).numpy())]
        return found.astype(np.float64)  # NumPy asks for large pages of memory, torch does not: much faster

    def _seen(self, part: Part) -> Outputs:
        """The one forward pass over the data set that a part belongs to."""
        whole: Part = "test" if part.endswith("test") else part
        if whole not in self._outputs:
            self._outputs[whole] = self._pass(whole)
        return self._outputs[whole]

    def _pass(self, whole: Part) -> Outputs:
        samples = self.samples(whole)
        n, (head, layers, _) = len(samples), self.anatomy
        rows = np.arange(n)
        if n > FEATURE_SAMPLES:
            rows = np.sort(np.random.default_rng(self.seed).choice(n, FEATURE_SAMPLES, replace=False))
        found, features = [], []
        blocks: dict[str, list[Tensor]] = {name: [] for name in layers}
        nothing: AbstractContextManager[list[Tensor]] = nullcontext([])
        top = nothing if head is None else capture_input(self.model.get_submodule(head))
        at, device = 0, device_of(self.model)
        # Whatever is copied to the device while it works waits for it: so all of that comes first.
        everything, chosen = torch.arange(n, device=device), torch.from_numpy(rows).to(device)
        with evaluating(self.model), top as seen, capture(self.model, layers) as outputs:
            for x, _ in passing(samples, everything):
                z = logits_of(self.model(x)).float()
                found.append(z)
                first, last = np.searchsorted(rows, [at, at + len(z)])
                kept = chosen[first:last] - at
                at += len(z)
                if seen:
                    features.append(pooled(seen[0])[kept].float())
                for name, h in outputs.items():
                    blocks[name].append(h[kept].float())
        logits = torch.cat(found).cpu()
        if not bool(torch.isfinite(logits).all()):
            raise ModelError(
                expected("finite logits", f"NaN or infinity on {whole}", "check weights and inputs")
            )
        return Outputs(
            logits.double().log_softmax(1),
            rows,
            torch.cat(features).cpu() if features else None,
            {name: torch.cat(h).cpu() for name, h in blocks.items() if h},
        )

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
    return float(rates(inside, outside)[0])


def auroc_draws(inside: Array, outside: Array, seed: int) -> Array:
    """Bootstrap draws of the AUROC; equal sizes and seeds give the same resamples."""
    found: Array = rate_draws([(inside, outside)], seed)[0, 0]
    return found


def rates(inside: Array, outside: Array, fprs: Sequence[float] = ()) -> Array:
    """The AUROC, and the TPR at each FPR: (1 + fprs,).

    The TPR at an FPR is the largest share of ``inside`` above a threshold that at most that share of
    ``outside`` is above; what ties with the threshold is not above it.
    """
    ones = np.ones((1, len(inside))), np.ones((1, len(outside)))
    found: Array = _weighted_rates(_ranked(inside, outside), *ones, fprs)[:, 0]
    return found


def rate_draws(pairs: Sequence[tuple[Array, Array]], seed: int, fprs: Sequence[float] = ()) -> Array:
    """Bootstrap draws of :func:`rates` of each (inside, outside): (pairs, 1 + fprs, DRAWS).

    Every pair has scores of the same samples, and all share their resamples.
    """
    ranked = [_ranked(*pair) for pair in pairs]
    inside, outside = (resamples(len(x), seed + i) for i, x in enumerate(pairs[0]))
    found = []
    with ThreadPoolExecutor(
        torch.get_num_threads()
    ) as pool:  # NumPy sorts and sums without holding up the others
        for a, b in zip(inside, outside, strict=True):
            found.append(list(pool.map(partial(_weighted_rates, w_in=a, w_out=b, fprs=fprs), ranked)))
    return np.concatenate(found, axis=2)


def resamples(n: int, seed: int) -> Iterator[Array]:
    """How often each of n samples is drawn in each bootstrap resample, 50 resamples at a time."""
    for counts in _remembered(n, seed) if n <= REMEMBERED else _drawn(n, seed):
        yield counts.astype(np.float64)


@lru_cache(maxsize=6)
def _remembered(n: int, seed: int) -> list[NDArray[np.uint8]]:
    """All resamples: many metrics ask for the same, and drawing takes longer than what is done with them."""
    return list(_drawn(n, seed))


def _drawn(n: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    for _ in range(DRAWS // 50):
        drawn = rng.integers(n, size=(50, n)) + n * np.arange(50)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=50 * n)
        yield counts.reshape(50, n).astype(np.uint8)  # a sample is drawn about once, never 256 times


class _Ranked(NamedTuple):
    """Two sets of scores, sorted once for all resamples."""

    inside: NDArray[np.int64]  # their order, from below
    outside: NDArray[np.int64]  # their order, from the top
    upto: NDArray[np.int64]  # how many of ``inside`` are <= each of ``outside``
    less: NDArray[np.int64]  # and how many are < it


def _ranked(inside: Array, outside: Array) -> _Ranked:
    order = np.argsort(inside)
    upto, less = (np.searchsorted(inside[order], outside, side) for side in ("right", "left"))
    return _Ranked(order, np.argsort(-outside), upto, less)


def _weighted_rates(ranked: _Ranked, w_in: Array, w_out: Array, fprs: Sequence[float]) -> Array:
    """Rates (1 + fprs, draws) of samples that count as often as ``w_in`` and ``w_out`` (draws, N) say."""
    order, top, upto, less = ranked
    (draws, n), m = w_in.shape, w_out.shape[1]
    summed = np.zeros((draws, n + 1))
    np.cumsum(w_in[:, order], axis=1, out=summed[:, 1:])
    tied = np.flatnonzero(less != upto)  # few as a rule: only these are looked up twice
    below = 2 * np.einsum("ij,ij->i", w_out, summed[:, upto])
    below -= np.einsum("ij,ij->i", w_out[:, tied], summed[:, upto[tied]] - summed[:, less[tied]])
    found = [(2 * n * m - below) / (2 * n * m)]
    for fpr in fprs:
        allowed = int(fpr * m + 1e-9)  # the product may lie just below a whole number
        first = top[: 2 * allowed + 50]  # resamples of so many hold more than are allowed (but for e⁻⁵⁰)
        over = w_out[:, first].cumsum(1) > allowed
        threshold = upto[first[over.argmax(1)]]
        found.append(np.where(over[:, -1], (n - summed[np.arange(draws), threshold]) / n, 1.0))
    return np.stack(found)
