"""The model that metrics look at: its outputs and features on each part of the data, computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from purge.core.errors import ModelError
from purge.data.samples import Samples
from purge.data.split import Split
from purge.metrics.bootstrap import Array, matched, mean_value, some_rows
from purge.metrics.metric import Measured, Metric
from purge.metrics.value import Missing, Value
from purge.models.forward import evaluating, forward, passing
from purge.models.hooks import capture, capture_features
from purge.models.inspect import Anatomy, anatomy, device_of

if TYPE_CHECKING:
    from purge.metrics.ensemble import Ensemble

Part = Literal["forget", "retain", "test", "same_class_test", "kept_class_test", "triggered"]
Labels = NDArray[np.int64]
Hits = NDArray[np.bool_]
T = TypeVar("T")
P = ParamSpec("P")

FEATURE_SAMPLES = 10_000  # of a larger set, features are kept for this many, chosen by the seed

NO_FEATURES = "no layer that makes the logits was found, so there are no features"
NOT_GIVEN = {
    "test": "no test data was given",
    "truth": "the right labels of the forget samples were not given (truth=…)",
    "triggered": "no samples with a trigger were given (triggered=…)",
}
EMPTY = {
    "same_class_test": "the test data has no sample of the forgotten classes",
    "kept_class_test": "the test data has no sample of a retained class",
}


def once(fn: Callable[Concatenate[AuditedModel, P], T]) -> Callable[Concatenate[AuditedModel, P], T]:
    """A function of an audited model, computed once for each choice of arguments.

    This is the only cache of an audit: forward passes, metrics, attacks and relearning runs are all kept
    on the audited they belong to.
    """

    @wraps(fn)
    def kept(audited: AuditedModel, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = fn, args, tuple(kwargs.items())
        if key not in audited.kept:
            audited.kept[key] = fn(audited, *args, **kwargs)
        return audited.kept[key]  # type: ignore[no-any-return]

    return kept


class Outputs(NamedTuple):
    """The results of one forward pass over a data set, on the CPU."""

    log_probs: Tensor  # (N, K), float64
    rows: Labels  # the samples whose features were kept, in order
    features: Tensor | None  # (rows, D) penultimate features; None where no head could be found
    blocks: dict[str, Tensor]  # layer → its output, pooled: (rows, its width)


class AuditedModel:
    """A model under audit; whatever is computed for it is computed once.

    ``same_class_test`` are the test samples of classes that occur in the forget set, ``kept_class_test``
    those of classes that are not forgotten as a whole. ``curves`` is where a metric leaves data for
    figures (plain lists and dicts).
    """

    retrained: AuditedModel | None = None  # set by the audit, like the next one and ``shadows``
    original: AuditedModel | None = None

    def __init__(self, model: nn.Module, split: Split, *, seed: int = 0) -> None:
        self.model, self.split, self.seed = model, split, seed
        self.curves: dict[str, Any] = {}
        self.kept: dict[Hashable, Any] = {}
        self._shadows: Ensemble | None = None

    @property
    def shadows(self) -> Ensemble | None:
        """The shadow models of the audit; with others, what was computed from these is dropped."""
        return self._shadows

    @shadows.setter
    def shadows(self, ensemble: Ensemble | None) -> None:
        if ensemble is self._shadows:
            return
        self._shadows = ensemble
        for key in [*self.kept]:
            metric = next(iter(key[1]), None)  # type: ignore[index]
            if isinstance(metric, Metric) and "shadows" in metric.needs:
                del self.kept[key]
                self.curves.get("roc", {}).pop(metric.name, None)
        if not self.curves.get("roc", True):
            del self.curves["roc"]

    @once
    def value(self, metric: Metric) -> Measured:
        """The metric of this model."""
        reasons = [why for need in sorted(metric.needs) if (why := self.why_not(need))]
        if reasons:
            return Value.missing("; ".join(dict.fromkeys(reasons)))
        try:
            return metric.compute(self)
        except Missing as reason:
            return Value.missing(str(reason))

    def named(self, metric: Metric) -> dict[str, Value]:
        """The values of a metric under dotted names."""
        measured = self.value(metric)
        if isinstance(measured, Value):
            return {metric.name: measured}
        return {f"{metric.name}.{part}": value for part, value in measured.items()}

    def why_not(self, need: str) -> str:
        """Why something that a metric needs is missing; empty if it is there."""
        if need == "shadows":
            return "" if self.shadows is not None else "no shadow models were asked for"
        if need in ("retrained", "original"):
            if (other := getattr(self, need)) is self:
                return f"this is the {need} model itself"
            return "" if other is not None else f"no {need} model was given to compare with"
        if need in ("truth", "triggered"):
            return "" if getattr(self.split, need) is not None else NOT_GIVEN[need]
        if self.split.test is None:
            return NOT_GIVEN["test"]
        return EMPTY[need] if need in EMPTY and not len(self.index(need)) else ""  # type: ignore[arg-type]

    def other(self, which: Literal["retrained", "original"]) -> AuditedModel:
        """A model to compare with."""
        if why := self.why_not(which):
            raise Missing(why)
        return getattr(self, which)  # type: ignore[no-any-return]

    def beside(self, fn: Callable[[AuditedModel], T]) -> tuple[T, T]:
        """A function of this model and of the retrained one; a reason that comes from there says so."""
        ours = fn(self)
        try:
            return ours, fn(self.other("retrained"))
        except Missing as reason:
            raise Missing(f"retrained model: {reason}") from None

    def mean(self, x: Any, weights: Array | None = None) -> Value:
        """The mean of N numbers with its interval: Wilson's for a share, a bootstrap one for other means."""
        return mean_value(x, self.seed, weights)

    # -- data ------------------------------------------------------------------------------

    def samples(self, part: Part) -> Samples:
        """The data set that a part belongs to."""
        whole = "test" if part.endswith("test") else part
        samples: Samples | None = getattr(self.split, whole)
        if samples is None:
            raise Missing(NOT_GIVEN[whole])
        return samples

    @once
    def index(self, part: Part) -> Tensor:
        """Which samples of their data set make up a part."""
        labels = self.samples(part).labels
        if part == "same_class_test":
            return torch.isin(labels, self.split.forget.labels.unique()).nonzero()[:, 0]
        if part == "kept_class_test":
            forgotten = torch.tensor(sorted(self.split.forget_classes), dtype=torch.long)
            return (~torch.isin(labels, forgotten)).nonzero()[:, 0]
        return torch.arange(len(labels))

    def labels(self, part: Part) -> Labels:
        """The labels (N,) of a part."""
        return self.samples(part).labels[self.index(part)].numpy()

    @once
    def matched(self) -> Array:
        """Weights (N,) of ``same_class_test`` that give its classes the shares they have in the forget set.

        Their mean is 1, and where a single class is forgotten each of them is.
        """
        ours, theirs = self.labels("forget"), self.labels("same_class_test")
        weights: Array = matched(np.ones((1, len(ours))), np.ones((1, len(theirs))), (ours, theirs))[1][0]
        return weights

    # -- outputs ---------------------------------------------------------------------------

    def log_probs(self, part: Part) -> Array:
        """Log-softmax of the logits (N, K) of a part, in float64."""
        whole = self._seen(part).log_probs.numpy()
        rows: Array = whole[self.index(part).numpy()] if part.endswith("_test") else whole.copy()
        return rows

    def guesses(self, part: Part) -> Labels:
        """The predicted classes (N,) of a part."""
        classes: Labels = self.log_probs(part).argmax(1)
        return classes

    def hits(self, part: Part) -> Hits:
        """Which samples (N,) of a part are predicted right."""
        right: Hits = self.guesses(part) == self.labels(part)
        return right

    def features(self, part: Part) -> Array:
        """Penultimate features (N, D) of a part: of the samples that :meth:`featured` names."""
        if (features := self._seen(part).features) is None:
            raise Missing(NO_FEATURES)
        return self._of(part, features)

    def featured(self, part: Part) -> Labels:
        """The positions within a part of the samples that :meth:`features` has, in order."""
        return np.flatnonzero(np.isin(self.index(part).numpy(), self._seen(part).rows))

    def labelled_features(self, part: Part) -> tuple[Array, Labels]:
        """The features (N, D) of a part and the labels (N,) of their samples."""
        return self.features(part), self.labels(part)[self.featured(part)]

    def blocks(self, part: Part) -> dict[str, Array]:
        """The pooled outputs (N, width) of the layers that erasure looks at, by layer."""
        return {name: self._of(part, h) for name, h in self._seen(part).blocks.items()}

    def _of(self, part: Part, kept: Tensor) -> Array:
        rows = kept.numpy()
        if part.endswith("_test"):
            rows = rows[np.isin(self._seen(part).rows, self.index(part).numpy())]
        return rows.astype(np.float64)  # in NumPy: it asks for large pages of memory, torch does not

    def _seen(self, part: Part) -> Outputs:
        return self._pass("test" if part.endswith("test") else part)

    @once
    def anatomy(self) -> Anatomy:
        """Where its head and its blocks are."""
        first = torch.arange(min(2, len(self.split.forget)))
        return anatomy(self.model, self.split.forget.take(first)[0])

    @once
    def _pass(self, whole: Part) -> Outputs:
        """The one forward pass over a data set."""
        samples = self.samples(whole)
        n, (head, layers, _) = len(samples), self.anatomy()
        rows = some_rows(n, FEATURE_SAMPLES, np.random.default_rng(self.seed))
        batches, features = [], []
        blocks: dict[str, list[Tensor]] = {name: [] for name in layers}
        nothing: AbstractContextManager[list[Tensor]] = nullcontext([])
        last = None if head is None else self.model.get_submodule(head)
        top = nothing if last is None else capture_features(self.model, last)
        at, device = 0, device_of(self.model)
        # A copy to the device waits until it is idle, so all copies are made before the loop.
        everything, chosen = torch.arange(n, device=device), torch.from_numpy(rows).to(device)
        with evaluating(self.model), top as seen, capture(self.model, layers) as outputs:
            for x, _ in passing(samples, everything):
                z = forward(self.model, x).float()
                batches.append(z)
                begin, end = np.searchsorted(rows, [at, at + len(z)])
                kept = chosen[begin:end] - at
                at += len(z)
                if seen:
                    features.append(seen[0][kept].float())
                for name, h in outputs.items():
                    blocks[name].append(h[kept].float())
        logits = torch.cat(batches).cpu()
        if not bool(torch.isfinite(logits).all()):
            raise ModelError("finite logits", f"NaN or infinity on {whole}", "check weights and inputs")
        return Outputs(
            logits.double().log_softmax(1),
            rows,
            torch.cat(features).cpu() if features else None,
            {name: torch.cat(h).cpu() for name, h in blocks.items() if h},
        )
