"""LoTUS on single samples: how far it smooths, and when it ends."""

from __future__ import annotations

import math

import pytest
import torch

import purge
from purge.core.errors import MethodError
from tests.nets import blobs, small_mlp


@pytest.fixture(scope="module")
def samples():
    """A model, half of its samples to forget, and test data of which it gets two fifths wrong."""
    x, y = blobs(n=96)
    model = purge.train(small_mlp(), (x, y), epochs=20, lr=0.05, batch_size=32, progress=False).model
    xt, yt = blobs(n=60, seed=1)
    yt[:24] = (yt[:24] + 1) % 3
    return model, *purge.split((x, y), fraction=0.5), (xt, yt)


def test_single_samples_are_smoothed_until_they_are_no_better_known_than_test_data(samples, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda t: t.fill_(1.0))  # G = 0
    model, forget, retain, test = samples
    taus, real = [], torch.nn.functional.gumbel_softmax

    def remember(z, tau=1.0, hard=False):
        taus.extend([] if hard else [tau])
        return real(z, tau=tau, hard=hard)

    monkeypatch.setattr(torch.nn.functional, "gumbel_softmax", remember)
    result = purge.unlearn(
        model, forget, retain, test=test, method="lotus", batch_size=96, share=1.0, epochs=4, progress=False
    )
    seen = [r["check_forget_accuracy"] for r in result.history]
    with torch.no_grad():
        unseen = float((model(test[0]).argmax(1) == test[1]).double().mean())
    assert unseen < 0.7
    assert taus == pytest.approx([math.exp(8 * (round(a, 2) - round(unseen, 2))) for a in seen[:-1]])


def test_a_run_ends_once_the_forget_set_is_less_known_than_test_data(samples):
    model, forget, retain, test = samples
    changes = {"batch_size": 96, "share": 0.05, "epochs": 30, "lr": 0.03}
    result = purge.unlearn(model, forget, retain, test=test, method="lotus", progress=False, **changes)
    seen = [r["check_forget_accuracy"] for r in result.history]
    with torch.no_grad():
        unseen = float((model(test[0]).argmax(1) == test[1]).double().mean())
    assert result.steps < 30
    assert result.stopped_by == "schedule"
    below = [round(a, 2) - round(unseen, 2) <= -0.009 for a in seen]
    assert below == [False] * result.steps + [True]


def test_single_samples_need_test_data_and_classes_do_not(samples, toy):
    model, forget, retain, _ = samples
    with pytest.raises(MethodError, match=r"Expected test data for lotus, .* got none. Fix: pass test="):
        purge.unlearn(model, forget, retain, method="lotus", progress=False)
    model, forget, retain, _ = toy
    purge.unlearn(model, forget, retain, method="lotus", epochs=1, progress=False)
