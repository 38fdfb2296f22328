"""The one place that calls a model: it takes any inputs and finds the logits in what comes back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from purge.core.errors import BrokenModelError, ModelError, first_line
from purge.data.inputs import apply, leaves
from purge.data.samples import Samples, in_batches
from purge.models.hooks import training_flags_kept
from purge.models.padding import padded_as

HALF = (torch.float16, torch.bfloat16)
EVAL_BATCH = 512  # samples per batch in a pass without gradients
SMALL, SMALL_BATCH = 4096, 1024  # small images go in larger batches, or a GPU waits for Python


def forward(model: nn.Module, inputs: Any, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """The logits (B, K) of a batch.

    ``inputs`` is a tensor, a dict of keyword arguments or a tuple of arguments. ``weights`` replace the
    model's own parameters and buffers for this call. Of a model with one logit z per sample, which is
    binary, they are (0, z): softmax is then its sigmoid, and cross-entropy its binary cross-entropy.

    >>> forward(nn.Linear(2, 3), torch.zeros(5, 2)).shape
    torch.Size([5, 3])
    >>> forward(nn.Linear(2, 1), torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """
    return as_classes(answered(model, inputs, weights))


def as_classes(z: Tensor) -> Tensor:
    """Logits (B, K) from what a model answered; one logit, (B, 1) or (B,), becomes two, the first of them 0.

    >>> as_classes(torch.tensor([2.0, -1.0]))
    tensor([[ 0.,  2.],
            [ 0., -1.]])
    """
    if not one_logit(z):
        return z
    one = z.reshape(-1, 1)
    return torch.cat([torch.zeros_like(one), one], 1)


def one_logit(z: Tensor) -> bool:
    """Has a model answered with one logit per sample, so that it is binary?"""
    return z.ndim < 2 or (z.ndim == 2 and z.shape[1] == 1)


def answered(model: nn.Module, inputs: Any, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """The logits as the model has them, (B, K) or one per sample; the only call of a model in the library."""
    args, kwargs, inputs = (), {}, _as_wide(inputs, model)
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    else:
        args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    rows = _counting.get()
    before = 0 if rows is None else rows.total
    try:
        with padded_as(model, args, kwargs):
            if weights is None:
                z = logits_of(model(*args, **kwargs))
            else:
                z = logits_of(torch.func.functional_call(model, dict(weights), args, kwargs))
    except SystemExit as error:  # not ours to obey: it would look like the end of the program
        got = f"a call of sys.exit({error.code!r}) in its forward"
        raise ModelError("a model that returns its logits", got, "let it raise an error instead") from error
    except OSError as error:  # the model misses a file, say: neither our files nor the caller's request
        raise BrokenModelError(
            "a model that runs", first_line(error), "give it what it reads and writes"
        ) from error
    if rows is not None and rows.total == before:  # otherwise an ensemble, whose members were counted
        rows.note(inputs, z)
    return z


def _as_wide(inputs: Any, model: nn.Module) -> Any:
    """The inputs; of half precision only if the model is too, which is computed with in float32 otherwise."""
    if not any(t.dtype in HALF for t in leaves(inputs)):
        return inputs
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return apply(lambda t: t.to(own) if t.dtype in HALF else t, inputs)


def logits_of(output: Any) -> Tensor:
    """The logits in whatever a classifier returned: a tensor, a tuple, a dict or ``.logits``.

    >>> logits_of({"logits": torch.zeros(2, 3), "loss": None}).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits")
    if found is None and isinstance(output, (tuple, list)) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise ModelError(
            "a model that returns a tensor, a tuple, a dict with 'logits' or an object with .logits",
            type(output).__name__,
            "wrap the model so that it returns its logits",
        )
    return found


@dataclass
class Rows:
    """How many rows went through models: those that a gradient can be taken of, and the others."""

    graded: int = 0
    plain: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.graded + self.plain

    def add(self, other: Rows) -> None:
        """Count the rows of another count too."""
        self.graded += other.graded
        self.plain += other.plain

    def note(self, inputs: Any, z: Tensor) -> None:
        """Count a call of a model; under ``vmap`` there are more rows than the model sees."""
        x, unwrap = leaves(inputs)[0], torch.func.debug_unwrap
        n = len(x) * (unwrap(x).numel() // x.numel() if x.numel() else 1)
        if z.requires_grad or unwrap(z).requires_grad:
            self.graded += n
        else:
            self.plain += n


_counting: ContextVar[Rows | None] = ContextVar("rows", default=None)


@contextmanager
def counting(*, apart: bool = False) -> Iterator[Rows]:
    """Count the rows that go through models within the block.

    A block around this one counts them too, unless they are kept ``apart``.

    >>> with counting() as rows:
    ...     z = forward(nn.Linear(2, 3), torch.zeros(5, 2))
    >>> rows
    Rows(graded=5, plain=0)
    """
    rows = Rows()
    before = _counting.set(rows)
    try:
        yield rows
    finally:
        _counting.reset(before)
        if not apart:
            count_more(rows)


def count_more(rows: Rows) -> None:
    """Count rows that went through a model without a call of it, as when a recorded step is replayed."""
    if (current := _counting.get()) is not None:
        current.add(rows)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module's training flag is put back afterwards."""
    with training_flags_kept(model), torch.no_grad():
        model.eval()
        yield


_at_once: ContextVar[int | None] = ContextVar("at_once", default=None)


@contextmanager
def at_once(rows: int | None) -> Iterator[None]:
    """Within the block, a pass without gradients has at most so many rows in a batch; none: as usual."""
    before = _at_once.set(rows)
    try:
        yield
    finally:
        _at_once.reset(before)


def passing(samples: Samples, index: Tensor | None = None) -> Iterator[tuple[Any, Tensor]]:
    """The samples (those at ``index``) in the batches of a pass without gradients."""
    small = (
        samples.pixel_shape is not None
        and samples.device.type == "cuda"
        and math.prod(samples.shape) <= SMALL
    )
    size = SMALL_BATCH if small else EVAL_BATCH
    return samples.stream(in_batches(samples, min(size, _at_once.get() or size), index))


def logits(model: nn.Module, samples: Samples, index: Tensor | None = None) -> Tensor:
    """The logits (N, K) of a model in evaluation mode, in float32, on the device of the run."""
    with evaluating(model):
        return torch.cat([forward(model, x).float() for x, _ in passing(samples, index)])


class HeadOnly(nn.Module):
    """A model that answers with what its head puts out, whatever the code behind the head makes of it."""

    def __init__(self, model: nn.Module, head: str) -> None:
        super().__init__()
        self.model, self.seen = model, list[Tensor]()
        model.get_submodule(head).register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self.seen[:] = [output]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The output of the head in a pass through the model."""
        self.model(*args, **kwargs)
        return self.seen.pop()
