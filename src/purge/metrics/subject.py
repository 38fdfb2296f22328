"""What a metric is, the model it looks at, and bootstrap intervals."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from purge.core.errors import MetricError, ModelError
from purge.data.samples import Samples
from purge.data.split import Split
from purge.metrics.bootstrap import Array
from purge.metrics.metric import Metric
from purge.metrics.value import Value
from purge.models.forward import evaluating, logits_of, passing
from purge.models.hooks import capture, capture_input, pooled
from purge.models.inspect import Anatomy, anatomy, device_of

if TYPE_CHECKING:
    from purge.metrics.shadow import Ensemble

Part = Literal["forget", "retain", "test", "same_class_test", "kept_class_test"]

FEATURE_SAMPLES = 10_000  # of a larger set, features are kept for a seeded choice of this many


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
            raise ModelError("finite logits", f"NaN or infinity on {whole}", "check weights and inputs")
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
            found = Value.missing("; ".join(dict.fromkeys(reasons))) if reasons else metric.compute(self)
            if not isinstance(found, Value) and not (isinstance(found, dict) and found):
                raise MetricError(
                    f"a Value or a dict of Values from {metric.name}",
                    type(found).__name__,
                    "return purge.Value(number), or Value.missing(reason)",
                )
            self._values[metric] = found
        return self._values[metric]
