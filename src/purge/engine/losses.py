"""Arithmetic on logits: what a forgotten sample should look like, and distances to it.

The direction of every KL is KL(target ‖ model), as ``F.kl_div(log p, target)`` computes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.data.inputs import Inputs
from purge.models.batchnorm import Norm, statistics
from purge.models.forward import forward


def full(z: Tensor) -> Tensor:
    """Logits in float32, or in float64 if they are."""
    return z if z.dtype == torch.float64 else z.float()


def cross_entropy(model: nn.Module, x: Inputs, y: Tensor, norm: Norm, reduction: str = "mean") -> Tensor:
    """The cross-entropy of the model's answers to a batch, with BatchNorm as ``norm`` says."""
    with statistics(model, norm):
        return F.cross_entropy(full(forward(model, x)), y, reduction=reduction)


def kl(z: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of KL(target ‖ softmax(z)); logits (B, K), probabilities (B, K)."""
    return F.kl_div(full(z).log_softmax(1), target, reduction="batchmean")


def distill(z: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    r"""Knowledge distillation, :math:`T^2 \cdot KL(\sigma(z^0/T) \| \sigma(z/T))`, batch mean."""
    return temperature**2 * kl(z / temperature, (teacher / temperature).softmax(1))


def info_nce(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    r"""InfoNCE of two views (B, D) of a batch: mean of :math:`-\log \sigma(\cos(a_i, b_j)/\tau)_i` over j."""
    cosines = F.normalize(a.float(), dim=1) @ F.normalize(b.float(), dim=1).T
    return F.cross_entropy(cosines / temperature, torch.arange(len(a), device=a.device))


def mean_of(each: Tensor) -> Tensor | None:
    """The mean of some losses; None where there are none."""
    return each.mean() if len(each) else None


def mean_where(each: Tensor, chosen: Tensor) -> Tensor:
    """The mean of those that are chosen, 0 if none is; nothing is read from the device."""
    return (each * chosen).sum() / chosen.sum().clamp_min(1)


def entropy(z: Tensor) -> Tensor:
    """Mean entropy of softmax(z) over a batch, in nats."""
    logp = z.float().log_softmax(1)
    return -(logp.exp() * logp).sum(1).mean()


def above_gate(z: Tensor, gate: float) -> Tensor:
    """Is the batch's mean entropy above gate · log K? A gate of 0 is off."""
    if gate <= 0:
        return torch.zeros((), dtype=torch.bool, device=z.device)
    return entropy(z) > gate * math.log(z.shape[1])


def masked_teacher(z: Tensor, y: Tensor, forgotten: frozenset[int]) -> Tensor:
    """Per-sample targets: the teacher's softmax once what must go has been removed from its logits.

    For a sample of a forgotten class these are the forgotten classes; for a single sample of a class that
    stays, its own label besides. Logits (N, K), labels (N,) → (N, K).
    """
    own = F.one_hot(y, z.shape[1]).bool()
    of_classes = torch.zeros_like(own)
    of_classes[:, sorted(forgotten)] = True
    hidden = own | of_classes
    hidden = torch.where(hidden.all(1, keepdim=True), of_classes, hidden)  # only its own class is left
    return z.float().masked_fill(hidden, -math.inf).softmax(1)
