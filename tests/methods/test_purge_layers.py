"""What hidden layers say: discriminants against scikit-learn, opinions by hand, and that they help."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import nn

import purge
from purge.core.settings import replace
from purge.engine.losses import masked_teacher
from purge.engine.run import Run
from purge.engine.seeding import seeded
from purge.engine.stopping import Stopping
from purge.methods.purge import layers as opinions
from purge.methods.purge.layers import MOST, SHRINKAGE, _quartered, _some, discriminant, layers_say, look
from purge.methods.purge.targets import Scene
from purge.methods.registry import METHODS
from purge.models.checkpoint import digest
from purge.models.copies import frozen_copy
from purge.models.forward import logits
from purge.models.inspect import anatomy
from purge.models.zoo import build
from tests.nets import split_of

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def split(digits, base):
    return split_of(base, digits.forget, digits.retain, None)


def said(model, split, own=None):
    teacher, run = frozen_copy(model), Run(model, split, device=CPU, stop=Stopping(), seed=0)
    with seeded(0, CPU):
        known = look(teacher, split.retain, split.classes, run)
        own = logits(model, split.forget) if own is None else own
        return layers_say(teacher, known, run)(split.forget, own)


def test_the_discriminant_is_that_of_scikit_learn():
    """Which shrinks to (1 − a)Σ + a·tr Σ/d·I, ours divided by 1 + s, and weighs classes alike."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    h = rng.normal(size=(120, 6)) * [1, 2, 3, 1, 1, 5] + rng.normal(size=(4, 6))[y]
    theirs = LinearDiscriminantAnalysis(
        solver="lsqr", shrinkage=SHRINKAGE / (1 + SHRINKAGE), priors=np.full(4, 0.25)
    ).fit(h, y)
    rows = rng.normal(size=(9, 6))
    want = theirs.decision_function(rows)
    got = discriminant(torch.from_numpy(h), torch.from_numpy(y), 4)(torch.from_numpy(rows)).numpy()
    centred = [z - z.mean(1, keepdims=True) for z in (want, got * (1 + SHRINKAGE))]
    np.testing.assert_allclose(*centred, atol=1e-9)


def test_constant_outputs_say_nothing_and_nothing_breaks():
    z = discriminant(torch.zeros(6, 3), torch.arange(6) % 2, 2)(torch.ones(4, 3))
    assert z.isfinite().all()


def test_an_opinion_by_hand():
    """Two hidden layers of a small network; class 0 goes, class 3 has no retained sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6), nn.Linear(6, 4)).eval()
    x, y = torch.randn(40, 3), torch.arange(40) % 3
    data = split_of(model, (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0]), None)
    own = logits(model, data.forget)
    with torch.no_grad():
        layers = [model[0], model[:2]]
        assert anatomy(model, x[:2]).stack == ("0", "1", "2")  # the last is not asked
        parts = []
        for layer in layers:
            z = discriminant(layer(x[y > 0]), y[y > 0], 4)(layer(x[y == 0]))[:, 1:3]
            z = z - z.mean(1, keepdim=True)
            parts.append(z / z.pow(2).mean().sqrt())
    mine = own[:, 1:3] - own[:, 1:3].mean(1, keepdim=True)
    want = own[:, 1:3].mean(1, keepdim=True) + mine.pow(2).mean().sqrt() * (parts[0] + parts[1]) / 2
    got = said(model, data)
    torch.testing.assert_close(got[:, 1:3], want, atol=1e-4, rtol=1e-4)
    assert torch.equal(got[:, [0, 3]], own[:, [0, 3]])


def test_a_model_without_layers_below_the_last_speaks_for_itself():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 3)).eval()
    x, y = torch.randn(12, 3), torch.arange(12) % 3
    data = split_of(model, (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0]), None)
    own = logits(model, data.forget)
    assert torch.equal(said(model, data), own)


def test_maps_are_quartered_unless_they_are_too_wide():
    h = torch.arange(32.0).reshape(1, 2, 4, 4)
    assert _quartered(h).tolist() == [[2.5, 4.5, 10.5, 12.5, 18.5, 20.5, 26.5, 28.5]]
    assert _quartered(torch.ones(3, 1024, 4, 4)).shape == (3, 1024)
    assert _quartered(torch.ones(3, 7, 1, 1)).shape == (3, 7)
    assert _quartered(torch.ones(3, 7, 5)).shape == (3, 7)  # tokens


def test_at_most_so_many_layers_are_asked_from_first_to_last():
    names = tuple(map(str, range(50)))
    assert _some(names[:MOST]) == names[:MOST]
    found = _some(names)
    assert len(set(found)) == MOST
    assert (found[0], found[-1]) == ("0", "49")


def test_the_stack_of_a_resnet_is_its_blocks():
    found = anatomy(build("resnet18", classes=3, channels=3, size=32), torch.zeros(2, 3, 32, 32)).stack
    assert found == tuple(f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1))


def test_the_target_is_the_mean_of_both_opinions(digits, base, split):
    method = replace(METHODS["purge-pull"].method, {"opinions": "own,layers", "sharpness": 2.0})
    teacher, run = frozen_copy(base), Run(base, split, device=CPU, stop=Stopping(), seed=0)
    with seeded(0, CPU):
        got = method.target.aim(Scene(teacher, split, run, None, method._within)).target
    mean = (logits(teacher, digits.forget) + said(base, split)) / 2
    torch.testing.assert_close(got, masked_teacher(2 * mean, digits.forget.labels, frozenset({0})))


def test_the_arithmetic_is_in_float32_also_where_the_model_is_not(base, split):
    """The model runs in bf16; discriminants of its outputs that were computed so would be noise."""
    own = logits(base, split.forget)
    want = said(base, split, own)
    with torch.autocast("cpu", torch.bfloat16):
        got = said(base, split, own)
    assert got.dtype == torch.float32
    assert float((got.argmax(1) == want.argmax(1)).float().mean()) > 0.9


def test_layers_tell_what_the_outputs_do_not():
    """Inputs of class 0 resemble class 1 or 2 by a feature that the head has no use for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)).eval()
    with torch.no_grad():
        for layer in (model[0], model[1]):
            layer.weight.copy_(torch.eye(4))
            layer.bias.zero_()
        model[2].weight.copy_(torch.tensor([[9.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]))
    y = torch.arange(300) % 2 + 1
    side = (y * 2 - 3).float()
    retain = torch.stack([torch.zeros(300), y == 1, y == 2, side], 1) + 0.1 * torch.randn(300, 4)
    truth = torch.arange(60) % 2 * 2 - 1
    forget = torch.stack([torch.ones(60), torch.zeros(60), torch.zeros(60), truth], 1) + 0.1 * torch.randn(
        60, 4
    )
    parts = split_of(model, (forget, torch.zeros(60).long()), (retain, y), None)
    own = logits(model, parts.forget)
    right = [(z[:, 1:].argmax(1) * 2 - 1 == truth).float().mean() for z in (own, said(model, parts, own))]
    assert right[0] < 0.8
    assert right[1] == 1


def test_the_stack_leaves_out_the_shortcuts_of_blocks():
    model = build("small-resnet", classes=3, channels=1, size=8)
    found = anatomy(model, torch.zeros(2, 1, 8, 8)).stack
    assert found == ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")


def test_a_layer_that_is_too_wide_is_not_asked():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(8 * 30 * 30, 5), nn.Tanh(), nn.Linear(5, 3)
    )
    x, y = torch.randn(30, 1, 32, 32), torch.arange(30) % 3
    parts = split_of(model, (x[y == 0], y[y == 0]), (x[y != 0], y[y != 0]), None)
    asked = []
    original = opinions.discriminant

    def watched(h, y, classes):
        asked.append(h.shape[1])
        return original(h, y, classes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opinions, "discriminant", watched)
        assert said(model, parts).isfinite().all()
    assert asked == [4 * 8, 5]  # not the 7,200 of Flatten


@pytest.mark.parametrize("copies", [1, 2])
def test_classes_that_do_not_vary_are_still_told_apart(copies, base, digits):
    """One retained sample of each class, or the same one twice."""
    first = torch.stack([(digits.retain.labels == c).nonzero()[0, 0] for c in range(1, 10)]).repeat(copies)
    few = digits.retain.take(first)
    result = purge.unlearn(
        base, digits.forget, few, method="purge-pull", opinions="own,layers", progress=False
    )
    assert all(p.isfinite().all() for p in result.model.parameters())


@pytest.mark.slow
def test_unlearning_follows_the_layers(digits, base):
    before = digest(base)
    models = [
        purge.unlearn(
            base, digits.forget, digits.retain, method="purge-pull", opinions=opinions, progress=False
        ).model
        for opinions in ("own", "own,layers")
    ]
    assert digest(base) == before
    assert digest(models[0]) != digest(models[1])
    assert all(float((logits(m, digits.forget).argmax(1) == 0).float().mean()) <= 0.02 for m in models)
