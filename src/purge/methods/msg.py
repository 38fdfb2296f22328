"""MSG, masked small gradients: draw anew what neither set needs, then train on.

Second place in the NeurIPS 2023 machine unlearning competition (Triantafillou et al.: "Are we making
progress in unlearning?", arXiv:2406.09073). Named, and among the two best of 18 methods under U-LiRA, by
Cadet, Borovykh, Malekzadeh, Ahmadi-Abhari, Haddadi: "Deep Unlearn: Benchmarking Machine Unlearning for
Image Classification", arXiv:2410.01276, 2024. With S drawn from D_r, |S| = |D_f|::

    g = Σ_{x in S} ∇CE(x, y) − Σ_{x in D_f} ∇CE(x, y)
    in each convolution: a share q of the weights, those of smallest |g|, ← N(0, 2 / fan_out)
    θ ← θ − η_e m ∇CE(x_r, y_r),     m = 1 for the weights drawn anew and all other layers, else 0.1

in epochs e = 1 … E, with h = ⌊(E + 1) / 2⌋ and η_e = η e / h for e ≤ h, then η (E + 1 − e) / (E + 1 − h).

The authors' defaults, as Deep Unlearn quotes them: SGD, η = 1e-3, momentum 0.9, weight decay 5e-4,
q = 0.3, E = 5, batches of 64; BatchNorm in training mode, also for g. Deep Unlearn searched for better
ones on each data set; we have not found which.

Where we differ: every batch is full, dropout is off, and each sample counts alike in g, where in the
original those of a smaller last batch count more. Biases of convolutions stay; the original draws them
too. In a network without convolutions, linear layers take their place. The team's own code could not be
found: this follows Deep Unlearn's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from purge.engine.losses import cross_entropy
from purge.engine.projection import flat, grad, summed_grad
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting
from purge.models.checks import parameters_to_train


@dataclass(frozen=True)
class MaskedSmallGradients(Method):
    """New weights where gradients are small, then training on, in which the others move less."""

    share: float = setting(0.3, "q: share of each convolution's weights that are drawn anew", low=0, high=1)
    kept: float = setting(0.1, "factor on the gradients of the other weights of these layers", low=0)
    epochs: int = setting(5, "E: passes over the retain set", low=1)
    batch_size: int = setting(64, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-3)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Draw weights anew, then go through the retain set ``epochs`` times."""
        params = parameters_to_train(model)
        convolutions = [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)]
        linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
        layers = {m.weight for m in convolutions or linear}
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(split.retain) / self.batch_size)
        middle, end = (self.epochs + 1) // 2, self.epochs + 1
        pace = torch.ones_like(flat(params))
        for i, (r,) in run.batches(split.retain, epochs=self.epochs, batch_size=self.batch_size):
            if i == 0:
                self._draw(model, params, layers, split, pace)
            e = 1 + i // epoch  # the rate rises to η in the middle epoch, then falls
            part = e / middle if e <= middle else (end - e) / (end - middle)
            optimizer.param_groups[0]["lr"] = self.optim.lr * part
            loss = cross_entropy(model, r.x, r.y, self.norm)
            self.optim.along(optimizer, pace * grad(loss, params))
            run.log(retain_loss=loss)

    def _draw(
        self, model: nn.Module, params: list[nn.Parameter], layers: set[Tensor], split: Split, pace: Tensor
    ) -> None:
        """New weights where |g| is smallest; the others of these layers get a slower ``pace``."""
        some = torch.randperm(len(split.retain))[: len(split.forget)].to(pace.device)
        mixed, size = torch.randperm(len(split.forget)).to(pace.device), self.batch_size
        kept, _ = summed_grad(model, params, split.retain, batch_size=size, norm=self.norm, order=some)
        lost, _ = summed_grad(model, params, split.forget, batch_size=size, norm=self.norm, order=mixed)
        g = kept - lost
        sizes = [p.numel() for p in params]
        for p, small, speed in zip(params, g.abs().split(sizes), pace.split(sizes), strict=True):
            if p in layers:
                at = small.topk(round(self.share * p.numel()), largest=False).indices
                drawn = torch.zeros_like(small, dtype=torch.bool).index_fill_(0, at, True)
                fresh = nn.init.kaiming_normal_(torch.empty_like(p), mode="fan_out", nonlinearity="relu")
                p.data.copy_(torch.where(drawn.view(p.shape), fresh, p))
                speed.copy_(torch.where(drawn, 1.0, self.kept))
