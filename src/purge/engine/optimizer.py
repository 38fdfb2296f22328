"""The optimiser of a baseline: its settings, and one step with a limit on the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from purge.core.settings import normalise, setting


@dataclass(frozen=True)
class Optim:
    """SGD or Adam; the settings of most baselines."""

    optimizer: Literal["sgd", "adam", "adamw"] = setting("sgd", "sgd, adam or adamw")
    lr: float = setting(1e-2, "η: learning rate", above=0, high=1e38)
    momentum: float = setting(0.9, "of SGD; the first beta of Adam", low=0, high=0.999)
    weight_decay: float = setting(5e-4, "weight decay", low=0)
    clip: float = setting(0.0, "gradient norm limit; 0: off", low=0)

    def __post_init__(self) -> None:
        normalise(self)

    def make(self, params: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimiser over ``params``."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(params, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        on_gpu = params[0].is_cuda  # there, a step may be recorded as a CUDA graph
        betas = (self.momentum, 0.999)
        return kind(params, self.lr, betas=betas, weight_decay=self.weight_decay, capturable=on_gpu)

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        """One step down ``loss``."""
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.clip > 0:
            params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            nn.utils.clip_grad_norm_(params, self.clip)
        optimizer.step()
