"""What hidden layers say about a sample: which retained class does it resemble?

The last layer of a trained network separates its classes so well that little is left to go by once the
forgotten class is removed; layers below have not gone so far. There are two ways to ask them. One is linear
discriminant analysis of each layer: with h(x) its output, μ_c its mean over retained samples of class c, Σ
their scatter within classes, tr Σ/d its mean variance::

    Σ'     = Σ + s·tr Σ/d·I
    z_c(x) = μ_cᵀ Σ'⁻¹ h(x) − ½ μ_cᵀ Σ'⁻¹ μ_c

The other is a vote of the k retained samples that are nearest in the last of these layers, n_c of them of
class c; near is a large sum of cosines over the layers, of outputs less their mean::

    z_c(x) = log (n_c + 1)/(k + K)

Logits are centred over the classes and scaled to the spread of the model's own; those of several layers are
averaged. All of it is a pass without gradients over some thousand samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.data.inputs import Inputs
from purge.data.samples import Samples, few
from purge.engine.run import Run
from purge.models.forward import evaluating, forward, passing
from purge.models.hooks import capture
from purge.models.inspect import anatomy
from purge.models.padding import pooled

SAMPLES, PER_CLASS = 4096, 16  # retained samples that are looked at; more of them if there are many classes
SHRINKAGE = 0.3  # s
LEAST = 1e-6  # the smallest variance, as a share of the mean square of the layer
MOST = 8  # layers that are asked
LAST = 2  # layers in which neighbours are looked for
ROWS = 4096  # samples whose neighbours are looked for in one product
WIDE = 2048  # wider layers are not asked; a map that would be wider in four quarters is averaged as a whole

Say = Callable[[Samples, Tensor], Tensor]  # samples, and the model's own logits of them, to logits (N, K)


class Known(NamedTuple):
    """Some retained samples as the hidden layers see them."""

    h: dict[str, Tensor]  # layer → (N, width); without layers there is nothing to ask
    y: Tensor
    there: Tensor  # (K,): the classes that they have


def look(teacher: nn.Module, retain: Samples, classes: int, run: Run) -> Known:
    """Look at some of the retained samples."""
    x = few(retain)
    stack = anatomy(teacher, x).stack[:-1]
    with evaluating(teacher), capture(teacher, stack, by=_quartered) as h:
        forward(teacher, x)
    layers = _some(tuple(name for name in stack if h[name].shape[1] <= WIDE))
    if not layers:
        return Known({}, retain.labels[:0], torch.zeros(classes, dtype=torch.bool))
    n = min(max(SAMPLES, PER_CLASS * classes), len(retain))
    index = run.batch_indices(retain, steps=1, batch_size=n)[0]
    y = retain.labels.to(index.device)[index]
    return Known(_hidden(teacher, passing(retain, index), layers), y, y.bincount(minlength=classes) > 0)


def layers_say(teacher: nn.Module, known: Known, run: Run) -> Say:
    """What discriminants of the hidden layers say.

    For classes without retained samples, and for models without hidden layers, it is the model's own.
    """
    with run.autocast("float32"):  # in bf16 the discriminants would be noise
        each = {name: discriminant(h, known.y, len(known.there)) for name, h in known.h.items()}

    def say(samples: Samples, own: Tensor) -> Tensor:
        if not each:
            return own
        asked = _hidden(teacher, passing(samples), tuple(each))
        with run.autocast("float32"):
            return _like(own, [z(asked[name]) for name, z in each.items()], known.there)

    return say


def neighbours_say(teacher: nn.Module, known: Known, run: Run, *, count: int) -> Say:
    """What the ``count`` nearest retained samples say by their labels; see :func:`layers_say`."""
    layers = tuple(known.h)[-LAST:]
    centres = {name: known.h[name].mean(0) for name in layers}
    count, classes = min(count, len(known.y)), len(known.there)

    def directions(h: dict[str, Tensor]) -> Tensor:
        return torch.cat([F.normalize(h[name] - centres[name], dim=1) for name in layers], 1)

    def say(samples: Samples, own: Tensor) -> Tensor:
        if not layers:
            return own
        rows = directions(_hidden(teacher, passing(samples), layers))
        with run.autocast("float32"):
            theirs = directions(known.h)
            near = torch.cat([(part @ theirs.T).topk(count, 1).indices for part in rows.split(ROWS)])
            votes = rows.new_zeros(len(rows), classes).scatter_add_(
                1, known.y[near], torch.ones_like(near).to(rows)
            )
            return _like(own, [((votes + 1) / (count + classes)).log()], known.there)

    return say


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


def _like(own: Tensor, said: list[Tensor], there: Tensor) -> Tensor:
    """The mean of logits, each with the spread of the model's own, for the classes that are there."""
    mine, spread = own[:, there].mean(1, keepdim=True), _spread_of(own[:, there])
    mean = torch.stack([_of_one_spread(z, there) for z in said]).mean(0)
    return torch.where(there, mine + spread * mean, own)


def _of_one_spread(z: Tensor, there: Tensor) -> Tensor:
    """Logits centred over the classes that are there, with a spread of 1 among them."""
    z = z - z[:, there].mean(1, keepdim=True)
    return z / _spread_of(z[:, there])


def _spread_of(z: Tensor) -> Tensor:
    return (z - z.mean(1, keepdim=True)).square().mean().sqrt().clamp_min(1e-12)
