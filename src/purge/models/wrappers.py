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
    weights = (*model.named_parameters(), *model.named_buffers())
    spread = [
        f"weights spread over ranks (DTensor: {name})" for name, t in weights if hasattr(t, "full_tensor")
    ]
    for name, module in model.named_modules():
        where = f" in {name}" if name else ""
        if any(cls.__module__.startswith("torch.distributed.fsdp") for cls in type(module).__mro__):
            spread.insert(0, f"a module in FSDP{where}")
        if isinstance(module, torch.jit.ScriptModule):
            fix = "pass the nn.Module it was made from; script or trace the new model afterwards"
            raise ModelError("a plain nn.Module", f"TorchScript{where}", fix)
        if type(module).__module__.startswith(QUANTISED):
            fix = "pass the model as it was before, in floats; quantise the new model afterwards"
            raise ModelError("weights that can be trained", f"a quantised module{where}", fix)
    if spread:
        fix = (
            "pass the plain module with all of its weights (torch.distributed.checkpoint.state_dict collects "
            "them), on every rank or on one; shard the new model afterwards"
        )
        raise ModelError("whole weights on every rank", spread[0], fix)
