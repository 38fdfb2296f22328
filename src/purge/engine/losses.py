"""Arithmetic on logits: what a forgotten sample should look like, and distances to it.

The direction of every KL is KL(target ‖ model), as ``F.kl_div(log p, target)`` computes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from purge.data.split import matched_to

ENOUGH = 100  # samples of a class beside as many unseen ones; with fewer, its own quantiles are too coarse


def full(z: Tensor) -> Tensor:
    """Logits in float32, or in float64 if they are."""
    return z if z.dtype == torch.float64 else z.float()


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


def mean_where(each: Tensor, chosen: Tensor) -> Tensor:
    """The mean of those that are chosen, 0 if none is; nothing is read from the device."""
    return (each * chosen).sum() / chosen.sum().clamp_min(1)


def entropy(z: Tensor) -> Tensor:
    """Mean entropy of softmax(z) over a batch, in nats."""
    logp = z.float().log_softmax(1)
    return -(logp.exp() * logp).sum(1).mean()


def never_learned(z: Tensor, level: Tensor, classes: Tensor) -> Tensor:
    r"""Mean of :math:`(\log p_c - l_c)^2` over a batch and classes c; where l is NaN, nothing is asked.

    A KL cannot do this: it hardly moves a probability that is already small, however large it may still be
    beside what a model that never learned the class would give. Logits (B, K), levels (B, C), classes (C,).
    """
    off = z.float().log_softmax(1)[:, classes] - level
    asked = ~level.isnan()
    return torch.where(asked, off, torch.zeros_like(off)).square().sum() / asked.sum().clamp_min(1)


def above_gate(z: Tensor, gate: float) -> Tensor:
    """Is the batch's mean entropy above gate · log K? A gate of 0 is off."""
    if gate <= 0:
        return torch.zeros((), dtype=torch.bool, device=z.device)
    return entropy(z) > gate * math.log(z.shape[1])


def masked_teacher(z: Tensor, y: Tensor, forgotten: frozenset[int], keep: Tensor | None = None) -> Tensor:
    r"""Per-sample targets: the teacher's opinion once what must go has been removed from it.

    For a sample of a forgotten class, the softmax of the teacher's logits without the forgotten
    classes. For a single sample of a class that stays, its own label is removed and put back with
    the confidence ``keep`` that an unseen sample of its rank would get:
    :math:`t = c \cdot e_y + (1-c) \cdot \sigma(z \text{ without } y)`.

    Logits (N, K), labels (N,), confidences (N,) or None (nothing is put back) → (N, K).
    """
    own = F.one_hot(y, z.shape[1]).bool()
    gone = torch.zeros_like(own)
    gone[:, sorted(forgotten)] = True
    whole_class = (own & gone).any(1, keepdim=True)
    hidden = torch.where(whole_class, gone, own | gone)
    hidden = torch.where(hidden.all(1, keepdim=True), gone, hidden)  # only its own class is left
    rest = z.float().masked_fill(hidden, -math.inf).softmax(1)
    if keep is None:
        return rest
    back = torch.where(whole_class[:, 0], torch.zeros_like(keep), keep)[:, None]
    return back * own.float() + (1 - back) * rest


def unseen_confidence(z: Tensor, y: Tensor, z_unseen: Tensor, y_unseen: Tensor) -> Tensor:
    """The confidence in its own label that each sample would get had it not been trained on.

    Of each class, the sample that the logits ``z`` find hardest gets the lowest confidence found on unseen
    data of this class, the easiest the highest, and so on by rank: the distribution becomes that of unseen
    data, while the order within the class stays. Classes with fewer than ``ENOUGH`` samples on either side
    are treated together, beside unseen data in their shares. (N, K), (N,), (M, K), (M,) → (N,).
    """
    own = z.float().softmax(1).gather(1, y[:, None])[:, 0]
    unseen = z_unseen.float().softmax(1).gather(1, y_unseen[:, None])[:, 0]
    k = z.shape[1]
    fewest = torch.stack([part.bincount(minlength=k) for part in (y, y_unseen)]).amin(0)
    group = torch.where(fewest[y] >= ENOUGH, y, k)  # k: the classes that are treated together
    found = torch.zeros_like(own)
    for c in group.unique().tolist():
        mine, theirs = group == c, (y_unseen == c) | (c == k)
        rank = own[mine].argsort().argsort().double()
        weights = matched_to(y_unseen[theirs].cpu(), y[mine].cpu()).to(unseen.device)
        found[mine] = _quantile(unseen[theirs], weights, (rank + 0.5) / len(rank))
    return found


def _quantile(x: Tensor, weights: Tensor, q: Tensor) -> Tensor:
    """Quantiles of weighted numbers; with equal weights those of ``torch.quantile``."""
    there = weights > 0
    x, order = x[there].sort()
    w = weights[there][order]
    middle = w.cumsum(0) - w / 2
    at = (middle - middle[0]) / (middle[-1] - middle[0]).clamp_min(1e-300)  # from 0 to 1
    right = (
        torch.searchsorted(at, q.clamp(0, 1)).clamp(1, len(x) - 1)
        if len(x) > 1
        else torch.zeros_like(q).long()
    )
    left = (right - 1).clamp_min(0)
    part = ((q - at[left]) / (at[right] - at[left]).clamp_min(1e-300)).clamp(0, 1)
    return torch.lerp(x[left].double(), x[right].double(), part).to(x.dtype)
