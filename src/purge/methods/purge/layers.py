"""What hidden layers say about a forgotten sample: which retained class does it resemble?

The last layer of a trained network separates its classes so well that little is left to go by once the
forgotten class is removed; layers below have not gone so far. Each of them is asked by linear discriminant
analysis: with h(x) the output of a layer, μ_c its mean over retained samples of class c, Σ their scatter
within classes, tr Σ/d its mean variance::

    Σ'     = Σ + s·tr Σ/d·I
    z_c(x) = μ_cᵀ Σ'⁻¹ h(x) − ½ μ_cᵀ Σ'⁻¹ μ_c

Logits are centred over the classes and scaled to the spread of the model's own, and their mean over the
layers is returned. All of it is one pass without gradients over some thousand samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.data.inputs import Inputs
from purge.data.samples import few
from purge.data.split import Split
from purge.engine.run import Run
from purge.models.forward import evaluating, forward, passing
from purge.models.hooks import capture, pooled
from purge.models.inspect import anatomy

SAMPLES, PER_CLASS = (
    4096,
    16,
)  # retained samples that are looked at: so many, or more if there are many classes
SHRINKAGE = 0.3  # s
LEAST = 1e-6  # the smallest variance, as a share of the mean square of the layer
MOST = 8  # layers that are asked
WIDE = 2048  # wider layers are not asked; a map that would be wider in four quarters is averaged as a whole


def layers_say(teacher: nn.Module, split: Split, run: Run, own: Tensor) -> Tensor:
    """What hidden layers say of the forget samples, (|D_f|, K); ``own`` is what the model itself says.

    For classes without retained samples, and for models without hidden layers, it is the model's own.
    """
    x = few(split.retain)
    stack = anatomy(teacher, x).stack[:-1]
    with evaluating(teacher), capture(teacher, stack, by=_quartered) as h:
        forward(teacher, x)
    layers = _some(tuple(name for name in stack if h[name].shape[1] <= WIDE))
    if not layers:
        return own
    n = min(max(SAMPLES, PER_CLASS * split.classes), len(split.retain))
    index = run.batch_indices(split.retain, steps=1, batch_size=n)[0]
    known = _hidden(teacher, passing(split.retain, index), layers)
    asked = _hidden(teacher, passing(split.forget), layers)
    y = split.retain.labels.to(index.device)[index]
    there = y.bincount(minlength=split.classes) > 0
    with run.autocast("float32"):  # in bf16 the discriminants would be noise
        said = [
            _of_one_spread(discriminant(h, y, split.classes)(asked[name]), there) for name, h in known.items()
        ]
    mine, spread = own[:, there].mean(1, keepdim=True), _spread_of(own[:, there])
    return torch.where(there, mine + spread * torch.stack(said).mean(0), own)


def discriminant(h: Tensor, y: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    """Linear discriminant analysis of rows and their classes: a function from rows to logits (N, K).

    >>> h = torch.tensor([[0.0, 1.0], [0.0, -1.0], [4.0, 1.0], [4.0, -1.0]])
    >>> say = discriminant(h, torch.tensor([0, 0, 1, 1]), 2)
    >>> say(torch.tensor([[1.0, 5.0], [2.0, 5.0]])).diff(dim=1).sign().tolist()
    [[-1.0], [0.0]]
    """
    members = F.one_hot(y, classes).to(h)
    means = members.T @ h / members.sum(0).clamp_min(1)[:, None]
    within = h - means[y]
    scatter = within.T @ within / len(h)
    least = LEAST * h.square().mean() + torch.finfo(h.dtype).tiny  # where classes do not vary at all
    scatter.diagonal().add_(torch.maximum(SHRINKAGE * scatter.diagonal().mean(), least))
    weights = torch.linalg.solve(scatter, means.T)  # (width, K)
    offset = (means * weights.T).sum(1) / 2
    return lambda rows: rows @ weights - offset


def _hidden(
    teacher: nn.Module, batches: Iterable[tuple[Inputs, Tensor]], layers: tuple[str, ...]
) -> dict[str, Tensor]:
    """The outputs of each layer, (N, width), in float32."""
    found: dict[str, list[Tensor]] = {name: [] for name in layers}
    with evaluating(teacher), capture(teacher, layers, by=_quartered) as h:
        for x, _ in batches:
            forward(teacher, x)
            for name in layers:
                found[name].append(h[name].float())
    return {name: torch.cat(parts) for name, parts in found.items()}


def _quartered(h: Tensor) -> Tensor:
    """One vector per sample; of a map (B, C, H, W) that is not too wide the means of its four quarters."""
    if h.ndim == 4 and 4 * h.shape[1] <= WIDE and min(h.shape[2:]) > 1:
        return F.adaptive_avg_pool2d(h, 2).flatten(1)
    return pooled(h)


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    """At most ``MOST`` of them, evenly spaced."""
    if len(names) <= MOST:
        return names
    return tuple(names[round(i * (len(names) - 1) / (MOST - 1))] for i in range(MOST))


def _of_one_spread(z: Tensor, there: Tensor) -> Tensor:
    """Logits centred over the classes that are there, with a spread of 1 among them."""
    z = z - z[:, there].mean(1, keepdim=True)
    return z / _spread_of(z[:, there])


def _spread_of(z: Tensor) -> Tensor:
    return (z - z.mean(1, keepdim=True)).square().mean().sqrt().clamp_min(1e-12)
