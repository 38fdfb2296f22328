"""Amnesiac unlearning: what is taken back, the repair, and the contract of every method."""

from __future__ import annotations

import copy

import torch
from safetensors.torch import load_file
from torch import nn

from purge.data.split import split
from purge.engine.optimizer import Optim
from purge.methods import amnesiac
from purge.methods.amnesiac import take_back
from purge.methods.update_log import updates_with
from tests.methods.logged import forget, samples, train
from tests.nets import blobs, small_mlp
from tests.properties import (
    assert_caller_untouched,
    assert_flags_kept,
    assert_nothing_left_when_it_raises,
    assert_same_seed_same_model,
)


def weights(model):
    return [p.detach() for p in model.parameters()]


# -- what is taken back -----------------------------------------------------------------------


def test_the_whole_method_against_snapshots_in_double_precision(logged, recorded):
    """θ − Σ δ_b over the batches with a forgotten sample, then one step on all retained ones."""
    model, folder = logged
    x, y = blobs()
    rows = [3, 40, 77]
    gone, kept = split((x, y), indices=rows)
    expected = [w.double() for w in weights(model)]
    touched = 0
    for _, index, before, after in recorded.steps:
        if set(index) & set(rows):
            touched += 1
            expected = [
                e - (a.double() - b.double()) for e, a, b in zip(expected, after, before, strict=True)
            ]
    assert 3 <= touched < len(recorded.steps)

    plain = forget(model, gone, kept, folder, epochs=0).model
    for ours, theirs in zip(weights(plain), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-6)

    optim = Optim(lr=0.1, momentum=0.9, weight_decay=1e-2)
    repaired = forget(model, gone, kept, folder, epochs=1, batch_size=1000, norm="frozen", optim=optim)
    twin = copy.deepcopy(model).double().eval()
    for p, e in zip(twin.parameters(), expected, strict=True):
        p.data.copy_(e)
    loss = nn.functional.cross_entropy(twin(kept[0].double()), kept[1])
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    for ours, e, g in zip(weights(repaired.model), expected, gradients, strict=True):
        torch.testing.assert_close(ours.double(), e - 0.1 * (g + 1e-2 * e), rtol=0, atol=1e-5)


def test_all_updates_taken_back_are_the_first_weights(logged, recorded):
    model, folder = logged
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == len(recorded.steps) == 3 * (96 // 16)
    twin = copy.deepcopy(model)
    take_back(twin, files[::-1])
    for ours, first, last in zip(weights(twin), recorded.first, recorded.last, strict=True):
        torch.testing.assert_close(ours, first, rtol=0, atol=1e-6)
        assert not torch.equal(first, last)
    # The same by the method: together, these samples are in every batch.
    rows = sorted({index[0] for _, index, _, _ in recorded.steps})
    result = forget(model, *split(blobs(), indices=rows), folder, epochs=0)
    assert result.history[-1]["taken_back"] == len(files)
    used = updates_with(str(folder), model, samples(split(blobs(), indices=rows)[0]))
    assert used == files[::-1], "the last one first: each subtraction undoes the latest rounding"
    for ours, first in zip(weights(result.model), recorded.first, strict=True):
        torch.testing.assert_close(ours, first, rtol=0, atol=1e-6)


def test_what_takes_no_gradient_is_neither_logged_nor_taken_back(tmp_path, logged):
    fixed = small_mlp()
    fixed[0].weight.requires_grad_(False)
    model = train(tmp_path / "log", model=fixed)
    assert "0.weight" not in load_file(tmp_path / "log" / "00000000.safetensors")
    result = forget(model, *split(blobs(), indices=[0]), tmp_path / "log")
    assert torch.equal(result.model[0].weight, fixed[0].weight)
    later = copy.deepcopy(logged[0])
    later[0].weight.requires_grad_(False)
    result = forget(later, *split(blobs(), indices=[0]), logged[1])
    assert torch.equal(result.model[0].weight, later[0].weight)
    assert not torch.equal(result.model[3].weight, later[3].weight)


# -- the contract of every method (tests/methods/test_contract.py), for a model with a log ----


def test_the_contract(logged, monkeypatch):
    model, folder = copy.deepcopy(logged[0]), logged[1]
    gone, kept = split(blobs(), classes=[0])

    def go(seed=0):
        return forget(model, gone, kept, folder, batch_size=16, seed=seed)

    assert_caller_untouched(model, go)
    assert_same_seed_same_model(go)
    assert_flags_kept(model, go)

    def fails(*_args):
        raise RuntimeError("boom")

    monkeypatch.setattr(amnesiac, "cross_entropy", fails)
    assert_nothing_left_when_it_raises(model, go)
