"""A copy as an opinion: fresh weights mixed in, steps by hand, and that it is nearer to Retrain."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import purge
from purge.core.settings import replace
from purge.engine.run import Run
from purge.engine.seeding import seeded
from purge.engine.stopping import Stopping
from purge.methods.purge.relearn import BATCH, LR, relearned
from purge.methods.purge.targets import Scene
from purge.methods.registry import METHODS
from purge.models.checkpoint import digest
from purge.models.copies import frozen_copy, reinitialised
from purge.models.forward import logits
from purge.models.small_resnet import SmallResNet
from tests.nets import split_of

CPU = torch.device("cpu")


def student(model, split, seed=0, **settings):
    run = Run(model, split, device=CPU, stop=Stopping(), seed=seed)
    with seeded(seed, CPU):
        return relearned(frozen_copy(model), split.retain, run, **settings)


def weights_of(model):
    return [p.detach() for p in model.parameters()]


@pytest.fixture(scope="module")
def split(digits, base):
    return split_of(base, digits.forget, digits.retain, None)


def test_weights_are_mixed_with_fresh_ones_and_the_teacher_stays(base, split):
    before = digest(base)
    twin = frozen_copy(base)
    with seeded(0, CPU):
        fresh = reinitialised(twin)
    taught = student(base, split, share=0.25, steps=1)
    assert digest(base) == before
    for own, old, new in zip(*(weights_of(m) for m in (taught, base, fresh)), strict=True):
        mixed = 0.75 * old + 0.25 * new
        assert float((own - mixed).norm()) <= 0.05 * float((old - mixed).norm() + mixed.norm())  # one step
    assert not any(m.training for m in taught.modules())
    assert not any(p.requires_grad for p in taught.parameters())


def test_only_batchnorm_trains(base, split):
    """Its running statistics follow the new weights; dropout stays off."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(1.0), nn.Linear(16, 10)
    )
    taught = student(model.eval(), split, share=0.5, steps=5)
    assert int(taught[2].num_batches_tracked) == 5
    assert not torch.equal(taught[1].weight, model[1].weight)
    assert float(logits(taught, split.retain).std(0).mean()) > 0  # what dropout would have made constant


def test_steps_are_nesterov_steps_from_the_mixture_by_hand():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double().eval()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 3
    data = split_of(model, (x[y == 0], y[y == 0]), (x[y > 0], y[y > 0]), None)
    got = student(model, data, share=0.5, steps=3)  # every batch is the whole retain set
    with seeded(0, CPU):
        fresh = reinitialised(model)
    theta = [
        ((p + q) / 2).detach().requires_grad_()
        for p, q in zip(model.parameters(), fresh.parameters(), strict=True)
    ]
    momentum = [torch.zeros_like(p) for p in theta]
    kept = x[y > 0]
    top = LR * len(kept) / BATCH
    for rate in (top, top * 4 / 3 * 2 / 3, top * 4 / 3 * 1 / 3):
        h = torch.tanh(kept @ theta[0].T + theta[1])
        loss = F.cross_entropy((h @ theta[2].T + theta[3]).float(), y[y > 0])
        for p, v, g in zip(theta, momentum, torch.autograd.grad(loss, theta), strict=True):
            d = g + 5e-4 * p.detach()
            v.mul_(0.9).add_(d)
            p.data -= rate * (d + 0.9 * v)
    for p, q in zip(got.parameters(), theta, strict=True):
        assert torch.allclose(p, q, atol=1e-9)


def test_layers_that_cannot_be_drawn_anew_need_a_fresh_model(split):
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 10))

        def forward(self, x):
            return x.flatten(1) @ self.weight

    with pytest.raises(purge.PurgeError, match="pass fresh="):
        student(Fixed(), split, share=0.5, steps=1)
    run = Run(Fixed(), split, device=CPU, stop=Stopping(), seed=0, fresh=Fixed())
    assert isinstance(relearned(frozen_copy(Fixed()), split.retain, run, share=0.5, steps=1), Fixed)


@pytest.mark.slow
def test_with_the_student_targets_are_nearer_to_retrain(digits, base, retrained, split):
    """Agreement with the retrained model on the forget set, forgotten class left out, over two seeds."""
    old, want = (logits(m, digits.forget)[:, 1:] for m in (base, retrained))
    students = [student(base, split, seed=seed, share=0.8, steps=25) for seed in (0, 1)]
    both = [old + logits(one, digits.forget)[:, 1:] for one in students]
    near, *nearer = (float((z.argmax(1) == want.argmax(1)).float().mean()) for z in (old, *both))
    assert sum(nearer) / 2 > near + 0.1


def test_weights_of_another_shape_and_a_single_sample_are_refused(digits, base):
    how = {"method": "purge-pull", "opinions": "own,copy", "progress": False}
    with pytest.raises(purge.PurgeError, match="of the same architecture"):
        purge.unlearn(base, digits.forget, digits.retain, fresh=SmallResNet(width=8), **how)
    one = digits.retain.take(torch.arange(1))
    with pytest.raises(purge.PurgeError, match="at least 2 retained samples"):
        purge.unlearn(base, digits.forget, one, **how)


def test_only_a_relearned_copy_needs_a_fresh_model():
    assert "fresh" not in METHODS["purge-pull"].method.needs
    assert "fresh" in replace(METHODS["purge-pull"].method, {"opinions": "copy"}).needs


def test_the_target_is_the_mean_of_both_opinions_without_the_forgotten_class(digits, base, split):
    method = replace(
        METHODS["purge-pull"].method,
        {"opinions": "own,copy", "relearn_epochs": 1, "min_steps": 2, "max_steps": 99, "sharpness": 1.0},
    )
    teacher = frozen_copy(base)
    run = Run(base, split, device=CPU, stop=Stopping(), seed=0)
    with seeded(0, CPU):
        got = method.target.aim(Scene(teacher, split, run, None, method._within)).target
    taught = student(base, split, share=method.target.fresh_share, steps=3)  # ⌈1295 / 512⌉
    mean = (logits(teacher, digits.forget) + logits(taught, digits.forget)) / 2
    assert torch.equal(got[:, 0], torch.zeros(len(got)))
    assert torch.allclose(got[:, 1:], mean[:, 1:].softmax(1), atol=1e-6)


@pytest.mark.slow
def test_unlearning_follows_the_student(digits, base):
    runs = {
        opinions: purge.unlearn(
            base,
            digits.forget,
            digits.retain,
            method="purge-pull",
            opinions=opinions,
            max_steps=14,
            progress=False,
        ).model
        for opinions in ("own", "own,copy")
    }
    assert digest(runs["own"]) != digest(runs["own,copy"])
    assert all(float((logits(m, digits.forget).argmax(1) == 0).float().mean()) <= 0.02 for m in runs.values())


def test_levels_are_those_of_the_second_opinion_or_of_the_teacher_where_the_class_is_not(digits, base, split):
    teacher, gone = frozen_copy(base), torch.tensor([0])
    method = replace(METHODS["purge-pull"].method, {"suppression": 0.1})
    second = torch.randn(len(digits.forget), 10, generator=torch.Generator().manual_seed(0))
    known = logits(teacher, split.retain, torch.arange(40))
    assert torch.equal(method._levels(split, gone, second, known), second.log_softmax(1)[:, :1])
    want = known.log_softmax(1)[:, 0].mean()
    got = method._levels(split, gone, None, known)
    assert got.shape == (len(digits.forget), 1)
    assert torch.allclose(got, want.expand_as(got))
    off = replace(method, {"suppression": 0.0})
    assert off._levels(split, gone, second, known).shape == (len(digits.forget), 0)


def test_single_samples_are_not_suppressed(digits, base):
    """A whole class and a few samples of another, in one request."""
    few = torch.cat([torch.arange(len(digits.forget)), len(digits.forget) + torch.arange(3)])
    x, y = (
        torch.cat(parts)
        for parts in zip(*(d.take(torch.arange(len(d))) for d in (digits.forget, digits.retain)), strict=True)
    )
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[few] = False
    mixed = split_of(base, (x[few], y[few]), (x[rest], y[rest]), None)
    method = replace(METHODS["purge-pull"].method, {"suppression": 0.1})
    known = logits(frozen_copy(base), mixed.retain, torch.arange(20))
    levels = method._levels(mixed, torch.tensor([0]), None, known)
    assert levels[: len(digits.forget)].isfinite().all()
    assert levels[len(digits.forget) :].isnan().all()
    result = purge.unlearn(
        base, (x[few], y[few]), (x[rest], y[rest]), method="purge-pull", suppression=0.1, max_steps=12,
        progress=False,
    )  # fmt: skip
    assert all(math.isfinite(row["forget_loss"]) for row in result.history[1:])


@pytest.mark.slow
def test_suppression_lowers_what_the_forgotten_class_still_gets(digits, base):
    quiet, loud = (
        purge.unlearn(
            base, digits.forget, digits.retain, method="purge-pull", suppression=nu, progress=False
        ).model
        for nu in (0.1, 0.0)
    )
    left = [float(logits(m, digits.forget).log_softmax(1)[:, 0].mean()) for m in (quiet, loud)]
    assert left[0] < left[1] - 1
    assert float((logits(quiet, digits.retain).argmax(1) == digits.retain.labels).float().mean()) > 0.98
