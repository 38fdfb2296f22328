"""BatchNorm statistics and activation hooks: what they do, and that they always clean up."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from purge.models.batchnorm import batchnorms, recalibrate, statistics
from purge.models.hooks import capture, capture_features
from tests.models.batchnorm_cases import Plain


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def images(n, seed=0):
    return torch.randn(n, 2, 8, 8, generator=torch.Generator().manual_seed(seed))


def both(model, kind, retain, forget):
    """The outputs of a retain and of a forget batch, as a step of PURGE makes them."""
    with statistics(model, kind) as seen:
        zr = model(retain)
    with statistics(model, kind, like=seen):
        return zr, model(forget)


NETS = {
    "images": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(),
        nn.Linear(64, 3),
    ),
    "no weights": lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, affine=False), nn.Flatten()),
    "vectors": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(128, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3), nn.BatchNorm1d(3)
    ),
    "sequences": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten()),
}  # fmt: skip


def odd(kind):
    """A network in float64 with odd weights, inputs that take a gradient, and weights of a loss."""
    torch.manual_seed(0)
    model = NETS[kind]().double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    x = (images(10).double() * 2 + 1).requires_grad_()
    return model, x, torch.randn(model(x).shape, dtype=torch.float64)


@pytest.mark.parametrize("n", [6, 3])
@pytest.mark.parametrize("kind", NETS)
def test_values_and_gradients_with_shared_statistics_are_those_of_the_definition(kind, n):
    """In two passes and in one: of a loss of either batch and of both, for weights and inputs."""
    model, x, w = odd(kind)
    plain = nn.Sequential(*[Plain(m, n) if "BatchNorm" in type(m).__name__ else m for m in model])
    at = [*model.parameters(), x]
    for which in (slice(0, n), slice(n, 10), slice(0, 10)):
        two = torch.cat(both(model, "shared", x[:n], x[n:]))
        with statistics(model, "shared", leading=n / 10):
            one = model(x)
        want = torch.autograd.grad((w * plain(x).sin())[which].sum(), at, allow_unused=True)
        for z in (one, two):
            assert torch.allclose(z, plain(x), atol=1e-10)
            got = torch.autograd.grad((w * z.sin())[which].sum(), at, allow_unused=True)
            for a, b in zip(got, want, strict=True):
                assert torch.allclose(torch.zeros(()).double() if a is None else a, b, atol=1e-10)


class WithActivation(nn.BatchNorm2d):
    """A BatchNorm that goes on after it has normalised, like BatchNormAct2d of timm."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Hardtanh(-1, 1), nn.Softplus()  # their order can be told from the values

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


def test_a_batchnorm_that_holds_an_activation_keeps_it():
    torch.manual_seed(0)
    x = images(16)
    x = torch.cat([x, x[:4]])  # the rows that follow are some of the leading ones
    layer = WithActivation(2)
    layer.weight.data.uniform_(1, 2)
    want = copy.deepcopy(layer).train()(x[:16])
    assert torch.allclose(
        torch.cat(both(layer, "shared", x[:16], x[16:])), torch.cat([want, want[:4]]), atol=1e-5
    )
    with statistics(layer, "shared", leading=16 / 20):
        assert torch.allclose(layer(x), torch.cat([want, want[:4]]), atol=1e-5)
    with statistics(layer, "train"):
        assert torch.allclose(layer(x[:16]), want, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", NETS)
def test_the_kernels_of_a_gpu_give_the_same_gradients(kind, layout):
    torch.backends.cudnn.allow_tf32 = False
    model, x, _ = odd(kind)
    twin = copy.deepcopy(model).float().cuda()
    for p in twin.parameters():
        if p.ndim == 4:
            p.data = p.data.contiguous(memory_format=layout)
    for which in (slice(0, 6), slice(6, 10), slice(0, 10)):
        rows = []
        for net, data in ((model, x), (twin, x.float().cuda())):
            z = torch.cat(both(net, "shared", data[:6], data[6:]))
            grads = torch.autograd.grad(z.sin()[which].sum(), list(net.parameters()), allow_unused=True)
            flat = [t.flatten() for t in (z, *grads) if t is not None]
            rows.append(torch.cat(flat).double().cpu())
        assert torch.allclose(*rows, atol=1e-4)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.bn(torch.tanh(3 * self.bn(x)))


def test_a_layer_that_is_called_twice_is_matched_call_by_call():
    model, x = Twice().train(), torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    _, zf = both(copy.deepcopy(model), "shared", x, x[:5])
    assert torch.allclose(zf, model(x)[:5], atol=1e-5)


def test_train_equals_two_passes():
    model, reference = net(), net().train()
    x = torch.cat([images(16), images(8, 1)])
    z = torch.cat(both(model, "train", x[:16], x[16:]))
    assert torch.allclose(z, torch.cat([reference(x[:16]), reference(x[16:])]), atol=1e-6)
    assert torch.allclose(model[1].running_mean, reference[1].running_mean)
    assert torch.allclose(model[1].running_var, reference[1].running_var)


@pytest.mark.parametrize("kind", ["frozen", "shared"])
def test_running_statistics_are_left_alone(kind):
    model = net()
    before = copy.deepcopy(model.state_dict())
    both(model, kind, images(4), images(4, 1))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("kind", ["frozen", "shared", "train"])
def test_everything_is_put_back_when_the_forward_pass_raises(kind):
    model = net().train()
    with pytest.raises(RuntimeError), statistics(model, kind):
        model(torch.zeros(4, 5, 8, 8))
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert all(m.training for m in model.modules())


def test_recalibration_is_the_cumulative_average_without_dropout_and_restores_flags():
    model = nn.Sequential(nn.Dropout(0.5), *net()).train()
    model[2].momentum = 0.3
    model[3].eval()
    parts = [images(16, s) for s in range(3)]
    recalibrate(model, iter(parts))
    with torch.no_grad():
        maps = [model[1](x).transpose(0, 1).flatten(1) for x in parts]
    mean, var = (torch.stack([f(h, 1) for h in maps]).mean(0) for f in (torch.mean, torch.var))
    assert torch.allclose(model[2].running_mean, mean, atol=1e-6)
    assert torch.allclose(model[2].running_var, var, atol=1e-5)
    assert model[2].momentum == 0.3
    assert [m.training for m in model] == [True, True, True, False, True, True]
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False))
    assert batchnorms(model) == []
    recalibrate(model, iter([]))


def test_hooks_are_removed_also_when_the_model_raises():
    model = net()
    with pytest.raises(RuntimeError), capture(model, ["0", "2"]), capture_features(model, model[4]):
        model(torch.zeros(1, 9, 8, 8))
    with pytest.raises(AttributeError), capture(model, ["0", "no such layer"]):
        pass
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_capture_pools_over_positions_keeps_the_graph_and_what_layers_in_place_overwrite():
    model, x = net(), images(5)
    model[2] = nn.ReLU(inplace=True)
    with capture(model, ["0", "2"]) as h, capture_features(model, model[4]) as inputs:
        model(x)
    assert torch.allclose(h["0"], model[0](x).mean((2, 3)), atol=1e-6)
    assert (h["0"] < 0).any()
    assert h["0"].requires_grad
    assert inputs[0].shape == (5, 144)
    flat = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True))
    with capture(flat, ["0", "1"]) as h:
        flat(x := torch.randn(5, 3))
    assert torch.equal(h["0"], flat[0](x))
    assert torch.equal(h["1"], flat[0](x).relu())


class Spoken(nn.Module):
    def forward(self, x):
        return {"words": x}


def test_what_is_no_tensor_is_not_captured():
    model = nn.Sequential(nn.Linear(3, 3), Spoken())
    with capture(model, ["0", "1"]) as h:
        model(torch.ones(2, 3))
    assert h.keys() == {"0"}
