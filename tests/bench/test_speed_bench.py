"""The benchmarks of speed: they compare with the paper's method, and print what their file says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import purge
from purge.core.settings import replace
from purge.engine.projection import flat
from purge.methods.registry import METHODS
from purge.models.forward import logits

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    """Import benchmarks as scripts that import each other, and remove them afterwards."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def pictures(digits):
    from plain import Pictures

    return [Pictures(part) for part in (digits.forget, digits.retain)]


@pytest.mark.slow
def test_the_plain_implementation_unlearns(base, digits, pictures):
    from plain import plain

    def accuracy(model, images):
        return float((logits(model, images).argmax(1) == images.labels).float().mean())

    weights = {k: v.clone() for k, v in base.state_dict().items()}
    settings = replace(METHODS["purge-paper"].method, {"lr": 0.005, "batch_size": 64})
    done = plain(base, *pictures, settings, device=CPU, workers=0)
    assert accuracy(base, digits.forget) > 0.9
    assert accuracy(done.model, digits.forget) <= 0.1, "the target 1/K"
    assert accuracy(done.model, digits.retain) > 0.95
    assert done.stopped_by == "forget_target"
    assert 0 < done.steps < done.of == 15 * 3, "at the end of an epoch, before the last one"
    assert done.steps % 3 == 0
    assert all(torch.equal(v, weights[k]) for k, v in base.state_dict().items()), "the model is not touched"
    assert not any(m._forward_hooks for m in done.model.modules())
    few = plain(base, *pictures, settings, device=CPU, workers=0, most=2)
    assert (few.steps, few.of, few.stopped_by) == (2, 45, "limit")


def test_its_steps_are_those_of_purge_paper(base, digits):
    """Each batch is a whole set, so the order of the samples does not matter; later steps have momentum."""
    from plain import Pictures, plain

    forget, retain = digits.forget.select(torch.arange(24)), digits.retain.select(torch.arange(24))
    steps = {"epochs": 3, "batch_size": 24, "lr": 0.01, "forget_target": 0.0, "retain_budget": None}
    ours = purge.unlearn(base, forget, retain, method="purge-paper", progress=False, device="cpu", **steps)
    settings = replace(METHODS["purge-paper"].method, steps)
    done = plain(base, Pictures(forget), Pictures(retain), settings, device=CPU, workers=0)
    assert ours.steps == done.steps == 3
    assert any(row["projected"] for row in ours.history), "or the projection is not compared"
    start = flat([*base.parameters()])
    here, there = (flat([*model.parameters()]) - start for model in (done.model, ours.model))
    assert float((here - there).norm()) < 1e-3 * float(there.norm())
