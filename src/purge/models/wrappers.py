"""The plain module inside torch.compile, DataParallel and the like, and what cannot be taken for a model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from purge.core.errors import ModelError

QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.quantizable")


def unwrapped(model: nn.Module) -> nn.Module:
    """The plain module that ``torch.compile``, DataParallel or DistributedDataParallel was given.

    The same object if there is no wrapper; a copy if one lies deeper within, so that the caller's stays.

    >>> net = nn.Linear(2, 3)
    >>> unwrapped(nn.DataParallel(net)) is net
    True
    """
    model = _inner(model)
    if not any(_inner(module) is not module for module in model.modules()):
        return model
    plain = copy.deepcopy(model)
    for module in [*plain.modules()]:
        for name, child in module.named_children():
            setattr(module, name, _inner(child))
    return plain


def _inner(model: nn.Module) -> nn.Module:
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif type(model).__name__ == "OptimizedModule":  # its class is not imported: that takes seconds
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def check_kind(model: Any) -> None:
    """Refuse what looks like a model but cannot be trained or looked into."""
    if not isinstance(model, nn.Module):
        raise ModelError("a torch.nn.Module", type(model).__name__, "pass the model itself")
    for name, module in model.named_modules():
        weights = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        bases = [cls.__module__ for cls in type(module).__mro__]
        if isinstance(module, torch.jit.ScriptModule):
            kind, what = "TorchScript", "a plain nn.Module"
            fix = "pass the nn.Module it was made from; script or trace the new model afterwards"
        elif bases[0].startswith(QUANTISED):
            kind, what = "a quantised module", "weights that can be trained"
            fix = "pass the model as it was before, in floats; quantise the new model afterwards"
        elif any(base.startswith("torch.distributed.fsdp") for base in bases) or any(
            hasattr(t, "full_tensor") for t in weights
        ):
            kind, what = "weights spread over ranks", "whole weights on every rank"
            fix = (
                "pass the plain module with all of its weights (torch.distributed.checkpoint.state_dict "
                "collects them), on every rank or on one; shard the new model afterwards"
            )
        else:
            continue
        raise ModelError(what, kind + (f" in {name}" if name else ""), fix)
