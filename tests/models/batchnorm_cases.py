"""The kernels of BatchNorm against float64: on a GPU, or on the CPU in Triton's interpreter.

TRITON_INTERPRET=1 python -m tests.models.batchnorm_cases       # all of them, on the CPU
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.models import batchnorm, batchnorm_kernels

EPS = 1e-5
CASES = {
    "5 channels": ((4, 5, 7, 9), torch.float32, True, 0.0),
    "one channel": ((130, 1, 9, 9), torch.float16, True, 0.0),
    "vectors": ((3, 70, 1, 1), torch.float32, True, 0.0),
    "whole tiles": ((8, 64, 16, 16), torch.bfloat16, True, 0.5),
    "many tiles": ((12, 64, 19, 19), torch.float32, True, 0.0),
    "a part of a tile": ((33, 128, 5, 7), torch.bfloat16, True, 0.0),
    "mean of 500 deviations": ((3, 100, 13, 13), torch.float32, False, 1000.0),
    "many channels": ((2, 520, 3, 3), torch.bfloat16, False, 0.0),
}


class Plain(nn.Module):
    """BatchNorm by the statistics of the first rows, written down as the definition has it."""

    def __init__(self, bn, rows):
        super().__init__()
        self.bn, self.rows = bn, rows

    def forward(self, x):
        over = [d for d in range(x.ndim) if d != 1]
        var, mean = torch.var_mean(x[: self.rows], over, correction=0, keepdim=True)
        y = (x - mean) / (var + self.bn.eps).sqrt()
        if self.bn.weight is None:
            return y
        shape = [1, -1] + [1] * (x.ndim - 2)
        return y * self.bn.weight.view(shape) + self.bn.bias.view(shape)


def images(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int, offset: float = 0.0) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * x + offset).to(device, dtype).contiguous(memory_format=torch.channels_last)


def close(got: Tensor, want: Tensor, rel: float) -> None:
    """To within a share of the largest value."""
    assert got.shape == want.shape
    got, want = got.detach().double().cpu(), want.detach().double().cpu()
    worst = float((got - want).abs().max())
    assert worst <= rel * max(1.0, float(want.abs().max())), worst


def kernels_equal_float64(case: str, device: str) -> None:
    shape, dtype, affine, offset = CASES[case]
    x, dy = images(shape, dtype, device, 0, offset), images(shape, dtype, device, 1)
    c, m, over = shape[1], x.numel() // shape[1], (0, 2, 3)
    w, b = (torch.linspace(-1, 2, c, device=device), torch.linspace(1, 3, c, device=device))
    w, b = (w, b) if affine else (None, None)
    rough = torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    k = batchnorm_kernels

    exact = [None if v is None else v.double().requires_grad_() for v in (x, w, b)]
    want = F.batch_norm(exact[0], None, None, exact[1], exact[2], True, 0.0, EPS)
    grads = torch.autograd.grad(want, [v for v in exact if v is not None], dy.double())
    mean64 = x.double().mean(over, keepdim=True)
    rstd64 = (x.double().var(over, correction=0, keepdim=True) + EPS).rsqrt()

    mean, rstd = k.moments(x, EPS)
    assert mean.dtype == rstd.dtype == torch.float32
    close(mean, mean64.flatten(), 1e-6)
    close(rstd / rstd64.flatten(), torch.ones(c), 2e-5)
    y = k.transform(x, mean, rstd, w, b)
    assert (y.dtype, y.stride()) == (dtype, x.stride())
    close(y, want, max(rough, 1e-6 * offset))
    sums, *of_weights = k.backward_sums(dy, x, mean, rstd, w)
    centred = x.double() - mean64
    close(sums, torch.stack([dy.double().sum(over), (dy.double() * centred).sum(over)]), 1e-5 + 1e-7 * offset)
    if affine:
        close(torch.stack(of_weights), torch.stack(grads[1:]), 1e-5)
    else:
        assert of_weights == [None, None]
    close(k.backward_input(dy, x, mean, rstd, w, sums), grads[0], rough)

    more = torch.stack([torch.linspace(-m, m, c), torch.linspace(m, -m, c)]).to(device)
    linked, again, _ = k.backward_sums(dy, x, mean, rstd, w, more)
    close(linked, sums.double() + more.double(), 1e-6)
    assert w is None or torch.equal(again, of_weights[0])  # of this batch alone
    a, b = (v.double().view(1, -1, 1, 1) / m for v in linked)
    slope = rstd64 if w is None else rstd64 * w.double().view(1, -1, 1, 1)
    dx = slope * (dy.double() - a - centred * rstd64**2 * b)
    close(k.backward_input(dy, x, mean, rstd, w, linked), dx, 2 * rough)
    close(k.backward_input(dy, x, mean, rstd, w, None), slope * dy.double(), rough)


def running_statistics_are_torchs(momentum: float | None, device: str) -> None:
    """Three batches by the kernels, and by the layer's own forward pass in float64."""
    layer = nn.BatchNorm2d(10, momentum=momentum).to(device)
    plain = nn.BatchNorm2d(10, momentum=momentum).double()
    for seed in range(3):
        x = images((6, 10, 5, 5), torch.float32, device, seed, offset=seed)
        y = batchnorm._quick(layer, x)
        close(y, plain(x.double().cpu()), 1e-5)
    close(layer.running_mean, plain.running_mean, 1e-6)
    close(layer.running_var, plain.running_var, 1e-6)
    assert int(layer.num_batches_tracked) == 3


def main() -> None:
    for case in CASES:
        kernels_equal_float64(case, "cpu")
        print(case)
    batchnorm._kernels_of, batchnorm._usable = lambda bn: batchnorm_kernels, lambda kernels, *_: kernels
    for momentum in (0.3, None):
        running_statistics_are_torchs(momentum, "cpu")
        print("running statistics, momentum", momentum)


if __name__ == "__main__":
    main()
