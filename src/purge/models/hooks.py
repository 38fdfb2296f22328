"""What is attached to a model for a while and always removed: hooks, and training flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from purge.models.layout import channels_first, fed_to, makers_of
from purge.models.padding import pooled


@contextmanager
def capture(model: nn.Module, layers: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Within the block, each forward pass fills the dict: layer name → its output, pooled.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with capture(net, ["0"]) as seen:
    ...     _ = net(torch.zeros(5, 2))
    >>> seen["0"].shape
    torch.Size([5, 3])
    """
    seen: dict[str, Tensor] = {}
    handles = []
    makers = makers_of(model, layers)

    def remember(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, (tuple, list)) and output else output
            if isinstance(first, Tensor) and first.ndim >= 2:
                found = pooled(channels_first(first, makers[name]))
                seen[name] = found.clone() if found.data_ptr() == first.data_ptr() else found

        return hook

    try:
        for name in layers:
            handles.append(model.get_submodule(name).register_forward_hook(remember(name)))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def training_flags_kept(model: nn.Module) -> Iterator[None]:
    """Whatever the block does to them, every module's training flag is put back afterwards."""
    flags = {m: m.training for m in model.modules()}
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag


@contextmanager
def capture_features(module: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, the list holds the first input of the latest call of ``module``, pooled: (B, C)."""
    seen: list[Tensor] = []

    def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
        seen[:] = [pooled(fed_to(module, v)) for v in given[:1]]

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
