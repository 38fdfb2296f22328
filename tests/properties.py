"""Properties with names. A contract test runs those that a method lists; see tests/methods/test_contract.py.

``go`` runs something with a seed and gives a result with ``model`` and ``history``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from purge.models.checkpoint import digest


def facts(model: nn.Module) -> tuple[Any, ...]:
    """Weights, training flags, requires_grad, gradients, hooks and replaced forwards."""
    modules = list(model.modules())
    return (
        digest(model),
        [m.training for m in modules],
        [p.requires_grad for p in model.parameters()],
        [p.grad is None for p in model.parameters()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules],
        ["forward" in m.__dict__ for m in modules],
    )


def storages(model: nn.Module) -> set[int]:
    return {t.data_ptr() for t in model.state_dict().values() if t.numel()}


def assert_caller_untouched(model: nn.Module, go: Callable[[], Any]) -> Any:
    """The caller's model is bit-identical, clean, and shares no storage with what is returned."""
    before = facts(model)
    result = go()
    assert facts(model) == before
    assert digest(result.model) != before[0], "returned weights must differ"
    assert not storages(result.model) & storages(model), "no storage is shared"
    return result


def assert_flags_kept(model: nn.Module, go: Callable[[], Any]) -> Any:
    """The result has the training flags and requires_grad of the caller's model, and no hook."""
    model.train()
    model[1].eval()  # a caller's own mixture of flags
    model[0].weight.requires_grad_(False)
    before = facts(model)
    result = go()
    assert facts(result.model)[1:] == before[1:]
    assert torch.equal(result.model[0].weight, model[0].weight), "what takes no gradient is not changed"
    return result


def assert_same_seed_same_model(go: Callable[[int], Any], *, draws: bool = True) -> None:
    """The same seed gives the same bits; another one gives others, if anything is drawn at random."""
    state = torch.random.get_rng_state()
    one, two, other = (digest(go(seed).model) for seed in (0, 0, 1))
    assert one == two
    assert (one != other) == draws
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's generator is not disturbed"


def assert_nothing_left_when_it_raises(model: nn.Module, go: Callable[[], Any]) -> None:
    """After an error of the model, "boom", the caller's model is as it was."""
    before = facts(model)
    with pytest.raises(RuntimeError, match="boom"):
        go()
    assert facts(model) == before


def assert_forgets(report: Any, most: float) -> None:
    """Of the forgotten training samples at most this share is still known."""
    assert report["fa_train"].value <= most


def assert_keeps(report: Any, least: float) -> None:
    """Of the retained samples at least this share is still known."""
    assert report["ra"].value >= least


def assert_never_uphill(result: Any) -> None:
    """No step that was taken raises the retain loss to first order."""
    cosines = [row["displacement_cosine"] for row in result.history[1:]]
    assert len(cosines) == result.steps
    assert min(cosines) >= 0
