"""Does the forgetting survive what is done to weights: rounding, pruning, and noise?

What is measured is FA of a changed copy: see :mod:`purge.metrics.robustness`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from purge.metrics.audited import AuditedModel, Hits
from purge.metrics.bootstrap import Array
from purge.metrics.robustness import SAME, Right, fa_of, guesses_of, right_of, rise_of, scales_of, unseen_rows
from purge.metrics.value import Missing, Value
from purge.models.inspect import device_of
from purge.models.unit_scales import Scale

PRUNED = {"20": 0.2, "50": 0.5, "80": 0.8}
NOISE = {"1pct": 0.01, "5pct": 0.05}
NOISE_DRAWS = 3

NO_WEIGHTS = "the model has no weights of linear layers or convolutions"

Change = Callable[[nn.Module], None]


def quantise(audited: AuditedModel) -> dict[str, Value]:
    """FA with the weights of layers in int8, and with all of the model in bf16; and the changes.

    Weights are rounded to int8 as they are between units of size 1 (:mod:`purge.models.unit_scales`): those
    who quantise scale units first, too. So are the weights of :func:`prune` and :func:`noise`.
    """
    before, after = _changed(audited, {"int8": [to_int8], "bf16": [to_bf16]})
    rises = {f"{name}_delta": rise_of(audited, hits, before) for name, hits in after.items()}
    return {name: fa_of(audited, hits) for name, hits in after.items()} | rises


def prune(audited: AuditedModel) -> dict[str, Value]:
    """FA without the smallest 20, 50 and 80 % of weights; ``delta``: the largest rise among them."""
    changes = {name: [partial(drop_smallest, share=share)] for name, share in PRUNED.items()}
    return _with_largest_rise(audited, changes)


def noise(audited: AuditedModel) -> dict[str, Value]:
    """Mean FA over draws of weight noise of 1 and 5 %; ``delta``: the larger rise."""
    seeds = range(audited.seed, audited.seed + NOISE_DRAWS)
    changes = {k: [partial(add_noise, share=share, seed=s) for s in seeds] for k, share in NOISE.items()}
    return _with_largest_rise(audited, changes)


def _changed(audited: AuditedModel, changes: Mapping[str, Sequence[Change]]) -> tuple[Hits, dict[str, Right]]:
    """Which unseen samples are right before and after each change; of several draws of one, their mean."""
    if not layer_weights(audited.model):
        raise Missing(NO_WEIGHTS)
    rows, guesses = unseen_rows(audited), []
    for change in (change for draws in changes.values() for change in draws):
        attacked = copy.deepcopy(audited.model)
        if change is to_bf16:  # which rounds a weight by a share of it, whatever its scale
            change(attacked)
        else:
            _between_units_of_size_1(attacked, scales_of(audited), change)
        guesses.append(guesses_of(attacked, audited, rows))  # not read yet: the device works on
    right, after = right_of(guesses, audited, rows), dict[str, Right]()
    for name, draws in changes.items():
        own, right = right[: len(draws)], right[len(draws) :]
        known = [hits for hits in own if hits is not None]
        mean: list[Hits | Array] = [*known] if len(known) < 2 else [np.mean(known, axis=0)]
        after[name] = mean[0] if len(known) == len(draws) else None
    return audited.hits(SAME)[rows.numpy()], after


@torch.no_grad()
def _between_units_of_size_1(model: nn.Module, scales: Sequence[Scale], change: Change) -> None:
    """Change the weights of layers as they are in the same network with units of size 1."""
    sizes = dict(zip(model.parameters(), scales, strict=True))
    weights = [(w, sizes[w], w.clone()) for w in layer_weights(model)]
    for w, size, _ in weights:
        w.copy_(size.over(w))
    change(model)
    for w, size, before in weights:
        none = size.times(torch.ones_like(w)) == 0  # a weight to or from a silent unit
        w.copy_(torch.where(none, before, size.times(w)))


def _with_largest_rise(audited: AuditedModel, changes: Mapping[str, Sequence[Change]]) -> dict[str, Value]:
    before, after = _changed(audited, changes)
    known = [hits for hits in after.values() if hits is not None]
    worst = max(known, key=lambda hits: float(hits.mean())) if len(known) == len(after) else None
    values = {name: fa_of(audited, hits) for name, hits in after.items()}
    return values | {"delta": rise_of(audited, worst, before)}


def layer_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of all linear layers, convolutions and attentions, each once."""
    weights = []
    for m in model.modules():
        if isinstance(m, (nn.Linear, _ConvNd)):
            weights.append(m.weight)
        elif isinstance(m, nn.MultiheadAttention):
            weights += [m.in_proj_weight, m.q_proj_weight, m.k_proj_weight, m.v_proj_weight]
    return [w for w in dict.fromkeys(weights) if isinstance(w, nn.Parameter)]


@torch.no_grad()
def to_int8(model: nn.Module) -> None:
    """Round each output channel of every layer to 255 levels, from −max|w| to max|w|."""
    for w in layer_weights(model):
        rows = w.flatten(1).float()
        scale = rows.abs().amax(1, keepdim=True) / 127
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        w.copy_((rows / scale).round().mul(scale).view_as(w))


@torch.no_grad()
def to_bf16(model: nn.Module) -> None:
    """Round all weights and statistics to bfloat16."""
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            t.copy_(t.bfloat16())


@torch.no_grad()
def drop_smallest(model: nn.Module, share: float) -> None:
    """Set the smallest weights of all layers together to zero."""
    weights = layer_weights(model)
    sizes = torch.cat([w.abs().flatten().float() for w in weights])
    keep = torch.ones_like(sizes)
    keep[sizes.topk(round(share * len(sizes)), largest=False, sorted=False).indices] = 0
    for w, part in zip(weights, keep.split([w.numel() for w in weights]), strict=True):
        w.mul_(part.view_as(w))


@torch.no_grad()
def add_noise(model: nn.Module, share: float, seed: int) -> None:
    """Add Gaussian noise to every layer: ``share`` of the standard deviation of its weights."""
    generator = torch.Generator(device_of(model)).manual_seed(seed)
    for w in layer_weights(model):
        drawn = torch.randn(w.shape, generator=generator, device=w.device)
        w.add_(drawn * share * w.float().std(correction=0))
