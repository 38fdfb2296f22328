"""Where the channels of a hidden output are: before its positions (convolutions) or after them (tokens).

A shape alone does not tell: (B, 8, 8, 32) may have 8 channels or 32, and (B, 16, 50) may be tokens or a
1-D map. The layers that made the output do: each says how many channels it makes, and on which side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

_KINDS = ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool",
          "AdaptiveMaxPool")  # fmt: skip
MAPS = {n + 2: tuple(getattr(nn, f"{kind}{n}d") for kind in _KINDS) for n in (1, 2, 3)}  # by dimensions
# Layers, whether the channels that they make are after the positions, and how many (None: as came in).
# All others, such as ReLU, tell nothing.
CLAIMS: tuple[tuple[Any, bool, Callable[[Any], int | None]], ...] = (
    (_ConvNd, False, lambda layer: layer.out_channels),
    (_NormBase, False, lambda layer: layer.num_features),
    (nn.GroupNorm, False, lambda layer: layer.num_channels),
    (sum(MAPS.values(), ()), False, lambda pooling: None),
    (nn.Linear, True, lambda layer: layer.out_features),
    (
        (nn.LayerNorm, nn.RMSNorm),
        True,
        lambda norm: norm.normalized_shape[-1] if len(norm.normalized_shape) == 1 else -1,
    ),
    (nn.Embedding, True, lambda layer: layer.embedding_dim),
    (nn.RNNBase, True, lambda layer: (layer.proj_size or layer.hidden_size) * (1 + layer.bidirectional)),
)


class Makers(NamedTuple):
    """The layers that an output comes from, in the order in which the model has them."""

    inside: Sequence[nn.Module] = ()  # the module that gave it, and all within
    before: Sequence[nn.Module] = ()

    def last(self, h: Tensor) -> bool | None:
        """Are the channels of ``h`` after the positions? None if no layer has made so many."""
        for layer in chain(reversed(self.inside), reversed(self.before)):
            last, width = next(
                ((last, width(layer)) for kinds, last, width in CLAIMS if isinstance(layer, kinds)),
                (True, -1),
            )
            if not last:
                ndim = next((n for n, kinds in MAPS.items() if isinstance(layer, kinds)), h.ndim)
                if ndim == h.ndim and width in (None, h.shape[1]):
                    return False
            elif (
                width == h.shape[1] == h.shape[-1]
            ):  # tokens, unless they were put back into a map, as by ConvNeXt
                maps = [
                    m for m in self.inside if isinstance(m, _ConvNd) and isinstance(m, MAPS.get(h.ndim, ()))
                ]
                return not any(m.in_channels == m.out_channels == width for m in maps)
            elif width in (h.shape[1], h.shape[-1]):
                return width == h.shape[-1]
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
