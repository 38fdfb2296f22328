"""FT, ℓ1-sparse, NoT, GA, NegGrad+ and Retrain against float64 computations written from the formulas.

Each batch is the whole of its set, so that steps do not depend on the order of the samples.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import purge
from purge.engine.optimizer import Optim
from purge.methods import FineTune, GradientAscent, Retrain
from purge.models.checkpoint import digest
from tests.nets import small_mlp
from tests.reference import (
    NAMES,
    assert_weights,
    clip_to,
    cross_entropy,
    net,
    sgd,
    trained_and_split,
    weights_of,
)

QUIET = {"progress": False}


@pytest.fixture(scope="module")
def case():
    return trained_and_split()


def descend(model, loss_of, *, steps, lr, momentum=0.9, decay=5e-4, clip=0.0):
    return sgd(weights_of(model), loss_of, [lr] * steps, momentum, decay, clip_to(clip))


@pytest.mark.parametrize("norm", ["train", "frozen"])
def test_finetune_is_descent_on_the_retain_set(case, norm):
    model, forget, retain = case
    method = FineTune(epochs=3, batch_size=500, norm=norm, optim=Optim(lr=0.05))
    result = purge.unlearn(model, forget, retain, method=method, **QUIET)
    want = descend(
        model, lambda w: cross_entropy(net(w, retain[0], norm == "frozen")[0], retain[1]), steps=3, lr=0.05
    )
    assert_weights(result, want)
    if norm == "frozen":
        assert torch.equal(result.model[1].running_mean, model[1].running_mean)


def test_l1_sparse_adds_a_penalty_that_falls_in_a_straight_line(case):
    model, forget, retain = case
    method = FineTune(l1=3e-3, epochs=4, free_epochs=1, batch_size=500, optim=Optim(lr=0.05))
    result = purge.unlearn(model, forget, retain, method=method, **QUIET)

    def loss(w, weight):
        penalty = sum(w[k].abs().sum() for k in NAMES)  # BatchNorm and biases included
        return cross_entropy(net(w, retain[0])[0], retain[1]) + weight * penalty

    falling = [partial(loss, weight=weight) for weight in (3e-3, 2e-3, 1e-3, 0.0)]
    assert_weights(result, descend(model, falling, steps=4, lr=0.05))


def test_not_turns_the_sign_of_what_the_layer_says():
    """The layer's parameters, so the bias too: with the weights alone it would not say −y for y."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x, y = torch.randn(30, 1, 8, 8), torch.arange(30) % 3
    method = FineTune(negate=True, epochs=1, batch_size=30, optim=Optim(lr=1e-12, weight_decay=0.0))
    changed = purge.unlearn(model, (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0]), method=method, **QUIET).model
    assert torch.allclose(changed[0](x), -model[0](x), atol=1e-6)
    model[0].bias.requires_grad_(False)
    changed = purge.unlearn(model, (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0]), method=method, **QUIET).model
    assert torch.equal(changed[0].bias, model[0].bias), "what takes no gradient stays"
    assert torch.allclose(changed[0].weight, -model[0].weight)


def test_gradient_ascent_climbs_and_decay_still_pulls_down(case):
    model, forget, retain = case
    method = GradientAscent(epochs=2, batch_size=500, optim=Optim(lr=0.01))
    result = purge.unlearn(model, forget, retain, method=method, **QUIET)
    want = descend(model, lambda w: -cross_entropy(net(w, forget[0])[0], forget[1]), steps=2, lr=0.01)
    assert_weights(result, want)
    assert result.stopped_by == "schedule"
    assert result.steps == 2


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_neggrad_plus_weighs_both_and_normalises_each_by_itself(case, clip):
    model, forget, retain = case
    whole = {"batch_size": 500, "forget_batch_size": 500}
    settings = {"alpha": 0.7, "epochs": 3, **whole, "lr": 0.02, "clip": clip}
    result = purge.unlearn(model, forget, retain, method="neggrad-plus", **settings, **QUIET)

    def loss(w):
        stay = cross_entropy(net(w, retain[0])[0], retain[1])
        go = cross_entropy(net(w, forget[0])[0], forget[1])
        return 0.7 * stay - 0.3 * go

    assert_weights(result, descend(model, loss, steps=3, lr=0.02, momentum=0, decay=0, clip=clip))


def test_neggrad_plus_small_pulls_to_the_original_and_freezes_statistics(case):
    model, forget, retain = case
    settings = {"pull": 2.0, "epochs": 4, "batch_size": 500, "forget_batch_size": 500, "lr": 0.02}
    result = purge.unlearn(model, forget, retain, method="neggrad-plus-small", **settings, **QUIET)
    start = {k: v.double() for k, v in model.state_dict().items() if k in NAMES}

    def loss(w):
        stay = cross_entropy(net(w, retain[0], frozen=True)[0], retain[1])
        go = cross_entropy(net(w, forget[0], frozen=True)[0], forget[1])
        away = sum(((w[k] - start[k]) ** 2).sum() for k in NAMES)  # BatchNorm and biases included
        return 0.95 * (stay + 2.0 / 2 * away) - 0.05 * go

    assert_weights(result, descend(model, loss, steps=4, lr=0.02, momentum=0, decay=0))


# -- retrain ------------------------------------------------------------------------------------


def test_retrain_is_training_without_the_forget_set(toy):
    model, forget, retain, _ = toy
    fresh = small_mlp(seed=11)
    result = purge.unlearn(model, forget, retain, method="retrain", fresh=fresh, epochs=3, seed=5, **QUIET)
    want = purge.train(fresh, retain, epochs=3, seed=5, progress=False)
    assert digest(result.model) == digest(want.model)
    assert [r["retain_loss"] for r in result.history[1:]] == pytest.approx([r["loss"] for r in want.history])


def test_weights_that_cannot_be_drawn_anew_are_refused(toy):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(6, 3))

        def forward(self, x):
            return x @ self.matrix

    _, forget, retain, _ = toy
    with pytest.raises(purge.PurgeError, match=r"Expected layers that can draw.*matrix.*fresh="):
        purge.unlearn(Own(), forget, retain, method="retrain", epochs=1, **QUIET)
    result = purge.unlearn(Own(), forget, retain, method="retrain", fresh=Own(), epochs=1, **QUIET)
    assert isinstance(result.method, Retrain)
