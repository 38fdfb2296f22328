"""The restart: one step against an independent float64 computation, its guarantee, and what it chooses."""

from __future__ import annotations

import logging

import pytest
import torch

import purge
from purge.data.accept import as_samples
from purge.data.split import Split
from purge.methods import Purge
from purge.methods import purge as restart
from purge.methods.registry import resolve_method
from tests.nets import blobs
from tests.properties import assert_never_uphill
from tests.reference import NAMES, after_norm, agem, before_norm, cross_entropy, statistics, trained_and_split
from tests.reference import net as original


@pytest.fixture(scope="module")
def case():
    return trained_and_split()


def net(w, x, lead):
    """Linear → BatchNorm by the statistics of the first ``lead`` rows → ReLU → Linear."""
    a = before_norm(w, x)
    return after_norm(w, a, *statistics(a[:lead]))[0]


def join(gs):
    return torch.cat([g.reshape(-1) for g in gs])


def first_step(model, forget, retain, rate, kd, temperature, push, momentum, decay):
    """The first of two steps; both sets are one batch each."""
    state = {k: v.double() for k, v in model.state_dict().items()}
    w = {k: state[k].clone().requires_grad_() for k in NAMES}
    (xf, yr), xr = (forget[0].double(), retain[1]), retain[0].double()
    zr = net(w, xr, len(xr))
    loss = cross_entropy(zr, yr)
    if kd:
        z0 = original(state, xr, frozen=True)[0]
        kd = kd * min(1.0, float(cross_entropy(z0, yr)))  # the level: all classes among its answers
        said = (zr / temperature).log_softmax(1)[:, 1:]
        taught = (z0[:, 1:] / temperature).softmax(1)  # without class 0
        loss = loss + kd * (taught * (taught.log() - said)).sum(1).mean()
    g_r = join(torch.autograd.grad(loss, list(w.values())))
    both = torch.cat([xr[: restart.COMPANIONS], xf])
    zf = net(w, both, len(both) - len(xf))[-len(xf) :]
    pushed = -(1 - zf.softmax(1)[:, 0]).log().mean()
    g = g_r + agem(join(torch.autograd.grad(push * pushed, list(w.values()))), g_r)
    theta = join([state[k] for k in NAMES])
    g = g + decay * theta
    d = g + momentum * g  # Nesterov, from rest
    moved = rate * float(theta.norm() / d.norm()) * d
    return theta - agem(moved, g_r)


@pytest.mark.parametrize("kd", [0.0, 2.0])
@pytest.mark.parametrize("push", [1.0, 30.0])
def test_a_step_is_what_the_formulas_say(case, kd, push, monkeypatch):
    model, forget, retain = case
    forget = (forget[0][:40], forget[1][:40])
    monkeypatch.setattr(restart, "COMPANIONS", 24)
    seen = []
    real = restart.step
    monkeypatch.setattr(restart, "step", lambda p, *a, **k: (real(p, *a, **k), seen.append(p.read()))[0])
    settings = {"rate": 0.05, "kd": kd, "temperature": 1.5, "push": push, "momentum": 0.8}
    purge.unlearn(
        model.double(), (forget[0].double(), forget[1]), (retain[0].double(), retain[1]), steps=2, plain=1.0,
        batch_size=1000, average=0.0, weight_decay=0.01, progress=False, **settings,
    )  # fmt: skip
    model.float()
    order = torch.randperm(len(retain[1]), generator=torch.Generator().manual_seed(0))  # the first batch
    sorted_retain = (retain[0][order], retain[1][order])
    at_once = {**settings, "decay": 0.01}  # with two steps the first has the full rate
    expected = first_step(model.double(), forget, sorted_retain, **at_once)
    model.float()
    torch.testing.assert_close(seen[0], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("budget", ["fast", "close"])
def test_no_step_raises_the_retain_loss_to_first_order(case, budget, single):
    model, forget, retain = case
    if single:
        forget, retain = purge.split(blobs(), indices=range(0, 90, 7))
    assert_never_uphill(purge.unlearn(model, forget, retain, budget=budget, steps=30, progress=False))


def test_a_class_ends_at_zero_and_samples_where_unseen_ones_are(digits, base):
    gone = purge.unlearn(base, digits.forget, digits.retain, progress=False)
    report = purge.audit(
        gone, digits.forget, digits.retain, digits.test, metrics=["fa_train", "fa_test"], progress=False
    )
    assert report["fa_train"].value == report["fa_test"].value == 0
    forget, retain = purge.split(digits.train, fraction=0.1, seed=1)
    some = purge.unlearn(base, forget, retain, progress=False)  # there is no need of test data
    report = purge.audit(some, forget, retain, digits.test, metrics=["fa_train", "ta"], progress=False)
    assert abs(report["fa_train"].value - report["ta"].value) <= 0.05


@pytest.mark.slow
def test_mislabelled_samples_lose_their_wrong_label(digits):
    generator = torch.Generator().manual_seed(0)
    x, y = digits.train.take(torch.arange(len(digits.train)))
    bad = torch.randperm(len(y), generator=generator)[: len(y) // 10]
    wrong = y.clone()
    wrong[bad] = (y[bad] + torch.randint(1, 10, (len(bad),), generator=generator)) % 10
    from tests.golden.record import small_net

    model = purge.train(small_net(0), (x, wrong), epochs=60, batch_size=32, progress=False).model
    keep = torch.ones(len(y), dtype=torch.bool)
    keep[bad] = False
    forget, retain = (x[bad], wrong[bad]), (x[keep], y[keep])
    ours = purge.unlearn(model, forget, retain, progress=False).model
    before, after = ((m(x[bad]).argmax(1) == wrong[bad]).float().mean() for m in (model, ours))
    right = (ours(x[bad]).argmax(1) == y[bad]).float().mean()
    assert before > 0.5
    assert after < 0.15
    assert right > 0.8


def test_mixed_requests_push_whole_classes_only(case):
    model = case[0]
    x, y = blobs()
    whole = y == 0
    some = torch.zeros_like(whole)
    some[(y == 1).nonzero()[:6, 0]] = True
    forget, retain = (x[whole | some], y[whole | some]), (x[~(whole | some)], y[~(whole | some)])
    result = purge.unlearn(model, forget, retain, progress=False)
    said = result.model(x).argmax(1)
    assert float((said[whole] == 0).float().mean()) == 0
    assert float((said[some] == 1).float().mean()) >= 0.5, "their class stays"
    assert "pushed away" in result.info["took"]


def test_what_was_chosen_is_told(digits, base, tmp_path):
    fast = purge.unlearn(
        base, digits.forget, digits.retain, augment="crop", steps=10, rate=0.02, progress=False
    )
    assert fast.info["took"] == (
        f"a restart of {fast.steps} steps of 80 retained samples, the longest 2.0% of the length of all "
        "weights; the first 30% on augmented samples; forgotten classes pushed away"
    )
    data = digits.forget, digits.retain, digits.test
    purge.audit(fast, *data, metrics=["fa_test"], progress=False).html(tmp_path / "report.html")
    page = " ".join((tmp_path / "report.html").read_text(encoding="utf-8").split())
    assert f"For this request it took a restart of {fast.steps} steps" in page


def split_of(n, single):
    y = torch.cat([torch.arange(n) % 3, torch.full((5,), 0 if single else 3)])
    x, cpu = torch.zeros(n + 5, 1), torch.device("cpu")
    parts = [as_samples((x[at], y[at]), cpu, "x") for at in (slice(n), slice(n, None))]
    return Split(parts[1], parts[0], None, 4, frozenset() if single else frozenset({3}))


def test_the_restart_follows_request_model_and_settings():
    def restart_of(n, *, single, normed=True, **settings):
        return Purge(**settings).restart(split_of(n, single), normed=normed)

    size, fast = restart_of(45_000, single=False)
    assert size == 512
    assert fast.rate == pytest.approx(0.01)
    _, close = restart_of(45_000, single=False, budget="close")
    assert close.steps > fast.steps
    assert fast.rate < close.rate <= restart.HIGHEST, "more passes allow a higher rate"
    size, small = restart_of(1300, single=False)
    assert size == 81
    assert small.rate > fast.rate
    assert restart_of(10, single=False)[0] == 10
    assert restart_of(45_000, single=True, budget="close")[1].fresh_share > 0
    assert restart_of(45_000, single=True, budget="close", normed=False)[1].fresh_share == 0, "no BatchNorm"
    size, own = restart_of(45_000, single=True, batch_size=64, rate=0.2, kd=3.0)
    assert (size, own) == (64, restart.RESTARTS["fast", "samples"]._replace(rate=0.2, kd=3.0))
    assert restart_of(45_000, single=True)[1].kd > 0, "few samples"
    assert restart_of(450, single=True)[1].kd == 0, "more than a hundredth"


def test_budget_close_is_purge_close():
    assert resolve_method("purge", {"budget": "close"}) == resolve_method("purge-close", {})


@pytest.mark.parametrize(("budget", "warned"), [(1e-6, True), (1e6, False)])
def test_it_says_when_the_retained_data_suffered(case, budget, warned, caplog):
    model, forget, retain = case
    with caplog.at_level(logging.WARNING, "purge"):
        stop = purge.Stopping(early=False, check_every=0, retain_budget=budget, retain_floor=0.0)
        purge.unlearn(model, forget, retain, steps=4, stop=stop, progress=False)
    assert ("Pass a lower rate" in caplog.text) == warned
