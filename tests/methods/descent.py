"""Descent in float64 for tests of single steps: Linear → BatchNorm → ReLU → Linear, written out."""

from __future__ import annotations

import torch
from torch import nn

import purge
from tests.nets import blobs

NAMES = ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
WHOLE = 500  # a batch size above that of any set here: the order of samples does not matter


def trained(classes=3):
    """A trained network and its data."""
    torch.manual_seed(3)
    data = blobs(classes=classes)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))
    return purge.train(model, data, epochs=4, lr=0.05, batch_size=32, progress=False).model, data


def weights_of(model):
    return {k: v.double() for k, v in model.state_dict().items() if v.is_floating_point()}


def net(w, x, frozen=False):
    """Logits and hidden features; statistics are the batch's, or the running ones."""
    a = x.double() @ w["0.weight"].T + w["0.bias"]
    mean, var = a.mean(0), a.var(0, unbiased=False)
    if frozen:
        mean, var = w["1.running_mean"], w["1.running_var"]
    h = ((a - mean) / (var + 1e-5).sqrt() * w["1.weight"] + w["1.bias"]).clamp_min(0)
    return h @ w["3.weight"].T + w["3.bias"], h


def log_p(z):
    return z - z.logsumexp(1, keepdim=True)


def cross_entropy(z, y):
    return -log_p(z)[torch.arange(len(y)), y].mean()


def gradient(w, loss_of):
    leaves = {k: v.clone().requires_grad_(k in NAMES) for k, v in w.items()}
    found = torch.autograd.grad(loss_of(leaves), [leaves[k] for k in NAMES], materialize_grads=True)
    return dict(zip(NAMES, found, strict=True))


def sgd(w, loss_of, rates, momentum=0.9, decay=5e-4, change=lambda g: g):
    """One step of SGD for each rate; ``change`` is done to the gradients first."""
    w, velocity = dict(w), {k: torch.zeros_like(w[k]) for k in NAMES}
    for lr in rates:
        g = change(gradient(w, loss_of))
        for k in NAMES:
            velocity[k] = momentum * velocity[k] + g[k] + decay * w[k]
            w[k] = w[k] - lr * velocity[k]
    return w


def assert_weights(result, w):
    state = result.model.state_dict()
    for k in NAMES:
        assert torch.allclose(state[k].double(), w[k], rtol=1e-5, atol=3e-6), k
