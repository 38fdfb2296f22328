"""BatchNorm statistics and activation hooks: what they do, and that they always clean up."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from purge.hooks import capture, capture_input, pooled
from purge.norm import batchnorms, recalibrate, statistics


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def images(n, seed=0):
    return torch.randn(n, 2, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_shared_equals_a_training_pass_for_the_retain_rows():
    model = net()
    x = torch.cat([images(16), 3 + images(8, 1)])
    reference = copy.deepcopy(model).train()
    with statistics(model, "shared", retain_rows=16):
        z = model(x)
    assert torch.allclose(z[:16], reference(x[:16]), atol=1e-5)
    # and the forget rows see the retain statistics: not those of the whole batch, nor their own
    assert not torch.allclose(z[16:], reference(x)[16:], atol=1e-2)
    assert not torch.allclose(z[16:], reference(x[16:]), atol=1e-2)


def test_gradients_flow_through_shared_statistics():
    model = net()
    x = torch.cat([images(16), images(8, 1)]).requires_grad_()
    with statistics(model, "shared", retain_rows=16):
        model(x)[16:].sum().backward()
    assert float(x.grad[:16].abs().max()) > 0, "forget outputs depend on the retain rows"


def test_train_equals_two_passes():
    model, reference = net(), net().train()
    x = torch.cat([images(16), images(8, 1)])
    with statistics(model, "train", retain_rows=16):
        z = model(x)
    assert torch.allclose(z, torch.cat([reference(x[:16]), reference(x[16:])]), atol=1e-6)
    assert torch.allclose(model[1].running_mean, reference[1].running_mean)
    assert torch.allclose(model[1].running_var, reference[1].running_var)


@pytest.mark.parametrize("kind", ["frozen", "shared"])
def test_running_statistics_are_left_alone(kind):
    model = net()
    before = copy.deepcopy(model.state_dict())
    with statistics(model, kind, retain_rows=4):
        model(images(8))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("kind", ["frozen", "shared", "train"])
def test_everything_is_put_back_when_the_forward_pass_raises(kind):
    model = net().train()
    with pytest.raises(RuntimeError), statistics(model, kind, retain_rows=4):
        model(torch.zeros(4, 5, 8, 8))
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert all(m.training for m in model.modules())


def test_recalibration_is_the_cumulative_average_and_restores_flags():
    model = net().train()
    model[1].momentum = 0.3
    model[2].eval()
    parts = [images(16, s) for s in range(3)]
    recalibrate(model, iter(parts))
    with torch.no_grad():
        a = [model[0](x) for x in parts]
    want = torch.stack([v.mean((0, 2, 3)) for v in a]).mean(0)
    assert torch.allclose(model[1].running_mean, want, atol=1e-6)
    want = torch.stack([v.transpose(0, 1).flatten(1).var(1) for v in a]).mean(0)
    assert torch.allclose(model[1].running_var, want, atol=1e-5)
    assert model[1].momentum == 0.3
    assert [m.training for m in model] == [True, True, False, True, True]


def test_dropout_is_off_while_recalibrating():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3)).train()
    x = torch.randn(32, 3)
    recalibrate(model, [x])
    assert torch.allclose(model[1].running_mean, x.mean(0), atol=1e-6)


def test_networks_without_running_statistics_are_passed_over():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False))
    assert batchnorms(model) == []
    recalibrate(model, iter([]))


def test_hooks_are_removed_also_when_the_model_raises():
    model = net()
    with pytest.raises(RuntimeError), capture(model, ["0", "2"]), capture_input(model[4]):
        model(torch.zeros(1, 9, 8, 8))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(AttributeError), capture(model, ["0", "no such layer"]):
        pass
    assert not any(m._forward_hooks for m in model.modules())


def test_capture_pools_over_positions_and_keeps_the_graph():
    model, x = net(), images(5)
    with capture(model, ["0"]) as h, capture_input(model[4]) as inputs:
        model(x)
    assert torch.allclose(h["0"], model[0](x).mean((2, 3)), atol=1e-6)
    assert h["0"].requires_grad
    assert inputs[0].shape == (5, 144)


def test_pooling_of_tokens_and_vectors():
    assert pooled(torch.ones(2, 7, 3)).shape == (2, 3)
    assert pooled(torch.ones(2, 3)).shape == (2, 3)
    assert pooled(torch.ones(2, 3, 4, 5, 6)).shape == (2, 360)
