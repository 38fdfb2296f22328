"""What is attached to a model for a while and always removed: hooks, marks and training flags.

Hidden outputs are pooled to one vector per sample. Where the inputs have a mask of padding, which is known by
the name of its argument, only positions that are not padding count.

A shape alone does not tell where the channels of an output are, before its positions (convolutions) or after
them (tokens): (B, 8, 8, 32) may have 8 channels or 32, and (B, 16, 50) may be tokens or a 1-D map. The layers
that made the output do: each says how many channels it makes, and on which side.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

REAL = ("attention_mask",)  # names of arguments that are 1 where a sequence has something, 0 where padding is
PADDED = ("key_padding_mask", "src_key_padding_mask")  # and the other way round
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


class Mask(NamedTuple):
    """What a batch says about its padding."""

    real: Tensor  # (B, T): true where a position is not padding
    model: nn.Module  # which may know how its layers shorten a sequence

    def at(self, rows: int, length: int) -> Tensor | None:
        """The mask of an output with so many rows and positions; None if it has other positions."""
        if tuple(self.real.shape) == (rows, length):
            return self.real
        if len(self.real) != rows or self.real.shape[1] < length:
            return None
        for module in self.model.modules():  # audio models of Hugging Face, whose convolutions shorten it
            shortened = getattr(module, "_get_feat_extract_output_lengths", None)
            mask_of = getattr(module, "_get_feature_vector_attention_mask", None)
            if callable(shortened) and callable(mask_of):
                if int(shortened(torch.tensor(self.real.shape[1]))) != length:
                    return None
                return mask_of(length, self.real.long()).bool()  # type: ignore[no-any-return]
        return None


def pooled(h: Tensor, mask: Mask | None = None) -> Tensor:
    """One vector per sample of an output (B, C, positions …): the mean over the positions that count."""
    if h.ndim < 3:
        return h
    real = None if mask is None or h.ndim != 3 else mask.at(len(h), h.shape[2])
    if real is None:
        return h.mean(tuple(range(2, h.ndim)))
    total = h.masked_fill(~real[:, None], 0.0).sum(2)
    return total / real.sum(1, keepdim=True).clamp_min(1).to(total)


@contextmanager
def capture(model: nn.Module, layers: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Within the block, each forward pass of the model fills the dict: layer name → its output, pooled.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with capture(net, ["0"]) as seen:
    ...     _ = net(torch.zeros(5, 2))
    >>> seen["0"].shape
    torch.Size([5, 3])
    """
    seen: dict[str, Tensor] = {}
    makers = makers_of(model, layers)

    def remember(name: str, masks: list[Mask | None]) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            first = first_tensor(output)
            if first is not None and first.ndim >= 2:
                h = pooled(channels_first(first, makers[name]), masks[0])
                seen[name] = h.clone() if h.data_ptr() == first.data_ptr() else h

        return hook

    with _masks(model) as masks, removed() as handles:
        for name in layers:
            handles.append(model.get_submodule(name).register_forward_hook(remember(name, masks)))
        yield seen


def first_tensor(output: Any) -> Tensor | None:
    """What a layer returned, or the first thing in it, if that is a tensor."""
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    return first if isinstance(first, Tensor) else None


@contextmanager
def capture_features(model: nn.Module, layer: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, the list holds the first input of the latest call of ``layer``, pooled: (B, C)."""
    seen: list[Tensor] = []

    with _masks(model) as masks, removed() as handles:

        def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
            seen[:] = [pooled(fed_to(layer, v), masks[0]) for v in tensors[:1]]

        handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
        yield seen


@contextmanager
def _masks(model: nn.Module) -> Iterator[list[Mask | None]]:
    """Within the block, the list holds the mask of the pass of the model that is under way."""
    current: list[Mask | None] = [None]

    def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        current[0] = None
        named = dict(kwargs)
        if len(args) > 1:  # a tuple of inputs: the model's signature has their names
            with suppress(TypeError, ValueError):  # Python cannot tell
                named |= dict(zip(inspect.signature(model.forward).parameters, args, strict=False))
        for name in (*REAL, *PADDED):
            mask = named.get(name)
            if isinstance(mask, Tensor) and mask.ndim == 2:
                current[0] = Mask(mask != 0 if name in REAL else mask == 0, model)
                return

    with removed() as handles:
        handles.append(model.register_forward_pre_hook(hook, with_kwargs=True))
        yield current


@contextmanager
def removed() -> Iterator[list[torch.utils.hooks.RemovableHandle]]:
    """Hooks whose handles are put into the list are removed after the block."""
    handles: list[torch.utils.hooks.RemovableHandle] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def marked(modules: Iterable[nn.Module], name: str, value: Any) -> Iterator[None]:
    """Within the block, the modules, and copies that are made of them, have an attribute."""
    before = {m: m.__dict__.get(name) for m in modules}
    try:
        for m in before:
            m.__dict__[name] = value
        yield
    finally:
        for m, old in before.items():
            set_own(m, name, old)


def set_own(module: nn.Module, name: str, value: Any) -> None:
    """Give a module an attribute of its own, which hides that of its class; None takes it away."""
    module.__dict__.pop(name, None)
    if value is not None:
        module.__dict__[name] = value


@contextmanager
def training_flags_kept(model: nn.Module) -> Iterator[None]:
    """Whatever the block does to them, every module's training flag is put back afterwards."""
    flags = {m: m.training for m in model.modules()}
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag
