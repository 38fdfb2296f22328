"""RL, SalUn and Amnesiac's relabelling against loops in float64 written from the formulas.

A watched network and a watched loss write down every batch with the labels that were learnt from
it; the references go through the same batches with explicit statistics and plain arithmetic.
"""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import purge
from purge.core.errors import MethodError
from purge.engine import losses
from purge.engine.optimizer import Optim
from purge.methods import relabel
from purge.methods.relabel import RandomLabel, SalUn
from tests.reference import (
    NAMES,
    after_norm,
    before_norm,
    cross_entropy,
    each_cross_entropy,
    network,
    statistics,
)
from tests.reference import moved as moved_on
from tests.reference import trained as base_trained

AMNESIAC = {"wrong": True, "redraw": False}


class Watched(nn.Module):
    """Linear → BatchNorm → ReLU → Linear that writes down what it is given to learn from."""

    def __init__(self, inner: nn.Module, seen: list) -> None:
        super().__init__()
        self.inner, self.seen = inner, seen

    def __deepcopy__(self, memo):
        twin = Watched(network(), [])
        twin.inner.double().load_state_dict(self.inner.state_dict())
        for ours, given in zip(twin.parameters(), self.parameters(), strict=True):
            ours.requires_grad_(given.requires_grad)
        twin.seen = self.seen  # shared, so that the copy that is trained writes into it
        return twin

    def forward(self, x):
        if torch.is_grad_enabled():
            self.seen.append(SimpleNamespace(x=x.clone(), train=self.inner[1].training))
        return self.inner(x)


@pytest.fixture(scope="module")
def trained():
    model, (x, y) = base_trained()
    model = model.double()
    # Single samples of all classes: their gradients point in many directions, so that the order of
    # summing and taking magnitudes matters. 24 and 72 are multiples of the batch sizes used below.
    return model, *purge.split((x.double(), y), indices=range(24))


@pytest.fixture
def watch(monkeypatch, trained):
    """Run a method; give its result and every step's batch: x, the labels learnt, BatchNorm's mode."""

    def go(method, **changes):
        model, forget, retain = trained
        seen, labels = [], []

        def cross_entropy(net, x, y, *how):
            labels.append(y.clone())
            return losses.cross_entropy(net, x, y, *how)

        watched = Watched(model, seen)
        with monkeypatch.context() as patch:
            patch.setattr(relabel, "cross_entropy", cross_entropy)
            result = purge.unlearn(watched, forget, retain, method=method, progress=False, **changes)
        steps = seen[-result.steps :]  # before them: the check at the door, the saliency
        for step, y in zip(steps, labels[-result.steps :], strict=True):
            step.y = y
        return result, steps

    return go


def rows(x, among):
    """For each row of x its place in ``among``, −1 where it is not there."""
    same = (x[:, None] == among[None]).all(2)
    return torch.where(same.any(1), same.long().argmax(1), -1)


# -- the references -----------------------------------------------------------------------------


def saliency(model, forget):
    """|Σ ∇CE| over single samples, in evaluation mode."""
    w = {
        k: v.clone().requires_grad_(k in NAMES) for k, v in model.state_dict().items() if k[-7:] != "tracked"
    }
    stats = w["1.running_mean"], w["1.running_var"]
    loss = each_cross_entropy(after_norm(w, before_norm(w, forget[0]), *stats)[0], forget[1]).sum()
    return {k: g.abs() for k, g in zip(NAMES, torch.autograd.grad(loss, [w[k] for k in NAMES]), strict=True)}


def top(score, share):
    """The global mask: the share of all coordinates with the largest scores."""
    values = sorted((float(v) for s in score.values() for v in s.reshape(-1)), reverse=True)
    limit = values[int(share * len(values)) - 1]
    return {k: s >= limit for k, s in score.items()}


def same(a, b):
    return all(torch.equal(a[k], b[k]) for k in NAMES)


def reference(model, steps, s, *, mask=None, soft=False, epoch=1):
    """The whole run in float64 on the batches that were seen: SGD or Adam, mask or soft threshold."""
    state = {k: v.clone() for k, v in model.state_dict().items()}
    w = {k: state[k] for k in NAMES}
    start = {k: v.clone() for k, v in w.items()}
    first, second = ({k: torch.zeros_like(v) for k, v in w.items()} for _ in range(2))
    mean, var = state["1.running_mean"], state["1.running_var"]
    o = s.optim
    for i, step in enumerate(steps):
        if soft and i % epoch == 0:
            start = {k: v.clone() for k, v in w.items()}
        live = {k: v.detach().requires_grad_() for k, v in w.items()}
        if s.norm == "train":
            a = before_norm(live, step.x)
            stats, (mean, var) = statistics(a), moved_on((mean, var), a)
        else:
            a, stats = before_norm(live, step.x), (mean, var)
        loss = cross_entropy(after_norm(live, a, *stats)[0], step.y)
        for k, g in zip(NAMES, torch.autograd.grad(loss, list(live.values())), strict=True):
            g = g + o.weight_decay * w[k]
            first[k] = o.momentum * first[k] + (g if o.optimizer == "sgd" else (1 - o.momentum) * g)
            if o.optimizer == "adam":
                second[k] = 0.999 * second[k] + 0.001 * g**2
                hat = (second[k] / (1 - 0.999 ** (i + 1))).sqrt() + 1e-8
                w[k] = w[k] - o.lr * first[k] / (1 - o.momentum ** (i + 1)) / hat
            else:
                w[k] = w[k] - o.lr * first[k]
            if mask is not None:
                w[k] = torch.where(mask[k], w[k], start[k])
        if soft:
            changes = sorted(abs(float(c)) for k in NAMES for c in (w[k] - start[k]).reshape(-1))
            progress = ((i // epoch) * epoch + 1) / len(steps)
            r = math.floor((1 - s.share) * (1 - progress) * len(changes))
            tau = changes[r - 1] if r else 0.0
            for k in NAMES:
                d = w[k] - start[k]
                w[k] = start[k] + torch.where(d > tau, d - tau, torch.where(d < -tau, d + tau, 0.0))
    return {**w, "1.running_mean": mean, "1.running_var": var}


def agree(result, want, start):
    got = {k.removeprefix("inner."): v for k, v in result.model.state_dict().items()}
    scale = max(float((want[k] - start[k]).abs().max()) for k in NAMES)
    assert scale > 1e-3, "the run must be worth checking"
    for k in want:  # losses are taken in float32
        assert torch.allclose(got[k], want[k], rtol=0, atol=1e-4 * scale), k


def moved(result, model):
    new = {k.removeprefix("inner."): v for k, v in result.model.state_dict().items()}
    return {k: new[k] != model.state_dict()[k] for k in NAMES}


# -- whole runs ---------------------------------------------------------------------------------

RUNS = [
    {},
    {"norm": "frozen"},
    {"mixed": False},
    {"mixed": False, "norm": "frozen"},
    {"mixed": False, "batch_size": 256},
    {**AMNESIAC, "optim": Optim(optimizer="adam", lr=1e-3, weight_decay=0.0), "norm": "frozen"},
]


@pytest.mark.parametrize("changes", RUNS, ids=str)
def test_random_labels(watch, trained, changes):
    method = RandomLabel(**{"epochs": 3, "batch_size": 12, **changes})
    result, steps = watch(method)
    assert all(step.train == (method.norm == "train") for step in steps)
    agree(result, reference(trained[0], steps, method), trained[0].state_dict())


@pytest.mark.parametrize(
    "changes", [{}, {"mixed": False}, {"norm": "frozen", "optim": Optim(lr=0.1)}], ids=str
)
def test_salun(watch, trained, changes):
    model, forget, _ = trained
    method = SalUn(**{"epochs": 3, "batch_size": 12, **changes})
    mask = top(saliency(model, forget), 0.5)
    result, steps = watch(method)
    agree(result, reference(model, steps, method, mask=mask), model.state_dict())


@pytest.mark.parametrize("changes", [{}, {"mixed": False}, {"share": 0.1}], ids=str)
def test_soft_salun(watch, trained, changes):
    model, start = trained[0], trained[0].state_dict()
    method = SalUn(**{"epochs": 3, "batch_size": 12, "soft": True, "norm": "frozen", **changes})
    result, steps = watch(method)
    epoch = len(steps) // 3
    agree(result, reference(model, steps, method, soft=True, epoch=epoch), start)


# -- batches and labels -------------------------------------------------------------------------


def drawn(steps, forget):
    """The labels learnt for each forgotten sample, (epochs, 24)."""
    found = [[] for _ in range(24)]
    for step in steps:
        for i, label in zip(rows(step.x, forget[0]).tolist(), step.y.tolist(), strict=True):
            if i >= 0:
                found[i].append(label)
    return torch.tensor(found).T


@pytest.mark.parametrize("mixed", [False, True])
def test_labels_are_uniform_and_drawn_anew_in_every_epoch(watch, trained, mixed):
    _, forget, _ = trained
    _, steps = watch(RandomLabel(epochs=50, batch_size=24, mixed=mixed, optim=Optim(lr=1e-6)))
    labels = drawn(steps, forget)
    assert labels.shape == (50, 24)
    assert all(0.28 < share / labels.numel() < 0.39 for share in Counter(labels.flatten().tolist()).values())
    assert 0.28 < float((labels == forget[1]).double().mean()) < 0.39, "the true label may come up"
    again = float((labels[1:] == labels[:-1]).double().mean())
    assert 0.28 < again < 0.39, "one epoch's labels say nothing about the next one's"
    assert all(len(set(one.tolist())) == 3 for one in labels.T)


@pytest.mark.parametrize("mixed", [False, True])
def test_amnesiac_labels_are_wrong_and_drawn_once(watch, trained, mixed):
    _, forget, _ = trained
    first = []
    for seed in range(20):
        method = RandomLabel(**{**AMNESIAC, "mixed": mixed}, epochs=3, batch_size=24)
        _, steps = watch(method, seed=seed)
        labels = drawn(steps, forget)
        assert (labels == labels[0]).all()
        first.append(labels[0])
    ahead = (torch.stack(first) - forget[1]) % 3
    assert set(ahead.flatten().tolist()) == {1, 2}
    assert 0.42 < float((ahead == 1).double().mean()) < 0.58


# -- the mask -----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("batch_size", [5, 24])
def test_the_mask_is_the_global_top_of_the_signed_sum(watch, trained, share, batch_size):
    model, forget, _ = trained
    want = top(saliency(model, forget), share)
    result, _ = watch(SalUn(epochs=2, batch_size=batch_size, share=share))
    assert same(moved(result, model), want)
    count = sum(m.numel() for m in want.values())
    assert sum(int(m.sum()) for m in want.values()) == int(share * count)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_nothing_moves_what_is_masked(monkeypatch, watch, trained, optimizer, mixed):
    """Neither weight decay nor momentum, however strong; and no momentum is gathered there."""
    made = []
    make = Optim.make

    def remembered(self, params):
        made.append(make(self, params))
        return made[-1]

    monkeypatch.setattr(Optim, "make", remembered)
    model, forget, _ = trained
    mask = top(saliency(model, forget), 0.5)
    strong = Optim(optimizer=optimizer, lr=0.02, momentum=0.9, weight_decay=0.5)
    result, _ = watch(SalUn(epochs=3, batch_size=12, mixed=mixed, optim=strong))
    assert same(moved(result, model), mask)
    (optimizer,) = made
    for p, k in zip(optimizer.param_groups[0]["params"], NAMES, strict=True):
        gathered = [t for t in optimizer.state[p].values() if t.shape == p.shape]
        assert gathered
        assert all((t[~mask[k]] == 0).all() and t[mask[k]].any() for t in gathered)


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("soft", [False, True])
def test_a_share_of_less_than_one_weight_is_refused_at_the_door(watch, soft):
    with pytest.raises(MethodError, match="frees at least one of 99 parameters") as error:
        watch(SalUn(share=1e-3, soft=soft))
    assert "raise share" in str(error.value)
