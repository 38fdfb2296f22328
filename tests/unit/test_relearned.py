"""The relearned target: which layers are drawn anew, one step by hand, and that it is nearer to Retrain."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purge
from purge import checks
from purge.methods import METHODS
from purge.methods.relearned import late_layers, relearned
from purge.models import digest
from purge.runtime import Run, frozen_copy, logits, seeded
from purge.settings import replace
from purge.stopping import Stopping
from tests.nets import SmallViT

CPU = torch.device("cpu")


def student(model, split, **settings):
    run = Run(split, device=CPU, stop=Stopping(), seed=0)
    with seeded(0, CPU):
        return relearned(frozen_copy(model), split.retain, run, **settings)


@pytest.fixture(scope="module")
def split(digits, base):
    return checks.split(base, digits.forget, digits.retain, None, CPU)


@pytest.mark.parametrize(("share", "blocks"), [(1.0, "conv1"), (0.5, "layer3"), (0.25, "layer4")])
def test_a_share_of_the_layers_is_late_in_the_order_they_run(base, split, share, blocks):
    names = {m: name for name, m in base.named_modules()}
    every, found = ([names[m] for m in late_layers(base, split.retain, s)] for s in (1.0, share))
    assert len(found) == math.ceil(share * len(every))
    assert every[0] == "conv1"
    assert found == every[-len(found) :]
    assert found[-1] == "fc"
    assert any(name.startswith(blocks) for name in found)


def test_the_head_is_always_late(base, split):
    assert late_layers(base, split.retain, 0.01) == [base.fc]


def test_early_layers_and_the_teacher_stay(base, split):
    before = digest(base)
    taught = student(base, split, share=0.5, steps=2, batch_size=32)
    assert digest(base) == before
    late = {id(m) for m in late_layers(taught, split.retain, 0.5)}
    for (name, a), b in zip(base.named_modules(), taught.modules(), strict=True):
        own = list(a.parameters(recurse=False))
        if own and id(b) in late:
            assert not all(
                torch.equal(p, q) for p, q in zip(own, b.parameters(recurse=False), strict=True)
            ), name
        elif own:
            assert all(torch.equal(p, q) for p, q in zip(own, b.parameters(recurse=False), strict=True)), name
            assert all(torch.equal(p, q) for p, q in zip(a.buffers(False), b.buffers(False), strict=True)), (
                name
            )
    assert not any(m.training for m in taught.modules())


def test_steps_are_nesterov_steps_of_a_fresh_head_by_hand():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double().eval()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 3
    data = checks.split(model, (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0]), None, CPU)
    got = student(model, data, share=0.5, steps=3, batch_size=99)  # every batch is the whole retain set
    head = copy.deepcopy(model[2])
    with seeded(0, CPU):
        head.reset_parameters()
    theta = [p.detach().clone().requires_grad_() for p in head.parameters()]
    momentum = [torch.zeros_like(p) for p in theta]
    h = model[:2](x[y > 0]).detach()
    for rate in (0.1, 0.1 * 4 / 3 * 2 / 3, 0.1 * 4 / 3 * 1 / 3):
        loss = F.cross_entropy((h @ theta[0].T + theta[1]).float(), y[y > 0])
        for p, v, g in zip(theta, momentum, torch.autograd.grad(loss, theta), strict=True):
            d = g + 5e-4 * p.detach()
            v.mul_(0.9).add_(d)
            p.data -= rate * (d + 0.9 * v)
    for p, q in zip(got[2].parameters(), theta, strict=True):
        assert torch.allclose(p, q, atol=1e-9)
    assert torch.equal(got[0].weight, model[0].weight)


def test_a_transformer_has_late_layers_too(digits):
    model = SmallViT().eval()
    names = {m: name for name, m in model.named_modules()}
    found = [names[m] for m in late_layers(model, digits.retain, 0.3)]
    assert found[-1] == "head"
    assert all(name.startswith(("blocks.2", "norm", "head")) for name in found), found


def test_without_layers_to_draw_anew_the_teacher_is_asked(split, digits):
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 10))

        def forward(self, x):
            return x.flatten(1) @ self.weight

    assert isinstance(student(Fixed(), split, share=0.5, steps=1, batch_size=8), Fixed)


def test_the_student_is_nearer_to_retrain_than_the_teachers_second_choice(digits, base, retrained, split):
    """Agreement with the retrained model on the forget set, forgotten class left out."""
    method = METHODS["purge"].method
    taught = student(base, split, share=method.relearn, steps=method.relearn_steps, batch_size=128)
    z, second, want = (logits(m, digits.forget)[:, 1:] for m in (taught, base, retrained))
    agreement = [(v.argmax(1) == want.argmax(1)).float().mean() for v in (z, second)]
    assert agreement[0] > agreement[1] + 0.1


def test_the_target_is_the_mean_of_both_opinions_without_the_forgotten_class(digits, base, split):
    method = replace(METHODS["purge"].method, {"objective": "relearned", "relearn_steps": 3})
    teacher = frozen_copy(base)
    run = Run(split, device=CPU, stop=Stopping(), seed=0)
    with seeded(0, CPU):
        second = method._second_opinion(teacher, split, run)
    got = method._targets(teacher, split, None, second)
    taught = student(base, split, share=method.relearn, steps=3, batch_size=method.batch_size)
    mean = (logits(teacher, digits.forget) + logits(taught, digits.forget)) / 2
    assert torch.equal(got[:, 0], torch.zeros(len(got)))
    assert torch.allclose(got[:, 1:], mean[:, 1:].softmax(1), atol=1e-6)


def test_unlearning_follows_the_student(digits, base):
    runs = {
        objective: purge.unlearn(
            base, digits.forget, digits.retain, objective=objective, max_steps=14, progress=False
        ).model
        for objective in ("masked_teacher", "relearned")
    }
    assert digest(runs["masked_teacher"]) != digest(runs["relearned"])
    assert all(float((logits(m, digits.forget).argmax(1) == 0).float().mean()) <= 0.02 for m in runs.values())


def test_levels_are_those_of_the_second_opinion_or_of_the_teacher_where_the_class_is_not(digits, base, split):
    teacher, gone = frozen_copy(base), torch.tensor([0])
    method = replace(METHODS["purge"].method, {"silence": 0.1})
    second = torch.randn(len(digits.forget), 10, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        method._levels(teacher, split, gone, second, None, torch.arange(3)), second.log_softmax(1)[:, :1]
    )
    at = torch.arange(40)
    want = logits(teacher, split.retain, at).log_softmax(1)[:, 0].mean()
    got = method._levels(teacher, split, gone, None, None, at)
    assert got.shape == (len(digits.forget), 1)
    assert torch.allclose(got, want.expand_as(got))
    off = replace(method, {"silence": 0.0})
    assert off._levels(teacher, split, gone, second, None, at).shape == (len(digits.forget), 0)


def test_of_single_samples_no_silence_is_asked(digits, base):
    """A whole class and a few samples of another, in one request."""
    few = torch.cat([torch.arange(len(digits.forget)), len(digits.forget) + torch.arange(3)])
    x, y = (
        torch.cat(parts)
        for parts in zip(*(d.take(torch.arange(len(d))) for d in (digits.forget, digits.retain)), strict=True)
    )
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[few] = False
    mixed = checks.split(base, (x[few], y[few]), (x[rest], y[rest]), None, CPU)
    method = replace(METHODS["purge"].method, {"silence": 0.1})
    levels = method._levels(frozen_copy(base), mixed, torch.tensor([0]), None, None, torch.arange(20))
    assert levels[: len(digits.forget)].isfinite().all()
    assert levels[len(digits.forget) :].isnan().all()
    result = purge.unlearn(
        base, (x[few], y[few]), (x[rest], y[rest]), silence=0.1, max_steps=12, progress=False
    )
    assert all(math.isfinite(row["forget_loss"]) for row in result.history[1:])


def test_silence_lowers_what_the_forgotten_class_still_gets(digits, base):
    quiet, loud = (
        purge.unlearn(base, digits.forget, digits.retain, silence=nu, progress=False).model
        for nu in (0.1, 0.0)
    )
    left = [float(logits(m, digits.forget).log_softmax(1)[:, 0].mean()) for m in (quiet, loud)]
    assert left[0] < left[1] - 1
    assert float((logits(quiet, digits.retain).argmax(1) == digits.retain.labels).float().mean()) > 0.98
