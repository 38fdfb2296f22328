"""Training on without the forget set: FT, ℓ1-sparse, NoT.

FT: catastrophic forgetting alone, as in Warnecke et al., arXiv:2108.11577, and Golatkar et al.,
arXiv:1911.04933::

    θ ← θ − η ∇ CE(x_r, y_r)

ℓ1-sparse. Jia et al.: "Model Sparsity Can Simplify Machine Unlearning", NeurIPS 2023,
arXiv:2304.04934: the same with a penalty on all weights that falls to 0 in a straight line::

    θ ← θ − η ∇[ CE(x_r, y_r) + α_e ‖θ‖₁ ],    α_e = α (1 − e / (E − E₀)) for e < E − E₀, then 0

NoT. Khalil et al.: "NoT: Federated Unlearning via Weight Negation", CVPR 2025, arXiv:2503.05657: the
parameters of the first layer change their sign, θ_1 ← −θ_1, then FT. Its theorems compare σ(y) with σ(−y)
for what the layer says, so a bias changes its sign too; the convolutions of ResNets have none.

Published defaults: FT and ℓ1-sparse SGD, η = 1e-2, 10 epochs, α = 1e-4 (the parser's 0.2 in the
authors' code is not the value used); NoT 50 epochs. D_r augmented as in training, as Fan et al. and Jia et
al. do. No clipping, BatchNorm in training mode.

Where we differ: every batch is full, dropout is off; NoT of a network without convolutions negates its first
layer with weights. The authors of NoT published no code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.engine.losses import full
from purge.methods.base import PUBLISHED, Inputs, Method, Optim, Run, Scalars, Split, Stopping, setting
from purge.models.batchnorm import statistics
from purge.models.checks import parameters_to_train
from purge.models.forward import forward


@dataclass(frozen=True)
class FineTune(Method):
    """Train on with the retained samples, as they are, with a penalty, or after a negation."""

    distributes: ClassVar[bool] = True
    graph: ClassVar[bool] = True
    augments: ClassVar[bool] = True
    epochs: int = setting(10, "passes over the retain set", low=1)
    batch_size: int = setting(256, "samples per step", low=1)
    l1: float = setting(0.0, "α: weight of ‖θ‖₁ at the start; 0: off", low=0)
    free_epochs: int = setting(0, "E₀: epochs at the end that have no penalty", low=0)
    negate: bool = setting(False, "change the sign of the first convolution's weights and bias first")
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-2)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Go through the retain set ``epochs`` times."""
        params = parameters_to_train(model)
        optimizer = self.optim.make(model)
        retain = run.as_trained(split.retain)
        epoch = math.ceil(len(retain) / self.batch_size)
        ranks, rows = run.ranks, min(self.batch_size, len(retain))

        def step(x: Inputs, y: Tensor, weight: Tensor) -> Scalars:
            with statistics(model, self.norm, over=ranks.over):
                loss = F.cross_entropy(full(forward(model, x)), y)
            total = loss
            if self.l1:
                total = loss + weight * torch.stack([p.abs().sum().float() for p in params]).sum()
            self.optim.step(optimizer, total, ranks, rows)
            return {"retain_loss": ranks.mean(loss, rows)}

        penalised = self.epochs - self.free_epochs
        one_step, weight = run.recorded(step), torch.zeros((), device=run.device)
        for i, (r,) in run.batches(retain, epochs=self.epochs, batch_size=self.batch_size):
            if self.negate and i == 0:
                _negate_first(model)
            left = 1 - (i // epoch) / penalised if i // epoch < penalised else 0.0
            run.log(**one_step(r.x, r.y, weight.fill_(self.l1 * left)))


@torch.no_grad()
def _negate_first(model: nn.Module) -> None:
    weights = {m: w for m in model.modules() if isinstance(w := getattr(m, "weight", None), nn.Parameter)}
    layers = [m for m, w in weights.items() if w.requires_grad]
    convolutions = [m for m in layers if isinstance(m, nn.modules.conv._ConvNd)]
    for p in (convolutions or layers)[0].parameters(recurse=False):
        if p.requires_grad:
            p.neg_()
