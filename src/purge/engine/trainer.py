"""Training: the base model, and the retrained reference by the same recipe.

SGD with Nesterov momentum. On a GPU: bf16, channels last, images and their augmentation on the
device, nothing read from it between two epochs. Every epoch can be kept in a file, from which a
training that was killed goes on; on the CPU it then ends bit-identically.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from purge.core.progress import progress_line
from purge.core.settings import normalise, setting
from purge.data.images import Images, draw_colours, draw_moves, recoloured
from purge.data.samples import Samples
from purge.engine.precision import has_bf16, laid_out
from purge.engine.resume import Kept, _identity
from purge.models.checkpoint import tensors_of
from purge.models.forward import EVAL_BATCH, logits, logits_of
from purge.models.inspect import device_of

Augment = Literal["none", "crop", "flip", "crop-flip", "turn"]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    epochs: int = setting(30, "passes over the training data", low=1)
    lr: float = setting(0.1, "peak learning rate", above=0, high=1e38)
    batch_size: int = setting(128, "samples per step", low=1)
    momentum: float = setting(0.9, "Nesterov momentum", low=0, high=0.999)
    weight_decay: float = setting(5e-4, "weight decay", low=0)
    schedule: Literal["one-cycle", "cosine"] = setting("one-cycle", "how the rate rises and falls")
    augment: Augment = setting(
        "none", "random moves of images: crop (by up to an eighth), flip, both, or turn: all eight ways"
    )
    colour: float = setting(
        0.0, "random gain and shift of each colour of an image, up to this share of its spread", low=0, high=1
    )
    label_smoothing: float = setting(0.0, "share of each label spread over all classes", low=0, high=0.99)
    ema: float = setting(
        0.0, "decay of the mean of the weights that is kept in the end; 0: off", low=0, high=0.99999
    )
    precision: Literal["float32", "bf16"] | None = setting(None, "none: bf16 on a GPU that has it")
    channels_last: bool | None = setting(None, "memory layout of convolutions; none: on a GPU")
    compile: bool = setting(False, "compile the model first: slow to start, then faster")

    def __post_init__(self) -> None:
        normalise(self)


class Updates(Protocol):
    """Who wants to see every step of a training: see :class:`purge.methods.amnesiac.UpdateLog`."""

    def before(self, model: nn.Module, step: int, index: Tensor) -> None:
        """Step ``step`` is about to be taken with the samples at ``index`` (on the CPU)."""

    def after(self, model: nn.Module) -> None:
        """The step has been taken."""

    def finish(self, model: nn.Module) -> None:
        """The training is over; ``model`` is what it returns."""


def fit(
    model: nn.Module,
    samples: Samples,
    recipe: Recipe,
    *,
    seed: int,
    progress: bool,
    title: str,
    state: Path | None = None,
    shuffle: Callable[[int], Tensor] | None = None,
    updates: Updates | None = None,
) -> tuple[list[dict[str, float]], float]:
    """Train ``model`` in place; the mean loss of each epoch and the seconds of them all are returned.

    With ``state``, each epoch is written to that file, and a file that is there is gone on from.
    ``shuffle`` gives the order of the samples in an epoch, by default drawn from the seed;
    ``updates`` is told of every step.
    """
    n, device = len(samples), device_of(model)
    size = min(recipe.batch_size, n)
    per_epoch = max(1, n // size)  # the last, smaller batch is left out: BatchNorm dislikes it
    total = recipe.epochs * per_epoch
    gpu = device.type == "cuda"
    bf16 = recipe.precision == "bf16" or (recipe.precision is None and has_bf16(device))
    rate = {"one-cycle": one_cycle, "cosine": cosine}[recipe.schedule]
    generator = torch.Generator().manual_seed(seed)
    kept = Kept(state, _identity(model, samples, recipe, seed)) if state is not None else None
    optimizer = torch.optim.SGD(
        model.parameters(),
        recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
        fused=gpu,
    )
    mean = {k: v.detach().clone() for k, v in _floats(model).items()} if recipe.ema > 0 else {}
    model.train()
    forward = torch.compile(model) if recipe.compile else model
    with (
        closing(kept) if kept is not None else nullcontext(),
        laid_out(model, samples, last=recipe.channels_last),
        _fastest(device),
        progress_line(title, recipe.epochs, progress) as advance,
    ):
        losses, before = kept.restore(model, optimizer, mean, generator) if kept is not None else ([], 0.0)
        started = time.perf_counter() - before
        advance(len(losses), "")
        for epoch in range(len(losses), recipe.epochs):
            loss_sum = torch.zeros((), device=device)
            drawn = torch.randperm(n, generator=generator) if shuffle is None else shuffle(epoch)
            order = drawn[: per_epoch * size].view(per_epoch, size)
            for i, (x, y) in enumerate(_batches(samples, order.to(device), recipe, generator)):
                step = epoch * per_epoch + i
                if updates is not None:
                    updates.before(model, step, order[i])
                optimizer.param_groups[0]["lr"] = recipe.lr * rate(step, total)
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):  # keeps casts until it ends
                    z = logits_of(forward(x)).float()
                loss = F.cross_entropy(z, y, label_smoothing=recipe.label_smoothing)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if updates is not None:
                    updates.after(model)
                loss_sum += loss.detach()
                if mean:
                    _average(mean, model, min(recipe.ema, (1 + step) / (10 + step)))
            losses.append(loss_sum / per_epoch)
            if kept is not None:
                kept.write(model, optimizer, mean, generator, losses, time.perf_counter() - started)
            advance(1, "")
    if mean:
        model.load_state_dict(mean, strict=False)
    model.eval()
    if updates is not None:
        updates.finish(model)
    history = [{"epoch": i + 1, "loss": float(v)} for i, v in enumerate(losses)]  # waits for the device
    return history, time.perf_counter() - started


@contextmanager
def _fastest(device: torch.device) -> Iterator[None]:
    """CuDNN tries its algorithms for shapes it has not met yet, which pays in a training."""
    cudnn = torch.backends.cudnn
    with cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=device.type == "cuda" and not cudnn.deterministic,
        deterministic=cudnn.deterministic,
        allow_tf32=cudnn.allow_tf32,
    ):
        yield


def _batches(
    samples: Samples, order: Tensor, recipe: Recipe, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of an epoch, as the recipe moves and colours them."""
    if not isinstance(samples, Images):
        return samples.stream(order)
    moves, augment = None, recipe.augment
    if augment != "none":
        pad = math.ceil(min(samples.pixel_shape[1:]) / 8) if "crop" in augment else 0
        turn = augment == "turn"
        drawn = draw_moves(
            order.numel(), pad=pad, flip=turn or "flip" in augment, turn=turn, generator=generator
        )
        moves = drawn.to(order.device).view(*order.shape, -1)
    stream = samples.stream(order, moves)
    if recipe.colour == 0:
        return stream
    channels = samples.pixel_shape[0]
    colours = draw_colours(order.numel(), channels, recipe.colour, generator).to(order.device)
    each = colours.view(*order.shape, channels, 2)
    return ((recoloured(x, c), y) for (x, y), c in zip(stream, each, strict=True))


def one_cycle(step: int, total: int) -> float:
    """Share of the peak learning rate: up in a straight line for a quarter, then down as a cosine.

    >>> [round(one_cycle(i, 8), 2) for i in range(8)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    up = max(1, total // 4)
    if step < up:
        return (step + 1) / up
    return cosine(step - up, max(1, total - up))


def cosine(step: int, total: int) -> float:
    """Share of the peak learning rate: down as a cosine from the first step.

    >>> [round(cosine(i, 4), 2) for i in range(4)]
    [1.0, 0.85, 0.5, 0.15]
    """
    return 0.5 * (1 + math.cos(math.pi * step / total))


def _floats(model: nn.Module) -> dict[str, Tensor]:
    return {k: v for k, v in tensors_of(model).items() if v.is_floating_point()}


@torch.no_grad()
def _average(mean: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    torch._foreach_lerp_(list(mean.values()), list(_floats(model).values()), 1 - decay)


def diverged(model: nn.Module, samples: Samples, history: list[dict[str, float]]) -> bool:
    """Did the loss, or what the model now returns, stop being numbers?"""
    few = torch.arange(min(len(samples), EVAL_BATCH))
    finite = torch.isfinite(logits(model, samples, few)).all()
    return not (bool(finite) and all(math.isfinite(row["loss"]) for row in history))


# -- going on after having been killed --------------------------------------------------------


# -- many small models at once ----------------------------------------------------------------


def fit_together(
    models: Sequence[nn.Module],
    samples: Sequence[Samples],
    recipe: Recipe,
    *,
    seeds: Sequence[int],
) -> list[list[dict[str, float]]]:
    """Train models of one architecture at once, in place, each on samples of its own, equally many.

    Each takes the steps that :func:`fit` would take with its seed, up to rounding (dropout draws other
    numbers), and the losses of its epochs are returned. For small models one operation on all of them
    costs little more than on one. ``ema``, ``compile`` and ``channels_last`` are not looked at: means and
    compiled code are those of a single model, and the weights of many convolutions have no such layout.
    """
    device, many, n = device_of(models[0]), len(models), len(samples[0])
    size = min(recipe.batch_size, n)
    per_epoch = max(1, n // size)
    total = recipe.epochs * per_epoch
    gpu = device.type == "cuda"
    bf16 = recipe.precision == "bf16" or (recipe.precision is None and has_bf16(device))
    rate = {"one-cycle": one_cycle, "cosine": cosine}[recipe.schedule]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    for model in models:
        model.train()
    params, buffers = torch.func.stack_module_state(list(models))
    shell = copy.deepcopy(models[0]).to("meta")  # the code of the model; its weights are handed in
    for m in shell.modules() if bf16 else ():
        if isinstance(m, _BatchNorm):  # of many at once it is not made for inputs of another type
            m.forward = partial(_in_float32, m)  # type: ignore[method-assign]

    def forward(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return logits_of(torch.func.functional_call(shell, (params, buffers), (x,)))

    together = torch.func.vmap(forward, randomness="different")
    optimizer = torch.optim.SGD(
        params.values(),
        recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
        fused=gpu,
    )
    losses: list[Tensor] = []
    for epoch in range(recipe.epochs):
        loss_sum = torch.zeros(many, device=device)
        streams = []
        for own, generator in zip(samples, generators, strict=True):
            order = torch.randperm(n, generator=generator)[: per_epoch * size].view(per_epoch, size)
            streams.append(_batches(own, order.to(device), recipe, generator))
        for i, batches in enumerate(zip(*streams, strict=True)):
            x, y = (torch.stack(parts) for parts in zip(*batches, strict=True))  # (models, batch, …)
            optimizer.param_groups[0]["lr"] = recipe.lr * rate(epoch * per_epoch + i, total)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                z = together(params, buffers, x).float()
            each = F.cross_entropy(
                z.flatten(0, 1), y.flatten(), label_smoothing=recipe.label_smoothing, reduction="none"
            )
            loss = each.view(many, size).mean(1)
            optimizer.zero_grad()
            loss.sum().backward()  # no model is in the loss of another
            optimizer.step()
            loss_sum += loss.detach()
        losses.append(loss_sum / per_epoch)
    for i, model in enumerate(models):
        model.load_state_dict({k: v[i] for k, v in {**params, **buffers}.items()}, strict=False)
        model.eval()
    means = torch.stack(losses, 1).tolist()
    return [[{"epoch": i + 1, "loss": v} for i, v in enumerate(row)] for row in means]


def _in_float32(norm: _BatchNorm, x: Tensor) -> Tensor:
    return type(norm).forward(norm, x.float()).to(x.dtype)
