"""Moving the boundary of what must go: Boundary Expanding (BE) and Boundary Shrink (BS).

Chen, Gao, Liu, Peng, Wang: "Boundary Unlearning: Rapid Forgetting of Deep Networks via Shifting the
Decision Boundary", CVPR 2023, arXiv:2303.11570. Both look at the forget set alone.

BE gives the head one more class, K, sends the forget set there, and drops the class again::

    W ← [W; w],  b ← [b; b'],    θ ← θ − η ∇ CE(f(x_f), K),    W ← W[:K],  b ← b[:K]

BS sends each forget sample to the class across its nearest boundary, as θ₀, the original, sees it::

    x' = clamp(x_f + ε·sign ∇ₓ CE(f_θ₀(x_f), y_f)),    y' = argmax f_θ₀(x'),    θ ← θ − η ∇ CE(f(x_f), y')

Published defaults: SGD, momentum 0.9, η = 1e-5, no weight decay, 10 epochs, batches of 64, BatchNorm
in training mode; ε = 0.1 for pixels between 0 and 1. No clipping.

Where we differ: every batch is full, dropout is off. BE: checks look at the model with K outputs, as
it will be delivered; the new row has the default initialisation of a linear layer. BS: inputs arrive
normalised, so ε is a share of the range of values that the forget set has in each channel (for pixels
that use all of [0, 1], that is the published step; ``unit="input"`` takes ε as it is), the clamp is to
that range, and x' is not rounded to 1/255; y' is found once, since neither θ₀ nor x_f changes. The
variants with weights and with a curvature penalty are not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from purge.core.errors import ModelError
from purge.data.samples import Samples, batches, few, value_range
from purge.engine.losses import cross_entropy
from purge.engine.projection import uphill
from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Scalars, Split, Stopping, setting
from purge.models.copies import frozen_copy
from purge.models.forward import EVAL_BATCH, evaluating, forward
from purge.models.inspect import last_layer


@dataclass(frozen=True)
class BoundaryExpand(Method):
    """Send the forget set to a class of its own, then drop that class."""

    epochs: int = setting(10, "passes over the forget set", low=1)
    batch_size: int = setting(64, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-5, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Train towards the new class for ``epochs`` passes over the forget set."""
        layer = last_layer(model, split.forget, "boundary-expand")
        if not isinstance(layer, nn.Linear) or "weight" not in layer._parameters:
            what = "nn.Linear as the last layer for boundary-expand, to give it one more class"
            raise ModelError(what, type(layer).__name__, "use boundary-shrink, which needs no head")
        head = _Head(layer)
        head.widen()
        with evaluating(model):
            k = forward(model, few(split.forget)).shape[1]
        if k != split.classes + 1:
            what = f"{split.classes + 1} logits for boundary-expand, from a head with one more class"
            raise ModelError(what, str(k), "use boundary-shrink, which needs no other head")
        optimizer = self.optim.make(model)
        for _, (f,) in run.batches(
            split.forget, epochs=self.epochs, batch_size=self.batch_size, delivered=head.narrowed
        ):
            loss = cross_entropy(model, f.x, torch.full_like(f.y, split.classes), self.norm)
            self.optim.step(optimizer, loss)
            run.log(forget_loss=loss)
        head.narrow()


@dataclass(frozen=True)
class BoundaryShrink(Method):
    """Teach each forget sample the label across its nearest boundary."""

    graph: ClassVar[bool] = True
    step: float = setting(0.1, "ε: size of the adversarial step", above=0)
    unit: Literal["range", "input"] = setting(
        "range", "of the step: range (of the forget set's values in a channel) or input (as it is)"
    )
    clamp: bool = setting(True, "keep what the step leads to within the values that the forget set has")
    epochs: int = setting(10, "passes over the forget set", low=1)
    batch_size: int = setting(64, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-5, weight_decay=0.0)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Train on the neighbours' labels for ``epochs`` passes over the forget set."""
        neighbour = self._neighbours(frozen_copy(model), split.forget)
        optimizer = self.optim.make(model)

        def step(x: Inputs, y: Tensor) -> Scalars:
            loss = cross_entropy(model, x, y, self.norm)
            self.optim.step(optimizer, loss)
            return {"forget_loss": loss}

        one_step = run.recorded(step)
        for _, (f,) in run.batches(split.forget, epochs=self.epochs, batch_size=self.batch_size):
            run.log(**one_step(f.x, neighbour[f.rows]))

    def _neighbours(self, teacher: nn.Module, forget: Samples) -> Tensor:
        """y' of every forget sample, (|D_f|,): what the teacher says one step up its own loss."""
        low, high = value_range(forget, "boundary-shrink")
        step = self.step * (high - low) if self.unit == "range" else self.step
        neighbours = []
        for x, y in batches(forget, EVAL_BATCH):
            _, g = uphill(teacher, x, y)
            with torch.no_grad():
                moved = x + step * g.sign()
                moved = torch.clamp(moved, low, high) if self.clamp else moved
                neighbours.append(forward(teacher, moved.to(x.dtype)).argmax(1))
        return torch.cat(neighbours)


class _Head:
    """A linear head in two forms: its own, and one with one more class."""

    def __init__(self, head: nn.Linear) -> None:
        self._head = head
        self._own = dict(head.named_parameters(recurse=False))
        weight = head.weight
        new = nn.Linear(
            head.in_features, 1, head.bias is not None, device=weight.device, dtype=weight.dtype
        )  # the default initialisation depends on the number of inputs alone
        self._wide = {
            name: nn.Parameter(torch.cat([p.detach(), new.get_parameter(name).detach()]), p.requires_grad)
            for name, p in self._own.items()
        }

    def widen(self) -> None:
        """The form with one more class, as it was left."""
        self._put(self._wide)

    @torch.no_grad()
    def narrow(self) -> None:
        """The model's own parameters, with what the wide ones have learnt, the last row left out."""
        for name, p in self._own.items():
            p.copy_(self._wide[name][: len(p)])
        self._put(self._own)

    @contextmanager
    def narrowed(self) -> Iterator[None]:
        """Within the block, the model's own form."""
        self.narrow()
        yield
        self.widen()

    def _put(self, form: dict[str, nn.Parameter]) -> None:
        for name, p in form.items():
            setattr(self._head, name, p)
        self._head.out_features = len(form["weight"])
