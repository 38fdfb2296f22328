"""Training: every setting of the recipe has an effect, and the caller's model stays as it is."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purge
from purge.core.errors import MethodError
from purge.data.augmented import Drawn
from purge.data.images import Images, draw_colours
from purge.engine import trainer as training
from purge.engine.trainer import Recipe
from purge.models.checkpoint import digest
from tests.engine.images import net, on_images
from tests.nets import blobs, small_mlp
from tests.properties import assert_caller_untouched, assert_same_seed_same_model


def train(**changes):
    return purge.train(small_mlp(), blobs(), progress=False, **{"epochs": 2, "batch_size": 32, **changes})


@pytest.fixture(scope="module")
def few(digits):
    return digits.train.select(torch.arange(50))


def test_seeds_and_the_callers_model():
    model = small_mlp()

    def go(seed=0):
        return purge.train(model, blobs(), epochs=1, batch_size=32, seed=seed, progress=False)

    assert_caller_untouched(model, go)
    assert_same_seed_same_model(go)


# -- the recipe against loops written out by hand -------------------------------------------------

RATES = {  # two epochs of four steps
    "one-cycle": [1 / 2, 1, 1, (2 + 3**0.5) / 4, 3 / 4, 1 / 2, 1 / 4, (2 - 3**0.5) / 4],
    "cosine": [0.5 * (1 + math.cos(math.pi * i / 8)) for i in range(8)],
}


@pytest.mark.parametrize("schedule", RATES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_every_step_equals_nesterovs_by_hand(schedule, momentum):
    """A linear classifier in double precision, its gradient written out; 35 samples, 3 left out."""
    recipe = {"lr": 0.3, "momentum": momentum, "weight_decay": 0.02, "label_smoothing": 0.2}
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    x, y = blobs(35)
    x = x.double() / 4
    result = purge.train(
        model, (x, y), epochs=2, batch_size=8, schedule=schedule, seed=5, progress=False, **recipe
    )
    weight = torch.cat([model.weight, model.bias[:, None]], 1).detach()  # (3, 7)
    target = 0.8 * F.one_hot(y, 3).double() + 0.2 / 3
    inputs = torch.cat([x, torch.ones(35, 1, dtype=torch.double)], 1)
    generator, velocity, step, losses = torch.Generator().manual_seed(5), None, 0, []
    for _ in range(2):
        order = torch.randperm(35, generator=generator)
        for at in (0, 8, 16, 24):
            xb, tb = inputs[order[at : at + 8]], target[order[at : at + 8]]
            p = (xb @ weight.T).softmax(1)
            losses.append(float(-(tb * p.log()).sum(1).mean()))
            g = (p - tb).T @ xb / 8 + 0.02 * weight
            velocity = g if velocity is None else momentum * velocity + g
            weight = weight - 0.3 * RATES[schedule][step] * (g + momentum * velocity)
            step += 1
    assert result.steps == step == 8
    found = torch.cat([result.model.weight, result.model.bias[:, None]], 1)
    torch.testing.assert_close(found.detach(), weight, rtol=0, atol=2e-6)  # the loss is in single precision
    assert [row["loss"] for row in result.history] == pytest.approx(
        [sum(losses[:4]) / 4, sum(losses[4:]) / 4], abs=1e-6
    )


def test_the_moving_average_of_the_weights_by_hand():
    """It covers weights and BatchNorm statistics; its decay rises from a tenth to the setting."""
    x, y = blobs()
    model = small_mlp()
    result = train(ema=0.4, momentum=0.5, epochs=3)
    hand = small_mlp().train()
    mean = {k: v.clone() for k, v in hand.state_dict().items() if v.is_floating_point()}
    velocity = {}
    generator, step = torch.Generator().manual_seed(0), 0
    for _ in range(3):
        for rows in torch.randperm(96, generator=generator).view(3, 32):
            hand.zero_grad()
            F.cross_entropy(hand(x[rows]), y[rows]).backward()
            with torch.no_grad():
                for name, p in hand.named_parameters():
                    g = p.grad + 5e-4 * p
                    velocity[name] = 0.5 * velocity[name] + g if name in velocity else g
                    p -= 0.1 * training.one_cycle(step, 9) * (g + 0.5 * velocity[name])
            decay = min(0.4, (1 + step) / (10 + step))
            for name, value in hand.state_dict().items():
                if name in mean:
                    mean[name] = decay * mean[name] + (1 - decay) * value.detach()
            step += 1
    found = result.model.state_dict()
    for name, value in mean.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    assert found["1.num_batches_tracked"] == 9
    assert digest(model) == digest(small_mlp())


def test_bf16_learns_as_float32_does(few):
    """The weights stay float32, and every step sees the weights of the step before."""
    plain, half = (on_images(few, precision=p, epochs=6) for p in ("float32", "bf16"))
    assert digest(plain.model) != digest(half.model)
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    for a, b in zip(plain.history, half.history, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=0.1)
    assert half.history[-1]["loss"] < 0.5 * half.history[0]["loss"]


def test_channels_last_is_only_another_layout(few):
    model = net()
    model[5] = nn.Identity()  # dropout draws in the order of memory
    plain, last = (on_images(few, model, channels_last=c, ema=0.5) for c in (False, True))
    for (name, a), b in zip(plain.model.state_dict().items(), last.model.state_dict().values(), strict=True):
        assert b.is_contiguous(), name
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
    assert last.history[-1]["loss"] == pytest.approx(plain.history[-1]["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler
def test_a_compiled_model_is_trained_the_same(few):
    model = net()
    model[5] = nn.Identity()  # a compiled dropout draws other numbers
    plain, compiled = (on_images(few, model, compile=c) for c in (False, True))
    assert compiled.model.state_dict().keys() == model.state_dict().keys()
    for a, b in zip(plain.model.parameters(), compiled.model.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)


# -- augmentation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_the_colours_of_an_epoch(augment):
    """Each channel of each image gets a gain about its mean and a shift, after crops and flips."""
    pixels = torch.randint(0, 256, (20, 3, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    images = Images(pixels, torch.arange(20) % 2, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1))
    order = torch.arange(18).view(3, 6)
    one, two = (torch.Generator().manual_seed(3) for _ in range(2))
    plain = list(images.replaced(change=Drawn(Recipe(augment=augment).augmentation, two)).stream(order))
    colours = draw_colours(18, 3, 0.25, two).view(3, 6, 3, 2)
    found = list(
        images.replaced(change=Drawn(Recipe(augment=augment, colour=0.25).augmentation, one)).stream(order)
    )
    for (x, y), (was, label), drawn in zip(found, plain, colours, strict=True):
        assert torch.equal(y, label)
        gain, shift = (drawn[..., i, None, None] for i in (0, 1))
        mean = was.mean((2, 3), keepdim=True)
        torch.testing.assert_close(x, mean + (was - mean) * gain + shift, atol=1e-5, rtol=1e-5)
    assert torch.equal(one.get_state(), two.get_state())


@pytest.mark.gpu
def test_augmentation_is_the_same_on_every_device(few, monkeypatch):
    order = torch.arange(48).view(3, 16)
    there = few.to("cuda")
    monkeypatch.setattr("purge.data.prefetch.DEVICE_FRACTION", 0)
    held = few.to("cuda")  # stays in host memory
    how = Recipe(augment="crop-flip", colour=0.3).augmentation
    for images in (there, held):
        there = images.replaced(change=Drawn(how, torch.Generator().manual_seed(3))).stream(order.cuda())
        here = few.replaced(change=Drawn(how, torch.Generator().manual_seed(3))).stream(order)
        for (a, _), (b, _) in zip(here, there, strict=True):
            torch.testing.assert_close(b.cpu(), a)


def test_only_images_are_augmented():
    with pytest.raises(MethodError, match=r"Expected purge.Images to augment by flip and colour, got .+\."):
        train(augment="flip", colour=0.1)
