"""Where things are inside a model: its head, its features, its blocks, its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from purge.core.errors import ModelError
from purge.data import inputs
from purge.data.inputs import Inputs
from purge.data.samples import Samples, few
from purge.models.forward import evaluating, raw_logits
from purge.models.hooks import channels_first, first_tensor, makers_of, removed


class Anatomy(NamedTuple):
    """The parts of a classifier that erasure and the audits look at."""

    head: str | None  # the layer that makes the logits; its input is the penultimate features
    blocks: tuple[str, ...]  # the layers whose output is erased by default
    stack: tuple[str, ...]  # the repeated blocks, in the order in which they run


def anatomy(model: nn.Module, x: Inputs) -> Anatomy:
    """Find head and erasure layers by watching one forward pass of a small batch.

    The head is the last layer with weights to run whose output has the size of the logits. Erasure
    uses layer3, layer4 and avgpool where they exist (ResNets); elsewhere, of the repeated blocks
    (children of a ModuleList or Sequential), the one at three quarters of the depth and the last,
    and the last layer to run before the head whose pooled output is as wide as the head's input.
    """
    n = inputs.count(x)
    modules = {name: m for name, m in model.named_modules() if name}
    makers = makers_of(model, modules)
    calls: list[tuple[str, torch.Size, int]] = []  # name, shape and pooled width of the output

    def remember(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            h = first_tensor(output)
            if h is not None and h.ndim >= 2 and len(h) == n and h.is_floating_point():
                calls.append((name, h.shape, channels_first(h, makers[name]).shape[1]))

        return hook

    with evaluating(model), removed() as handles:
        handles += [m.register_forward_hook(remember(name)) for name, m in modules.items()]
        z = raw_logits(model, x)
    shape = z.reshape(n, -1).shape  # one logit per sample may come without a dimension of its own
    made = (name for name, s, _ in reversed(calls) if s == shape and _has_own_weights(modules[name]))
    head = next(made, None)
    ran = [name for name, _, _ in calls]
    before = calls[: ran.index(head)] if head else calls
    weight = getattr(modules[head], "weight", None) if head else None
    width = weight.shape[1] if isinstance(weight, Tensor) and weight.ndim > 1 else None
    # The very last may be another head, or a pooling that leaves the channels where tokens should be.
    features = [name for name, _, w in before if width in (None, w)] or ran[: len(before)]
    stack = _stack(modules, ran[: len(before)])
    return Anatomy(head, _blocks(ran[: len(before)], stack, features[-1:]), stack)


def last_layer(model: nn.Module, samples: Samples, method: str, rows: int = 0) -> nn.Module:
    """The layer that makes the logits; ``rows``: it must have a matrix of weights with so many."""
    name = anatomy(model, few(samples)).head
    layer = None if name is None else model.get_submodule(name)
    weight = getattr(layer, "weight", None)
    if layer is None or (rows and (not isinstance(weight, Tensor) or weight.ndim < 2 or len(weight) != rows)):
        raise ModelError(
            f"a last layer with {f'{rows} rows of ' if rows else ''}weights for {method}",
            "none" if layer is None else f"{type(layer).__name__} ({name})",
            "end the model in a Linear layer, or choose another method",
        )
    return layer


def _has_own_weights(module: nn.Module) -> bool:
    """A layer rather than a container: linear, convolutional, or without layers inside."""
    layer = isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)) or not any(module.children())
    return layer and any(True for _ in module.parameters())


def _stack(modules: dict[str, nn.Module], ran: list[str]) -> tuple[str, ...]:
    """The outermost children of a ModuleList or Sequential; of a model without any, all that ran.

    Where they have less than half of the weights, they are details of something larger, such as the
    shortcuts of a block, and the stack is the outermost modules with weights.
    """
    once, lists = list(dict.fromkeys(ran)), (nn.ModuleList, nn.Sequential)
    repeated = [name for name in once if isinstance(modules.get(name.rpartition(".")[0]), lists)]
    inner, outer = _outermost(repeated), [n for n in _outermost(once) if _size(modules[n])]
    if 2 * sum(_size(modules[n]) for n in inner) < sum(_size(modules[n]) for n in outer) and inner:
        return tuple(outer)
    return tuple(inner or once)


def _outermost(names: list[str]) -> list[str]:
    return [n for n in names if not any(n.startswith(other + ".") for other in names)]


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _blocks(ran: list[str], stack: tuple[str, ...], last: list[str]) -> tuple[str, ...]:
    for name in ran:  # a ResNet, possibly inside a wrapper
        resnet = tuple(name.removesuffix("layer3") + part for part in ("layer3", "layer4", "avgpool"))
        if name.split(".")[-1] == "layer3" and set(resnet) <= set(ran):
            return resnet
    chosen = [stack[max(0, 3 * len(stack) // 4 - 1)], stack[-1]] if stack else []
    return tuple(dict.fromkeys(chosen + last))


def device_of(model: nn.Module) -> torch.device:
    """Where the model is: the device of its first weight or buffer."""
    first = next(iter([*model.parameters(), *model.buffers()]), None)
    return torch.device("cpu") if first is None else first.device
