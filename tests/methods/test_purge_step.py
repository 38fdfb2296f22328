"""One step of PURGE against an independent float64 computation written from the formulas.

The batch is the whole of both sets, so the step does not depend on the order of the samples.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import purge
from purge.core.settings import replace
from purge.methods import PurgePaper
from tests.reference import (
    NAMES,
    after_norm,
    agem,
    before_norm,
    cross_entropy,
    each_entropy,
    kl,
    log_softmax,
    statistics,
    trained_and_split,
)

STILL = {"stop": purge.Stopping(forget_target=0.0, retain_budget=None), "progress": False}
ONE_STEP = {"epochs": 1, "batch_size": 96}


@pytest.fixture(scope="module")
def case():
    return trained_and_split()


class Reference:
    """PURGE's first step in float64; every formula is written out."""

    def __init__(self, model, forget, retain, s):
        self.s, self.objective = s, s.objective
        self.theta0 = {k: v.double() for k, v in model.state_dict().items()}
        self.xf, self.yf, self.xr, self.yr = forget[0].double(), forget[1], retain[0].double(), retain[1]
        mean, var = self.theta0["1.running_mean"], self.theta0["1.running_var"]
        self.z0r, self.h0r = self.net(self.theta0, self.xr, mean, var)
        self.z0f, _ = self.net(self.theta0, self.xf, mean, var)

    @staticmethod
    def net(w, x, mean, var):
        return after_norm(w, before_norm(w, x), mean, var)

    def statistics(self, w, norm):
        own = [statistics(before_norm(w, x)) for x in (self.xr, self.xf)]
        running = (self.theta0["1.running_mean"], self.theta0["1.running_var"])
        return {"frozen": (running, running), "shared": (own[0], own[0]), "train": tuple(own)}[norm]

    def targets(self):
        k = self.z0f.shape[1]
        if self.objective == "kl_retain":
            return self.z0r.softmax(1).mean(0).expand_as(self.z0f)
        if self.objective == "masked_teacher":  # class 0 is forgotten
            p = self.z0f.exp() * (torch.arange(k) != 0)
            return p / p.sum(1, keepdim=True)
        return torch.full_like(self.z0f, 1 / k)

    def gradients(self):
        w = {k: self.theta0[k].clone().requires_grad_() for k in NAMES}
        (stat_r, stat_f), t = self.statistics(w, self.s.norm), self.s.temperature
        zr, _ = self.net(w, self.xr, *stat_r)
        zf, hf = self.net(w, self.xf, *stat_f)

        ce_r = cross_entropy(zr, self.yr)
        kd = t**2 * kl(self.z0r / t, zr / t).mean()
        g_r = torch.autograd.grad(ce_r + self.s.kd * kd, list(w.values()), retain_graph=True)

        ce_f = cross_entropy(zf, self.yf)
        target = self.targets()
        if self.objective == "ga":
            loss = -ce_f
        else:
            loss = (torch.xlogy(target, target) - target * log_softmax(zf)).sum(1).mean()
        erased = ((hf - self.h0r.mean(0)) ** 2).mean()
        g_f = torch.autograd.grad(loss + self.s.erasure * erased, list(w.values()))
        entropy = each_entropy(zf).mean()
        k = zf.shape[1]
        gated = (self.s.gate > 0 and entropy > self.s.gate * math.log(k)) or (
            self.objective == "ga" and ce_f >= math.log(k)
        )

        def join(gs):
            return torch.cat([g.reshape(-1) for g in gs])

        return join(g_f), join(g_r), bool(gated)

    def step(self):
        s = self.s
        theta = torch.cat([self.theta0[k].reshape(-1) for k in NAMES])
        g_f, g_r, gated = self.gradients()
        g = g_f if s.space == "none" else agem(g_f, g_r)
        g = g_r if gated else g
        g = g * min(1.0, s.clip / float(g.norm())) if s.clip > 0 else g
        if s.optimizer == "adamw":  # first step: m/(1−β₁) = g, v/(1−β₂) = g²
            moved = s.lr * s.weight_decay * theta + s.lr * g / (g.abs() + 1e-8)
        else:
            moved = s.lr * (g + s.weight_decay * theta)
        if s.space == "update":
            moved = agem(moved, g_r)
        return theta - moved


def check(case, **changes):
    model, forget, retain = case
    method = replace(PurgePaper(), {**ONE_STEP, "layers": ("2",), "erasure": 0.3, "lr": 0.05, **changes})
    result = purge.unlearn(model, forget, retain, method=method, **STILL)
    assert result.steps == 1
    got = torch.cat([result.model.state_dict()[k].double().reshape(-1) for k in NAMES])
    want = Reference(model, forget, retain, method).step()
    start = torch.cat([model.state_dict()[k].double().reshape(-1) for k in NAMES])
    assert float((want - start).norm()) > 1e-4, "the step must be worth checking"
    assert torch.allclose(got, want, rtol=0, atol=2e-3 * float((want - start).norm()))
    return result


@pytest.mark.parametrize(
    ("objective", "space", "norm"),
    list(
        itertools.product(
            ["ga", "kl_uniform", "kl_retain", "masked_teacher"],
            ["none", "gradient", "update"],
            ["frozen", "shared", "train"],
        )
    ),
)
def test_objective_space_and_batchnorm(case, objective, space, norm):
    check(case, objective=objective, space=space, norm=norm)


@pytest.mark.parametrize(
    "changes",
    [
        {"momentum": 0.0},
        {"weight_decay": 0.2},
        {"clip": 0.0},
        {"clip": 0.1},
        {"kd": 0.0},
        {"kd": 5.0, "temperature": 1.0},
        {"erasure": 3.0},
        {"gate": 1e-6},  # any entropy is above: the step is retain-only
        # with shared statistics the bias before BatchNorm would have no gradient but rounding noise, which
        # Adam's first step turns into ±lr
        {"optimizer": "adamw", "lr": 1e-3, "space": "update"},
        {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_settings(case, changes):
    result = check(case, **changes)
    assert result.history[1]["gated"] == (changes.get("gate", 0) > 0)


def test_ascent_stops_climbing_at_log_k(case):
    # A model that knows nothing of the forget class is above log K: the cap makes the step retain-only.
    model, forget, retain = case
    wrong = (forget[0], torch.ones_like(forget[1]) * 2)
    result = check((model, wrong, _without(retain, 2)), objective="ga")
    assert result.history[1]["gated"]


def _without(retain, c):
    keep = retain[1] != c
    return retain[0][keep], retain[1][keep]


def test_batchnorm_statistics_after_the_step(case):
    model, forget, retain = case
    base = {"layers": ("2",), "lr": 0.05, **ONE_STEP}
    frozen, shared, train = (
        purge.unlearn(model, forget, retain, method=PurgePaper(norm=n, **base), **STILL).model.state_dict()
        for n in ("frozen", "shared", "train")
    )
    old = model.state_dict()
    assert torch.equal(frozen["1.running_mean"], old["1.running_mean"])
    assert torch.equal(frozen["1.running_var"], old["1.running_var"])
    # shared: those of the retain data under the new weights
    a = retain[0] @ shared["0.weight"].T + shared["0.bias"]
    assert torch.allclose(shared["1.running_mean"], a.mean(0), atol=1e-4)
    assert torch.allclose(shared["1.running_var"], a.var(0), rtol=1e-3)
    # train: one exponential step with the retain part, then one with the forget part
    want = old["1.running_mean"]
    for x in (retain[0], forget[0]):
        want = 0.9 * want + 0.1 * (x @ old["0.weight"].T + old["0.bias"]).mean(0)
    assert torch.allclose(train["1.running_mean"], want, atol=1e-5)
