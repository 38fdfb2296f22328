"""Targets and losses on logits, by hand and against SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from scipy.stats import entropy as scipy_entropy

from purge.engine.losses import (
    ENOUGH,
    above_gate,
    distill,
    entropy,
    kl,
    masked_teacher,
    never_learned,
    unseen_confidence,
)
from purge.methods import Paper


@pytest.fixture
def z():
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(0)) * 3


def test_kl_is_target_first(z):
    target = torch.softmax(torch.randn(7, 4, generator=torch.Generator().manual_seed(1)), 1)
    want = rel_entr(target.double().numpy(), softmax(z.double().numpy(), axis=1)).sum(1).mean()
    assert float(kl(z, target)) == pytest.approx(want, rel=1e-5)
    reverse = rel_entr(softmax(z.double().numpy(), axis=1), target.double().numpy()).sum(1).mean()
    assert abs(want - reverse) > 0.1, "the two directions must differ for this to mean anything"


def test_distillation_scales_with_temperature_squared(z):
    teacher = z.flip(0)
    t = 4.0
    p, q = (softmax(v.double().numpy() / t, axis=1) for v in (teacher, z))
    assert float(distill(z, teacher, t)) == pytest.approx(t**2 * rel_entr(p, q).sum(1).mean(), rel=1e-4)
    assert float(distill(z, z, t)) == pytest.approx(0, abs=1e-6)


def test_entropy_gate(z):
    want = scipy_entropy(softmax(z.double().numpy(), axis=1), axis=1).mean()
    assert float(entropy(z)) == pytest.approx(want, rel=1e-5)
    share = want / math.log(4)
    assert bool(above_gate(z, share * 0.99))
    assert not bool(above_gate(z, share * 1.01))
    assert not bool(above_gate(torch.zeros(2, 4), 0.0)), "0 is off, even at the maximal entropy"


def test_the_cap_is_for_ascent_only():
    uniform, y = torch.zeros(3, 4), torch.tensor([0, 1, 2])
    ascent = Paper("ga")
    assert bool(ascent.capped(uniform - 1e-4 * torch.nn.functional.one_hot(y, 4), y))
    assert not bool(ascent.capped(1.0 * torch.nn.functional.one_hot(y, 4), y))
    assert not bool(Paper("kl_retain").capped(uniform, y))


def test_forgotten_classes_are_removed_for_every_sample(z):
    t = masked_teacher(z, torch.tensor([1, 1, 2, 2, 1, 2, 1]), frozenset({1, 2}))
    assert t[:, [1, 2]].abs().max() == 0
    want = softmax(z.double().numpy()[:, [0, 3]], axis=1)
    assert np.allclose(t[:, [0, 3]].numpy(), want, atol=1e-6)


def test_single_samples_lose_their_own_label_and_get_it_back_as_if_unseen(z):
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    gone = masked_teacher(z, y, frozenset())
    assert gone.gather(1, y[:, None]).abs().max() == 0
    keep = torch.linspace(0.1, 0.9, 7)
    back = masked_teacher(z, y, frozenset(), keep)
    assert torch.allclose(back.gather(1, y[:, None])[:, 0], keep)
    assert torch.allclose(back.sum(1), torch.ones(7))
    off = torch.nn.functional.one_hot(y, 4) == 0
    assert torch.allclose(back[off].view(7, 3), (1 - keep)[:, None] * gone[off].view(7, 3), atol=1e-6)


def test_a_forgotten_class_gets_nothing_back():
    z, y = torch.randn(4, 3), torch.tensor([0, 0, 1, 2])
    t = masked_teacher(z, y, frozenset({0}), torch.full((4,), 0.8))
    assert t[:2, 0].abs().max() == 0, "whole class: gone"
    assert t[2, 1] == pytest.approx(0.8), "single sample: as if unseen"
    assert t[:, 0].abs().max() == 0, "the forgotten class is no one's destination"


def test_confidences_become_those_of_unseen_data_of_their_class_in_the_same_order():
    g = torch.Generator().manual_seed(0)
    z, y = 5 * torch.randn(600, 3, generator=g), torch.arange(600) % 3
    zu, yu = torch.randn(900, 3, generator=g), torch.arange(900) % 3
    zu[yu == 1, 1] += 3  # class 1 is easy
    got = unseen_confidence(z, y, zu, yu)
    own, unseen = (a.softmax(1).gather(1, b[:, None])[:, 0] for a, b in ((z, y), (zu, yu)))
    for c in range(3):
        want = torch.quantile(unseen[yu == c], (torch.arange(200) + 0.5) / 200)
        order = own[y == c].argsort()
        assert got[y == c][order].tolist() == pytest.approx(want.tolist(), abs=1e-6)


@pytest.mark.parametrize(("ours", "theirs"), [(ENOUGH - 1, 300), (300, ENOUGH - 1)])
def test_classes_with_few_samples_on_either_side_are_treated_together(ours, theirs):
    """Class 0 has many on both sides; classes 1 and 2 share what is unseen of them, in equal parts."""
    g = torch.Generator().manual_seed(0)
    y, yu = (torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([300, n, n])) for n in (ours, theirs))
    z, zu = torch.randn(len(y), 3, generator=g), torch.randn(len(yu), 3, generator=g)
    got = unseen_confidence(z, y, zu, yu)
    own, unseen = (a.softmax(1).gather(1, b[:, None])[:, 0] for a, b in ((z, y), (zu, yu)))
    for mine, there in ((y == 0, yu == 0), (y > 0, yu > 0)):
        n = int(mine.sum())
        want = torch.quantile(unseen[there], (torch.arange(n) + 0.5) / n)
        assert got[mine][own[mine].argsort()].tolist() == pytest.approx(want.tolist(), abs=1e-6)


def test_confidences_are_those_of_unseen_data_of_the_same_classes():
    g = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 1]).repeat_interleave(torch.tensor([90, 30]))  # few: treated together
    yu = torch.tensor([0, 1, 2]).repeat_interleave(torch.tensor([100, 900, 500]))
    z = 5 * torch.randn(120, 3, generator=g)
    zu = torch.randn(1500, 3, generator=g)
    zu[yu == 1, 1] += 3  # class 1 is easy, and frequent in the unseen data
    got = unseen_confidence(z, y, zu, yu)
    unseen = zu.softmax(1).gather(1, yu[:, None])[:, 0]
    equal = torch.cat([unseen[yu == 0].repeat(27), unseen[yu == 1]])  # 3 : 1, as in the forget set
    for q in (0.1, 0.5, 0.9):
        assert float(got.quantile(q)) == pytest.approx(float(equal.quantile(q)), abs=0.02)
    assert float(got.median()) < float(unseen.median()) - 0.2


def test_with_the_same_classes_on_both_sides_confidences_are_plain_quantiles():
    g = torch.Generator().manual_seed(0)
    z, y = torch.randn(40, 3, generator=g), torch.arange(40) % 2
    zu, yu = torch.randn(90, 3, generator=g), torch.arange(90) % 2
    own, unseen = (a.softmax(1).gather(1, b[:, None])[:, 0] for a, b in ((z, y), (zu, yu)))
    want = torch.quantile(unseen, (own.argsort().argsort() + 0.5) / 40)
    assert unseen_confidence(z, y, zu, yu).tolist() == pytest.approx(want.tolist(), abs=1e-6)
    alone = unseen_confidence(z, y, zu[:1], yu[:1])  # a single unseen sample is all there is to go by
    assert alone.tolist() == pytest.approx([float(unseen[0])] * 40)
    others = unseen_confidence(z, y, zu, torch.full((90,), 2))  # none of the same classes: all of them
    assert len(set(others.tolist())) == 40


def test_a_sample_of_the_only_class_left_keeps_its_label():
    """All other classes are forgotten: a retrained model would know nothing but this one."""
    z, y = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
    t = masked_teacher(z, y, frozenset({0}), torch.tensor([0.0, 0.0, 0.7, 0.7]))
    assert torch.isfinite(t).all()
    assert t[:, 1].tolist() == pytest.approx([1, 1, 1, 1])


def test_never_learned_is_the_squared_distance_to_the_level():
    z = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0], [5.0, 1.0, 1.0]], requires_grad=True)
    classes = torch.tensor([0, 2])
    level = torch.tensor([[-3.0, -4.0], [-3.0, -4.0], [math.nan, math.nan]])  # of the last nothing is asked
    logp = z.detach().double().log_softmax(1)[:2][:, classes]
    want = ((logp - torch.tensor([-3.0, -4.0])) ** 2).mean()
    found = never_learned(z, level, classes)
    assert found.item() == pytest.approx(want.item(), rel=1e-6)
    (g,) = torch.autograd.grad(found, z)
    assert torch.equal(g[2], torch.zeros(3))
    assert torch.isfinite(g).all()
    assert never_learned(z, torch.full((3, 2), math.nan), classes).item() == 0.0
    assert never_learned(z, level[:, :0], classes[:0]).item() == 0.0


def test_never_learned_still_pulls_where_a_kl_has_let_go():
    z = torch.tensor([[-8.0, 4.0, 0.0]], requires_grad=True)  # p of the first: 6e-6
    target = torch.tensor([[0.0, 0.98, 0.02]])
    (weak,) = torch.autograd.grad(kl(z, target), z)
    (strong,) = torch.autograd.grad(never_learned(z, torch.tensor([[-20.0]]), torch.tensor([0])), z)
    assert abs(float(weak[0, 0])) < 1e-5
    assert float(strong[0, 0]) > 10
