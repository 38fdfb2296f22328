"""Does the forgetting survive what a deployed model goes through, and who tries to undo it?

Every attack works on a copy of its own. What is measured is FA, the accuracy on unseen samples of the
forgotten classes. A retrained model relearns too: only the difference to it means anything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from purge.engine.precision import has_bf16
from purge.metrics.bootstrap import Array, interval, mean_value, resamples
from purge.metrics.subject import Part, Subject
from purge.metrics.value import Value
from purge.models.batchnorm import batchnorms, recalibrate
from purge.models.forward import logits, logits_of, passing
from purge.models.inspect import device_of

Hits = NDArray[np.bool_]
T = TypeVar("T")

SAME: Part = "same_class_test"
LOOKED_AT = 2_000  # unseen samples of the forgotten classes that FA is measured on, at most

FEW = 50  # forget samples that the attacker has
BATCH = 64
LR, MOMENTUM = 1e-2, 0.9
STEPS = (0, 1, 2, 3, 5, 8, 12, 16, 20, 30, 40, 50)  # when FA is measured while relearning

PRUNED = {"20": 0.2, "50": 0.5, "80": 0.8}
NOISE = {"1pct": 0.01, "5pct": 0.05}
NOISE_DRAWS = 3

NO_WEIGHTS = "the model has no weights of linear layers or convolutions"
NOT_FINITE = "after the change the model gives logits that are not finite"


def once(fn: Callable[[Subject], T]) -> Callable[[Subject], T]:
    """``fn`` computed once for each subject, and kept for as long as that lives."""
    kept: WeakKeyDictionary[Subject, T] = WeakKeyDictionary()

    def found(subject: Subject) -> T:
        if subject not in kept:
            kept[subject] = fn(subject)
        return kept[subject]

    return found


def _unseen(subject: Subject) -> Tensor:
    """Which unseen samples of the forgotten classes FA is measured on: a seeded choice of very many."""
    n = len(subject.index(SAME))
    if n <= LOOKED_AT:
        return torch.arange(n)
    generator = torch.Generator().manual_seed(subject.seed)
    return torch.randperm(n, generator=generator)[:LOOKED_AT].sort().values


def _before(subject: Subject, rows: Tensor) -> Hits:
    found: Hits = (subject.guesses(SAME) == subject.labels(SAME))[rows.numpy()]
    return found


def _look(model: nn.Module, subject: Subject, rows: Tensor) -> Tensor:
    """The predicted classes (N,) of the samples, on the device; −1 where a logit is not finite."""
    at = subject.index(SAME)[rows].to(device_of(model))
    z = logits(model, subject.samples(SAME), at)
    return torch.where(z.isfinite().all(1), z.argmax(1), -1)


def _right(guesses: list[Tensor], subject: Subject, rows: Tensor) -> Hits:
    """Which of the samples were right in each look: (looks, N). The device is read here."""
    found: Hits = torch.stack(guesses).cpu().numpy() == subject.labels(SAME)[rows.numpy()]
    return found


def _right_or_none(guesses: list[Tensor], subject: Subject, rows: Tensor) -> list[Hits | None]:
    """The same, look by look; None where a logit was not finite: then nothing is known, least of all FA 0."""
    finite = (torch.stack(guesses) >= 0).all(1).tolist()
    return [h if ok else None for h, ok in zip(_right(guesses, subject, rows), finite, strict=True)]


def _share(hits: NDArray[np.generic] | None, seed: int) -> Value:
    return Value.missing(NOT_FINITE) if hits is None else mean_value(hits, seed)


def _rise_or_none(after: NDArray[np.generic] | None, before: Hits, seed: int) -> Value:
    return Value.missing(NOT_FINITE) if after is None else _rise(after, before, seed)


def _rise(after: NDArray[np.generic], before: Hits, seed: int) -> Value:
    """The mean of after − before, sample by sample."""
    return mean_value(after.astype(np.float64) - before, seed)


def distance_between(ours: Hits, theirs: Hits, seed: int) -> Value:
    """|difference of two means over the same samples|, with the interval of the difference folded."""
    signed = _rise(ours, theirs, seed)
    assert signed.value is not None
    assert signed.low is not None
    assert signed.high is not None
    ends = abs(signed.low), abs(signed.high)
    low = 0.0 if signed.low <= 0 <= signed.high else min(ends)
    return Value(abs(signed.value), low, max(ends), signed.n)


# -- BatchNorm ---------------------------------------------------------------------------------


def bn_recal(subject: Subject) -> Value | dict[str, Value]:
    """FA before and after the BatchNorm statistics are estimated anew on retain data."""
    if not batchnorms(subject.model):
        return Value.missing("the model has no BatchNorm statistics to recalibrate")
    if len(subject.split.retain) < 2:
        return Value.missing("statistics need at least two retain samples")
    rows = torch.arange(len(subject.index(SAME)))
    before = _before(subject, rows)
    attacked = copy.deepcopy(subject.model)
    generator = torch.Generator().manual_seed(subject.seed)
    order = torch.randperm(len(subject.split.retain), generator=generator).to(device_of(attacked))
    recalibrate(attacked, (x for x, _ in passing(subject.split.retain, order)))
    (after,) = _right_or_none([_look(attacked, subject, rows)], subject, rows)
    return {
        "before": mean_value(before, subject.seed),
        "after": _share(after, subject.seed),
        "delta": _rise_or_none(after, before, subject.seed),
    }


# -- relearning --------------------------------------------------------------------------------


def relearn(subject: Subject, few: int) -> Hits | str:
    """Which unseen samples are right after each of ``STEPS`` steps of fine-tuning: (steps, N).

    Each batch is half ``few`` forget samples, over and over, half retain samples; with ``few`` = 0 all
    of it is retain samples. All weights are trained by SGD, BatchNorm in training mode, dropout off.
    A string says why it could not be done.
    """
    model = copy.deepcopy(subject.model).eval()
    params = [p.requires_grad_(True) for p in model.parameters() if p.is_floating_point()]
    if not params:
        return "the model has no weights to fine-tune"
    for layer in batchnorms(model):
        layer.train()
    forget, retain, device = subject.split.forget, subject.split.retain, device_of(model)
    generator = torch.Generator().manual_seed(subject.seed)
    everything = torch.arange(len(retain))
    parts = [(retain, everything, BATCH)]
    if few:
        chosen = balanced(forget.labels, few, generator)
        parts = [(retain, everything, BATCH // 2), (forget, chosen, BATCH // 2)]
    streams = [
        samples.stream(shuffled(rows, STEPS[-1] * size, generator).view(-1, size).to(device))
        for samples, rows, size in parts
    ]
    optimizer = torch.optim.SGD(params, LR, momentum=MOMENTUM, fused=device.type == "cuda")
    bf16 = has_bf16(device)
    unseen, seen = _unseen(subject), []
    with torch.enable_grad(), _repeatable():
        for step, batch in enumerate(zip(*streams, strict=True), 1):
            x, y = (torch.cat(each) for each in zip(*batch, strict=True))
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                z = logits_of(model(x)).float()
            if not z.requires_grad:
                return "the logits have no gradient, so nothing can be fine-tuned"
            optimizer.zero_grad()
            F.cross_entropy(z, y).backward()
            optimizer.step()
            if step in STEPS:
                seen.append(_look(model, subject, unseen))
    hits = _right(seen, subject, unseen)  # the device is read here for the first time
    if bool((torch.stack(seen) < 0).any()):
        return "fine-tuning did not stay finite"
    return np.concatenate([_before(subject, unseen)[None], hits])


def _repeatable() -> AbstractContextManager[None]:
    """Convolutions that give the same gradient twice: equal models must relearn equally."""
    cudnn = torch.backends.cudnn
    found: AbstractContextManager[None] = cudnn.flags(
        enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32
    )
    return found


def balanced(labels: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """``n`` random samples (all, if there are fewer), as many of each class as can be.

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


_with_few = once(lambda subject: relearn(subject, FEW))
_with_none = once(lambda subject: relearn(subject, 0))


def _threshold(subject: Subject) -> float:
    part: Part = "kept_class_test"
    return float((subject.guesses(part) == subject.labels(part)).mean()) / 2


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
    found: Array = np.where(reached.any(-1), steps, grid[-1])
    return found


def relearned(subject: Subject, name: str, hits: Hits | str) -> Value | dict[str, Value]:
    """What a relearning attack achieved.

    ``after``: FA at its end; ``recovered``: FA at its end less FA at its start; ``area``: mean FA over
    the measured steps; ``steps``: steps until FA is half of the accuracy on unseen samples of the
    classes that stay (as the model had it before). 0: it was never below. A model that does not get
    there has the last step and a note: a count that was cut off, to be read as "at least".
    """
    if isinstance(hits, str):
        return Value.missing(hits)
    threshold, curve = _threshold(subject), hits.mean(1)
    subject.curves.setdefault("relearn", {})[name] = {
        "step": [float(step) for step in STEPS],
        "forget_accuracy": curve.tolist(),
        "threshold": threshold,
    }
    steps = float(steps_to(curve, threshold))
    low, high = interval(steps_to(_curve_draws(hits, subject.seed), threshold))
    why = "" if (curve >= threshold).any() else f"not recovered within {STEPS[-1]} steps"
    return {
        "after": mean_value(hits[-1], subject.seed),
        "recovered": _rise(hits[-1], hits[0], subject.seed),
        "area": mean_value(hits.mean(0), subject.seed),
        "steps": Value(steps, min(low, steps), max(high, steps), hits.shape[1], why),
    }


def _curve_draws(hits: Hits, seed: int) -> Array:
    """Bootstrap draws (draws, steps) of a curve; equal seeds give the same resamples."""
    n = hits.shape[1]
    return np.concatenate([counts @ hits.T / n for counts in resamples(n, seed)])


def relearn_ratio(subject: Subject) -> Value:
    """(1 + steps to recover) / (1 + those of the retrained model), with few forget samples.

    The anamnesis index, with 1 added so that a model that never forgot (0 steps) has one. Below 1: the
    knowledge was hidden, not gone. A count that was cut off makes it a bound; a note says which.
    """
    assert subject.retrained is not None
    ours, theirs = _with_few(subject), _with_few(subject.retrained)
    if isinstance(ours, str) or isinstance(theirs, str):
        return Value.missing(ours if isinstance(ours, str) else f"retrained model: {theirs}")
    limits = _threshold(subject), _threshold(subject.retrained)
    pairs = list(zip((ours, theirs), limits, strict=True))
    a, b = (1 + float(steps_to(hits.mean(1), limit)) for hits, limit in pairs)
    draws_a, draws_b = (1 + steps_to(_curve_draws(hits, subject.seed), limit) for hits, limit in pairs)
    low, high = interval(draws_a / draws_b)
    cut = [not (hits.mean(1) >= limit).any() for hits, limit in pairs]
    within = f"recovered within {STEPS[-1]} steps"
    why = {
        (False, False): "",
        (True, False): f"at least this: the model had not {within}",
        (False, True): f"at most this: the retrained model had not {within}",
        (True, True): f"neither model had {within}",
    }[cut[0], cut[1]]
    return Value(a / b, min(low, a / b), max(high, a / b), ours.shape[1], why)


# -- changed weights ---------------------------------------------------------------------------


def layer_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of all linear layers, convolutions and attentions, each once."""
    found = []
    for m in model.modules():
        if isinstance(m, (nn.Linear, _ConvNd)):
            found.append(m.weight)
        elif isinstance(m, nn.MultiheadAttention):
            found += [m.in_proj_weight, m.q_proj_weight, m.k_proj_weight, m.v_proj_weight]
    return [w for w in dict.fromkeys(found) if isinstance(w, nn.Parameter)]


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


def _changed(subject: Subject, changes: Iterable[Callable[[nn.Module], None]]) -> list[Hits | None]:
    """Which unseen samples are right after each change of the model; None: it gives no finite logits."""
    rows, seen = _unseen(subject), []
    for change in changes:  # nothing is read in between: the next copy is made while the device works
        attacked = copy.deepcopy(subject.model)
        change(attacked)
        seen.append(_look(attacked, subject, rows))
    return _right_or_none(seen, subject, rows)


def _with_largest_rise(subject: Subject, after: Mapping[str, NDArray[np.generic] | None]) -> dict[str, Value]:
    before = _before(subject, _unseen(subject))
    found = {name: _share(hits, subject.seed) for name, hits in after.items()}
    known = [hits for hits in after.values() if hits is not None]
    worst = max(known, key=lambda hits: float(hits.mean())) if len(known) == len(after) else None
    return {**found, "delta": _rise_or_none(worst, before, subject.seed)}


def quantise(subject: Subject) -> Value | dict[str, Value]:
    """FA with the weights of layers in int8, and with all of the model in bf16; and the changes."""
    if not layer_weights(subject.model):
        return Value.missing(NO_WEIGHTS)
    before = _before(subject, _unseen(subject))
    after = dict(zip(("int8", "bf16"), _changed(subject, (to_int8, to_bf16)), strict=True))
    return {
        **{name: _share(hits, subject.seed) for name, hits in after.items()},
        **{f"{name}_delta": _rise_or_none(hits, before, subject.seed) for name, hits in after.items()},
    }


def prune(subject: Subject) -> Value | dict[str, Value]:
    """FA without the smallest 20, 50 and 80 % of weights; ``delta``: the largest rise among them."""
    if not layer_weights(subject.model):
        return Value.missing(NO_WEIGHTS)
    after = _changed(subject, [partial(drop_smallest, share=share) for share in PRUNED.values()])
    return _with_largest_rise(subject, dict(zip(PRUNED, after, strict=True)))


def noise(subject: Subject) -> Value | dict[str, Value]:
    """Mean FA over draws of weight noise of 1 and 5 %; ``delta``: the larger rise."""
    if not layer_weights(subject.model):
        return Value.missing(NO_WEIGHTS)
    seeds = range(subject.seed, subject.seed + NOISE_DRAWS)
    draws = [partial(add_noise, share=share, seed=seed) for share in NOISE.values() for seed in seeds]
    looks = _changed(subject, draws)
    after: dict[str, NDArray[np.generic] | None] = {}
    for i, name in enumerate(NOISE):
        own = [hits for hits in looks[i * NOISE_DRAWS : (i + 1) * NOISE_DRAWS] if hits is not None]
        after[name] = np.mean(own, axis=0) if len(own) == NOISE_DRAWS else None
    return _with_largest_rise(subject, after)


UNSEEN = frozenset({"same_class_test"})
BOTH = UNSEEN | {"kept_class_test"}


def relearn_few(subject: Subject) -> Value | dict[str, Value]:
    """FA while fine-tuning on a few forget samples mixed with retain data."""
    return relearned(subject, "few", _with_few(subject))


def relearn_retain(subject: Subject) -> Value | dict[str, Value]:
    """FA while fine-tuning on retain data alone."""
    return relearned(subject, "retain", _with_none(subject))
