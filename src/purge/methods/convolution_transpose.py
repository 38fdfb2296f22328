"""Convolution transpose: turn every kernel over, then train on.

Fifth place in the NeurIPS 2023 machine unlearning competition (Triantafillou et al.: "Are we making
progress in unlearning?", arXiv:2406.09073). Named, and among the two best of 18 methods under U-LiRA, by
Cadet, Borovykh, Malekzadeh, Ahmadi-Abhari, Haddadi: "Deep Unlearn: Benchmarking Machine Unlearning for
Image Classification", arXiv:2410.01276, 2024. With W of shape (out, in, height, width)::

    W_oihw ← W_oiwh                          in every convolution
    θ ← θ − η_e ∇CE(x_r, y_r),    η_e = η (1 + cos(π e / E)) / 2    in epochs e = 0 … E − 1

The forget set is not looked at. The authors' defaults, as Deep Unlearn quotes them: SGD, η = 1e-3,
momentum 0.9, weight decay 5e-4, E = 3, batches of 64, BatchNorm in training mode. Deep Unlearn searched
for better ones on each data set; we have not found which.

Where we differ: every batch is full, dropout is off. Kernels that are not square stay as they are, since
their turned form would not fit the padding; a network without square kernels larger than 1×1 is refused.
The team's own code could not be found: this follows Deep Unlearn's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from purge.core.errors import MethodError
from purge.engine.losses import cross_entropy
from purge.methods.base import PUBLISHED, Method, Optim, Run, Split, Stopping, setting


@dataclass(frozen=True)
class ConvolutionTranspose(Method):
    """Swap height and width of all kernels, then train on with the retained samples."""

    needs: ClassVar[frozenset[str]] = frozenset({"retain"})

    epochs: int = setting(3, "E: passes over the retain set", low=1)
    batch_size: int = setting(64, "samples per step", low=1)
    norm: Literal["frozen", "train"] = setting("train", "BatchNorm statistics: frozen or train")
    optim: Optim = Optim(lr=1e-3)
    stop: Stopping = PUBLISHED

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Turn the kernels over, then go through the retain set ``epochs`` times."""
        weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
        kernels = [w for w in weights if w.requires_grad and w.shape[2] == w.shape[3] > 1]
        if not kernels:
            what = "a convolution with a square kernel larger than 1×1 (nn.Conv2d) for convolution-transpose"
            got = f"{type(model).__name__}, which has none that is trained"
            raise MethodError(what, got, "choose another method, say msg")
        optimizer = self.optim.make(model)
        epoch = math.ceil(len(split.retain) / self.batch_size)
        for i, (r,) in run.batches(split.retain, epochs=self.epochs, batch_size=self.batch_size):
            if i == 0:
                for weight in kernels:
                    weight.data.copy_(weight.data.transpose(2, 3).clone())
            part = (1 + math.cos(math.pi * (i // epoch) / self.epochs)) / 2
            optimizer.param_groups[0]["lr"] = self.optim.lr * part
            loss = cross_entropy(model, r.x, r.y, self.norm)
            self.optim.step(optimizer, loss)
            run.log(retain_loss=loss)
