"""Scissorhands: draw the weights anew that matter most to the forget set, then repair.

Wu, Harandi: "Scissorhands: Scrub Data Influence via Connection Sensitivity in Networks", ECCV 2024,
arXiv:2401.06187. Trimming, once, with θ₀ the original::

    s_j = | θ₀_j ∂CE(x_f, y_f)/∂θ_j |;      θ_j ← a fresh value where s_j is among the largest 100·q %

Repairing, in each of E epochs, with m = −∇CE(x_f, y_f) on a batch of D_f at the epoch's first weights::

    g = ∇[ CE(x_r, y_r) − λ CE(x_f, y_f) ] while the epoch has batches of D_f, then ∇CE(x_r, y_r)
    g ← g + max(0.5, −⟨g, m⟩ / (‖m‖² + 0.001)) m     where there is an x_f and ⟨g, m⟩ < 0
    θ ← θ − η g

The second line keeps a step from undoing what was forgotten. Published defaults for a tenth of CIFAR-10:
q = 0.03, λ = 0.05, SGD, η = 0.005, momentum 0.9, weight decay 5e-4, E = 10, batches of 256, one batch of
D_f for s and one for m; a fresh weight is uniform within ±1/√(its inputs), a fresh bias is 0. BatchNorm in
training mode, D_r and D_f each by itself; m in evaluation mode. Both sets are augmented as in training.

Where we differ: the authors trim and project layer3, layer4 and the head of a ResNet, without BatchNorm; we
trim every layer but normalisation, and project all weights, so that any network can be treated (``layers``
names those to trim). s is computed in evaluation mode; their code leaves the model in training mode for it,
which also moves its statistics. Every batch is full, dropout is off.

The climb on D_f has no bound: on single samples of digits, small batches (of 64) take the model with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from purge.core.errors import MethodError
from purge.engine.losses import cross_entropy
from purge.engine.projection import dot, flat, grad, norm
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.checks import parameters_to_train

MARGIN, DAMPING = 0.5, 1e-3  # of the authors' quadratic program


@dataclass(frozen=True)
class Scissorhands(Method):
    """Trim what the forget set needs, then descend on the retain set without bringing it back."""

    augments: ClassVar[bool] = True
    share: float = setting(0.03, "q: share of the weights that are drawn anew", above=0, high=1)
    ascent: float = setting(0.05, "λ: weight of climbing on the forget set", low=0)
    project: bool = setting(True, "keep steps from undoing what was forgotten")
    layers: tuple[str, ...] = setting(
        (), "weights whose names begin with one of these are trimmed; empty: all but normalisation"
    )
    epochs: int = setting(10, "passes over the retain set", low=1)
    batch_size: int = setting(256, "samples of each set per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=5e-3)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Trim, then go through the retain set ``epochs`` times, its first batches beside the forget set."""
        params, optimizer = parameters_to_train(model), self.optim.make(model)
        trimmed = self._trimmed(model)
        retain, forget = run.as_trained(split.retain), run.as_trained(split.forget)
        (first,) = run.batch_indices(split.forget, steps=1, batch_size=self.batch_size)
        saliency = grad(cross_entropy(model, *forget.take(first), "frozen"), params)
        size, memory = self.batch_size, saliency
        epoch, epoch_f = (math.ceil(len(part) / size) for part in (split.retain, split.forget))
        at_r = run.batch_indices(split.retain, steps=self.epochs * epoch, batch_size=size)
        at_f = run.batch_indices(split.forget, steps=self.epochs * min(epoch_f, epoch), batch_size=size)
        beside = list[Tensor]()
        for batches in at_f.split(min(epoch_f, epoch)):
            beside += [*batches, *[at_f[0, :0]] * (epoch - len(batches))]
        for i, (r, f) in run.batches(retain, forget, orders=(at_r, beside), epoch=epoch):
            if i == 0:  # draw anew what matters most of all weights, where it may be trimmed
                score = (flat(params) * saliency).abs()
                chosen = torch.zeros_like(score, dtype=torch.bool)
                chosen[score.topk(max(1, int(self.share * len(score)))).indices] = True
                parts = chosen.split([p.numel() for p in params])
                for p, part in zip(params, parts, strict=True):
                    if (most := trimmed.get(id(p))) is not None:
                        fresh = torch.empty_like(p).uniform_(-most, most)
                        p.data.copy_(torch.where(part.view_as(p), fresh, p.data))
            if i % epoch == 0:
                memory = -grad(cross_entropy(model, f.x, f.y, "frozen"), params)
            retain_loss = loss = cross_entropy(model, r.x, r.y, self.norm)
            forget_loss = None
            if len(f):
                forget_loss = cross_entropy(model, f.x, f.y, self.norm)
                loss = retain_loss - self.ascent * forget_loss
            g = grad(loss, params)
            if len(f) and self.project:  # as much of the memory as the cone asks for, where they conflict
                along = dot(g, memory)
                weight = (-along / (norm(memory).square() + DAMPING)).clamp_min(MARGIN)
                g = g + torch.where(along < 0, weight, torch.zeros_like(weight)).to(g.dtype) * memory
            self.optim.along(optimizer, g)
            run.log(retain_loss=retain_loss, forget_loss=forget_loss)

    def _trimmed(self, model: nn.Module) -> dict[int, float]:
        """The ids of the parameters that may be trimmed, each with the largest size of a fresh value."""
        chosen = {}
        for layer, module in model.named_modules():
            for name, p in module.named_parameters(layer, recurse=False):
                # The weights of normalisation have one dimension.
                weight = getattr(module, "weight", None)
                normal = not isinstance(weight, Tensor) or weight.ndim < 2
                wanted = name.startswith(self.layers) if self.layers else not normal
                if p.requires_grad and wanted:
                    chosen[id(p)] = 1 / math.sqrt(p[0].numel()) if p.ndim > 1 else 0.0
        if not chosen:
            got, fix = ", ".join(self.layers) or "none", "leave layers out, or name some that the model has"
            raise MethodError("layers with weights that take gradients to trim", got, fix)
        return chosen
