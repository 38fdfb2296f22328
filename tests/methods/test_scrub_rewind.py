"""SCRUB+R: which epoch a run is brought back to, and what it needs to know for that."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import purge
from purge.core.errors import MethodError
from purge.methods.scrub import Scrub
from purge.models.checkpoint import digest
from tests.nets import blobs

K = 4


@pytest.fixture(scope="module")
def noisy():
    """Classes that overlap, and single samples to forget: held-out data is known in part only."""
    x, y = blobs(n=160, classes=3)
    noise = torch.randn(160, 6, generator=torch.Generator().manual_seed(5))
    data = (x + 8 * noise, y)
    train, test = (data[0][:100], data[1][:100]), (data[0][100:], data[1][100:])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))
    model = purge.train(model, train, epochs=40, lr=0.1, batch_size=32, progress=False).model
    return model, train, test


REWIND = {"epochs": 4, "max_steps": 2, "forget_batch_size": 8, "batch_size": 32}


def wrong(model, data):
    with torch.no_grad():
        return float((model(data[0]).argmax(1) != data[1]).double().mean())


def test_rewinding_takes_the_epoch_that_is_nearest_to_held_out_data(noisy, caplog):
    model, data, test = noisy
    after, rewound = rewinding(model, *purge.split(data, fraction=0.3), test, caplog, lr=0.1)
    away = distances(after, test)
    assert away.index(min(away)) == 1, "the case must have something to rewind"
    assert sorted(away)[1] > 2 * min(away), "and only one answer"
    assert digest(rewound) == digest(after[1][0])
    assert "epoch 2 of 4" in caplog.text


def test_rewinding_can_take_the_first_epoch_that_forgot_more_than_held_out_data_is_unknown(noisy, caplog):
    model, data, test = noisy
    parts = purge.split(data, fraction=0.3)
    after, rewound = rewinding(model, *parts, test, caplog, lr=0.2, rewind="first")
    unknown = wrong(after[-1][0], test)
    enough = [error > unknown for _, error in after]
    assert enough.index(True) != nearest(distances(after, test)), "the two rules must differ here"
    assert digest(rewound) == digest(after[enough.index(True)][0])
    after, rewound = rewinding(model, *parts, test, caplog, lr=0.02, rewind="first")
    assert not any(error > wrong(after[-1][0], test) for _, error in after)
    assert digest(rewound) == digest(after[-1][0]), "where no epoch did, the last one"


def rewinding(model, forget, retain, test, caplog, *, lr, rewind="nearest"):
    """The models after 1, 2, 3 and 4 epochs of one run with their forget errors, and what SCRUB+R takes."""

    def go(**changes):
        settings = {**REWIND, "lr": lr, **changes}
        return purge.unlearn(
            model, forget, retain, test=test, method=Scrub(), progress=False, **settings
        ).model

    after = [(m, wrong(m, forget)) for m in (go(epochs=e) for e in (1, 2, 3, 4))]
    with caplog.at_level(logging.INFO, "purge"):
        return after, go(rewind=rewind)


def distances(after, held_out):
    return [abs(error - wrong(after[-1][0], held_out)) for _, error in after]


def nearest(away):
    return away.index(min(away))  # the first of equals


@pytest.mark.parametrize("method", ["scrub-r", Scrub(rewind="first")], ids=str)
def test_rewinding_is_refused_without_held_out_samples_of_the_same_classes(toy, method):
    model, forget, retain, (x, y) = toy
    with pytest.raises(MethodError, match=r"Expected test data for rewind \(SCRUB\+R\), got none. Fix: pass"):
        purge.unlearn(model, forget, retain, method=method, progress=False)
    others = (x[y != 0], y[y != 0])
    with pytest.raises(MethodError, match="test samples of the forgotten classes"):
        purge.unlearn(model, forget, retain, test=others, method=method, progress=False)
