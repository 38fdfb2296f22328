"""SCRUB, Bad Teacher, DELETE, LoTUS, MUNBa, SFR-on and MSG against float64 loops written from their formulas.

The batches are the whole sets, and what is drawn at random is known, so nothing depends on the order of the
samples.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import purge
from purge.core.errors import ModelError
from purge.core.settings import replace
from purge.methods import (
    BadTeacher,
    Delete,
    LoTUS,
    MaskedSmallGradients,
    Munba,
    Scrub,
    SFRon,
)
from purge.methods.munba import bargained
from purge.models.checkpoint import digest
from tests.nets import blobs, small_conv
from tests.reference import (
    NAMES,
    Net,
    assert_same,
    cross_entropy,
    each_cross_entropy,
    kl,
    log_softmax,
    network,
    vectors,
)

K = 4
FRESH = 0.07  # of MSG: all new weights
WRONG = 2  # of MUNBa: the label that chance gives all forgotten samples
NOISE = torch.tensor([0.3, 2.0, 0.5, 1.1]).double()  # what a draw from Exp(1) could be; −log of it is Gumbel


@pytest.fixture
def known(monkeypatch):
    """Nothing is left to chance."""
    drawn = torch.randint
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda t: t.copy_(NOISE.to(t.dtype).expand_as(t)))
    monkeypatch.setattr(nn.init, "kaiming_normal_", lambda t, **_: t.fill_(FRESH))
    monkeypatch.setattr(  # digests of samples draw from a range with two ends
        torch,
        "randint",
        lambda *args, **more: torch.full(args[1], WRONG) if len(args) == 2 else drawn(*args, **more),
    )


def scrub(student, teacher, forget, retain, s):
    (xf, _), (xr, yr) = forget, retain

    def distance(x):
        z, t = student(x), teacher(x, train=False).detach()
        return s.temperature**2 * kl(t / s.temperature, z / s.temperature).mean(), z

    for epoch in range(1, s.epochs + 1):
        decays = sum(epoch > e for e in s.decay_after)
        optim = replace(s.optim, {"lr": s.optim.lr * s.decay**decays})
        if epoch <= s.max_steps:
            student.descend(-distance(xf)[0], optim)
        d, z = distance(xr)
        student.descend(s.gamma * cross_entropy(z, yr) + s.alpha * d, optim)


def bad_teacher(student, good, forget, retain, s):
    bad, t = Net(untrained(), "frozen"), s.temperature
    for _ in range(s.epochs):
        target = torch.cat([good(retain[0], train=False), bad(forget[0], train=False)]).detach()
        z = student(torch.cat([retain[0], forget[0]]))
        student.descend(kl(target / t, z / t).mean() / K, s.optim)


def untrained():
    return network(9, classes=K).double()


def delete(student, teacher, forget, retain, s):
    xf, yf = forget
    for _ in range(s.epochs):
        p = log_softmax(teacher(xf, train=False).detach()).exp()
        p[range(len(yf)), yf] = 0
        p = p / p.sum(1, keepdim=True)
        student.descend((torch.xlogy(p, p) - p * log_softmax(student(xf))).sum(1).mean(), s.optim)


def lotus(student, teacher, forget, retain, s):
    x, n = torch.cat([retain[0], forget[0]]), len(retain[0])
    z = teacher(x, train=False).detach() - NOISE.log()

    def accuracy():  # of unseen samples of a class that goes it is 0
        return round(float((student(forget[0], train=False).argmax(1) == forget[1]).double().mean()), 2)

    for _ in range(s.epochs):
        t = log_softmax(z / math.exp(s.alpha * accuracy())).exp()
        t[:n] = torch.eye(K).double()[z[:n].argmax(1)]
        student.descend(-(t * log_softmax(student(x))).sum(1).mean(), s.optim)
        if accuracy() <= -0.01:
            break


def published(g_r, g_f, guard):
    """MUNBa's α as the authors' code has it; with no guard, as the paper."""
    a, b, d = float(g_r @ g_r), float(g_r @ g_f), float(g_f @ g_f)
    alpha_r = math.sqrt((a * d - b * math.sqrt(a * d)) / (a * a * d - a * b * b + guard))
    return alpha_r, (1 - a * alpha_r**2) / (b * alpha_r + guard)


def flat_grad(loss, net):
    found = torch.autograd.grad(loss, list(net.w.values()), retain_graph=True)
    return torch.cat([g.reshape(-1) for g in found])


def munba(student, _teacher, forget, retain, s):
    for _ in range(s.epochs):
        keep = cross_entropy(student(retain[0]), retain[1])
        lose = cross_entropy(student(forget[0]), torch.full_like(forget[1], WRONG))
        g_r, g_f = flat_grad(keep, student), flat_grad(lose, student)
        alpha_r, alpha_f = published(g_r, g_f, 0.0 if s.exact else 1e-8)
        size = float((alpha_r * g_r + alpha_f * g_f).norm())
        scale = min(1.0, s.bargain_clip / size) if s.bargain_clip else 1.0
        student.descend(scale * (alpha_r * keep + alpha_f * lose), s.optim)


def along(net, grads):
    """A loss whose gradient is the given one."""
    return sum((g * net.w[k]).sum() for k, g in zip(NAMES, grads, strict=True))


def sfron(student, _teacher, forget, retain, s):
    def fisher(x, y):
        loss = cross_entropy(student(x, train=False), y)
        return [g**2 + 1e-15 for g in torch.autograd.grad(loss, list(student.w.values()))]

    ratios = [f / r for f, r in zip(fisher(*forget), fisher(*retain), strict=True)]
    assert all(((q / s.saliency - 1).abs() > 1e-4).all() for q in ratios), "no mask may hang on rounding"
    for i in range(s.steps):
        before = {k: w.detach().clone() for k, w in student.w.items()}
        left = (1 + math.cos(math.pi * i / s.steps)) / 2
        optim = replace(s.optim, {"lr": s.optim.lr * left})
        if i % s.forget_every == 0:
            each = each_cross_entropy(student(forget[0]), forget[1])
            power = each.detach() ** -s.adaptive
            up = torch.autograd.grad((power * each).sum() / power.sum(), list(student.w.values()))
            g = [s.ascent * left * (q >= s.saliency) * d for q, d in zip(ratios, up, strict=True)]
            size = float(torch.cat([d.reshape(-1) for d in g]).norm())
            scale = min(1.0, s.ascent_clip / size) if s.ascent_clip else 1.0
            student.descend(-scale * along(student, g), optim)
        student.descend(cross_entropy(student(retain[0]), retain[1]), optim)
        for k, w in student.w.items():
            w.data = before[k] + s.slow * (w.detach() - before[k])


def msg(student, _teacher, forget, retain, s):
    def summed(x, y):  # a pass in training mode moves the running statistics
        return torch.autograd.grad(len(y) * cross_entropy(student(x), y), list(student.w.values()))

    pace = {k: torch.ones_like(w) for k, w in student.w.items()}
    for k, a, b in zip(NAMES, summed(*retain), summed(*forget), strict=True):
        if k in ("0.weight", "3.weight"):
            g = (a - b).abs().reshape(-1)
            drawn = torch.zeros(len(g), dtype=torch.bool)
            drawn[g.argsort()[: round(s.share * len(g))]] = True
            drawn = drawn.view(a.shape)
            student.w[k].data = torch.where(drawn, FRESH, student.w[k].detach())
            pace[k] = torch.where(drawn, 1.0, s.kept)
    middle = (s.epochs + 1) // 2
    for e in range(1, s.epochs + 1):
        part = e / middle if e <= middle else (s.epochs + 1 - e) / (s.epochs + 1 - middle)
        loss = cross_entropy(student(retain[0]), retain[1])
        grads = torch.autograd.grad(loss, list(student.w.values()))
        slowed = [pace[k] * g for k, g in zip(NAMES, grads, strict=True)]
        student.descend(along(student, slowed), replace(s.optim, {"lr": s.optim.lr * part}))


ADAM = {"optimizer": "adam", "lr": 1e-3, "norm": "frozen"}  # with batch statistics the bias before BatchNorm
# has no gradient but rounding noise
FORMULAS = {  # the method, its settings here, its formula, and what is changed in turn
    "scrub": (Scrub(), {"forget_batch_size": 96, "lr": 0.05, "alpha": 0.3}, scrub, [
        {"norm": "frozen"}, {"max_steps": 0},
        {"temperature": 2.0, "gamma": 1.0, "alpha": 0.5, "max_steps": 3},
        {"momentum": 0.0, "weight_decay": 0.0}, {**ADAM, "lr": 5e-3, "weight_decay": 0.1},
        {"epochs": 4, "decay": 0.5, "max_steps": 4, "lr": 5e-3, "decay_after": (1, 3)}]),
    "bad-teacher": (
        BadTeacher(share=1.0, epochs=3), {"optimizer": "sgd", "lr": 1.0, "temperature": 2.0}, bad_teacher, [
        {"norm": "frozen"}, {"temperature": 1.0}, {**ADAM, "temperature": 1.0, "weight_decay": 0.1}]),
    "delete": (Delete(epochs=3), {"lr": 0.05}, delete, [{"norm": "frozen"}, {"momentum": 0.0, "epochs": 1}]),
    "lotus": (LoTUS(share=1.0, epochs=3), {"lr": 0.02, "alpha": 3.0, "weight_decay": 0.05}, lotus, [
        {"norm": "frozen"}, {"alpha": 0.5}, {"epochs": 5, "lr": 5e-3}]),
    "munba": (Munba(epochs=3), {"lr": 0.05}, munba, [
        {"exact": True}, {"norm": "frozen"}, {"bargain_clip": 0.0}, {"bargain_clip": 0.3, "momentum": 0.0}]),
    "sfron": (SFRon(steps=5, forget_every=2), {"ascent": 3.0, "lr": 0.03}, sfron, [
        {"norm": "frozen"}, {"slow": 0.4}, {"adaptive": 1.5, "saliency": 3.0}, {"ascent_clip": 0.2},
        {"ascent_clip": 0.0, "momentum": 0.0}, {"forget_every": 1, "weight_decay": 0.1}]),
    "msg": (MaskedSmallGradients(epochs=4), {"lr": 0.05}, msg, [
        {"norm": "frozen"}, {"share": 0.6, "kept": 0.3}, {"epochs": 5, "momentum": 0.0}]),
}  # fmt: skip
RUNS = [(name, changes) for name, (*_, several) in FORMULAS.items() for changes in ({}, *several)]


@pytest.mark.parametrize(("name", "changes"), RUNS, ids=str)
@pytest.mark.usefixtures("known")
def test_a_run_is_the_formula(half_trained, name, changes):
    model, forget, retain = half_trained
    if name == "msg":  # as many to retain as to forget, so that none of them are drawn
        retain = tuple(part[: len(forget[1])] for part in retain)
    method, settings, formula, _ = FORMULAS[name]
    method = replace(method, {"batch_size": 96, **settings, **changes})
    fresh = untrained() if name == "bad-teacher" else None
    result = purge.unlearn(model, forget, retain, method=method, fresh=fresh, progress=False)
    student = Net(model, method.norm)
    formula(student, Net(model, "frozen"), forget, retain, method)
    assert_same(vectors(result.model), student.vectors, vectors(model))


# -- what a single case does not show ------------------------------------------------------------


def test_bad_teacher_needs_a_network_that_knows_nothing(toy):
    model, forget, retain, _ = toy

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = copy.deepcopy(model), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.inner(x) * self.scale

    with pytest.raises(ModelError, match="pass fresh="):
        purge.unlearn(Own(), forget, retain, method=BadTeacher(), progress=False)
    assert purge.unlearn(Own(), forget, retain, method=BadTeacher(), fresh=Own(), progress=False).steps == 1
    other = network(classes=5)
    with pytest.raises(ModelError, match="Expected 3 outputs from the untrained model, got 5"):
        purge.unlearn(model, forget, retain, method=BadTeacher(), fresh=other, progress=False)


def test_delete_never_looks_at_retained_samples(toy):
    model, forget, (xr, yr), _ = toy
    few = (torch.randn(7, xr.shape[1]), yr[:7])
    one, two = (
        purge.unlearn(model, forget, r, method=Delete(epochs=3, batch_size=16), lr=0.01, progress=False)
        for r in ((xr, yr), few)
    )
    assert digest(one.model) == digest(two.model)
    assert "retain_loss" not in one.history[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_delete_with_two_classes_and_half_precision(dtype):
    """With K = 2 only the other class is left, and −10¹⁰ is more than half precision can hold."""
    x, y = blobs(classes=2)
    forget, retain = purge.split((x.to(dtype), y), classes=[0])
    result = purge.unlearn(nn.Linear(6, 2).to(dtype), forget, retain, method=Delete(), lr=0.1, progress=False)
    assert all(math.isfinite(row["forget_loss"]) for row in result.history[1:])


def test_fresh_weights_of_msg_come_from_fan_out_and_only_in_convolutions():
    torch.manual_seed(0)
    model = small_conv()
    data = torch.randn(40, 1, 8, 8), torch.arange(40) % 10
    forget, retain = purge.split(data, classes=[0])
    still = {"lr": 1e-12, "weight_decay": 0.0, "epochs": 1}
    result = purge.unlearn(model, forget, retain, method="msg", progress=False, share=1.0, **still)
    now, was = dict(result.model.named_parameters()), dict(model.named_parameters())
    changed = {k for k in was if not torch.allclose(now[k], was[k], atol=1e-6)}
    assert changed == {"0.weight", "3.weight"}
    for k, fan_out in (("0.weight", 4 * 9), ("3.weight", 6 * 9)):
        assert float(now[k].detach().std()) == pytest.approx(math.sqrt(2 / fan_out), rel=0.3)


@pytest.mark.parametrize("length", [1e-6, 1.0, 1e3])
def test_both_sides_of_a_bargain_gain_alike_whatever_the_lengths(length):
    """The Nash solution: GᵀG α = 1/α, so each side gains the inverse of its weight."""
    torch.manual_seed(0)
    g_r, g_f = length * torch.randn(50).double(), torch.randn(50).double()
    g, c = bargained(g_r, g_f, exact=True)
    alpha_r, alpha_f = published(g_r, g_f, 0.0)
    assert torch.allclose(g, alpha_r * g_r + alpha_f * g_f, rtol=1e-6)
    assert float(g @ g_r) == pytest.approx(1 / alpha_r)
    assert float(g @ g_f) == pytest.approx(1 / alpha_f)
    assert float(c) == pytest.approx(float(nn.functional.cosine_similarity(g_r, g_f, 0)))


@pytest.mark.parametrize("exact", [True, False])
def test_where_there_is_no_bargain_the_forget_gradient_gets_a_tenth(exact):
    g, zero = torch.tensor([3.0, 4.0]), torch.zeros(2)
    assert torch.allclose(bargained(g, zero, exact=exact)[0], g)
    assert torch.allclose(bargained(zero, g, exact=exact)[0], 0.1 * g)
    assert torch.allclose(bargained(g, -g, exact=True)[0], 0.9 * g)


def test_an_epoch_bargains_first_and_then_trains_on(toy):
    model, (xf, yf), (xr, yr), _ = toy
    few, rest, method = (xf[:8], yf[:8]), (xr[:24], yr[:24]), Munba(batch_size=8, epochs=2, norm="frozen")
    for sets, bargains in (((few, rest), [True, False, False]), ((rest, few), [True] * 3)):
        history = purge.unlearn(model, *sets, method=method, progress=False).history
        assert [r["forget_loss"] is not None for r in history[1:]] == bargains * 2


def test_every_fifth_step_of_sfron_begins_with_an_ascent(toy):
    model, forget, retain, _ = toy
    result = purge.unlearn(model, forget, retain, method=SFRon(steps=12, batch_size=8), progress=False)
    assert [r["step"] for r in result.history[1:] if r["forget_loss"] is not None] == [1, 6, 11]
