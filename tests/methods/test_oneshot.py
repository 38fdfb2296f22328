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
from purge.engine.projection import flat, per_sample_grads
from purge.methods import influence
from purge.methods.fisher import FisherForgetting
from purge.methods.influence import Influence
from purge.methods.ssd import SelectiveDampening
from tests.nets import NETWORKS, blobs

CLASSES = 3


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


class ConvNet(nn.Module):
    """Its first layer has as many filters as there are classes, and is not the last for that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, CLASSES, 2, bias=False)
        self.head = nn.Linear(CLASSES * 2, CLASSES)

    def forward(self, x):
        return self.head(self.conv(x.view(-1, 1, 2, 3)).tanh().flatten(1))


def trained(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for m in model.modules():
        if hasattr(m, "reset_parameters"):
            m.reset_parameters()
    done = purge.train(model, blobs(n=48), epochs=4, lr=0.05, batch_size=16, progress=False).model
    return done.double().eval()


@pytest.fixture(scope="module")
def models():
    return {"mlp": trained(mlp()), "conv": trained(ConvNet())}


@pytest.fixture(scope="module")
def data():
    x, y = blobs(n=48)
    return purge.split((x.double(), y), classes=[0])


def edited(model, data, method, seed=0):
    return purge.unlearn(model, *data, method=method, seed=seed, progress=False)


def theta(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def gradient(model, x, y):
    """The gradient of the mean cross-entropy of a batch, written out."""
    params = [p for p in model.parameters() if p.requires_grad]
    z = model(x)
    each = z.exp().sum(1).log() - z[range(len(y)), y]
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(each.mean(), params)])


def singles(model, part):
    """One gradient per sample, in a loop: (N, P)."""
    return torch.stack([gradient(model, x[None], y[None]) for x, y in zip(*part, strict=True)])


def close(a, b, tolerance=1e-5):
    """Equal up to rounding: the loss is in float32 inside purge, the rest in float64."""
    return float((a - b).norm()) <= tolerance * float(b.norm())


# -- gradients of single samples ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_per_sample_gradients_are_those_of_a_loop(name, models, data):
    rows, losses = per_sample_grads(models[name], *data[1])
    assert close(rows, singles(models[name], data[1]))
    p = models[name](data[1][0]).softmax(1)[range(len(data[1][1])), data[1][1]]
    assert torch.allclose(losses.double(), -p.log(), atol=1e-6)
    assert rows.shape[1] == len(flat(list(models[name].parameters())))


@pytest.mark.parametrize("name", NETWORKS)
def test_per_sample_gradients_of_every_kind_of_network(name):
    torch.manual_seed(0)
    model, x, y = NETWORKS[name]().eval(), torch.randn(3, 1, 8, 8), torch.tensor([1, 0, 7])
    rows, _ = per_sample_grads(model, x, y)
    out = model(x)
    loss = nn.functional.cross_entropy(getattr(out, "logits", out), y)
    whole = torch.autograd.grad(loss, list(model.parameters()))
    assert close(rows.mean(0), torch.cat([g.reshape(-1) for g in whole]), 1e-4)


# -- IU -------------------------------------------------------------------------------------------


def to_take_away(model, data):
    """The vector v of the definition."""
    f, r = (singles(model, part) for part in data)
    n = len(f) + len(r)
    return f.sum(0) / n - len(f) / (n * len(r)) * r.sum(0)


def dense_inverse(g, damping):
    return torch.linalg.inv(damping * torch.eye(g.shape[1]).double() + g.T @ g / len(g))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("batch_size", [7, 100])
@pytest.mark.parametrize("damping", [1.0, 1e-3])
def test_influence_is_the_dense_inverse(damping, batch_size, kept, models, data, monkeypatch):
    if not kept:
        monkeypatch.setattr(influence, "KEPT_BYTES", 0)
    model, method = models["mlp"], Influence(alpha=0.1, damping=damping, batch_size=batch_size)
    found = theta(edited(model, data, method).model) - theta(model)
    v = to_take_away(model, data)
    assert close(found, 0.1 * dense_inverse(singles(model, data[1]), damping) @ v)
    if damping < 1:
        assert not close(found, 0.1 / damping * v, 0.1), "the matrix is to matter in this test"


def drawn(part, count, seed=0):
    """The first samples of a shuffled pass, as a run draws them."""
    at = torch.randperm(len(part[1]), generator=torch.Generator().manual_seed(seed))[:count]
    return part[0][at], part[1][at]


@pytest.mark.parametrize(("samples", "retained"), [(8, None), (1000, 3)])
def test_influence_takes_the_mean_over_the_samples_that_there_are(samples, retained, models, data):
    data = data[0], tuple(part[:retained] for part in data[1])
    model, method = models["mlp"], Influence(alpha=1.0, samples=samples, damping=1e-3)
    found = theta(edited(model, data, method).model) - theta(model)
    g = singles(model, drawn(data[1], samples))
    assert close(found, dense_inverse(g, 1e-3) @ to_take_away(model, data))


@pytest.mark.parametrize(
    ("m", "retained", "settings"),
    [
        *((20, None, {"damping": d, "batch_size": b}) for d in (1.0, 1e-2) for b in (5, 100)),
        *((1000, n, {"damping": 1e-3}) for n in (1, 2, 12)),
    ],
)
def test_the_authors_recursion(m, retained, settings, models, data):
    """Their loop ends with the data, but it divides by M however few samples there are."""
    data = data[0], tuple(part[:retained] for part in data[1])
    model, v, damping = models["mlp"], to_take_away(models["mlp"], data), settings["damping"]
    method = Influence(alpha=2.0, samples=m, exact=False, **settings)
    found = (theta(edited(model, data, method).model) - theta(model)) / 2.0
    first, *others = singles(model, drawn(data[1], m))
    k, o = v / damping, first / damping
    for g in others:
        og = float(o @ g)
        k = k - float(k @ g) / (m + og) * o
        o = o - og / (m + og) * o
    assert close(found, k)


# -- SSD --------------------------------------------------------------------------------------------


def importances(model, data, per_sample, batch=None):
    """I_f and I_D; squares of single gradients, or of the means of batches in the given order."""
    parts = []
    for x, y in data:
        if per_sample:
            parts.append(singles(model, (x, y)) ** 2)
        else:
            cut = zip(x.split(batch), y.split(batch), strict=True)
            parts.append(torch.stack([gradient(model, a, b) ** 2 for a, b in cut]))
    return parts[0].mean(0), torch.cat(parts).mean(0)


def dampened(before, forget, whole, alpha, dampening):
    after = before.clone()
    for j in range(len(before)):
        if forget[j] > alpha * whole[j]:
            after[j] *= min(dampening * whole[j] / forget[j], 1.0)
    return after


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
    forget, whole = importances(model, even, per_sample, 4)
    after = theta(result.model)
    assert close(after, dampened(theta(model), forget, whole, alpha, dampening))
    other = dampened(theta(model), *importances(model, even, not per_sample, 4), alpha, dampening)
    assert not close(after, other, 1e-3), "single gradients cannot be taken for those of batches"
    assert torch.equal(after[forget <= alpha * whole], theta(model)[forget <= alpha * whole]), "bit for bit"
    assert 0 < result.history[1]["dampened"] < 1
    assert result.history[1]["dampened"] == pytest.approx(float((forget > alpha * whole).float().mean()))


@pytest.mark.parametrize("per_sample", [True, False])
def test_ssd_says_when_it_cannot_do_anything(per_sample, models, even, caplog):
    share = sum(len(y) for _, y in even) / len(even[0][1])
    with caplog.at_level(logging.WARNING, logger="purge"):
        method = SelectiveDampening(alpha=share * 1.001, per_sample=per_sample, batch_size=4)
        result = edited(models["mlp"], even, method)
        assert "Lower alpha" in caplog.text
        caplog.clear()
        edited(
            models["mlp"], even, SelectiveDampening(alpha=share * 0.99, per_sample=per_sample, batch_size=4)
        )
        assert not caplog.text
    assert torch.equal(theta(result.model), theta(models["mlp"]))


# -- Fisher forgetting -----------------------------------------------------------------------------


def information(model, part):
    """F: for every sample and every label, one gradient, squared and weighted by its probability."""
    total = 0
    for x in part[0]:
        p = model(x[None]).softmax(1)[0].detach()
        for label in range(CLASSES):
            total = total + p[label] * gradient(model, x[None], torch.tensor([label])) ** 2
    return total / len(part[0])


def mean_and_variance(model, data, alpha, head, gone=0):
    """μ and σ² of every parameter, from the definition."""
    found, at, whole = {}, 0, information(model, data[1])
    for name, p in model.named_parameters():
        f = whole[at : at + p.numel()].view(p.shape)
        at += p.numel()
        last = name.startswith(head)
        var = torch.minimum(1 / (f + 1e-8), torch.tensor(1e2 if last else 1e3)) * alpha
        if p.ndim > 1:
            var = var.sum(1, keepdim=True) / p.shape[1] * torch.ones_like(p)
        mu, var = p.detach().clone(), var.clone().detach()
        if last:
            mu[gone], var[gone] = 0.0, 1e-4
        if last or p.ndim == 1:
            var *= 10
        found[name] = (mu, var)
    return found


FISHER = [("mlp", "3."), ("conv", "head.")]


@pytest.mark.parametrize("samples", [1000, 6])
@pytest.mark.parametrize(("name", "head"), FISHER)
def test_fisher_forgetting_is_its_formula(name, head, samples, models, data):
    """The noise is drawn parameter by parameter from torch's generator, so it can be drawn again."""
    model, part = models[name], (data[0], drawn(data[1], samples, seed=5))
    result = edited(model, data, FisherForgetting(alpha=1e-4, batch_size=7, samples=samples), seed=5)
    torch.manual_seed(5)
    reference = mean_and_variance(model, part, 1e-4, head)
    for key, p in result.model.named_parameters():
        mu, var = reference[key]
        assert close(p.detach(), mu + var.sqrt() * torch.randn(p.shape, dtype=torch.float64)), key
    inverse = 1 / (information(model, part[1]) + 1e-8)
    assert 0 < float((inverse > 1e2).float().mean()) < 1, "limited and free variances, both are tested"


# -- refusals and special cases ----------------------------------------------------------------------


METHODS = [Influence(), FisherForgetting(), SelectiveDampening(alpha=1.0)]
IDS = ["influence", "fisher", "ssd"]


class Undecided(nn.Module):
    """A branch on a value, which vmap cannot take."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return self.inner(x) if x.sum() > -1e9 else self.inner(-x)


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_a_model_that_vmap_cannot_take_is_looked_at_sample_by_sample(method, data):
    model = Undecided().double()
    inner = edited(model.inner, data, method)
    torch.testing.assert_close(theta(edited(model, data, method).model), theta(inner.model))


@pytest.mark.parametrize("method", METHODS, ids=IDS)
def test_batchnorm_without_running_statistics_is_refused(method, data):
    model = mlp().double()
    model[1] = nn.BatchNorm1d(5, track_running_stats=False).double()
    with pytest.raises(MethodError, match="looks at the whole batch"):
        edited(model, data, method)


def test_fisher_needs_whole_classes(models):
    x, y = blobs(n=48)
    parts = purge.split((x.double(), y), fraction=0.2)
    with pytest.raises(MethodError, match="Expected whole classes to forget for fisher"):
        edited(models["mlp"], parts, FisherForgetting())


class Sideways(nn.Module):
    """A last layer that has one column per class instead of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, CLASSES))

    def forward(self, x):
        return x @ self.weight


class Headless(nn.Module):
    """The logits come from a parameter of its own, not from a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.rows = nn.Linear(6, 5), nn.Parameter(torch.randn(CLASSES, 5))

    def forward(self, x):
        return self.body(x).relu() @ self.rows.T


def test_fisher_needs_a_last_layer_that_can_be_changed(models, data):
    frozen = copy.deepcopy(models["mlp"])
    frozen[3].requires_grad_(False)
    sideways = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), Sideways())
    for model, got in ((Headless(), "none"), (sideways, "Sideways"), (frozen, "takes no gradient")):
        with pytest.raises(PurgeError, match=f"a last layer.*fisher.*{got}"):
            edited(model.double(), data, FisherForgetting())
