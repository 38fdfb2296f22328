"""How large the units of a network are, so that weights can be judged and changed relative to that.

ReLU(s·x) / s leaves a function as it is: a unit may be scaled if what reads it is scaled back. A weight
between two units then changes by s_out / s_in, and its gradient by the inverse. Whatever looks at weights as
they are, be it a step of SGD, the smallest weights or noise of 5 %, does something else to the same function.

So each weight is measured by p = (what its unit puts out) / (what comes in), over some samples. w / p is the
weight of the same network with units of size 1, whichever way it was written. A step −η p² g on w is SGD on
w / p. Nothing is known about which layer reads which: each is measured by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from purge.data.inputs import Inputs
from purge.models.forward import evaluating, forward
from purge.models.hooks import removed

# A unit whose output varies by less than this share of its size is constant: float32 knows it no better.
CONSTANT = 1e-3
READING = (nn.Linear, _ConvNd)  # layers that read each unit of the layer before


class Scale(NamedTuple):
    """p = out · per of a parameter, in shapes that multiply it; 0 where a unit never varies or is silent."""

    out: Tensor
    per: Tensor

    def times(self, w: Tensor) -> Tensor:
        """w · p."""
        return w * self.out * self.per

    def over(self, w: Tensor) -> Tensor:
        """w / p, the weight between units of size 1; 0 where p is."""
        p = self.times(torch.ones_like(w))
        return torch.where(p > 0, w / torch.where(p > 0, p, torch.ones_like(p)), torch.zeros_like(w))


def unit_scales(model: nn.Module, batches: Iterable[tuple[Inputs, float]], head: str | None) -> list[Scale]:
    """The scale of each parameter, in their order. That of the head does not count what it puts out.

    Each batch comes with its weight in the means. Logits cannot be scaled without another function. What is
    no linear layer, convolution, norm or embedding is measured as a whole, by its weights: so the scale of
    such a layer does not matter, but that of its single units does.
    """
    # Of each layer, sums over batches of what _means returns, and of the weights of the batches.
    sums: dict[nn.Module, list[Any]] = {m: [0.0] * 4 for m in model.modules() if _measured(m)}
    now = 1.0  # the weight of the batch that goes through the model

    def hook(module: nn.Module, args: Any, kwargs: dict[str, Any], z: Any) -> None:
        x = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
        if x is not None and isinstance(z, Tensor):
            means: list[Any] = [*_means(module, x.detach().float(), z.detach().float()), 1.0]
            sums[module] = [total + now * mean for total, mean in zip(sums[module], means, strict=True)]

    with evaluating(model), removed() as handles:
        handles += [m.register_forward_hook(hook, with_kwargs=True) for m in sums]
        for x, now in batches:  # noqa: B007, the hook reads it
            forward(model, x)
    scales: dict[nn.Parameter, Scale] = {}
    last = None if head is None else model.get_submodule(head)
    for module, (*totals, weight) in sums.items():
        if weight:
            inside, mean, square = (total / weight for total in totals)
            out = (square - mean.square()).clamp_min(0).sqrt()  # the standard deviation of what goes out
            out = torch.where(out > CONSTANT * square.sqrt(), out, torch.zeros_like(out))
            own = _of_layer(module, inside.sqrt(), torch.ones_like(out) if module is last else out)
            scales = {**own, **scales}  # weights that two layers share belong to the first
    return [scales[p] if p in scales else _as_a_whole(p) for p in model.parameters()]


def _means(module: nn.Module, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means by channel: x² of what comes in, where it matters, and z and z² of what goes out."""
    x = x if isinstance(module, READING) else z
    last = isinstance(module, (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding))
    x, z = (h.movedim(-1 if last else 1, 0).flatten(1) if h.ndim > 1 else h[:, None] for h in (x, z))
    return x.square().mean(1), z.mean(1), z.square().mean(1)


def _measured(module: nn.Module) -> bool:
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return len(module.normalized_shape) == 1
    convolution = isinstance(module, _ConvNd) and not module.transposed
    return convolution or isinstance(module, (nn.Linear, _NormBase, nn.GroupNorm, nn.Embedding))


def _of_layer(module: nn.Module, inside: Tensor, out: Tensor) -> dict[nn.Parameter, Scale]:
    """The scales of a layer's own parameters."""
    weight, own = getattr(module, "weight", None), dict(module.named_parameters(recurse=False))
    one = torch.ones_like(out[:1])  # beside a number for each unit; the rows of an embedding
    scales = {p: Scale(out, one) for name, p in own.items() if name in ("weight", "bias")}
    if isinstance(weight, nn.Parameter) and isinstance(module, READING):
        per = torch.where(inside > 0, 1 / torch.where(inside > 0, inside, torch.ones_like(inside)), 0.0)
        groups = module.groups if isinstance(module, _ConvNd) else 1
        per = per.view(groups, -1).repeat_interleave(len(out) // groups if groups > 1 else 1, 0)
        after = [1] * (weight.ndim - 2)
        scales[weight] = Scale(out.view(-1, 1, *after), per.view(*per.shape, *after))
    return scales


def _as_a_whole(p: nn.Parameter) -> Scale:
    """The size of a tensor's usual weight that is not 0, times √(inputs), as if units of size 1 came in."""
    inputs = p[0].numel() if p.ndim > 1 else 1
    used = p.detach().float().abs()
    used = used[used > 0]
    size = used.median() * inputs**0.5 if len(used) else torch.zeros((), device=p.device)
    return Scale(size, torch.ones_like(size))


@torch.no_grad()
def scale_gradients(params: Sequence[Tensor], scales: Sequence[Scale]) -> None:
    """Turn gradients g into p² g, so that a step of SGD is one on the weights between units of size 1."""
    for p, scale in zip(params, scales, strict=True):
        if p.grad is not None:
            p.grad.copy_(scale.times(scale.times(p.grad)))
