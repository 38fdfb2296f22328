"""Where the channels of a hidden output are: before its positions (convolutions) or after them (tokens).

A shape alone does not tell: (B, 8, 8, 32) may have 8 channels or 32, and (B, 16, 50) may be tokens or a
1-D map. The layers that made the output do: each says how many channels it makes, and on which side.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

_KINDS = ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool",
          "AdaptiveMaxPool")  # fmt: skip
MAPS = {n + 2: tuple(getattr(nn, f"{kind}{n}d") for kind in _KINDS) for n in (1, 2, 3)}  # by dimensions


class Claim(NamedTuple):
    """What a layer says about the channels of an output that it has a part in."""

    last: bool  # after the positions?
    width: int | None  # how many there are; None: as many as came in
    ndim: int | None = None  # of what the layer makes, if that is always the same


class Makers(NamedTuple):
    """The layers that an output comes from, in the order in which the model has them."""

    inside: Sequence[nn.Module] = ()  # the module that gave it, and all within
    before: Sequence[nn.Module] = ()

    def last(self, h: Tensor) -> bool | None:
        """Are the channels of ``h`` after the positions? None if no layer has made so many."""
        for layer in chain(reversed(self.inside), reversed(self.before)):
            claim = _claim(layer)
            if claim is None:
                continue
            if not claim.last and claim.ndim in (None, h.ndim):
                if claim.width in (None, h.shape[1]):
                    return False
                continue
            first, last = claim.width == h.shape[1], claim.width == h.shape[-1]
            if first and last:  # tokens, unless they were put back into a map as ConvNeXt does
                return not any(_keeps(one, claim.width, h.ndim) for one in self.inside)
            if first or last:
                return last
        return None


def channels_first(h: Tensor, makers: Makers | None = None) -> Tensor:
    """An output as (B, C, positions …), by the last layer that made as many channels as it may have.

    If there is none, three dimensions are tokens (B, N, C); (B, H, W, C) is known by a square of positions.
    """
    if h.ndim < 3:
        return h
    last = None if makers is None else makers.last(h)
    if last is None:
        last = h.ndim == 3 or (h.ndim == 4 and h.shape[1] == h.shape[2] != h.shape[3])
    return h.movedim(-1, 1) if last else h


def makers_of(model: nn.Module, names: Collection[str]) -> dict[str, Makers]:
    """The makers of the output of each of these modules."""
    if not names:
        return {}
    known, modules = zip(*model.named_modules(), strict=True)
    at = {name: i for i, name in enumerate(known)}
    return {
        name: Makers([*model.get_submodule(name).modules()], modules[: at.get(name, 0)]) for name in names
    }


def fed_to(layer: nn.Module, h: Tensor) -> Tensor:
    """The input of a layer as (B, C, positions …)."""
    if isinstance(layer, nn.Linear) and h.ndim > 2:
        return h.movedim(-1, 1)
    return h if isinstance(layer, _ConvNd) else channels_first(h)


def _claim(layer: nn.Module) -> Claim | None:
    """What a layer says; nothing where it takes what comes, such as ReLU."""
    ndim = next((n for n, kinds in MAPS.items() if isinstance(layer, kinds)), None)
    if isinstance(layer, _ConvNd):
        return Claim(False, layer.out_channels, ndim)
    if isinstance(layer, _NormBase):
        return Claim(False, layer.num_features, ndim)
    if isinstance(layer, nn.GroupNorm):
        return Claim(False, layer.num_channels)
    if ndim is not None:  # pooling
        return Claim(False, None, ndim)
    if isinstance(layer, nn.Linear):
        return Claim(True, layer.out_features)
    if isinstance(layer, (nn.LayerNorm, nn.RMSNorm)) and len(layer.normalized_shape) == 1:
        return Claim(True, layer.normalized_shape[0])
    if isinstance(layer, nn.Embedding):
        return Claim(True, layer.embedding_dim)
    if isinstance(layer, nn.RNNBase):
        return Claim(True, (layer.proj_size or layer.hidden_size) * (1 + layer.bidirectional))
    return None


def _keeps(layer: nn.Module, width: int | None, ndim: int) -> bool:
    """Is this a convolution of such maps that takes and gives so many channels?"""
    conv = isinstance(layer, _ConvNd) and isinstance(layer, MAPS.get(ndim, ()))
    return conv and layer.in_channels == layer.out_channels == width
