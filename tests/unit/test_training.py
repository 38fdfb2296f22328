"""Training: every setting of the recipe has an effect, the caller's model none."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import purge
from purge.models import digest
from purge.training import Recipe
from tests.nets import blobs, small_mlp

OTHER = {
    "epochs": 3, "lr": 0.01, "batch_size": 24, "momentum": 0.5, "weight_decay": 0.1, "schedule": "cosine",
    "label_smoothing": 0.1, "ema": 0.9, "precision": "bf16",
}  # fmt: skip
ELSEWHERE = {"augment", "channels_last", "compile"}  # need images, convolutions, a compiler


def train(**changes):
    return purge.train(small_mlp(), blobs(), progress=False, **{"epochs": 2, "batch_size": 32, **changes})


def test_every_setting_is_looked_at():
    assert {f.name for f in dataclasses.fields(Recipe)} == set(OTHER) | ELSEWHERE


@pytest.mark.parametrize("field", OTHER)
def test_every_setting_has_an_effect(field):
    assert digest(train().model) != digest(train(**{field: OTHER[field]}).model)


def test_seeds_and_the_callers_model():
    model = small_mlp()
    before, state = digest(model), torch.get_rng_state()
    runs = [purge.train(model, blobs(), epochs=1, batch_size=32, seed=s, progress=False) for s in (0, 0, 1)]
    assert digest(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    digests = [digest(r.model) for r in runs]
    assert digests[0] == digests[1] != digests[2]


def test_it_learns():
    result = train(epochs=20, lr=0.05)
    x, y = blobs(seed=3)
    assert (result.model(x).argmax(1) == y).float().mean() >= 0.95
    losses = [row["loss"] for row in result.history]
    assert losses[-1] < 0.2 * losses[0]
    assert result.steps == 20 * 3
