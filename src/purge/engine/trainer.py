"""Training: base models, retrained references and many small models at once, all by one loop.

SGD with Nesterov momentum. On a GPU: bf16, channels last, images and their augmentation on the device;
nothing is read from it between two epochs. With a state file a killed training resumes after its last
epoch; on the CPU the result is then bit-identical.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from purge.core.errors import MethodError
from purge.core.progress import progress_line
from purge.core.settings import normalise, setting
from purge.data.augmented import Augment, Augmentation, Drawn
from purge.data.samples import Samples, few
from purge.engine.context import Context
from purge.engine.cuda_graph import Recorded, Scalars
from purge.engine.dist import Ranks
from purge.engine.losses import full
from purge.engine.optimizer import CHECKPOINT, MICRO_BATCH, backward_in_parts, check_micro_batch
from purge.engine.precision import has_bf16, laid_out
from purge.engine.resume import TrainingState, identity
from purge.engine.seeding import apart
from purge.models.batchnorm import statistics
from purge.models.checkpoint import tensors_of
from purge.models.forward import EVAL_BATCH, Rows, forward, logits, rows_of
from purge.models.inspect import device_of
from purge.models.recompute import recomputed

History = list[dict[str, float]]  # one row per epoch
Watch = Callable[[nn.Module, int, Tensor], AbstractContextManager[None]]  # model, step, rows of its samples


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    epochs: int = setting(30, "passes over the training data", low=1)
    lr: float = setting(0.1, "peak learning rate", above=0, high=1e38)
    batch_size: int = setting(128, "samples per step", low=1)
    momentum: float = setting(0.9, "Nesterov momentum", low=0, high=0.999)
    weight_decay: float = setting(5e-4, "weight decay", low=0)
    schedule: Literal["one-cycle", "cosine"] = setting("one-cycle", "learning rate schedule")
    augment: Augment = setting(
        "none", "random changes of images: crop (shift by up to an eighth), flip, both, or turn (8 ways)"
    )
    colour: float = setting(
        0.0, "random gain and shift of each colour channel, up to this share of its spread", low=0, high=1
    )
    label_smoothing: float = setting(0.0, "share of each label spread over all classes", low=0, high=0.99)
    ema: float = setting(
        0.0, "decay of the moving average of the weights that is returned; 0: off", low=0, high=0.99999
    )
    precision: Literal["float32", "bf16"] | None = setting(None, "none: bf16 on a GPU that has it")
    channels_last: bool | None = setting(None, "memory layout of convolutions; none: on a GPU")
    compile: bool = setting(False, "compile the model first: slow to start, then faster")
    graph: bool = setting(False, "record a step as a CUDA graph and replay it: for models without branches")
    micro_batch: int | None = setting(None, MICRO_BATCH, low=1)
    checkpoint_activations: bool = setting(False, CHECKPOINT)

    def __post_init__(self) -> None:
        normalise(self)
        if self.checkpoint_activations and self.compile:
            raise MethodError("compile or checkpoint_activations", "both", "leave one of them out")

    @property
    def augmentation(self) -> Augmentation:
        """How images are changed at random."""
        return Augmentation(self.augment, self.colour)

    def batches(self, samples: int) -> tuple[int, int]:
        """The steps of an epoch over so many samples, and the size of each batch; all batches are full.

        >>> Recipe(batch_size=32).batches(100), Recipe(batch_size=32).batches(20)
        ((3, 32), (1, 20))
        """
        size = min(self.batch_size, samples)
        return samples // size, size


def fit(
    models: Sequence[nn.Module],
    samples: Sequence[Samples],
    recipe: Recipe,
    context: Context | None = None,
    *,
    seeds: Sequence[int],
    title: str = "train",
    state: Path | None = None,
    resume: bool = True,
    shuffle: Callable[[int], Tensor] | None = None,
    watch: Watch | None = None,
) -> tuple[list[History], float]:
    """Train models of one architecture in place: the losses of each epoch, for each model, and the seconds.

    Several models, each on its own samples, are stacked and trained at once. Each takes the steps it would
    take alone, up to rounding, but ``compile``, ``channels_last``, ``micro_batch`` and
    ``checkpoint_activations`` are ignored; with several ranks, ``compile`` and ``graph`` are.

    ``state``: a file that is written after each epoch, and with ``resume`` gone on from if it is there.
    ``shuffle``: gives the order of the samples in an epoch, in place of the seed.
    ``watch``: returns a context that every step is taken in.
    """
    context = context or Context(device_of(models[0]))
    ranks, model, n = context.ranks, models[0], len(samples[0])
    check_micro_batch(model, recipe.micro_batch)
    per_epoch, size = recipe.batches(n)
    network = _Network(models, recipe, ranks, rows=size)
    rate = {"one-cycle": one_cycle, "cosine": cosine}[recipe.schedule]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    kept = None
    if state is not None:
        same = identity(model, samples[0], recipe, seeds[0])
        kept = TrainingState(state, same, model, network.optimizer, network.mean, generators[0], context)
    with (
        closing(kept) if kept is not None else nullcontext(),
        network.ready(samples[0]),
        progress_line(title, recipe.epochs, context.progress) as advance,
    ):
        losses, before = kept.restore(resume) if kept is not None else ([], 0.0)
        started = time.perf_counter() - before
        advance(len(losses), "")
        take_step = Recorded(network.step, model=model, enabled=network.recorded)
        before_now = len(losses) * per_epoch * size // ranks.world  # in the epochs before an interruption
        rows_of(model).add(Rows(graded=before_now))
        for epoch in range(len(losses), recipe.epochs):
            loss_sum = torch.zeros((), device=network.device)
            if ranks.world > 1:
                apart(seeds[0], epoch, ranks.rank, device=network.device)  # each draws for its own rows
            batches = _batches(
                samples, recipe, generators, ranks, network.device, shuffle and partial(shuffle, epoch)
            )
            for i, (rows, (x, y)) in enumerate(batches):
                step = epoch * per_epoch + i
                network.set_rate(recipe.lr * rate(step, recipe.epochs * per_epoch))
                with nullcontext() if watch is None else watch(model, step, rows):
                    taken = take_step(x, y)
                loss_sum = loss_sum + taken["loss"]  # type: ignore[operator]
                network.average(step)
                if context.each is not None:
                    context.each(step + 1, recipe.epochs * per_epoch)
            losses.append(ranks.sum(loss_sum) / per_epoch)
            if kept is not None:
                kept.write(losses, time.perf_counter() - started)
            if context.tell is not None:
                context.tell(epoch + 1, {"loss": float(losses[-1])})
            advance(1, "")
    network.finish()
    means = torch.stack(losses).view(recipe.epochs, -1).T.tolist()  # waits for the device
    histories = [[{"epoch": i + 1, "loss": loss} for i, loss in enumerate(row)] for row in means]
    return histories, time.perf_counter() - started


class _Network:
    """What is trained: one model, or several of one architecture with their weights stacked."""

    def __init__(self, models: Sequence[nn.Module], recipe: Recipe, ranks: Ranks, rows: int) -> None:
        self._ranks, self._share = ranks, ranks.share(rows)
        self.models, self.device, self.alone = models, device_of(models[0]), len(models) == 1
        self._recipe, self._code, self._stacked = recipe, models[0], dict[str, Tensor]()
        self._bf16 = recipe.precision == "bf16" or (recipe.precision is None and has_bf16(self.device))
        self.checkpointed = recipe.checkpoint_activations and self.alone
        on_gpu, one = self.device.type == "cuda", ranks.world == 1
        self.recorded = recipe.graph and self.alone and not recipe.compile and on_gpu and one
        for model in models:
            model.train()
        if self.alone:
            self._parameters = list(models[0].parameters())
            self.loss = partial(self._loss, None)
            if recipe.compile and one:
                self._code = torch.compile(models[0])  # type: ignore[assignment]
        else:
            params, buffers = torch.func.stack_module_state(list(models))
            self._parameters, self._stacked = list(params.values()), {**params, **buffers}
            self.loss = partial(torch.func.vmap(self._loss, randomness="different"), self._stacked)
            self._code = copy.deepcopy(models[0]).to("meta")  # its weights are handed in
            for m in self._code.modules() if self._bf16 else ():
                if isinstance(m, _BatchNorm):  # stacked, it refuses inputs of another type than its own
                    m.forward = partial(_in_float32, m)  # type: ignore[method-assign]
        # The moving average of the weights and statistics; empty without one.
        self.mean = {k: v.clone() for k, v in self._floats().items()} if recipe.ema > 0 else {}

    @contextmanager
    def ready(self, samples: Samples) -> Iterator[None]:
        """Within the block, layout, BatchNorm and cuDNN are as training on these samples wants them."""
        model, recipe, ranks, gpu = self.models[0], self._recipe, self._ranks, self.device.type == "cuda"
        with (
            laid_out(model, samples, last=recipe.channels_last if self.alone else False),
            # Of joint batches, or by kernels for steps that are recorded.
            statistics(model, "train", over=ranks.over)
            if ranks.world > 1 or self.recorded
            else nullcontext(),
            recomputed(model, few(samples)) if self.checkpointed else nullcontext(),
            cudnn.flags(
                enabled=cudnn.enabled,
                benchmark=gpu and not cudnn.deterministic,  # to try its algorithms pays off in training
                deterministic=cudnn.deterministic,
                allow_tf32=cudnn.allow_tf32,
            ),
        ):
            yield

    def _loss(self, weights: dict[str, Tensor] | None, x: Any, y: Tensor) -> Tensor:
        """The mean loss of a batch; that of stacked batches under stacked weights is (models,)."""
        # The weights are cast once per block: a step must not find those of the step before.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            z = forward(self._code, x, weights)
        loss = F.cross_entropy(full(z), y, label_smoothing=self._recipe.label_smoothing)
        return self._share * loss

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Nesterov SGD over the weights, of one or of all models."""
        momentum, decay = self._recipe.momentum, self._recipe.weight_decay
        lr = torch.tensor(self._recipe.lr, device=self.device) if self.recorded else self._recipe.lr
        form = {"nesterov": momentum > 0, "fused": self.device.type == "cuda"}
        return torch.optim.SGD(self._parameters, lr, momentum, weight_decay=decay, **form)

    def set_rate(self, lr: float) -> None:
        """The learning rate of the next step; that of a recorded one lies on the device."""
        if self.recorded:
            self.optimizer.param_groups[0]["lr"].fill_(lr)
        else:
            self.optimizer.param_groups[0]["lr"] = lr

    def step(self, x: Any, y: Tensor) -> Scalars:
        """One step of every model."""
        if self.alone and self._recipe.micro_batch is not None:
            self.optimizer.zero_grad()
            loss = backward_in_parts(self.loss, x, y, self._recipe.micro_batch)
        else:
            loss = self.loss(x, y)
            self.optimizer.zero_grad()
            loss.backward(torch.ones_like(loss))  # no model has a part in the loss of another
        self._ranks.sum_grads(self._parameters)
        self.optimizer.step()
        return {"loss": loss}

    def _floats(self) -> dict[str, Tensor]:
        """The weights and the statistics of BatchNorm as they are now, by name."""
        tensors = self._stacked or tensors_of(self.models[0])
        return {k: v.detach() for k, v in tensors.items() if v.is_floating_point()}

    def average(self, step: int) -> None:
        """Take the weights after a step into their moving average."""
        if self.mean:
            decay = min(self._recipe.ema, (1 + step) / (10 + step))
            torch._foreach_lerp_([*self.mean.values()], [*self._floats().values()], 1 - decay)

    def finish(self) -> None:
        """Give every model its weights, or their moving average, and set it to evaluation mode."""
        for i, model in enumerate(self.models):
            final = {k: v if self.alone else v[i] for k, v in {**self._stacked, **self.mean}.items()}
            if final:
                model.load_state_dict(final, strict=False)
            model.eval()


def _in_float32(norm: _BatchNorm, x: Tensor) -> Tensor:
    return type(norm).forward(norm, x.float()).to(x.dtype)


def _batches(
    samples: Sequence[Samples],
    recipe: Recipe,
    generators: Sequence[torch.Generator],
    ranks: Ranks,
    device: torch.device,
    shuffle: Callable[[], Tensor] | None,
) -> Iterator[tuple[Tensor, tuple[Any, Tensor]]]:
    """The batches of an epoch with their rows in the first set; those of several sets are stacked."""
    per_epoch, size = recipe.batches(n := len(samples[0]))
    orders = [torch.randperm(n, generator=g) if shuffle is None else shuffle() for g in generators]
    orders = [order[: per_epoch * size].view(per_epoch, size) for order in orders]
    changed = [
        own.replaced(change=Drawn(recipe.augmentation, g)) for own, g in zip(samples, generators, strict=True)
    ]
    if len(changed) == 1:
        yield from zip(orders[0], ranks.stream(changed[0], orders[0].to(device)), strict=True)
        return
    streams = [own.stream(order.to(device)) for own, order in zip(changed, orders, strict=True)]
    for rows, *several in zip(orders[0], *streams, strict=True):
        yield rows, tree_map(lambda *parts: torch.stack(parts), *several)


def one_cycle(step: int, total: int) -> float:
    """Share of the peak learning rate: rises linearly for a quarter, then falls as a cosine.

    >>> [round(one_cycle(i, 8), 2) for i in range(8)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07]
    """
    up = max(1, total // 4)
    if step < up:
        return (step + 1) / up
    return cosine(step - up, max(1, total - up))


def cosine(step: int, total: int) -> float:
    """Share of the peak learning rate: falls as a cosine from the first step.

    >>> [round(cosine(i, 4), 2) for i in range(4)]
    [1.0, 0.85, 0.5, 0.15]
    """
    return 0.5 * (1 + math.cos(math.pi * step / total))


def diverged(model: nn.Module, samples: Samples, history: Sequence[dict[str, float]]) -> bool:
    """Whether the loss, or the model's output, is no longer finite."""
    some = torch.arange(min(len(samples), EVAL_BATCH))
    finite = torch.isfinite(logits(model, samples, some)).all()
    return not (bool(finite) and all(math.isfinite(row["loss"]) for row in history))
