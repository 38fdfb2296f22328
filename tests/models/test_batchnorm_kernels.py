"""Faster BatchNorm on a GPU: the numbers are those of float64, and without Triton all is as before."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import purge
from purge.models import batchnorm, batchnorm_kernels
from purge.models.batchnorm import statistics
from purge.models.small_resnet import SmallResNet
from tests.models.batchnorm_cases import (
    CASES,
    Plain,
    close,
    images,
    kernels_equal_float64,
    running_statistics_are_torchs,
)

ROOT = Path(__file__).parents[2]
GPU = torch.device("cuda", 0)

gpu = pytest.mark.gpu
pytestmark = pytest.mark.filterwarnings("ignore:::triton.*")  # what its compiler has to say


@pytest.fixture
def all_sizes(monkeypatch):
    """Small batches go to the kernels too, and so do steps that are not recorded."""
    monkeypatch.setattr(batchnorm_kernels, "SMALL", 0)
    monkeypatch.setattr(batchnorm, "_kernels_of", lambda bn: batchnorm_kernels)


@pytest.mark.slow
@pytest.mark.skipif(batchnorm_kernels.triton is None, reason="Triton is not installed")
def test_the_interpreter_finds_the_numbers_of_float64():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.batchnorm_cases"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("the interpreter of this Triton cannot run a loop with this NumPy")  # 3.6 with 2.4
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(CASES) + 2


def test_without_triton_the_module_is_there_and_says_no(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.spec_from_file_location("without_triton", batchnorm_kernels.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "without_triton", module)
    spec.loader.exec_module(module)
    assert module.triton is None
    assert not module.usable(torch.zeros(2, 3, 4, 4))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert not module._works(GPU)


def test_what_does_not_compile_is_tried_once_and_said_once(monkeypatch, caplog):
    def fails(device):
        raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.")

    monkeypatch.setattr(batchnorm_kernels, "_try", fails)
    monkeypatch.setattr(batchnorm_kernels, "_tried", {})
    monkeypatch.setattr(batchnorm_kernels, "triton", object())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    caplog.set_level("INFO", "purge")
    assert [batchnorm_kernels._works(GPU) for _ in range(2)] == [False, False]
    said = "BatchNorm runs by torch's own kernels on cuda:0: RuntimeError: Failed to find C compiler"
    assert [r.message for r in caplog.records] == [said]


@pytest.mark.parametrize("m", [1, 63, 64, 4097, 10**8])
@pytest.mark.parametrize("c", [1, 3, 64, 100, 4096])
def test_every_row_is_dealt_out_to_one_part(m, c):
    cut = batchnorm_kernels._cut(m, c, batchnorm_kernels.REDUCE, 3 * 132)
    assert cut.rows * cut.cols == batchnorm_kernels.REDUCE
    assert (cut.tiles - 1) * cut.rows < m <= cut.tiles * cut.rows
    assert 1 <= cut.parts <= min(cut.tiles, cut.padded, batchnorm_kernels.PARTS)
    assert cut.parts * cut.each[1] <= max(3 * 132, cut.each[1])
    assert cut.even == (m % cut.rows == 0 and c % cut.cols == 0)


@gpu
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_find_the_numbers_of_float64(case):
    kernels_equal_float64(case, "cuda")


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(100, 64, 57, 57), (64, 512, 16, 16)], ids=str)
def test_large_batches_too_and_always_the_same(shape, dtype, monkeypatch):
    monkeypatch.setitem(CASES, "large", (shape, dtype, True, 1.0))
    kernels_equal_float64("large", "cuda")
    x = images(shape, dtype, "cuda", 0)
    found = [batchnorm_kernels.moments(x, 1e-5) for _ in range(3)]
    sums = [batchnorm_kernels.backward_sums(x, x, *found[0], None)[0] for _ in range(3)]
    assert all(torch.equal(a, b) for pair in found for a, b in zip(pair, found[0], strict=True))
    assert all(torch.equal(s, sums[0]) for s in sums)


@gpu
@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_are_those_of_torch(momentum, all_sizes):
    running_statistics_are_torchs(momentum, "cuda")


@gpu
def test_which_batches_the_kernels_take(all_sizes, monkeypatch):
    x = images((4, 6, 5, 5), torch.bfloat16, "cuda", 0)
    w = torch.ones(6, device="cuda")
    assert batchnorm_kernels.usable(x, w, None)
    assert batchnorm_kernels.usable(x[:, :, :1, :1].contiguous(), w)
    for other in (x.contiguous(), x[:, :4], x.double(), x[:, :, 0, 0], x[:0]):
        assert not batchnorm_kernels.usable(other, w[: other.shape[1]])
    for other in (w[:5], w.cpu()):
        assert not batchnorm_kernels.usable(x, other)
    monkeypatch.setattr(batchnorm_kernels, "SMALL", x.numel())
    assert not batchnorm_kernels.usable(x, w)


def norms(affine):
    """Two layers on the GPU, and the same in float64."""
    layers = [nn.BatchNorm2d(10, affine=affine), nn.Tanh(), nn.BatchNorm2d(10, affine=affine)]
    if affine:
        for layer in layers[::2]:
            nn.init.uniform_(layer.weight, 0.5, 1.5, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(*layers).train()
    return copy.deepcopy(model).cuda(), model.double()


def assert_same_outputs_and_gradients(z, want, at, exact_at, rough, which=slice(None)):
    close(z, want, rough)
    got = torch.autograd.grad(z.double().sin()[which].sum(), at)
    right = torch.autograd.grad(want.sin()[which].sum(), exact_at)
    for a, b in zip(got, right, strict=True):
        close(a, b, rough)


TYPES = pytest.mark.parametrize(("dtype", "rough"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)], ids=str)


@gpu
@pytest.mark.parametrize("affine", [True, False])
@TYPES
def test_gradients_through_shared_statistics(dtype, rough, affine, all_sizes, monkeypatch):
    def forbidden(*args):
        raise AssertionError("torch's own kernel was called")

    for name in ("native_batch_norm", "batch_norm_elemt", "batch_norm_backward_reduce"):
        monkeypatch.setattr(torch, name, forbidden)
    monkeypatch.setattr(torch, "batch_norm_backward_elemt", forbidden)
    model, exact = norms(affine)
    plain = nn.Sequential(*[Plain(m, 7) if isinstance(m, nn.BatchNorm2d) else m for m in exact])
    x = images((11, 10, 9, 7), dtype, "cuda", 0, offset=1.0).requires_grad_()
    x64 = x.detach().double().cpu().requires_grad_()
    at, exact_at = [x, *model.parameters()], [x64, *exact.parameters()]
    for which in (slice(0, 7), slice(7, 11), slice(0, 11)):
        with statistics(model, "shared") as seen:
            zr = model(x[:7])
        with statistics(model, "shared", like=seen):
            z = torch.cat([zr, model(x[7:])])
        assert_same_outputs_and_gradients(z, plain(x64), at, exact_at, rough, which)


@gpu
@pytest.mark.parametrize("momentum", [0.1, None])
@TYPES
def test_quick_training_is_training(dtype, rough, momentum, all_sizes):
    model, exact = norms(True)
    for m in (*model[::2], *exact[::2]):
        m.momentum = momentum
    x = images((11, 10, 9, 7), dtype, "cuda", 0, offset=1.0).requires_grad_()
    x64 = x.detach().double().cpu().requires_grad_()
    at, exact_at = [x, *model.parameters()], [x64, *exact.parameters()]
    for _ in range(2):
        with statistics(model, "train"):
            z = model(x)
        assert "_Seeing" in str(z.grad_fn)
        assert_same_outputs_and_gradients(z, exact(x64), at, exact_at, rough)
    for key, value in exact.state_dict().items():
        close(model.state_dict()[key], value, rough)
    assert all("forward" not in m.__dict__ for m in model)


@gpu
def test_a_model_is_trained_by_the_kernels_as_by_torch(digits, all_sizes, monkeypatch):
    def counted(*args):
        calls.append(1)
        return moments(*args)

    moments, calls, losses = batchnorm_kernels.moments, [], []
    monkeypatch.setattr(batchnorm_kernels, "moments", counted)
    for by_torch in (False, True):
        if by_torch:
            monkeypatch.setattr(batchnorm_kernels, "usable", lambda *args: False)
        torch.manual_seed(0)
        result = purge.train(
            SmallResNet(width=8), digits.retain, epochs=1, lr=0.05, precision="float32", device="cuda",
            graph=True, progress=False,
        )  # fmt: skip
        losses.append(result.history[-1]["loss"])
        found = len(calls)
        calls.clear()
        layers = sum(isinstance(m, nn.BatchNorm2d) for m in result.model.modules())
        # Images of one channel have both layouts, and what the first convolution returns may have either.
        # Python calls them twice: in the first step, and when the second is recorded.
        assert found in ([0] if by_torch else [2 * (layers - 1), 2 * layers])
        assert all("forward" not in m.__dict__ for m in result.model.modules())
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@gpu
def test_a_gradient_of_the_gradient_is_refused_rather_than_wrong(all_sizes):
    model, x = norms(True)[0], images((4, 10, 3, 3), torch.float32, "cuda", 0).requires_grad_()
    with statistics(model, "train"):
        z = model(x)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(torch.autograd.grad(z.sin().sum(), x, create_graph=True)[0].sum(), x)
