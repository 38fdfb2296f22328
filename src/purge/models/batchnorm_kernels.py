"""BatchNorm of channels-last images on a GPU by Triton kernels.

An image batch with channels last is a matrix (m, C), m = N·H·W, whose rows lie one after another. A kernel
cuts it into tiles of ``rows`` × ``cols``; all arithmetic is in float32. A reduction over rows has two
stages: each program takes every P-th tile and writes what it found to row p of (P, C) partial results, then
a small kernel combines these. There are no atomic operations, so that results are the same in every run.
Nothing is read from the device: a CUDA graph can record the kernels.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from purge.core.errors import first_line

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for the CPU comes without it
    triton = tl = None

logger = logging.getLogger("purge")

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SMALL = 2**18  # values; batches up to this size, a guess, stay with torch's kernels: compiling takes seconds

# Chosen by hand; trying them out, as benchmarks/batchnorm.py --sweep does, takes too long at run time. A row
# of a tile is 64 channels, in bf16 one line of 128 bytes, read 16 bytes at a time by 8 threads; with fewer
# channels it has more rows. In a reduction a thread holds 16 values of a tile: in bf16, compiled for an H200,
# 64 to 80 registers (94 where a tile juts out), while the next two tiles are on their way.
COLS = 64
REDUCE = 4096  # values of a tile in a reduction
STAGES = 3  # of them: one is worked on, the others are being fetched
ELEMENTWISE = 8192  # values of a tile in a kernel that maps values
LARGE: dict[str, Any] = {"num_warps": 8, "enable_fp_fusion": True}  # a·b + c at once, what torch's do too
FEW: dict[str, Any] = {**LARGE, "num_warps": 4}
PROGRAMS = 3  # of a reduction, per multiprocessor: as many as run there at once
PARTS = 512  # at most, in the first stage; a power of two, as the second stage holds them in one tile
CHANNELS = 8  # per program of the second stage: 32 bytes, the least that memory hands out


class RunningStatistics(NamedTuple):
    """The running statistics of a layer, which are updated in place."""

    mean: Tensor
    var: Tensor
    momentum: float | None  # none: the cumulative average over ``batches``
    batches: Tensor  # seen so far, this one included


def usable(x: Tensor, *per_channel: Tensor | None) -> bool:
    """Can the kernels take this batch, and these tensors of one value per channel?"""
    return (
        x.is_cuda
        and x.ndim == 4
        and x.numel() > SMALL
        and x.dtype in DTYPES
        and x.is_contiguous(memory_format=torch.channels_last)
        and all(
            v is None or (v.device == x.device and v.shape == x.shape[1:2] and v.is_contiguous())
            for v in per_channel
        )
        and _works(x.device)
    )


_tried: dict[torch.device, bool] = {}


def _works(device: torch.device) -> bool:
    """Do the kernels compile for this device? Tried once: Triton needs a C compiler, among others."""
    if device not in _tried:
        if torch.cuda.is_current_stream_capturing():
            return False  # no time to try things
        try:
            if triton is not None:
                _try(device)
            _tried[device] = triton is not None
        except Exception as error:  # whatever a compiler, a driver or Triton itself may raise
            _tried[device] = False
            logger.info("BatchNorm runs by torch's own kernels on %s: %s", device, first_line(error))
    return _tried[device]


def _try(device: torch.device) -> None:
    """Run every kernel once, on a batch that is all ones."""
    with torch.no_grad(), torch.cuda.device(device):
        x = torch.ones(2, COLS, 8, 8, device=device, dtype=torch.bfloat16)
        x = x.contiguous(memory_format=torch.channels_last)
        one = torch.ones(COLS, device=device)
        mean, rstd = moments(x, 1e-5)
        transform(x, mean, rstd, one, one)
        sums, _, _ = backward_sums(x, x, mean, rstd, one)
        backward_input(x, x, mean, rstd, one, sums)


def moments(x: Tensor, eps: float, running: RunningStatistics | None = None) -> tuple[Tensor, Tensor]:
    """Mean and 1/√(variance + eps) of each channel, (C,) in float32; updates the running statistics."""
    cut = _cut_of(x, REDUCE)
    parts = torch.empty(2, cut.parts, cut.c, device=x.device, dtype=torch.float32)
    mean, rstd = (torch.empty(cut.c, device=x.device, dtype=torch.float32) for _ in range(2))
    kept = (None, None, None) if running is None else (running.mean, running.var, running.batches)
    momentum = None if running is None else running.momentum
    with torch.cuda.device_of(x):
        _moments_of_parts[cut.reduction](
            x, parts, cut.m, cut.c, cut.tiles, cut.rows, cut.cols, cut.even, STAGES, **LARGE
        )
        _moments[cut.combination](
            parts, mean, rstd, *kept, cut.m, cut.c, cut.tiles, cut.parts, eps, momentum or 0.0,
            momentum is None, cut.rows, cut.padded, CHANNELS, **cut.combining,
        )  # fmt: skip
    return mean, rstd


def transform(x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x − mean)·rstd·weight + bias, in the type and layout of x."""
    y, cut = torch.empty_like(x), _cut_of(x, ELEMENTWISE)
    with torch.cuda.device_of(x):
        _transform[cut.each](
            x, y, mean, rstd, weight, bias, cut.m, cut.c, cut.rows, cut.cols, cut.even, **LARGE
        )
    return y


def backward_sums(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, more: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Σdy and Σdy·(x − mean) per channel, (2, C), plus ``more``; and the gradients of weight and bias."""
    cut = _cut_of(x, REDUCE)
    parts = torch.empty(2, cut.parts, cut.c, device=x.device, dtype=torch.float32)
    sums = torch.empty(2, cut.c, device=x.device, dtype=torch.float32)
    dw, db = (None, None) if weight is None else (torch.empty_like(weight), torch.empty_like(weight))
    with torch.cuda.device_of(x):
        _sums_of_parts[cut.reduction](
            dy, x, mean, parts, cut.m, cut.c, cut.tiles, cut.rows, cut.cols, cut.even, STAGES, **LARGE
        )
        _sums[cut.combination](
            parts, rstd, more, sums, dw, db, cut.c, cut.parts, cut.padded, CHANNELS, **cut.combining
        )
    return sums, dw, db


def backward_input(
    dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, sums: Tensor | None
) -> Tensor:
    """The gradient of x: weight·rstd·(dy − (a + (x − mean)·rstd²·b)/m) with a, b = sums; none: zeros."""
    dx, cut = torch.empty_like(x), _cut_of(x, ELEMENTWISE)
    with torch.cuda.device_of(x):
        _backward_input[cut.each](
            dy, x, dx, mean, rstd, weight, sums, cut.m, cut.c, cut.rows, cut.cols, cut.even, **LARGE
        )
    return dx


class _Cut(NamedTuple):
    """How a batch is cut into tiles, and these are dealt out to programs."""

    m: int
    c: int
    rows: int
    cols: int
    tiles: int  # one below another
    parts: int  # programs that share the tiles of the same channels
    padded: int  # a power of two from there on; of two such, so that few kernels are compiled
    even: bool  # no tile juts out
    reduction: tuple[int, int]  # the grids of programs
    each: tuple[int, int]
    combination: tuple[int]
    combining: dict[str, Any]  # settings of the second stage


def _cut_of(x: Tensor, values: int) -> _Cut:
    c, cuda = x.shape[1], x.device.type == "cuda"  # Triton's interpreter, for tests, runs on the CPU
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if cuda else 2
    return _cut(x.numel() // c, c, values, PROGRAMS * processors)


@cache
def _cut(m: int, c: int, values: int, programs: int) -> _Cut:
    cols = min(COLS, 1 << (c - 1).bit_length())
    rows, across = values // cols, -(-c // cols)
    tiles = -(-m // rows)
    most = max(1, min(PARTS, programs // across))
    parts = -(-tiles // -(-tiles // most))  # as few as do not take longer: each gets equally many tiles
    padded = 64 if parts <= 64 else PARTS
    even = m % rows == 0 == c % cols
    return _Cut(
        m, c, rows, cols, tiles, parts, padded, even, (parts, across), (tiles, across),
        (-(-c // CHANNELS),), FEW if padded < PARTS else LARGE,
    )  # fmt: skip


def _jit(kernel: Any) -> Any:
    """Compiled at its first launch; only types and the divisibility of the number of channels matter."""
    fixed = ("m", "tiles", "parts_n", "eps", "momentum")
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    if triton is None:
        return kernel
    return triton.jit(kernel, do_not_specialize=[n for n in fixed if n in names])


@_jit
def _moments_of_parts(
    x, parts, m, c, tiles,
    rows: tl.constexpr, cols: tl.constexpr, even: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """First stage: mean and Σ(x − mean)² of each channel over every P-th tile.

    Each place of the tile keeps its own mean by Welford's recurrence; at the end those of a channel are
    combined. No difference of large numbers is taken.
    """
    p, n_parts = tl.program_id(0), tl.num_programs(0)
    row, col = tl.arange(0, rows), tl.program_id(1) * cols + tl.arange(0, cols)
    within = row[:, None] * c + col[None, :]
    x += p.to(tl.int64) * rows * c
    further = n_parts.to(tl.int64) * rows * c
    left = m - p * rows  # rows from here on
    seen = 0.0
    mean = tl.zeros([rows, cols], tl.float32)
    square = tl.zeros([rows, cols], tl.float32)
    for _ in tl.range(p, tiles, n_parts, num_stages=stages):
        seen += 1.0
        if even:
            v = tl.load(x + within).to(tl.float32)
            d = v - mean
        else:
            there = (row < left)[:, None] & (col < c)[None, :]
            v = tl.load(x + within, mask=there, other=0.0).to(tl.float32)
            d = tl.where(there, v - mean, 0.0)
        mean += d * (1.0 / seen)
        square += d * (v - mean)
        x += further
        left -= n_parts * rows
    left += n_parts * rows  # in the last tile, the only one that may jut out
    n = tl.where(row < left, seen, seen - 1.0)[:, None]
    all_n = tl.sum(n, 0)
    middle = tl.sum(n * mean, 0) / all_n
    off = mean - middle[None, :]
    spread = tl.sum(square + n * off * off, 0)
    to = parts + p * c + col
    tl.store(to, middle, mask=col < c)
    tl.store(to + n_parts * c, spread, mask=col < c)


@_jit
def _moments(
    parts, mean, rstd, running_mean, running_var, batches,
    m, c, tiles, parts_n, eps, momentum,
    cumulative: tl.constexpr, rows: tl.constexpr, padded: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Second stage: the moments of all rows from those of the parts, by Chan's formula."""
    p, col = tl.arange(0, padded), tl.program_id(0) * channels + tl.arange(0, channels)
    here = col < c
    there = (p < parts_n)[:, None] & here[None, :]
    at = parts + p[:, None] * c + col[None, :]
    means = tl.load(at, mask=there, other=0.0)
    squares = tl.load(at + parts_n * c, mask=there, other=0.0)
    n = (tiles - p + parts_n - 1) // parts_n * rows
    n = tl.where(p == (tiles - 1) % parts_n, n - (tiles * rows - m), n)
    n = tl.where(p < parts_n, n, 0).to(tl.float32)[:, None]
    total = m.to(tl.float32)
    middle = tl.sum(n * means, 0) / total
    off = means - middle[None, :]
    spread = tl.sum(squares + n * off * off, 0)
    tl.store(mean + col, middle, mask=here)
    tl.store(rstd + col, tl.rsqrt(spread / total + eps), mask=here)
    if running_mean is not None:
        share = momentum
        if cumulative:
            share = 1.0 / tl.load(batches).to(tl.float32)
        old = tl.load(running_mean + col, mask=here).to(tl.float32)
        tl.store(running_mean + col, (1.0 - share) * old + share * middle, mask=here)
        old = tl.load(running_var + col, mask=here).to(tl.float32)
        tl.store(running_var + col, (1.0 - share) * old + share * (spread / (total - 1.0)), mask=here)


@_jit
def _transform(
    x, y, mean, rstd, weight, bias, m, c,
    rows: tl.constexpr, cols: tl.constexpr, even: tl.constexpr,
):  # fmt: skip
    # From the last tile to the first: what the reduction before it read last is still in the cache.
    t = tl.num_programs(0) - 1 - tl.program_id(0)
    row, col = tl.arange(0, rows), tl.program_id(1) * cols + tl.arange(0, cols)
    here = col < c
    at = t.to(tl.int64) * rows * c + row[:, None] * c + col[None, :]
    there = (row < m - t * rows)[:, None] & here[None, :]
    v = tl.load(x + at) if even else tl.load(x + at, mask=there, other=0.0)
    slope = tl.load(rstd + col, mask=here, other=0.0)
    if weight is not None:
        slope *= tl.load(weight + col, mask=here, other=0.0).to(tl.float32)
    v = (v.to(tl.float32) - tl.load(mean + col, mask=here, other=0.0)[None, :]) * slope[None, :]
    if bias is not None:
        v += tl.load(bias + col, mask=here, other=0.0).to(tl.float32)[None, :]
    if even:
        tl.store(y + at, v)
    else:
        tl.store(y + at, v, mask=there)


@_jit
def _sums_of_parts(
    dy, x, mean, parts, m, c, tiles,
    rows: tl.constexpr, cols: tl.constexpr, even: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """First stage: Σdy and Σdy·(x − mean) of each channel over every P-th tile."""
    p, n_parts = tl.program_id(0), tl.num_programs(0)
    row, col = tl.arange(0, rows), tl.program_id(1) * cols + tl.arange(0, cols)
    within = row[:, None] * c + col[None, :]
    first, further = p.to(tl.int64) * rows * c, n_parts.to(tl.int64) * rows * c
    dy += first
    x += first
    left = m - p * rows
    middle = tl.load(mean + col, mask=col < c, other=0.0)[None, :]
    a = tl.zeros([rows, cols], tl.float32)
    b = tl.zeros([rows, cols], tl.float32)
    for _ in tl.range(p, tiles, n_parts, num_stages=stages):
        if even:
            d, v = tl.load(dy + within).to(tl.float32), tl.load(x + within).to(tl.float32)
        else:
            there = (row < left)[:, None] & (col < c)[None, :]
            d = tl.load(dy + within, mask=there, other=0.0).to(tl.float32)
            v = tl.load(x + within, mask=there, other=0.0).to(tl.float32)
        a += d
        b += d * (v - middle)
        dy += further
        x += further
        left -= n_parts * rows
    to = parts + p * c + col
    tl.store(to, tl.sum(a, 0), mask=col < c)
    tl.store(to + n_parts * c, tl.sum(b, 0), mask=col < c)


@_jit
def _sums(
    parts, rstd, more, sums, dw, db, c, parts_n,
    padded: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Second stage: the sums over all rows, and what follows for weight and bias."""
    p, col = tl.arange(0, padded), tl.program_id(0) * channels + tl.arange(0, channels)
    here = col < c
    there = (p < parts_n)[:, None] & here[None, :]
    at = parts + p[:, None] * c + col[None, :]
    a = tl.sum(tl.load(at, mask=there, other=0.0), 0)
    b = tl.sum(tl.load(at + parts_n * c, mask=there, other=0.0), 0)
    if dw is not None:
        tl.store(dw + col, b * tl.load(rstd + col, mask=here), mask=here)
        tl.store(db + col, a, mask=here)
    if more is not None:
        a += tl.load(more + col, mask=here)
        b += tl.load(more + c + col, mask=here)
    tl.store(sums + col, a, mask=here)
    tl.store(sums + c + col, b, mask=here)


@_jit
def _backward_input(
    dy, x, dx, mean, rstd, weight, sums, m, c,
    rows: tl.constexpr, cols: tl.constexpr, even: tl.constexpr,
):  # fmt: skip
    t = tl.num_programs(0) - 1 - tl.program_id(0)  # the last tile first, as above
    row, col = tl.arange(0, rows), tl.program_id(1) * cols + tl.arange(0, cols)
    here = col < c
    at = t.to(tl.int64) * rows * c + row[:, None] * c + col[None, :]
    there = (row < m - t * rows)[:, None] & here[None, :]
    d = (tl.load(dy + at) if even else tl.load(dy + at, mask=there, other=0.0)).to(tl.float32)
    r = tl.load(rstd + col, mask=here, other=0.0)
    slope = r
    if weight is not None:
        slope *= tl.load(weight + col, mask=here, other=0.0).to(tl.float32)
    if sums is not None:
        v = (tl.load(x + at) if even else tl.load(x + at, mask=there, other=0.0)).to(tl.float32)
        one = 1.0 / m.to(tl.float32)
        a = tl.load(sums + col, mask=here, other=0.0) * one
        b = tl.load(sums + c + col, mask=here, other=0.0) * one * r * r
        d -= a[None, :] + (v - tl.load(mean + col, mask=here, other=0.0)[None, :]) * b[None, :]
    d *= slope[None, :]
    if even:
        tl.store(dx + at, d)
    else:
        tl.store(dx + at, d, mask=there)
