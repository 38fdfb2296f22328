"""Device, precision and memory layout of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from purge.core.errors import DeviceError, MethodError
from purge.data.samples import Samples, few
from purge.models.forward import evaluating, forward
from purge.models.inspect import device_of

Precision = Literal["float32", "bf16"]


def has_bf16(device: torch.device) -> bool:
    """Is it a GPU that computes in bfloat16?"""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def arrange(model: nn.Module, layout: torch.memory_format) -> None:
    """Lay out weights of four dimensions; ``Module.to`` would fail at those of five, as of Conv3d."""
    for weight in [*model.parameters(), *model.buffers()]:
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=layout)


@contextmanager
def laid_out(model: nn.Module, samples: Samples, *, last: bool | None = None) -> Iterator[None]:
    """Within the block, weights of convolutions lie with channels last; None: on a GPU, if the model can."""
    if last is None:
        last = takes_channels_last(model, samples)
    if last:
        arrange(model, torch.channels_last)
    yield
    if last:
        arrange(model, torch.contiguous_format)


def takes_channels_last(model: nn.Module, samples: Samples) -> bool:
    """Is it a model on a GPU that can run with channels last?"""
    if device_of(model).type != "cuda":
        return False
    try:
        arrange(model, torch.channels_last)
        with evaluating(model):
            forward(model, few(samples))
    except RuntimeError:
        return False
    finally:
        arrange(model, torch.contiguous_format)
    return True


def choose_device(wanted: torch.device | str | None, model: nn.Module) -> torch.device:
    """The device to run on: the one asked for if it is there, otherwise the model's."""
    if wanted is None:
        return device_of(model)
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device).item()  # a device without data, such as meta, fails here
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
        there = "cpu" + (f", cuda:0 … cuda:{n - 1}" if (n := torch.cuda.device_count()) else "")
        raise DeviceError(
            f"a device that is here ({there})", repr(str(wanted)), "choose one of these"
        ) from None
    return device


def choose_precision(wanted: str | None, at: torch.device, *, full: bool) -> Precision:
    """The precision of convolutions and products: bf16 where the device has it and it is safe."""
    if wanted not in (None, "float32", "bf16"):
        raise MethodError("precision float32 or bf16", repr(wanted), "leave it out to have it chosen")
    if wanted is None:
        return "bf16" if has_bf16(at) and not full else "float32"
    return wanted  # type: ignore[return-value]  # mypy does not follow `in`


def choose_graph(wanted: bool | None, at: torch.device, *, default: bool) -> bool:
    """Should steps be recorded as a CUDA graph? By default as the method says, on a GPU."""
    if wanted not in (None, True, False):
        raise MethodError("graph true or false", repr(wanted), "leave it out")
    if wanted and at.type != "cuda":
        raise DeviceError("a CUDA device for graph=True", str(at), "leave graph out")
    return default and at.type == "cuda" if wanted is None else bool(wanted)
