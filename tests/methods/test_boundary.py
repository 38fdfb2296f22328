"""BE, BS, UNSIR and IEWP against independent float64 computations, and the mistakes known of them.

The batches are whole sets where a step is compared, so that it does not depend on the order of the samples.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import purge
from purge.core.errors import MethodError, ModelError
from purge.data.joined import samples_of
from purge.methods.boundary import BoundaryExpand, BoundaryShrink
from purge.methods.iewp import IEWP, _influence
from purge.methods.unsir import UNSIR
from purge.models.checkpoint import digest
from purge.models.copies import frozen_copy
from tests.nets import WithLogits, blobs, split_of
from tests.reference import (
    NAMES,
    WHOLE,
    adam,
    agree,
    cross_entropy,
    each_cross_entropy,
    each_entropy,
    gradient,
    net,
    sgd,
    trained,
    weights_of,
)


@pytest.fixture(scope="module")
def case():
    """A trained network in float64, and (forget, retain) with class 0 to forget."""
    model, (x, y) = trained(epochs=6)
    return model.double(), *purge.split((x.double(), y), classes=[0])


def unlearn(case, method, **settings):
    return purge.unlearn(*case, method=method, progress=False, **settings)


def forward(w, x, train=False):
    return net(w, x, frozen=not train)[0]


def descend(w, losses, lr, decay=0.0):
    return sgd(w, losses, [lr] * len(losses), decay=decay)


def drawn(seed, make):
    """What ``make`` draws when a run of that seed begins with it."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return make()


# -- Boundary Expanding -------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["frozen", "train"])
def test_be_is_widen_train_and_drop(case, norm):
    model, forget, _ = case
    result = unlearn(case, BoundaryExpand(epochs=2, batch_size=WHOLE, norm=norm), lr=0.03, seed=5)
    new = drawn(5, lambda: nn.Linear(8, 1, dtype=torch.float64))
    w = weights_of(model)
    for name, row in (("3.weight", new.weight), ("3.bias", new.bias)):
        w[name] = torch.cat([w[name], row])
    target = torch.full((len(forget[1]),), 3)

    def loss(w):
        return each_cross_entropy(forward(w, forget[0], norm == "train"), target).mean()

    w = descend(w, [loss, loss], lr=0.03)
    want = {**w, "3.weight": w["3.weight"][:3], "3.bias": w["3.bias"][:3]}
    assert agree(result, want, model)
    assert result.history[1]["forget_loss"] > result.history[2]["forget_loss"], "down, to the new class"


def test_be_is_checked_as_it_will_be_delivered(case):
    """With the extra class in place every forget sample would count as forgotten."""
    _, forget, _ = case
    seen = unlearn(case, BoundaryExpand(epochs=8, batch_size=WHOLE, norm="frozen"), lr=2e-2)
    got = float((seen.model.eval()(forget[0]).argmax(1) == forget[1]).double().mean())
    assert got > 0.5, "this needs a model that still knows the class once the extra one is gone"
    assert seen.history[-1]["check_forget_accuracy"] == got
    every = unlearn(case, BoundaryExpand(epochs=8, batch_size=WHOLE, norm="frozen"), lr=2e-2, check_every=1)
    assert digest(every.model) == digest(seen.model), "looking changes nothing"


def test_be_finds_heads_inside_and_without_bias():
    torch.manual_seed(0)
    x, y = torch.randn(12, 1, 8, 8), torch.arange(12) % 10
    model = WithLogits()
    result = purge.unlearn(
        model, *purge.split((x, y), classes=[0]), method=BoundaryExpand(epochs=1), progress=False
    )
    assert repr(result.model) == repr(model)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    result = purge.unlearn(
        plain, *purge.split((x, y), classes=[0]), method=BoundaryExpand(epochs=1), lr=0.1, progress=False
    )
    assert result.model[1].weight.shape == (10, 64)
    assert not torch.equal(result.model[1].weight, plain[1].weight)


class Scaled(nn.Module):
    """A classifier with a scale of its own for every class, after the linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.body(x)[:, :3] * self.scale


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Unflatten(1, (6, 1, 1)), nn.Conv2d(6, 3, 1), nn.Flatten()),
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), weight_norm(nn.Linear(8, 3))),
        Scaled(),
    ],
    ids=["convolution", "parametrised", "fixed-size"],
)
def test_be_refuses_heads_that_cannot_be_widened(model):
    with pytest.raises(ModelError, match="boundary-expand") as caught:
        purge.unlearn(model, *purge.split(blobs(), classes=[0]), method=BoundaryExpand(), progress=False)
    assert "\n" not in str(caught.value)


# -- Boundary Shrink ----------------------------------------------------------------------------


def neighbours(model, x, y, *, step, clamp, unit):
    """y' sample by sample."""
    w = weights_of(model)
    low, high = float(x.min()), float(x.max())
    found = []
    for i in range(len(x)):
        one = x[i : i + 1].clone().requires_grad_()
        (g,) = torch.autograd.grad(each_cross_entropy(forward(w, one), y[i : i + 1]).sum(), one)
        moved = one.detach() + step * ((high - low) if unit == "range" else 1) * g.sign()
        moved = moved.clamp(low, high) if clamp else moved
        found.append(int(forward(w, moved)[0].argmax()))
    return torch.tensor(found)


@pytest.mark.parametrize("norm", ["frozen", "train"])
@pytest.mark.parametrize(
    "how",
    [
        {"step": 0.22, "clamp": True, "unit": "range"},
        {"step": 0.22, "clamp": False, "unit": "range"},
        {"step": 2.0, "clamp": True, "unit": "input"},
        {"step": 0.1, "clamp": True, "unit": "input"},
    ],
    ids=str,
)
def test_bs_is_training_on_the_teachers_neighbours(case, how, norm):
    model, forget, _ = case
    result = unlearn(case, BoundaryShrink(epochs=3, batch_size=WHOLE, norm=norm, **how), lr=0.3)
    y = neighbours(model, *forget, **how)

    def loss(w):
        return each_cross_entropy(forward(w, forget[0], norm == "train"), y).mean()

    assert agree(result, descend(weights_of(model), [loss] * 3, lr=0.3), model)


def test_bs_steps_across_the_boundary_however_sure_the_teacher_is():
    """In float32 the loss of a sample this far inside has lost the part of its own class."""
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[50.0], [25.0]])
    x = torch.tensor([[1.0], [1.2]])
    found = BoundaryShrink(step=3, unit="input", clamp=False)._neighbours(
        frozen_copy(model), samples_of(x, torch.tensor([0, 0]), torch.device("cpu"))
    )
    assert found.tolist() == [1, 1]


# -- UNSIR --------------------------------------------------------------------------------------


def noise_of(model, seed, *, train):
    """Error-maximising noise by hand: Adam on −CE + λ·mean‖N‖²; three of the four that are made are shown."""
    w = weights_of(model)
    start = drawn(seed, lambda: torch.randn(4, 6, dtype=torch.float64))

    def loss(n):
        error = each_cross_entropy(forward(w, n["n"], train), torch.zeros(4, dtype=torch.long)).mean()
        return 0.1 * (n["n"] ** 2).sum(1).mean() - error

    return adam({"n": start}, [loss] * 40, 0.1, ("n",))["n"].detach()[:3]


ONE_STEP = {"noise_samples": 4, "noise_repeats": 2, "batch_size": WHOLE, "min_steps": 1}


@pytest.mark.parametrize("norm", ["train", "frozen"])
def test_unsir_noise_impair_and_repair(case, norm):
    """All of it: the noise, a step on noise and retained samples, a step of a fresh Adam."""
    model, _, retain = case
    train = norm == "train"
    result = unlearn(case, UNSIR(**ONE_STEP, norm=norm, repair_lr=0.01), lr=0.02, seed=2)
    assert result.steps == 2
    noise = noise_of(model, 2, train=train)
    x, y = torch.cat([retain[0], noise.repeat(2, 1)]), torch.cat([retain[1], torch.zeros(6).long()])
    w = adam(weights_of(model), [lambda w: each_cross_entropy(forward(w, x, train), y).mean()], lr=0.02)
    w = adam(w, [lambda w: each_cross_entropy(forward(w, retain[0], train), retain[1]).mean()], lr=0.01)
    assert agree(result, w, model)
    first, second = result.history[1:]
    was = weights_of(model)
    error = each_cross_entropy(forward(was, x, train), y)[len(retain[0]) :].mean()
    assert first["noise_loss"] == pytest.approx(float(error), rel=1e-4)
    assert second["noise_loss"] is None


def test_unsir_never_looks_at_forgotten_samples(case):
    model, _, retain = case
    other = (torch.randn(9, 6, dtype=torch.float64), torch.zeros(9, dtype=torch.long))
    quick = UNSIR(noise_samples=8)
    assert digest(unlearn(case, quick).model) == digest(unlearn((model, other, retain), quick).model)


def test_unsir_begins_its_record_with_the_model_as_it_was(case):
    """Its noise moves the statistics of BatchNorm, which must not count as the start."""
    first, other = (
        unlearn(case, method).history[0] for method in (UNSIR(**ONE_STEP), BoundaryShrink(epochs=1))
    )
    for key in ("check_forget_accuracy", "check_retain_loss"):
        assert first[key] == pytest.approx(other[key], rel=1e-5)


def test_unsir_refuses_single_samples(case):
    model, data = case[0], blobs()
    data = (data[0].double(), data[1])
    whole = (data[1] == 0).nonzero()[:, 0].tolist()
    one_more = (data[1] == 1).nonzero()[:1, 0].tolist()
    for gone, found in (([0, 1, 2], "3 single samples"), (whole + one_more, "1 single samples")):
        with pytest.raises(MethodError, match=rf"whole classes.*{found}"):
            purge.unlearn(model, *purge.split(data, indices=gone), method=UNSIR(), progress=False)


# -- IEWP ---------------------------------------------------------------------------------------


def influence(model, x, y, names=NAMES):
    """Gradient norms sample by sample, divided by their mean."""
    found = []
    for i in range(len(x)):
        one = x[i : i + 1], y[i : i + 1]
        g = gradient(weights_of(model), lambda w, one=one: cross_entropy(forward(w, one[0]), one[1]), names)
        found.append(math.sqrt(sum(float((v**2).sum()) for v in g.values())))
    norms = torch.tensor(found, dtype=torch.float64)
    return norms / norms.mean()


@pytest.mark.parametrize("norm", ["frozen", "train"])
@pytest.mark.parametrize("between", [1, 2])
def test_iewp_alternates_up_the_entropy_and_down_the_retain_loss(case, norm, between):
    model, forget, retain = case
    method = IEWP(epochs=2, batch_size=WHOLE, norm=norm, retain_steps=between)
    result = unlearn(case, method, lr=0.05, weight_decay=0.01)
    w0, train = influence(model, *forget), norm == "train"

    def up(w):
        return -(w0 * each_entropy(forward(w, forget[0], train))).mean()

    def down(w):
        return each_cross_entropy(forward(w, retain[0], train), retain[1]).mean()

    losses = [up, *[down] * between] * 2
    assert agree(result, descend(weights_of(model), losses, lr=0.05, decay=0.01), model)

    kinds = [row["retain_loss"] is None for row in result.history[1:]]
    assert kinds == [True, *[False] * between] * 2


def test_iewp_weights_are_the_norms_of_single_samples(case):
    model, forget, retain = case
    split = split_of(model, forget, retain, None)
    got = _influence(model, split.forget)
    assert torch.allclose(got.double(), influence(model, *forget), rtol=1e-4)
    assert float(got.mean()) == pytest.approx(1)
    part = frozen_copy(model)
    part[3].requires_grad_(True)  # only what is trained counts
    want = influence(model, *forget, names=("3.weight", "3.bias"))
    assert torch.allclose(_influence(part, split.forget).double(), want, rtol=1e-4)


def test_iewp_refuses_layers_that_mix_samples():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3))
    with pytest.raises(ModelError, match=r"running statistics.*1, which has none"):
        purge.unlearn(model, *purge.split(blobs(), classes=[0]), method=IEWP(), progress=False)
