"""Fisher forgetting: noise where the retained data does not mind it.

Golatkar, Achille, Soatto: "Eternal Sunshine of the Spotless Net: Selective Forgetting in Deep
Networks", CVPR 2020, arXiv:1911.04933::

    F_j = mean_{x ∈ D_r} Σ_y p(y|x) (∂CE(x, y)/∂θ_j)²                 all labels y, evaluation mode
    σ²  = α · min(1/(F + 1e-8), 1e3),  at most 1e2 in the last layer,  then the mean over dimension 1
    θ   ~ N(μ, c·σ²),   c = 10 in the last layer and in vectors, else 1
    μ   = θ₀, but 0 with σ² = 1e-4 for a forgotten class's row and bias in the last layer

Published defaults: α = 1e-6 in the authors' notebook, for a few hundred images of CIFAR-10 and a small
network (they show 1e-8 to 1e-5), and in the SSD repository; SCRUB's has 1e-7 for all of CIFAR-10, which is
the preset ``fisher-large``. Everything else is a constant of the authors' code, where the factor c comes
after the 1e-4 of a forgotten row, so that its variance is 1e-3.

The better a model fits D_r, the smaller is F, until all weights reach the cap and get noise of the same
size, √(1e3·α): .03 for 1e-6, .01 for 1e-7. Lower α if the retained accuracy falls.

Where we differ: the last layer is found by watching a forward pass, where the authors take every
parameter whose first dimension is the number of classes; only whole classes are forgotten; what takes
no gradient is left alone; samples are gone through many at a time, and not all if ``samples`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.core.errors import MethodError
from purge.data.samples import batches
from purge.engine.projection import flat, per_sample_grads
from purge.methods.base import PUBLISHED, Method, Run, Split, Stopping, setting
from purge.models.checks import parameters_to_train
from purge.models.forward import forward
from purge.models.inspect import last_layer

EPSILON = 1e-8
MOST, MOST_LAST = 1e3, 1e2  # the largest 1/F, and that in the last layer
WIDER = 10.0  # variance in the last layer and in vectors (biases, normalisation)
FORGOTTEN_VARIANCE = 1e-4  # of the last layer's rows for the forgotten classes


@dataclass(frozen=True)
class FisherForgetting(Method):
    """Add noise to every weight, the more the less the retained data depends on it."""

    full_precision: ClassVar[bool] = True
    alpha: float = setting(1e-6, "α: scale of the variance", above=0)
    samples: int = setting(0, "retain samples that the Fisher matrix is measured on; 0: all", low=0)
    batch_size: int = setting(100, "samples whose gradients are held at once", low=1)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Measure the diagonal of the Fisher matrix on the retain set, then draw the weights."""
        params = parameters_to_train(model)
        split.refuse_single("fisher")
        head = last_layer(model, split.retain, "fisher", split.classes)
        last = {id(p) for p in head.parameters()}
        if not any(id(p) in last for p in params):
            fix = "set requires_grad on it, or choose another method"
            raise MethodError("a last layer that fisher may change", "one that takes no gradient", fix)
        per_sample_grads(model, *split.retain.take(torch.arange(1)))  # refuse what cannot be done
        n = self.samples or len(split.retain)
        drawn = run.batch_indices(split.retain, steps=1, batch_size=n)[0]
        classes = torch.tensor(sorted(split.forget_classes), device=run.device)
        for _ in run.steps(1, epoch=1):
            information, loss = torch.zeros_like(flat(params)), torch.zeros((), device=run.device)
            for x, y in batches(split.retain, self.batch_size, drawn):
                with torch.no_grad():
                    z = forward(model, x).float()
                loss += F.cross_entropy(z, y, reduction="sum")
                for label, probability in enumerate(z.softmax(1).to(information.dtype).unbind(1)):
                    g, _ = per_sample_grads(model, x, torch.full_like(y, label))
                    information += probability @ g.square_()
            parts = (information / len(drawn)).split([p.numel() for p in params])
            for p, f in zip(params, parts, strict=True):
                self._draw(p, f.view_as(p), classes if id(p) in last else None)
            run.log(retain_loss=loss / len(drawn), forget_loss=None)

    @torch.no_grad()
    def _draw(self, p: nn.Parameter, information: Tensor, classes: Tensor | None) -> None:
        """θ ~ N(μ, σ²) for one parameter; ``classes``: the forgotten rows, None outside the last layer."""
        variance = self.alpha * (1 / (information + EPSILON)).clamp_max(
            MOST if classes is None else MOST_LAST
        )
        if p.ndim > 1:
            variance = variance.mean(1, keepdim=True).expand_as(p)
        mean = p.to(variance.dtype)
        if classes is not None:
            mean = mean.index_fill(0, classes, 0.0)
            variance = variance.index_fill(0, classes, FORGOTTEN_VARIANCE)
        if classes is not None or p.ndim == 1:
            variance = WIDER * variance
        p.copy_(mean + variance.sqrt() * torch.randn_like(variance))
