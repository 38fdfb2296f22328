"""BatchNorm while unlearning: frozen, shared or training statistics, and recalibration.

A step is two forward passes, one of retain and one of forget samples. With ``frozen`` statistics the
cheapest way to forget is a shift of activations that the stale statistics turn into suppression; one
pass over retain data afterwards undoes it. With ``shared`` statistics such a shift is useless: forget
samples are normalised with what the retain samples of the step look like *now*, and gradients flow
through those statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from purge.data import inputs
from purge.data.inputs import Inputs
from purge.models.forward import forward
from purge.models.hooks import marked, training_flags_kept

Norm = Literal["frozen", "shared", "train"]
Sum = Callable[[Tensor], Tensor]  # adds up a tensor over the processes that have a part of a batch each


class BatchMoments(NamedTuple):
    """What one call of a BatchNorm layer saw, per channel."""

    mean: Tensor
    rstd: Tensor  # 1 / √(variance + eps)
    link: Tensor  # (2, C): its gradient takes back how later calls depend on the two above


Seen = dict[_BatchNorm, list[BatchMoments]]  # of each layer, one entry per call


def batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers of a model that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


@contextmanager
def statistics(
    model: nn.Module, kind: Norm, like: Seen | None = None, *, leading: float = 1.0, over: Sum | None = None
) -> Iterator[Seen]:
    """Within the block, BatchNorm treats the batch of one forward pass as ``kind`` says.

    ``frozen`` uses the running statistics and leaves them alone. ``train`` normalises the batch with
    its own statistics and updates the running ones. ``shared`` normalises the retain batch with its own
    statistics, leaves the running ones alone, and yields what it saw; handed to a second block as
    ``like``, the forget batch is normalised with that, differentiably. Or both go through the model in one
    batch, of which the ``leading`` share of the rows is the retain batch. Without BatchNorm nothing happens.

    ``over``: the rows are a part of a batch, whose other parts go through the model in other processes at the
    same time; the statistics are those of the whole batch, as SyncBatchNorm's are.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    seen: Seen = {m: [] for m in layers} if like is None else {m: list(like[m]) for m in layers}
    with training_flags_kept(model):
        try:
            for m in layers:
                m.train(kind == "train")
                compute: Callable[[_BatchNorm, list[BatchMoments], Tensor], Tensor]
                if over is not None and (kind != "frozen" or m.running_mean is None):
                    # Without running statistics, a layer looks at the batch whatever the kind is.
                    compute = partial(_joint, over, leading)
                elif kind == "frozen":
                    continue
                elif kind == "train":
                    compute = _own
                else:
                    compute = partial(_led, leading) if like is None else _as_seen
                # An instance attribute shadows the class's forward and is deleted below.
                m.forward = partial(compute, m, seen[m])  # type: ignore[method-assign]
            yield seen
        finally:
            for m in layers:
                m.__dict__.pop("forward", None)


def _own(bn: _BatchNorm, _seen: list[BatchMoments], x: Tensor) -> Tensor:
    if x.numel() > x.shape[1] or bn.running_mean is None:
        return _quick(bn, x)
    # One value per channel has no variance: the running statistics serve.
    return F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, eps=bn.eps)


def _as_seen(bn: _BatchNorm, seen: list[BatchMoments], x: Tensor) -> Tensor:
    return _then(bn, _AsSeen.apply(x, bn.weight, bn.bias, bn.eps, _kernels_of(bn), *seen.pop(0)))


def _led(leading: float, bn: _BatchNorm, seen: list[BatchMoments], x: Tensor) -> Tensor:
    n, kernels = round(leading * len(x)), _kernels_of(bn)
    y, *moments = _Seeing.apply(x if leading == 1 else x[:n], bn.weight, bn.bias, bn.eps, kernels)
    if leading < 1:
        y = torch.cat([y, _AsSeen.apply(x[n:], bn.weight, bn.bias, bn.eps, kernels, *moments)])
    seen.append(BatchMoments(*moments))
    return _then(bn, y)


def _then(bn: _BatchNorm, y: Tensor) -> Tensor:
    """What a layer does after it has normalised: timm's BatchNormAct2d holds an activation, too."""
    for name in ("drop", "act"):
        if isinstance(part := getattr(bn, name, None), nn.Module):
            y = part(y)
    return y


QUICK = "_purge_quick"  # an attribute of the layers that kernels of our own compute


@contextmanager
def steps_to_record(model: nn.Module) -> Iterator[None]:
    """Within the block, BatchNorm of the model on a GPU runs by kernels of our own.

    They are faster than torch's in a recorded step; launched one by one by Python, they are slower.
    """
    with marked((m for m in model.modules() if isinstance(m, _BatchNorm)), QUICK, True):
        yield


def _quick(bn: _BatchNorm, x: Tensor) -> Tensor:
    """The layer's own forward pass; in training mode on a GPU by faster kernels, where they can do it."""
    mean, var, batches = bn.running_mean, bn.running_var, bn.num_batches_tracked
    kernels = _usable(_kernels_of(bn), x, bn.weight, bn.bias, mean, var) if bn.training else None
    usual = type(bn).forward is _BatchNorm.forward and (mean is None or batches is not None)
    if kernels is None or not usual or x.numel() == x.shape[1]:
        return type(bn).forward(bn, x)  # which may do more in a subclass, and refuses a single value
    running = None
    if bn.track_running_stats and mean is not None and batches is not None:
        batches.add_(1)
        running = kernels.RunningStatistics(mean, var, bn.momentum, batches)
    return _Seeing.apply(x, bn.weight, bn.bias, bn.eps, kernels, running)[0]  # type: ignore[no-any-return]


def _kernels_of(bn: _BatchNorm) -> Any:
    """The module of kernels for images with channels last on a GPU, if the layer's step is to be recorded."""
    if not getattr(bn, QUICK, False):
        return None
    from purge.models import batchnorm_kernels  # it imports Triton

    return batchnorm_kernels


def _usable(kernels: Any, x: Tensor, *per_channel: Tensor | None) -> Any:
    """The kernels, if there are any and they can take this batch."""
    return kernels if kernels is not None and x.is_cuda and kernels.usable(x, *per_channel) else None


class _Seeing(torch.autograd.Function):
    r"""BatchNorm of a batch by its own statistics, which later calls may depend on.

    With s = 1/√(var + eps), x̂ = (x − mean)·s and m values per channel, a loss has the gradient

    .. math:: dx = γs·(dy − (Σdy + a)/m − x̂·(Σdy·x̂ + b)/m)

    where a, b are the same sums over the batches that were normalised with this one's statistics:
    they arrive as the gradient of ``link``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, kernels: Any,
        running: Any = None,
    ) -> Any:  # fmt: skip
        x = _dense(x)
        ctx.kernels = kernels
        if kernels := _usable(kernels, x, weight, bias):
            mean, rstd = kernels.moments(x, eps, running)
            y = kernels.transform(x, mean, rstd, weight, bias)
        else:
            y, mean, rstd = torch.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)
        return y, mean, rstd, mean.new_empty(2, len(mean))  # of the last one only the gradient is read

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, _mean: None, _rstd: None, dlink: Tensor | None) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        dy = torch.zeros_like(x) if dy is None else _like(dy, x)
        if x.is_cuda:
            dx, dw, db, _ = _backward_on_gpu(ctx.kernels, dy, x, mean, rstd, weight, dlink, own=True)
        else:
            dx, dw, db = _backward(dy, x, weight, None, None, mean, rstd, True, ctx.eps, [True] * 3)
            if dlink is not None:
                dx += _through_statistics(x, dlink, x.numel() // x.shape[1], mean, rstd, weight)
        return dx, *((None, None) if weight is None else (dw, db)), None, None, None


class _Jointly(torch.autograd.Function):
    r"""The statistics of the leading rows of a batch of which each process has a part.

    How all that is normalised with them depends on them arrives as the gradient of ``link``, in each process
    for its own rows; the terms of :class:`_Seeing` with a and b then follow from the sums over the processes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float, share: float, over: Sum) -> Any:
        n, kind = round(share * len(x)), torch.float64 if x.dtype == torch.float64 else torch.float32
        own = x[:n].transpose(0, 1).reshape(x.shape[1], -1).to(kind)
        variance, mean = (t.double() for t in torch.var_mean(own, 1, correction=0))
        ones = torch.ones_like(mean)
        count, first, second = over(own.shape[1] * torch.stack([ones, mean, variance + mean.square()]))
        joint = first / count
        variance = second / count - joint.square()
        mean, rstd = joint.to(kind), (variance + eps).rsqrt().to(kind)
        ctx.save_for_backward(x, weight, mean, rstd, count)
        ctx.n, ctx.over = n, over
        ctx.mark_non_differentiable(mean, rstd, variance, count)
        ctx.set_materialize_grads(False)
        return mean, rstd, mean.new_empty(2, len(mean)), variance, count[0]

    @staticmethod
    def backward(ctx: Any, _mean: None, _rstd: None, dlink: Tensor | None, *_: None) -> Any:
        x, weight, mean, rstd, count = ctx.saved_tensors
        if dlink is None:
            return None, None, None, None, None
        dx, dlink = torch.zeros_like(x), ctx.over(dlink.contiguous().clone())
        count = count.to(rstd.dtype)
        dx[: ctx.n] = _through_statistics(x[: ctx.n], dlink, count, mean, rstd, weight).to(x.dtype)
        return dx, None, None, None, None


def _through_statistics(
    x: Tensor, dlink: Tensor, count: Tensor | int, mean: Tensor, rstd: Tensor, weight: Tensor | None
) -> Tensor:
    """The part of the gradient of x that later calls take back, −γs·(a + x̂·b)/m."""
    a, b = dlink * (rstd if weight is None else rstd * weight) / count
    slope, shift = (v.view([1, -1] + [1] * (x.ndim - 2)) for v in (-b * rstd**2, b * rstd**2 * mean - a))
    return torch.addcmul(shift, x, slope)


def _joint(over: Sum, leading: float, bn: _BatchNorm, seen: list[BatchMoments], x: Tensor) -> Tensor:
    """The layer by the statistics of the whole batch; in training mode, these update the running ones."""
    *moments, variance, count = _Jointly.apply(x, bn.weight, bn.eps, leading, over)
    seen.append(BatchMoments(*moments))
    if bn.training and bn.track_running_stats and bn.running_mean is not None and bn.running_var is not None:
        with torch.no_grad():
            share = torch.tensor(bn.momentum or 0.0, dtype=torch.float64, device=x.device)
            if bn.num_batches_tracked is not None:
                bn.num_batches_tracked.add_(1)
                share = share if bn.momentum is not None else 1 / bn.num_batches_tracked.double()
            unbiased = variance * count / (count - 1)
            for held, new in ((bn.running_mean, seen[-1].mean), (bn.running_var, unbiased)):
                held.lerp_(new.to(held.dtype), share.to(held.dtype))
    return _then(bn, _AsSeen.apply(x, bn.weight, bn.bias, bn.eps, _kernels_of(bn), *seen[-1]))


class _AsSeen(torch.autograd.Function):
    """BatchNorm by the statistics of another batch; how it depends on them goes into ``link``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, kernels: Any,
        *seen: Tensor,
    ) -> Any:  # fmt: skip
        x, (mean, rstd, _link) = _dense(x), seen
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.kernels, ctx.eps = kernels, eps
        if kernels := _usable(kernels, x, weight, bias):
            return kernels.transform(x, mean, rstd, weight, bias)
        if x.is_cuda:
            return torch.batch_norm_elemt(x, weight, bias, mean, rstd, eps)
        return F.batch_norm(x, mean, (rstd**-2 - eps).clamp_min(0), weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        dy = _like(dy, x)
        if x.is_cuda:
            dx, dw, db, sums = _backward_on_gpu(ctx.kernels, dy, x, mean, rstd, weight, None, own=False)
        else:
            variance = rstd**-2 - ctx.eps
            dx, dw, db = _backward(dy, x, weight, mean, variance, None, None, False, ctx.eps, [True] * 3)
            sums = torch.stack([db, dw / rstd])
        return dx, *((None, None) if weight is None else (dw, db)), None, None, None, None, sums


_backward = torch.ops.aten.native_batch_norm_backward


def _backward_on_gpu(
    kernels: Any, dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None,
    dlink: Tensor | None, *, own: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """The gradients of x, weight and bias, and Σdy and Σdy·(x − mean) per channel, (2, C), plus ``dlink``.

    ``own``: by statistics of x itself; otherwise ``link`` has their part.
    """
    # A gradient of the gradient (create_graph) would not see through a kernel: torch's own refuse.
    kernels = None if torch.is_grad_enabled() else _usable(kernels, x, weight)
    if kernels is not None:
        sums, dw, db = kernels.backward_sums(dy, x, mean, rstd, weight, dlink)
        dx = kernels.backward_input(dy, x, mean, rstd, weight, sums if own else None)
        return dx, dw, db, sums
    affine = weight is not None
    a, b, dw, db = torch.batch_norm_backward_reduce(dy, x, mean, rstd, weight, True, affine, affine)
    sums = torch.stack([a, b]) if dlink is None else torch.stack([a, b]) + dlink
    a, b = sums if own else torch.zeros_like(sums)
    count = torch.full((1,), x.numel() // x.shape[1], dtype=torch.int32, device=x.device)
    return torch.batch_norm_backward_elemt(dy, x, mean, rstd, weight, a, b, count), dw, db, sums


def _dense(x: Tensor) -> Tensor:
    """In one of the two layouts that kernels know."""
    return x.contiguous(memory_format=_layout(x))


def _like(dy: Tensor, x: Tensor) -> Tensor:
    """A gradient in type and layout as its tensor."""
    return dy.to(x.dtype).contiguous(memory_format=_layout(x))


def _layout(x: Tensor) -> torch.memory_format:
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Inputs]) -> None:
    """Reset the running statistics and set them to the cumulative average over ``batches``."""
    layers = batchnorms(model)
    if not layers:
        return
    momenta = [m.momentum for m in layers]
    with training_flags_kept(model):
        try:
            model.eval()
            for m in layers:
                m.reset_running_stats()
                m.momentum = None  # cumulative average
                m.train()
            for x in batches:  # a variance needs two rows: a single one is doubled
                forward(model, x if inputs.count(x) > 1 else inputs.join([x, x]))
        finally:
            for m, momentum in zip(layers, momenta, strict=True):
                m.momentum = momentum
