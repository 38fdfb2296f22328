"""What is attached to a model for a while and always removed: hooks, marks and training flags.

Hidden outputs are pooled to one vector per sample. Where the inputs have a mask of padding, which is known by
the name of its argument, only positions that are not padding count.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from purge.models.channels import channels_first, fed_to, makers_of

REAL = ("attention_mask",)  # names of arguments that are 1 where a sequence has something, 0 where padding is
PADDED = ("key_padding_mask", "src_key_padding_mask")  # and the other way round


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
