"""CoUn against a float64 computation of its two losses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import purge
from purge.core.errors import ModelError
from purge.engine.optimizer import Optim
from purge.methods import CoUn
from tests.reference import WHOLE, assert_weights, cross_entropy, log_softmax, net, sgd, trained, weights_of


def info_nce(a, b, temperature):
    a, b = (v / v.norm(dim=1, keepdim=True) for v in (a, b))
    return -torch.stack([log_softmax((a[i] @ b.T / temperature)[None])[0, i] for i in range(len(a))]).mean()


def test_steps_are_cross_entropy_and_contrast_at_a_falling_rate():
    model, data = trained()
    forget, retain = purge.split(data, classes=[0])
    method = CoUn(
        contrast=0.7, temperature=0.3, epochs=2, batch_size=WHOLE, end_lr=0.01, optim=Optim(lr=0.05)
    )
    result = purge.unlearn(model, forget, retain, method=method, progress=False)

    def loss(w):
        z, h = net(w, retain[0])  # the same view twice has the statistics of one
        return cross_entropy(z, retain[1]) + 0.7 * info_nce(h, h, 0.3)

    assert_weights(result, sgd(weights_of(model), loss, rates=[0.05, 0.03]))  # half of the cosine's way


def test_the_two_views_are_changed_each_by_itself():
    model, data = trained()
    parts = purge.split(data, classes=[0])
    first = [
        purge.unlearn(
            model, *parts, method="coun", epochs=1, batch_size=WHOLE, progress=False, augment=change
        ).history[1]["contrast"]
        for change in (None, lambda x: x + torch.randn_like(x))
    ]
    assert first[1] > first[0], "noise of its own takes the views of a sample apart"


def test_a_model_without_a_head_is_refused():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.scale * x[:, :3]

    _, data = trained()
    with pytest.raises(ModelError, match=r"a last layer with weights"):
        purge.unlearn(Sums(), *purge.split(data, classes=[0]), method="coun", check=False, progress=False)
