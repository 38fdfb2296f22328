"""Edits in one go (influence, fisher, ssd) against plain float64 loops over single samples.

The references below take one sample at a time, differentiate the module with autograd.grad, and write
the formulas out; they call nothing of purge but ``unlearn``.
"""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

import purge
from purge.core.errors import MethodError, PurgeError
from purge.engine.projection import per_sample_grads
from purge.methods import influence
from purge.methods.fisher import FisherForgetting
from purge.methods.influence import Influence
from purge.methods.ssd import SelectiveDampening
from tests.nets import NETWORKS, blobs

CLASSES = 3


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def convolution() -> nn.Module:
    """Its first layer has as many filters as there are classes, and is not the last for that."""
    first = nn.Conv2d(1, CLASSES, 2, bias=False)
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), first, nn.Tanh(), nn.Flatten(), nn.Linear(6, CLASSES))


@pytest.fixture(scope="module")
def models():
    made = {}
    for name, build in (("mlp", mlp), ("conv", convolution)):
        torch.manual_seed(0)
        recipe = {"epochs": 4, "lr": 0.05, "batch_size": 16, "progress": False}
        made[name] = purge.train(build(), blobs(n=48), **recipe).model.double().eval()
    return made


@pytest.fixture(scope="module")
def data():
    x, y = blobs(n=48)
    return purge.split((x.double(), y), classes=[0])


def edited(model, data, method, seed=0):
    return purge.unlearn(model, *data, method=method, seed=seed, progress=False)


def theta(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def gradient(model, x, y):
    """The gradient of the mean cross-entropy of a batch, written out."""
    z = model(x)
    each = z.exp().sum(1).log() - z[range(len(y)), y]
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(each.mean(), [*model.parameters()])])


def singles(model, part, size=1):
    """One gradient per sample, or per batch, in a loop: (N, P)."""
    cut = zip(part[0].split(size), part[1].split(size), strict=True)
    return torch.stack([gradient(model, x, y) for x, y in cut])


def close(a, b, tolerance=1e-5):
    """Equal up to rounding: the loss is in float32 inside purge, the rest in float64."""
    return float((a - b).norm()) <= tolerance * float(b.norm())


def drawn(part, count, seed=0):
    """The first samples of a shuffled pass, as a run draws them."""
    at = torch.randperm(len(part[1]), generator=torch.Generator().manual_seed(seed))[:count]
    return part[0][at], part[1][at]


@pytest.mark.parametrize("name", NETWORKS)
def test_per_sample_gradients_of_every_kind_of_network(name):
    torch.manual_seed(0)
    model, x, y = NETWORKS[name]().eval(), torch.randn(3, 1, 8, 8), torch.tensor([1, 0, 7])
    rows, _ = per_sample_grads(model, x, y)
    for row, one, label in zip(rows, x, y, strict=True):
        out = model(one[None])
        loss = nn.functional.cross_entropy(getattr(out, "logits", out), label[None])
        want = torch.autograd.grad(loss, list(model.parameters()))
        assert close(row, torch.cat([g.reshape(-1) for g in want]), 1e-4)


# -- IU -------------------------------------------------------------------------------------------


def to_take_away(model, data):
    """The vector v of the definition."""
    f, r = (singles(model, part) for part in data)
    n = len(f) + len(r)
    return f.sum(0) / n - len(f) / (n * len(r)) * r.sum(0)


@pytest.mark.parametrize(
    ("damping", "settings", "retained"),
    [(1.0, {}, None), (1e-3, {}, None), (1e-3, {"batch_size": 7}, None), (1e-3, {"samples": 8}, None),
     (1e-3, {}, 3)],
)  # fmt: skip
@pytest.mark.parametrize("kept", [True, False])
def test_influence_is_the_dense_inverse(damping, settings, retained, kept, models, data, monkeypatch):
    if not kept:
        monkeypatch.setattr(influence, "KEPT_BYTES", 0)
    data = data[0], tuple(part[:retained] for part in data[1])
    model, method = models["mlp"], Influence(alpha=0.1, damping=damping, **settings)
    g = singles(model, drawn(data[1], settings.get("samples")))
    fisher = damping * torch.eye(g.shape[1]).double() + g.T @ g / len(g)
    moved = theta(edited(model, data, method).model) - theta(model)
    assert close(moved, 0.1 * torch.linalg.solve(fisher, to_take_away(model, data)))


@pytest.mark.parametrize(("m", "retained"), [(20, None), (1000, 1), (1000, 12)])
@pytest.mark.parametrize("batch_size", [5, 100])
def test_the_authors_recursion(m, retained, batch_size, models, data):
    """Their loop ends with the data, but it divides by M however few samples there are."""
    data, damping = (data[0], tuple(part[:retained] for part in data[1])), 1e-2
    model, v = models["mlp"], to_take_away(models["mlp"], data)
    method = Influence(alpha=2.0, samples=m, exact=False, damping=damping, batch_size=batch_size)
    moved = (theta(edited(model, data, method).model) - theta(model)) / 2.0
    first, *others = singles(model, drawn(data[1], m))
    k, o = v / damping, first / damping
    for g in others:
        og = float(o @ g)
        k = k - float(k @ g) / (m + og) * o
        o = o - og / (m + og) * o
    assert close(moved, k)


# -- SSD --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def even(data):
    """Both sets cut so that batches of 4 are all of the same size."""
    return tuple((x[: len(y) // 4 * 4], y[: len(y) // 4 * 4]) for x, y in data)


@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize(("alpha", "dampening"), [(1.0, 1.0), (1.5, 0.5), (0.3, 3.0)])
def test_ssd_is_its_formula(alpha, dampening, per_sample, models, even):
    model = models["mlp"]
    method = SelectiveDampening(alpha=alpha, dampening=dampening, per_sample=per_sample, batch_size=4)
    result = edited(model, even, method)
    squares = [singles(model, part, 1 if per_sample else 4) ** 2 for part in even]
    forget, whole = squares[0].mean(0), torch.cat(squares).mean(0)
    chosen, before, after = forget > alpha * whole, theta(model), theta(result.model)
    left = torch.where(chosen, (dampening * whole / forget).clamp_max(1), 1.0)
    assert close(after, left * before)
    assert torch.equal(after[~chosen], before[~chosen]), "bit for bit"
    assert result.history[1]["dampened"] == pytest.approx(float(chosen.float().mean()))


@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize(("times", "said"), [(1.001, True), (0.99, False)])
def test_ssd_says_when_it_cannot_do_anything(per_sample, times, said, models, even, caplog):
    alpha = times * sum(len(y) for _, y in even) / len(even[0][1])
    with caplog.at_level(logging.WARNING, logger="purge"):
        edited(models["mlp"], even, SelectiveDampening(alpha=alpha, per_sample=per_sample, batch_size=4))
    assert ("Lower alpha" in caplog.text) == said


# -- Fisher forgetting -----------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1000, 6])
@pytest.mark.parametrize(("name", "head"), [("mlp", "3."), ("conv", "4.")])
def test_fisher_forgetting_is_its_formula(name, head, samples, models, data):
    """The noise is drawn parameter by parameter from torch's generator, so it can be drawn again."""
    model, (x, _) = models[name], drawn(data[1], samples, seed=5)
    result = edited(model, data, FisherForgetting(alpha=1e-4, batch_size=7, samples=samples), seed=5)
    information = 0  # for every sample and label one gradient, squared and weighted by its probability
    for one in x:
        p = model(one[None]).softmax(1)[0].detach()
        for label in range(CLASSES):
            information = information + p[label] * gradient(model, one[None], torch.tensor([label])) ** 2
    inverse = 1 / (information / len(x) + 1e-8)
    assert 0 < float((inverse > 1e2).float().mean()) < 1, "limited and free variances, both are tested"
    torch.manual_seed(5)
    sizes = [p.numel() for p in model.parameters()]
    for (key, p), f in zip(model.named_parameters(), inverse.split(sizes), strict=True):
        last, mu = key.startswith(head), p.detach().clone()
        var = 1e-4 * f.view(p.shape).clamp_max(1e2 if last else 1e3)
        var = var.mean(1, keepdim=True) * torch.ones_like(mu) if p.ndim > 1 else var
        if last:
            mu[0], var[0] = 0.0, 1e-4
        var = 10 * var if last or p.ndim == 1 else var
        after = result.model.get_parameter(key).detach()
        assert close(after, mu + var.sqrt() * torch.randn(p.shape, dtype=torch.float64)), key


# -- refusals and special cases ----------------------------------------------------------------------

METHODS = [Influence(), FisherForgetting(), SelectiveDampening(alpha=1.0)]
IDS = ["influence", "fisher", "ssd"]


class Undecided(nn.Sequential):
    """A branch on a value, which vmap cannot take."""

    def forward(self, x):
        return super().forward(x if x.sum() > -1e9 else -x)


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_a_model_that_vmap_cannot_take_is_looked_at_sample_by_sample(method, data):
    plain = mlp().double()
    ours, want = (edited(model, data, method).model for model in (Undecided(*plain), plain))
    torch.testing.assert_close(theta(ours), theta(want))


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_batchnorm_without_running_statistics_is_refused(method, data):
    model = mlp().double()
    model[1] = nn.BatchNorm1d(5, track_running_stats=False).double()
    with pytest.raises(MethodError, match="looks at the whole batch"):
        edited(model, data, method)


class Sideways(nn.Module):
    """A last layer that has one column per class instead of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, CLASSES))

    def forward(self, x):
        return x @ self.weight


def test_fisher_needs_a_last_layer_that_can_be_changed(models, data):
    frozen = copy.deepcopy(models["mlp"])
    frozen[3].requires_grad_(False)
    sideways = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), Sideways()).double()
    for model, got in ((sideways, "Sideways"), (frozen, "takes no gradient")):
        with pytest.raises(PurgeError, match=f"a last layer.*fisher.*{got}"):
            edited(model, data, FisherForgetting())
