"""AMUN: where its neighbours lie, and a step in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import purge
from purge.core.errors import MethodError
from purge.data.joined import samples_of
from purge.engine.optimizer import Optim
from purge.methods import Amun
from purge.models.copies import frozen_copy
from tests.reference import WHOLE, assert_weights, cross_entropy, net, sgd, trained, weights_of

CPU = torch.device("cpu")


def neighbours(method, model, data):
    found = method._neighbours(frozen_copy(model.eval()), samples_of(*data, CPU), CPU)
    return found.take(torch.arange(len(found)))


@pytest.mark.parametrize("unit", ["range", "input"])
def test_neighbours_of_a_linear_model_are_straight_across_its_boundary(unit):
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2), 3 * torch.randn(60, 4)
    x = torch.cat([x, torch.tensor([[-50.0] * 4, [50.0] * 4])])  # room to move
    y = model(x).argmax(1)
    moved, label = neighbours(Amun(unit=unit), model, (x, y))
    assert torch.equal(label, 1 - y)
    scale = 100.0 if unit == "range" else 1.0
    w = (model.weight[1] - model.weight[0]).double() * scale
    b = (model.bias[1] - model.bias[0]).double()
    distance = ((x.double() / scale) @ w + b).abs() / w.norm()
    way = (moved - x).double()[:60] / scale
    assert torch.allclose(way @ w / w.norm() * (1 - 2 * y[:60]), way.norm(dim=1), rtol=1e-3, atol=1e-6)
    radius = torch.tensor([next(0.04 * 2**k for k in range(20) if 0.04 * 2**k > d) for d in distance[:60]])
    past = way.norm(dim=1) - distance[:60]
    assert bool((past > -1e-6).all())
    assert bool((past <= 0.11 * radius).all()), "it stops at the first step that is across"


def test_what_is_wrong_already_is_its_own_neighbour():
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(20, 4)
    wrong = (model(x).argmax(1) + 1) % 3
    moved, label = neighbours(Amun(), model, (x, wrong))
    assert torch.equal(moved, x)
    assert torch.equal(label, model(x).argmax(1))


@pytest.mark.parametrize("own", [None, False])
@pytest.mark.parametrize("part", [{"classes": [0]}, {"fraction": 0.2}])
def test_steps_train_on_neighbours_and_on_what_stays(part, own):
    model, data = trained()
    forget, retain = purge.split(data, **part)
    method = Amun(own=own, epochs=3, batch_size=WHOLE, decay=0.5, decay_every=2, optim=Optim(lr=0.05))
    result = purge.unlearn(model, forget, retain, method=method, progress=False)
    beside, label = neighbours(method, model, forget)
    assert bool((label != forget[1]).any())
    too = own is None and "fraction" in part  # samples of classes that stay keep their labels
    x = torch.cat([retain[0], beside, *([forget[0]] if too else [])])
    y = torch.cat([retain[1], label, *([forget[1]] if too else [])])
    want = sgd(weights_of(model), lambda w: cross_entropy(net(w, x)[0], y), rates=[0.05, 0.05, 0.025])
    assert_weights(result, want)


def test_samples_without_another_answer_near_them_are_left_out():
    """Class 0 has a bias that no step overcomes; class 1 is beside class 2."""
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
        model.bias.copy_(torch.tensor([0.0, 0.0, 0.0]))
    x, y = torch.tensor([[2.0, 1.0], [-1.0, -1.0]]), torch.tensor([1, 0])
    model.bias.data[0] = -0.5
    near = Amun(batch_size=2, attack_steps=1)._neighbours(
        model, samples_of(x, y, torch.device("cpu")), torch.device("cpu")
    )
    assert (near.labels != y[: len(near)]).all()

    model.bias.data[0] = 1e6
    alone = samples_of(x, torch.tensor([0, 0]), torch.device("cpu"))
    with pytest.raises(MethodError, match="another answer of the model near at least one forgotten sample"):
        Amun(batch_size=2)._neighbours(model, alone, torch.device("cpu"))
