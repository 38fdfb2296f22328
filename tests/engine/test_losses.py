"""Targets and losses on logits, by hand and against SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from scipy.stats import entropy as scipy_entropy

from purge.engine.losses import (
    above_gate,
    distill,
    entropy,
    kl,
    masked_teacher,
)


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


def test_forgotten_classes_are_removed_for_every_sample(z):
    t = masked_teacher(z, torch.tensor([1, 1, 2, 2, 1, 2, 1]), frozenset({1, 2}))
    assert t[:, [1, 2]].abs().max() == 0
    want = softmax(z.double().numpy()[:, [0, 3]], axis=1)
    assert np.allclose(t[:, [0, 3]].numpy(), want, atol=1e-6)


def test_a_single_sample_loses_its_own_label_and_a_class_is_no_ones_destination(z):
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    t = masked_teacher(z, y, frozenset({0}))
    for row, label, logits in zip(t, y.tolist(), z, strict=True):
        left = [c for c in range(4) if c not in (0, label)]
        assert row[left].tolist() == pytest.approx(logits[left].softmax(0).tolist(), abs=1e-6)
        assert float(row[left].sum()) == pytest.approx(1)
