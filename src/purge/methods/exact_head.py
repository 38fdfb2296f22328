"""Exact deletion where a linear head is all that was learned, on features that stay as they are.

The features h(x) are what the model's last Linear layer is fed, in evaluation mode. The layer is replaced by
the head of the retained samples alone, solved for in float64 (:mod:`purge.models.heads` has the equations)::

    kind="ridge":     min_W,b Σ_{D_r} ‖W h(x) + b − t(y)‖² + λ‖W‖²,      t = +1 for the label, −1 elsewhere
    kind="logistic":  min_W,b Σ_{D_r} −log softmax(W h(x) + b)[y] + λ/2 (‖W‖² + ‖b‖²)

Both have one solution. So if the head was that of D_f ∪ D_r, it is now what training without D_f gives, up to
rounding: the deletion is exact, provided that h never learned from D_f. The run verifies the first, by
fitting the head of D_f ∪ D_r too. The second cannot be seen from a model; ``frozen=True`` is the caller's
word for it, and is recorded as that.

Learning from sums that rows can be taken out of: Cao and Yang, "Towards Making Systems Forget with Machine
Unlearning", IEEE S&P 2015. Heads on fixed features: Guo et al., ICML 2020, arXiv:1911.03030. Where we differ:
the method gets the retained data, so it sums them up again, in one pass. A service that deletes often keeps
a :class:`purge.heads.Head`, which needs the deleted rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from purge.core.errors import MethodError
from purge.methods.base import PUBLISHED, Method, Run, Split, Stopping, setting
from purge.models.checkpoint import digest, tensors_digest, tensors_of
from purge.models.heads.head import TOLERANCE, HeadSettings, Kind, fitted
from purge.models.heads.place import features_of, linear_head

# How far the head before may be from that of all samples to count as the same. Features in float32 differ in
# their last digit from batch to batch; in half precision nothing can be told.
SAME = {torch.float64: TOLERANCE, torch.float32: 1e-5}


@dataclass(frozen=True)
class ExactHead(Method):
    """Solve for the linear head again without the forget set; all other weights stay."""

    full_precision: ClassVar[bool] = True
    kind: Kind = setting("ridge", "ridge regression on targets ±1, or multinomial logistic regression")
    lam: float = setting(1.0, "λ: penalty of the weights, beside the sum over all samples", low=0)
    frozen: bool = setting(False, "your word that no other weight has ever learned from this data")
    batch_size: int = setting(512, "samples whose features are computed at once", low=1)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Compute the features, compare the head with that of all samples, put the new one in its place."""
        name, layer = linear_head(model, split.retain)
        if still := [n for n, p in layer.named_parameters() if not p.requires_grad]:
            got = f"{name}.{still[0]}, which takes no gradient"
            fix = "set requires_grad on it, or choose another method"
            raise MethodError("a head that may change", got, fix)
        settings = HeadSettings(self.kind, self.lam, layer.bias is not None)
        body = _digest_without(model, name)
        for _ in run.steps(1, epoch=1):
            x, y = features_of(model, layer, split.retain, self.batch_size)
            xf, yf = features_of(model, layer, split.forget, self.batch_size)
            k, everything = layer.out_features, (torch.cat([x, xf]), torch.cat([y, yf]))
            head = fitted(x, y, settings, classes=k, track=False)
            before = fitted(*everything, settings, classes=k, track=False, start=head)
            off = before.distance(layer.weight, layer.bias)
            head.copy_to(layer)
            run.log(
                retain_loss=F.cross_entropy(head.scores(x), y).to(run.device),
                forget_loss=F.cross_entropy(head.scores(xf), yf).to(run.device),
                head_off=torch.tensor(off, device=run.device),
            )
        same = off <= SAME.get(layer.weight.dtype, 0.0)
        kept = _digest_without(model, name) == body
        run.exact = {
            "head": name, "kind": self.kind, "off": off, "same_before": same, "rest_kept": kept,
            "frozen": self.frozen, "weights": digest(model),
        }  # fmt: skip
        total = len(everything[1])
        sure = "as you declare" if self.frozen else "which cannot be seen from here"
        run.took = f"a {self.kind} head fitted to the {len(y):,} retained samples alone; " + (
            f"exact if no other weight has learned from the forgotten ones, {sure} "
            f"(the head before was that of all {total:,} samples, relative distance {off:.1e})"
            if same
            else f"not an exact deletion: the head before was not that of all {total:,} samples "
            f"(relative distance {off:.1e}), so other weights may know the forgotten ones too"
        )


def _digest_without(model: nn.Module, name: str) -> str:
    """The digest of all weights and buffers but the head's."""
    return tensors_digest({k: t for k, t in tensors_of(model).items() if k.rpartition(".")[0] != name})
