"""Copies of a model: on a device, a frozen teacher, or the same layers with fresh weights.

Models of half precision are computed with in float32: steps and differences of gradients are often smaller
than a half can hold. What is delivered has the types that came in.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from purge.core.errors import ModelError, first_line
from purge.models.checks import check_same_shapes
from purge.models.forward import HALF, HeadOnly


def copied(model: nn.Module, device: torch.device) -> nn.Module:
    """A deep copy on a device, wide enough to compute with; what was given is never touched after this."""
    try:
        return widened(copy.deepcopy(model).to(device))
    except (RuntimeError, TypeError) as error:
        got = first_line(error)
        fix = "make every tensor in it a parameter or a buffer, and see that the device has room"
        if "graph leaves" in got:
            got = "a tensor that is computed from its weights and kept"
            fix = (
                "use torch.nn.utils.parametrizations in place of the old weight_norm and spectral_norm, "
                "prune.remove after pruning, and keep no outputs in the model"
            )
        raise ModelError("a model that can be copied", got, fix) from error


def widened(model: nn.Module) -> nn.Module:
    """The model, its weights and buffers of half precision in float32."""
    for t in [*model.parameters(), *model.buffers()]:
        if t.dtype in HALF:
            t.data = t.data.float()
    return model


def narrowed(model: nn.Module, like: nn.Module) -> nn.Module:
    """The model, its weights and buffers in the types that those of ``like`` have."""
    types = {name: t.dtype for name, t in [*like.named_parameters(), *like.named_buffers()]}
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        if types.get(name) in HALF and t.dtype == torch.float32:
            t.data = t.data.to(types[name])
    return model


def frozen_copy(model: nn.Module) -> nn.Module:
    """A deep copy in evaluation mode whose weights take no gradient: a teacher."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def reinitialised(model: nn.Module, *, partly: bool = False) -> nn.Module:
    """A copy whose layers have drawn new weights, each in its own way.

    What takes no gradient keeps its weights, such as the model below LoRA, unless nothing takes one.
    ``partly``: layers that cannot keep the weights they have; otherwise they are refused.
    """
    twin = copy.deepcopy(model)
    with torch.no_grad():  # what is not a number afterwards has not been drawn, whatever a layer has done
        for p in twin.parameters():
            if p.is_floating_point():
                p.fill_(torch.nan)
        for module in twin.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and not is_parametrized(module):  # which would draw a weight that is computed
                reset()
        _reset_hugging_face(twin)
        old = dict(model.named_parameters())
        part = any(p.requires_grad for p in old.values())
        kept = {name: p for name, p in twin.named_parameters() if part and not p.requires_grad}
        stale = {n: p for n, p in twin.named_parameters() if n not in kept and bool(p.isnan().any())}
        for name, p in {**kept, **stale}.items():
            p.copy_(old[name])
    if stale and not partly:
        what, fix = (
            "layers that can draw their weights anew (reset_parameters)",
            "pass fresh=…, an untrained model",
        )
        raise ModelError(what, f"{next(iter(stale))}, which cannot", fix)
    return twin


def _reset_hugging_face(model: nn.Module) -> None:
    """Models of transformers draw all weights by a function of theirs, adapters of peft by another."""
    for module in model.modules():
        if callable(draw := getattr(module, "_init_weights", None)) and hasattr(module, "config"):
            for t in [*module.parameters(), *module.buffers()]:
                t.__dict__.pop("_is_hf_initialized", None)  # which would keep what it has
            for part in module.modules():
                draw(part)
    for module in model.modules():
        if callable(draw := getattr(module, "reset_lora_parameters", None)):
            for name in [*getattr(module, "lora_A", ()), *getattr(module, "lora_embedding_A", ())]:
                draw(name, True)


@torch.no_grad()
def mix_in(model: nn.Module, fresh: nn.Module, share: float, trained: Sequence[nn.Parameter]) -> None:
    """Mix a share of fresh weights, which must have the same shapes, into those that are trained."""
    check_same_shapes(model, fresh)
    wanted = set(trained)
    for own, drawn in zip(model.parameters(), fresh.parameters(), strict=True):
        if own in wanted:
            own.lerp_(drawn.to(own), share)


@torch.no_grad()
def with_neutral_head(model: nn.Module, head: str | None, classes: Collection[int]) -> nn.Module:
    """A copy that prefers none of ``classes``: their rows of the head are the mean of all other rows.

    A head with one logit, which tells two classes apart, is 0. The copy answers with the output of its head.
    Where no head is known, it is a plain copy.
    """
    twin = copy.deepcopy(model).eval()
    if head is None:
        return twin
    rows = sorted(classes)
    for p in twin.get_submodule(head).parameters(recurse=False):
        if rows and p.ndim and len(p) == 1:
            p.zero_()
        elif p.ndim and max(rows, default=0) < len(p) > len(rows):
            others = torch.ones(len(p), dtype=torch.bool, device=p.device)
            others[rows] = False
            p[rows] = p[others].mean(0)
    return HeadOnly(twin, head)


def keep_frozen(twin: nn.Module, model: nn.Module) -> nn.Module:
    """``twin`` with the frozen weights of ``model``, frozen as well."""
    for own, original in zip(twin.parameters(), model.parameters(), strict=True):
        if not original.requires_grad:
            own.data.copy_(original.data)
        own.requires_grad_(original.requires_grad)
    return twin
