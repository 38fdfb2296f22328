"""References in float64, each written once from its formula: a small network, losses, SGD, Adam, AdamW.

The network of all of them is Linear → BatchNorm → ReLU → Linear. Tests compare whole runs of a method with
what is computed here, and make sure that the known mistakes would be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

import purge
from tests.nets import blobs

NAMES = ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias")
STATS = ("1.running_mean", "1.running_var")
WHOLE = 500  # a batch size above that of any set here: the order of samples does not matter
TOLERANCE = 1e-4  # relative to the distance gone; losses are computed in float32


def network(seed: int = 3, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


def trained(classes: int = 3, epochs: int = 4):
    """A trained network and its data."""
    data = blobs(classes=classes)
    model = network(classes=classes)
    return purge.train(model, data, epochs=epochs, lr=0.05, batch_size=32, progress=False).model, data


def trained_and_split(epochs: int = 4):
    """A trained network, and (forget, retain) with class 0 to forget."""
    model, data = trained(epochs=epochs)
    return model, *purge.split(data, classes=[0])


def half_trained():
    """A half-trained network in float64, and samples of two of four classes to forget."""
    x, y = blobs(classes=4)
    data = (0.3 * x.double(), y)
    model = network(classes=4).double()
    model = purge.train(model, data, epochs=3, lr=0.03, batch_size=32, progress=False).model
    return model, *purge.split(data, classes=[0, 1])


# -- the network and its losses ------------------------------------------------------------------


def before_norm(w, x):
    return x.double() @ w["0.weight"].T + w["0.bias"]


def statistics(a):
    """Those that BatchNorm normalises a batch with."""
    return a.mean(0), a.var(0, unbiased=False)


def moved(stats, a, momentum=0.1):
    """The running statistics after a batch; their variance is the unbiased one."""
    return (1 - momentum) * stats[0] + momentum * a.mean(0).detach(), (1 - momentum) * stats[
        1
    ] + momentum * a.var(0).detach()


def after_norm(w, a, mean, var):
    """Logits and hidden features."""
    h = ((a - mean) / (var + 1e-5).sqrt() * w["1.weight"] + w["1.bias"]).clamp_min(0)
    return h @ w["3.weight"].T + w["3.bias"], h


def net(w, x, frozen=False):
    """Logits and hidden features; statistics are the batch's, or the running ones."""
    a = before_norm(w, x)
    return after_norm(w, a, *([w[k] for k in STATS] if frozen else statistics(a)))


def log_softmax(z):
    return z - z.logsumexp(1, keepdim=True)


def each_cross_entropy(z, y):
    return -log_softmax(z)[torch.arange(len(y)), y]


def cross_entropy(z, y):
    return each_cross_entropy(z, y).mean()


def each_entropy(z):
    return -(log_softmax(z).exp() * log_softmax(z)).sum(1)


def kl(t, s):
    """KL(softmax(t) ‖ softmax(s)) of each row, from logits."""
    return (log_softmax(t).exp() * (log_softmax(t) - log_softmax(s))).sum(1)


def agem(v, r):
    """A-GEM: what of ``v`` points against ``r`` is taken away."""
    return v - min(0.0, float(v @ r)) / float(r @ r) * r


# -- descent on a dictionary of weights -----------------------------------------------------------


def weights_of(model):
    return {k: v.double().clone() for k, v in model.state_dict().items() if v.is_floating_point()}


def gradient(w, loss_of, names=NAMES):
    leaves = {k: v.detach().clone().requires_grad_(k in names) for k, v in w.items()}
    found = torch.autograd.grad(loss_of(leaves), [leaves[k] for k in names], materialize_grads=True)
    return dict(zip(names, found, strict=True))


def in_turn(loss_of, steps):
    """The loss of each step, where one is given for all."""
    return [loss_of] * steps if callable(loss_of) else loss_of


def sgd(w, loss_of, rates, momentum=0.9, decay=5e-4, change: Callable = lambda g: g):
    """One step of SGD for each rate; ``change`` is done to the gradients first."""
    w, velocity = dict(w), {k: torch.zeros_like(w[k]) for k in NAMES}
    for lr, loss in zip(rates, in_turn(loss_of, len(rates)), strict=True):
        g = change(gradient(w, loss))
        for k in NAMES:
            velocity[k] = momentum * velocity[k] + g[k] + decay * w[k]
            w[k] = w[k] - lr * velocity[k]
    return w


def adam(w, losses: Sequence[Callable], lr, names=NAMES, b1=0.9, b2=0.999, eps=1e-8):
    """One step of Adam for each loss, from a fresh state."""
    w = dict(w)
    m = v = {k: torch.zeros_like(w[k]) for k in names}
    for t, loss in enumerate(losses, 1):
        g = gradient(w, loss, names)
        m = {k: b1 * m[k] + (1 - b1) * g[k] for k in names}
        v = {k: b2 * v[k] + (1 - b2) * g[k] ** 2 for k in names}
        w |= {k: w[k] - lr * (m[k] / (1 - b1**t)) / ((v[k] / (1 - b2**t)).sqrt() + eps) for k in names}
    return w


def clip_to(limit):
    """A change for :func:`sgd`: gradients longer than the limit are shortened to it."""

    def change(g):
        size = torch.stack([v.norm() for v in g.values()]).norm()
        scale = min(1.0, limit / (float(size) + 1e-6)) if limit else 1.0
        return {k: scale * v for k, v in g.items()}

    return change


def flat(w, names=NAMES):
    return torch.cat([w[k].detach().double().reshape(-1) for k in names])


def assert_weights(result, w):
    state = result.model.state_dict()
    for k in NAMES:
        assert torch.allclose(state[k].double(), w[k], rtol=1e-5, atol=3e-6), k


def agree(result, want, model, tolerance=1e-3):
    """Are the weights those wanted, measured by how far they had to go?"""
    start, got, wanted = (flat(w) for w in (model.state_dict(), result.model.state_dict(), want))
    far = float((wanted - start).norm())
    assert far > 1e-4, "the step must be worth checking"
    return float((got - wanted).norm()) < tolerance * far


# -- a student that is trained step by step ----------------------------------------------------------


class Net:
    """The network in float64: weights, running statistics, and the state of its optimiser."""

    def __init__(self, model: nn.Module, norm: str) -> None:
        state = weights_of(model)
        self.w = {k: state[k].requires_grad_() for k in NAMES}
        self.stats = tuple(state[k] for k in STATS)
        self.norm, self.steps = norm, 0
        self.m = {k: torch.zeros_like(v) for k, v in self.w.items()}
        self.v = {k: torch.zeros_like(v) for k, v in self.w.items()}

    def __call__(self, x, *, train: bool | None = None):
        a, stats = before_norm(self.w, x), self.stats
        if self.norm == "train" if train is None else train:
            stats = statistics(a)
            if train is None:  # a step: the running statistics follow
                self.stats = moved(self.stats, a)
        return after_norm(self.w, a, *stats)[0]

    def descend(self, loss, optim):
        """One step of SGD, Adam or AdamW, which alone keeps weight decay out of the gradient."""
        grads = torch.autograd.grad(loss, list(self.w.values()))
        self.steps += 1
        with torch.no_grad():
            for (k, w), g in zip(self.w.items(), grads, strict=True):
                decay = optim.weight_decay * w
                if optim.optimizer == "sgd":
                    g = g + decay
                    self.m[k] = g if self.steps == 1 else optim.momentum * self.m[k] + g
                    w -= optim.lr * self.m[k]
                    continue
                g, apart = (g, decay) if optim.optimizer == "adamw" else (g + decay, 0.0)
                self.m[k] = optim.momentum * self.m[k] + (1 - optim.momentum) * g
                self.v[k] = 0.999 * self.v[k] + 0.001 * g * g
                m = self.m[k] / (1 - optim.momentum**self.steps)
                v = self.v[k] / (1 - 0.999**self.steps)
                w -= optim.lr * (m / (v.sqrt() + 1e-8) + apart)

    @property
    def vectors(self):
        return flat(self.w), torch.cat(self.stats)


def vectors(model):
    """All weights as one vector, and all running statistics."""
    return flat(model.state_dict()), flat(model.state_dict(), STATS)


def assert_same(got, want, start):
    assert float((want[0] - start[0]).norm()) > 1e-3, "the steps must be worth checking"
    for g, w, s in zip(got, want, start, strict=True):
        assert float((g - w).norm()) <= TOLERANCE * float((w - s).norm())
