"""RL, SalUn and Amnesiac's relabelling against loops in float64 written from the formulas.

A watched loss writes down every batch with the labels that were learnt from it; the references go through
the same batches with explicit statistics and plain arithmetic.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

import purge
from purge.core.errors import MethodError
from purge.engine import losses
from purge.engine.optimizer import Optim
from purge.methods import relabel
from purge.methods.relabel import RandomLabel, SalUn
from tests.reference import (
    NAMES,
    Net,
    assert_same,
    cross_entropy,
    each_cross_entropy,
    net,
    vectors,
    weights_of,
)
from tests.reference import trained as base_trained

AMNESIAC = {"wrong": True, "redraw": False}


@pytest.fixture(scope="module")
def trained():
    model, (x, y) = base_trained()
    # Single samples of all classes: their gradients point in many directions, so that the order of
    # summing and taking magnitudes matters. 24 and 72 are multiples of the batch sizes used below.
    return model.double(), *purge.split((x.double(), y), indices=range(24))


@pytest.fixture
def watch(monkeypatch, trained):
    """Run a method; give its result and the batch of every step: x, and the labels learnt."""

    def go(method, **changes):
        steps = []

        def watched(model, x, y, norm, reduction):
            if reduction == "none":  # a step, not the saliency
                steps.append((x.clone(), y.clone()))
            return losses.cross_entropy(model, x, y, norm, reduction)

        monkeypatch.setattr(relabel, "cross_entropy", watched)
        return purge.unlearn(*trained, method=method, progress=False, **changes), steps

    return go


def saliency(model, forget):
    """|Σ ∇CE| over single samples, in evaluation mode."""
    w = {k: v.requires_grad_(k in NAMES) for k, v in weights_of(model).items()}
    loss = each_cross_entropy(net(w, forget[0], frozen=True)[0], forget[1]).sum()
    return {k: g.abs() for k, g in zip(NAMES, torch.autograd.grad(loss, [w[k] for k in NAMES]), strict=True)}


def top(score, share):
    """The global mask: the share of all coordinates with the largest scores."""
    values = sorted((float(v) for s in score.values() for v in s.reshape(-1)), reverse=True)
    limit = values[int(share * len(values)) - 1]
    return {k: s >= limit for k, s in score.items()}


def reference(model, steps, s, *, mask=None, epoch=0):
    """The whole run in float64 on the batches that were seen; with a mask, or a soft threshold per epoch."""
    student = Net(model, s.norm)
    for i, (x, y) in enumerate(steps):
        if i == 0 or (epoch and i % epoch == 0):
            start = {k: v.detach().clone() for k, v in student.w.items()}
        student.descend(cross_entropy(student(x), y), s.optim)
        change = {k: v.detach() - start[k] for k, v in student.w.items()}
        if epoch:
            sizes = sorted(abs(float(c)) for d in change.values() for c in d.reshape(-1))
            progress = ((i // epoch) * epoch + 1) / len(steps)
            r = math.floor((1 - s.share) * (1 - progress) * len(sizes))
            tau = sizes[r - 1] if r else 0.0
            change = {k: d.sign() * (d.abs() - tau).clamp_min(0) for k, d in change.items()}
        for k, w in student.w.items():
            w.data = start[k] + (change[k] if mask is None else torch.where(mask[k], change[k], 0.0))
    return student.vectors


def moved(result, model):
    new, old = result.model.state_dict(), model.state_dict()
    return {k: new[k] != old[k] for k in NAMES}


def same(a, b):
    return all(torch.equal(a[k], b[k]) for k in NAMES)


RUNS = [
    {},
    {"norm": "frozen"},
    {"mixed": False},
    {"mixed": False, "batch_size": 256},
    {**AMNESIAC, "optim": Optim(optimizer="adam", lr=1e-3, weight_decay=0.0), "norm": "frozen"},
]


@pytest.mark.parametrize("changes", RUNS, ids=str)
def test_random_labels(watch, trained, changes):
    method = RandomLabel(**{"epochs": 3, "batch_size": 12, **changes})
    result, steps = watch(method)
    assert_same(vectors(result.model), reference(trained[0], steps, method), vectors(trained[0]))


@pytest.mark.parametrize(
    "changes",
    [{}, {"mixed": False, "share": 0.9}, {"norm": "frozen", "optim": Optim(lr=0.1)},
     {"share": 0.3, "batch_size": 5}],
    ids=str,
)  # fmt: skip
def test_salun(watch, trained, changes):
    """The mask is the global top of the signed sum, also in batches that do not divide the set."""
    model, forget, _ = trained
    method = SalUn(**{"epochs": 3, "batch_size": 12, **changes})
    mask = top(saliency(model, forget), method.share)
    result, steps = watch(method)
    assert_same(vectors(result.model), reference(model, steps, method, mask=mask), vectors(model))


@pytest.mark.parametrize("changes", [{}, {"mixed": False}, {"share": 0.1}], ids=str)
def test_soft_salun(watch, trained, changes):
    model = trained[0]
    method = SalUn(**{"epochs": 3, "batch_size": 12, "soft": True, "norm": "frozen", **changes})
    result, steps = watch(method)
    want = reference(model, steps, method, epoch=len(steps) // 3)
    assert_same(vectors(result.model), want, vectors(model))


def drawn(steps, forget):
    """The labels learnt for each forgotten sample, (epochs, 24)."""
    labels = [[] for _ in range(24)]
    for x, y in steps:
        for row, label in zip(x, y.tolist(), strict=True):
            for i in (forget[0] == row).all(1).nonzero()[:, 0].tolist():
                labels[i].append(label)
    return torch.tensor(labels).T


@pytest.mark.parametrize("mixed", [False, True])
def test_labels_are_uniform_and_drawn_anew_in_every_epoch(watch, trained, mixed):
    _, forget, _ = trained
    _, steps = watch(RandomLabel(epochs=50, batch_size=24, mixed=mixed, optim=Optim(lr=1e-6)))
    labels = drawn(steps, forget)
    assert labels.shape == (50, 24), "each forgotten sample once in each epoch"
    assert all(0.28 < share / labels.numel() < 0.39 for share in Counter(labels.flatten().tolist()).values())
    assert 0.28 < float((labels == forget[1]).double().mean()) < 0.39, "the true label may come up"
    again = float((labels[1:] == labels[:-1]).double().mean())
    assert 0.28 < again < 0.39, "one epoch's labels say nothing about the next one's"


@pytest.mark.parametrize("mixed", [False, True])
def test_amnesiac_labels_are_wrong_and_drawn_once(watch, trained, mixed):
    _, forget, _ = trained
    first = []
    for seed in range(20):
        _, steps = watch(RandomLabel(**AMNESIAC, mixed=mixed, epochs=3, batch_size=24), seed=seed)
        labels = drawn(steps, forget)
        assert (labels == labels[0]).all()
        first.append(labels[0])
    ahead = (torch.stack(first) - forget[1]) % 3
    assert set(ahead.flatten().tolist()) == {1, 2}
    assert 0.42 < float((ahead == 1).double().mean()) < 0.58


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_nothing_moves_what_is_masked(monkeypatch, watch, trained, optimizer):
    """Neither weight decay nor momentum, however strong; and no momentum is gathered there."""
    made, make = [], Optim.make
    monkeypatch.setattr(Optim, "make", lambda self, model: made.append(make(self, model)) or made[-1])
    model, forget, _ = trained
    mask = top(saliency(model, forget), 0.5)
    strong = Optim(optimizer=optimizer, lr=0.02, momentum=0.9, weight_decay=0.5)
    result, _ = watch(SalUn(epochs=3, batch_size=12, optim=strong))
    assert same(moved(result, model), mask)
    (used,) = made
    for p, k in zip(used.param_groups[0]["params"], NAMES, strict=True):
        gathered = [t for t in used.state[p].values() if t.shape == p.shape]
        assert gathered
        assert all((t[~mask[k]] == 0).all() and t[mask[k]].any() for t in gathered)


@pytest.mark.parametrize("soft", [False, True])
def test_a_share_of_less_than_one_weight_is_refused_at_the_door(watch, soft):
    with pytest.raises(MethodError, match=r"frees at least one of 99 parameters.*raise share"):
        watch(SalUn(share=1e-3, soft=soft))
