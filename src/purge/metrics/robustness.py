"""Does the forgetting survive what happens to a deployed model, and attempts to undo it?

Every attack works on a copy of its own. What is measured is FA, the accuracy on unseen samples of the
forgotten classes. A retrained model relearns too: only the difference to it means anything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from purge.data import inputs
from purge.engine.precision import has_bf16
from purge.metrics.audited import AuditedModel, Hits, Part, once
from purge.metrics.bootstrap import Array, interval, resamples, some_rows
from purge.metrics.value import Bound, Missing, Value
from purge.models.batchnorm import batchnorms, recalibrate
from purge.models.copies import with_neutral_head
from purge.models.forward import forward, logits, passing
from purge.models.inspect import device_of
from purge.models.unit_scales import Scale, scale_gradients, unit_scales

SAME: Part = "same_class_test"
LOOKED_AT = 2_000  # unseen samples of the forgotten classes that FA is measured on, at most

SIZED = 512  # samples of each side, at most, that the sizes of units are measured on …
FORGET_WEIGHT = 0.01  # … and what those to be forgotten count beside the others
FEW = 50  # forget samples that the attacker has
BATCH = 64
LR, MOMENTUM = 1e-2, 0.9
STEPS = (0, 1, 2, 3, 5, 8, 12, 16, 20, 30, 40, 50)  # when FA is measured while relearning

PRUNED = {"20": 0.2, "50": 0.5, "80": 0.8}
NOISE = {"1pct": 0.01, "5pct": 0.05}
NOISE_DRAWS = 3

NO_WEIGHTS = "the model has no weights of linear layers or convolutions"
NOT_FINITE = "after the change the model gives logits that are not finite"

Change = Callable[[nn.Module], None]
Right = Hits | Array | None  # which samples (N,) are right, or how often; None: logits not finite


# -- FA of a changed model ---------------------------------------------------------------------


def unseen_rows(audited: AuditedModel) -> Tensor:
    """Which unseen samples of the forgotten classes FA is measured on; of very many, the seed chooses."""
    rng = np.random.default_rng(audited.seed)
    return torch.from_numpy(some_rows(len(audited.index(SAME)), LOOKED_AT, rng))


def guesses_of(model: nn.Module, audited: AuditedModel, rows: Tensor) -> Tensor:
    """The predicted classes (N,) of the samples, on the device; −1 where a logit is not finite."""
    at = audited.index(SAME)[rows].to(device_of(model))
    z = logits(model, audited.samples(SAME), at)
    return torch.where(z.isfinite().all(1), z.argmax(1), -1)


def right_of(guesses: list[Tensor], audited: AuditedModel, rows: Tensor) -> list[Hits | None]:
    """Which of the samples were right each time; None where a logit was not finite. Reads the device."""
    classes = torch.stack(guesses).cpu().numpy()
    y = audited.labels(SAME)[rows.numpy()]
    return [row == y if (row >= 0).all() else None for row in classes]


def fa_of(audited: AuditedModel, after: Right) -> Value:
    """The share of unseen samples that are right after a change."""
    return Value.missing(NOT_FINITE) if after is None else audited.mean(after)


def rise_of(audited: AuditedModel, after: Right, before: Hits) -> Value:
    """The mean of after − before, sample by sample."""
    return fa_of(audited, None if after is None else after.astype(np.float64) - before)


@once
def scales_of(audited: AuditedModel) -> list[Scale]:
    """How large the units are that each weight lies between, on retained samples.

    The forget set counts a little, so that a unit that is silent on all else has a size as well. If it
    counted like the rest, units that know it would be large, and steps on what they know small.
    """
    device, generator = device_of(audited.model), torch.Generator().manual_seed(audited.seed)
    batches = []
    for samples, weight in ((audited.split.retain, 1.0), (audited.split.forget, FORGET_WEIGHT)):
        rows = torch.randperm(len(samples), generator=generator)[:SIZED].to(device)
        batches += [(x, weight * len(y) / len(rows)) for x, y in passing(samples, rows)]
    return unit_scales(audited.model, batches, audited.anatomy().head)


# -- BatchNorm ---------------------------------------------------------------------------------


def bn_recal(audited: AuditedModel) -> dict[str, Value]:
    """FA before and after the BatchNorm statistics are estimated again, on retain data."""
    retain, attacked = audited.split.retain, copy.deepcopy(audited.model)
    if not batchnorms(attacked):
        raise Missing("the model has no BatchNorm statistics to recalibrate")
    if len(retain) < 2:
        raise Missing("statistics need at least two retain samples")
    generator = torch.Generator().manual_seed(audited.seed)
    order = torch.randperm(len(retain), generator=generator).to(device_of(attacked))
    recalibrate(attacked, (x for x, _ in passing(retain, order)))
    rows, before = torch.arange(len(audited.index(SAME))), audited.hits(SAME)
    (after,) = right_of([guesses_of(attacked, audited, rows)], audited, rows)
    return {
        "before": audited.mean(before),
        "after": fa_of(audited, after),
        "delta": rise_of(audited, after, before),
    }


# -- relearning --------------------------------------------------------------------------------


@once
def relearn(audited: AuditedModel, count: int) -> Hits:
    """Which unseen samples are right after each of ``STEPS`` steps of fine-tuning: (steps, N).

    Each batch is half forget samples (``count`` of them, over and over) and half retain samples; without any
    forget samples all of it is retain samples. All weights are trained by SGD, BatchNorm in training mode,
    dropout off. A step is relative to the size of the units that a weight lies between, so that it does not
    matter how they are scaled: see purge.models.unit_scales.

    With few samples the question is what the layers below the head remember. So it starts from a head
    whose rows for the forgotten classes are the mean of the others, and looks at what the head itself
    answers: neither a saturated bias nor code behind the head can block it.
    """
    model = copy.deepcopy(audited.model).eval()
    if count:
        model = with_neutral_head(model, audited.anatomy().head, audited.split.forget_classes)
    sized = [
        (p, s) for p, s in zip(model.parameters(), scales_of(audited), strict=True) if p.is_floating_point()
    ]
    if not sized:
        raise Missing("the model has no weights to fine-tune")
    params, scales = [p.requires_grad_(True) for p, _ in sized], [s for _, s in sized]
    for layer in batchnorms(model):
        layer.train()
    forget, retain, device = audited.split.forget, audited.split.retain, device_of(model)
    generator = torch.Generator().manual_seed(audited.seed)
    everything = torch.arange(len(retain))
    parts = [(retain, everything, BATCH)]
    if count:
        chosen = balanced(forget.labels, count, generator)
        parts = [(retain, everything, BATCH // 2), (forget, chosen, BATCH // 2)]
    streams = [
        samples.stream(shuffled(rows, STEPS[-1] * size, generator).view(-1, size).to(device))
        for samples, rows, size in parts
    ]
    optimizer = torch.optim.SGD(params, LR, momentum=MOMENTUM, fused=device.type == "cuda")
    unseen, bf16 = unseen_rows(audited), has_bf16(device)
    guesses = [guesses_of(model, audited, unseen)]
    cudnn = torch.backends.cudnn  # equal models must relearn equally, so gradients must be repeatable
    with torch.enable_grad(), cudnn.flags(cudnn.enabled, deterministic=True, allow_tf32=cudnn.allow_tf32):
        for step, batch in enumerate(zip(*streams, strict=True), 1):
            xs, ys = zip(*batch, strict=True)
            x, y = inputs.join(xs), torch.cat(ys)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                z = forward(model, x).float()
            if not z.requires_grad:
                raise Missing("the logits have no gradient, so nothing can be fine-tuned")
            optimizer.zero_grad()
            F.cross_entropy(z, y).backward()
            scale_gradients(params, scales)
            optimizer.step()
            if step in STEPS:
                guesses.append(guesses_of(model, audited, unseen))
    right = right_of(guesses, audited, unseen)  # the device is read here for the first time
    if any(hits is None for hits in right):
        raise Missing("fine-tuning did not stay finite")
    return np.array(right)


def balanced(labels: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """``n`` random samples (all, if there are fewer), spread over the classes as evenly as possible.

    >>> y = torch.tensor([0] * 90 + [1] * 9 + [2])
    >>> y[balanced(y, 11, torch.Generator().manual_seed(0))].bincount().tolist()
    [5, 5, 1]
    """
    mixed = torch.randperm(len(labels), generator=generator)
    by_class = mixed[labels[mixed].argsort(stable=True)]
    _, counts = labels.unique(return_counts=True)
    turn = torch.cat([torch.arange(int(c)) for c in counts])  # each class gives one sample per turn
    return by_class[turn.argsort(stable=True)][:n]


def shuffled(rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """``n`` of the rows: shuffled passes over them, one after the other."""
    passes = [torch.randperm(len(rows), generator=generator) for _ in range(-(-n // len(rows)))]
    return rows[torch.cat(passes)[:n]]


def _threshold(audited: AuditedModel) -> float:
    """FA that counts as recovered: half of the accuracy on unseen samples of the classes that stay."""
    return float(audited.hits("kept_class_test").mean()) / 2


def steps_to(curves: Array, threshold: float) -> Array:
    """Steps until curves (…, steps) reach a threshold, in a straight line between two measurements.

    The last step of all where that never happens.
    """
    grid = np.array(STEPS, dtype=np.float64)
    reached = curves >= threshold
    at = reached.argmax(-1)[..., None]
    was = np.maximum(at - 1, 0)
    low, high = np.take_along_axis(curves, was, -1), np.take_along_axis(curves, at, -1)
    share = np.divide(threshold - low, high - low, out=np.zeros_like(low), where=at > was)
    steps = (grid[was] + share * (grid[at] - grid[was]))[..., 0]
    first: Array = np.where(reached.any(-1), steps, grid[-1])
    return first


def _curve_draws(hits: Hits, seed: int) -> Array:
    """Bootstrap draws (draws, steps) of a curve; equal seeds give the same resamples."""
    n = hits.shape[1]
    return np.concatenate([counts @ hits.T / n for counts in resamples(n, seed)])


def relearned(audited: AuditedModel, name: str, count: int) -> dict[str, Value]:
    """What fine-tuning brings back, on few forget samples mixed with retain data or on retain data alone.

    ``after``: FA at its end; ``recovered``: FA at its end less FA at its start; ``area``: mean FA over
    the measured steps; ``steps``: steps until FA is half of the accuracy on unseen samples of the
    classes that stay (as the model had it before). 0: it was never below. A model that does not get
    there has the last step and a note: read it as "at least".
    """
    hits, threshold = relearn(audited, count), _threshold(audited)
    curve = hits.mean(1)
    audited.curves.setdefault("relearn", {})[name] = {
        "step": [float(step) for step in STEPS],
        "forget_accuracy": curve.tolist(),
        "threshold": threshold,
    }
    steps = float(steps_to(curve, threshold))
    low, high = interval(steps_to(_curve_draws(hits, audited.seed), threshold))
    why = "" if (curve >= threshold).any() else f"not recovered within {STEPS[-1]} steps"
    return {
        "after": audited.mean(hits[-1]),
        "recovered": rise_of(audited, hits[-1], hits[0]),
        "area": audited.mean(hits.mean(0)),
        "steps": Value(steps, min(low, steps), max(high, steps), hits.shape[1], why),
    }


relearn_few = partial(relearned, name="few", count=FEW)
relearn_retain = partial(relearned, name="retain", count=0)


def relearn_ratio(audited: AuditedModel) -> Value:
    """(1 + steps to recover) / (1 + those of the retrained model), with few forget samples.

    The anamnesis index, with 1 added so that a model that never forgot (0 steps) has one. Below 1: the
    knowledge was hidden, not gone. A count that was cut off makes it a bound; a note says which.
    """
    both = audited.beside(lambda s: (relearn(s, FEW), _threshold(s)))
    a, b = (1 + float(steps_to(hits.mean(1), limit)) for hits, limit in both)
    draws_a, draws_b = (1 + steps_to(_curve_draws(hits, audited.seed), limit) for hits, limit in both)
    low, high = interval(draws_a / draws_b)
    ours, theirs = (not (hits.mean(1) >= limit).any() for hits, limit in both)
    within = f"recovered within {STEPS[-1]} steps"
    notes: dict[tuple[bool, bool], tuple[Bound, str]] = {
        (False, False): ("", ""),
        (True, False): ("least", f"at least this: the model had not {within}"),
        (False, True): ("most", f"at most this: the retrained model had not {within}"),
        (True, True): ("none", f"neither model had {within}"),
    }
    bound, why = notes[ours, theirs]
    return Value(a / b, min(low, a / b), max(high, a / b), both[0][0].shape[1], why, bound)


# -- changed weights: rounded, pruned, and with noise ------------------------------------------


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
    rows = unseen_rows(audited)

    def guesses_after(change: Change) -> Tensor:
        attacked = copy.deepcopy(audited.model)
        if change is to_bf16:  # which rounds a weight by a share of it, whatever its scale
            change(attacked)
        else:
            _between_units_of_size_1(attacked, scales_of(audited), change)
        return guesses_of(attacked, audited, rows)

    # None is read before all are made: the device works on.
    guesses = {name: [*map(guesses_after, draws)] for name, draws in changes.items()}
    after: dict[str, Right] = {}
    for name, own in guesses.items():
        right = right_of(own, audited, rows)
        known = [hits for hits in right if hits is not None]
        after[name] = None if len(known) < len(right) else known[0] if len(known) == 1 else np.mean(known, 0)
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
