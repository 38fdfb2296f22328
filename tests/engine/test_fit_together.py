"""Models that are trained together equal those trained one by one."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from purge.data.accept import as_samples
from purge.engine.trainer import Recipe, fit
from purge.models.checkpoint import digest
from tests.nets import blobs, plain_mlp, small_conv, small_mlp

CPU = torch.device("cpu")

SETTINGS = {
    "one-cycle": Recipe(epochs=2, batch_size=16, lr=0.05),
    "cosine, smoothed": Recipe(epochs=2, batch_size=20, lr=0.02, schedule="cosine", label_smoothing=0.2),
    "no momentum": Recipe(epochs=2, batch_size=500, lr=0.1, momentum=0.0, weight_decay=0.1),
    "moving average": Recipe(epochs=2, batch_size=16, lr=0.05, ema=0.5),
}


def same_as_alone(make, sets, recipe, atol=2e-5) -> None:
    seeds = [5, 6, 7]
    alone, together = ([make(seed) for seed in range(3)] for _ in range(2))
    told = [
        fit([model], [own], recipe, seeds=[seed])[0][0]
        for model, own, seed in zip(alone, sets, seeds, strict=True)
    ]
    found, _ = fit(together, sets, recipe, seeds=seeds)
    for a, b, c, d in zip(alone, together, told, found, strict=True):
        assert not b.training
        for name, value in a.state_dict().items():
            assert torch.allclose(value.double(), b.state_dict()[name].double(), atol=atol), name
        assert [row["epoch"] for row in c] == [row["epoch"] for row in d]
        assert [row["loss"] for row in c] == pytest.approx([row["loss"] for row in d], abs=atol)
    assert digest(together[0]) != digest(make(0))
    assert any(not torch.allclose(p, q) for p, q in zip(*(m.parameters() for m in together[:2]), strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_models_trained_together_equal_those_trained_alone(name):
    sets = [as_samples(blobs(50, seed=i), CPU, "data") for i in range(3)]
    same_as_alone(plain_mlp, sets, SETTINGS[name])
    same_as_alone(small_mlp, sets, SETTINGS[name])  # with the statistics of BatchNorm


@pytest.mark.parametrize("changes", [{}, {"augment": "crop-flip"}, {"augment": "flip", "colour": 0.3}])
def test_convolutions_and_augmented_images_together(digits, changes):
    sets = [digits.train.select(torch.arange(40) + 40 * i) for i in range(3)]
    same_as_alone(small_conv, sets, Recipe(epochs=2, batch_size=16, lr=0.02, **changes))


def test_half_precision_together(digits):
    sets = [digits.train.select(torch.arange(40) + 40 * i) for i in range(3)]
    recipe = Recipe(epochs=1, batch_size=20, lr=0.01, precision="bf16")
    same_as_alone(small_conv, sets, recipe, atol=0.01)
    float32, half = ([small_conv(0), small_conv(1)] for _ in range(2))
    for models, precision in ((float32, "float32"), (half, "bf16")):
        fit(models, sets[:2], dataclasses.replace(recipe, precision=precision), seeds=[0, 1])
    assert digest(float32[0]) != digest(half[0])
    assert all(p.dtype == torch.float32 for p in half[0].parameters())


@pytest.mark.gpu
def test_half_precision_together_on_a_gpu(digits):
    # There, stacked BatchNorm refuses inputs of another type than its statistics.
    images = digits.train.to("cuda")
    sets = [images.select(torch.arange(40) + 40 * i) for i in range(3)]
    same_as_alone(
        lambda seed: small_conv(seed).cuda(), sets, Recipe(epochs=1, batch_size=20, lr=0.01), atol=0.02
    )


def test_frozen_layers_stay_as_they_are():
    models = [small_mlp(i) for i in range(2)]
    for model in models:
        model[0].requires_grad_(False)
    before = [copy.deepcopy(m[0].weight) for m in models]
    fit(models, [as_samples(blobs(), CPU, "data")] * 2, SETTINGS["one-cycle"], seeds=[0, 1])
    assert all(torch.equal(m[0].weight, was) for m, was in zip(models, before, strict=True))
