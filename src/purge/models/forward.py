"""The one place that calls a model: it takes any inputs, finds the logits in the output, counts the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from purge.core.errors import BrokenModelError, ModelError, first_line
from purge.data.inputs import apply, leaves
from purge.data.samples import Samples, batches
from purge.models.hooks import first_tensor, marked, training_flags_kept

HALF = (torch.float16, torch.bfloat16)
EVAL_BATCH = 512  # samples per batch in a pass without gradients
SMALL, SMALL_BATCH = 4096, 1024  # small images go in larger batches, or a GPU waits for Python
# Attributes of a model within a block below; copies of it have them too.
COUNT, AT_ONCE = "_purge_rows", "_purge_at_once"


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
    return as_classes(raw_logits(model, inputs, weights))


def as_classes(z: Tensor) -> Tensor:
    """Logits (B, K) from those of a model; one logit, (B, 1) or (B,), becomes two, the first of them 0.

    >>> as_classes(torch.tensor([2.0, -1.0]))
    tensor([[ 0.,  2.],
            [ 0., -1.]])
    """
    if not one_logit(z):
        return z
    one = z.reshape(-1, 1)
    return torch.cat([torch.zeros_like(one), one], 1)


def one_logit(z: Tensor) -> bool:
    """Has a model returned one logit per sample, so that it is binary?"""
    return z.ndim < 2 or (z.ndim == 2 and z.shape[1] == 1)


def raw_logits(model: nn.Module, inputs: Any, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """The logits as the model has them, (B, K) or one per sample; the only call of a model in the library."""
    if any(t.dtype in HALF for t in leaves(inputs)):  # the model may be computed with in float32
        own = dtype_of(model)
        inputs = apply(lambda t: t.to(own) if t.dtype in HALF else t, inputs)
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else {}
    args = () if kwargs else tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    rows = rows_of(model)
    before = rows.total
    try:
        if weights is None:
            z = logits_of(model(*args, **kwargs))
        else:
            z = logits_of(torch.func.functional_call(model, dict(weights), args, kwargs))
    except SystemExit as error:  # not ours to obey: it would look like the end of the program
        got = f"a call of sys.exit({error.code!r}) in its forward"
        raise ModelError("a model that returns its logits", got, "let it raise an error instead") from error
    except OSError as error:  # the model misses a file, say: neither our files nor the caller's request
        fix = "give it what it reads and writes"
        raise BrokenModelError("a model that runs", first_line(error), fix) from error
    if rows.total == before:  # otherwise an ensemble, whose members were counted
        rows.count(inputs, z)
    return z


def dtype_of(model: nn.Module) -> torch.dtype:
    """The floating type that a model computes in: that of its first weight."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def logits_of(output: Any) -> Tensor:
    """The logits in whatever a classifier returned: a tensor, a tuple, a dict or ``.logits``.

    >>> logits_of({"logits": torch.zeros(2, 3), "loss": None}).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    z = getattr(output, "logits", None)
    if z is None:
        z = output.get("logits") if isinstance(output, Mapping) else first_tensor(output)
    if not isinstance(z, Tensor):
        what = "a model that returns a tensor, a tuple, a dict with 'logits' or an object with .logits"
        raise ModelError(what, type(output).__name__, "wrap the model so that it returns its logits")
    return z


@dataclass
class Rows:
    """The rows that went through a model and its copies, with and without a gradient to be taken of them."""

    graded: int = 0
    plain: int = 0

    def __deepcopy__(self, _memo: Any) -> Rows:
        return self  # a copy of a model counts where the model does

    @property
    def total(self) -> int:
        """All of them."""
        return self.graded + self.plain

    def add(self, other: Rows) -> None:
        """Count the rows of another count too."""
        self.graded += other.graded
        self.plain += other.plain

    def count(self, inputs: Any, z: Tensor) -> None:
        """Count a call of a model; under ``vmap`` there are more rows than the model sees."""
        x, unwrap = leaves(inputs)[0], torch.func.debug_unwrap
        n = len(x) * (unwrap(x).numel() // x.numel() if x.numel() else 1)
        if z.requires_grad or unwrap(z).requires_grad:
            self.graded += n
        else:
            self.plain += n


@contextmanager
def counting(*models: nn.Module | None) -> Iterator[Rows]:
    """Count the rows that go through these models, and through copies of them, within the block.

    A block around this one, for the same models, counts them too.

    >>> model = nn.Linear(2, 3)
    >>> with counting(model) as rows:
    ...     z = forward(model, torch.zeros(5, 2))
    >>> rows
    Rows(graded=5, plain=0)
    """
    there = [model for model in models if model is not None]
    rows = Rows()
    try:
        with marked([m for model in there for m in model.modules()], COUNT, rows):
            yield rows
    finally:
        rows_of(there[0]).add(rows)


def rows_of(model: nn.Module) -> Rows:
    """The count that a model is under; a new one, which nobody reads, if it is under none."""
    rows: Rows | None = getattr(model, COUNT, None)
    return rows or Rows()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module's training flag is put back afterwards."""
    with training_flags_kept(model), torch.no_grad():
        model.eval()
        yield


@contextmanager
def at_once(model: nn.Module, rows: int | None) -> Iterator[None]:
    """Within the block, a pass of the model without gradients takes at most so many rows in a batch."""
    with marked(model.modules(), AT_ONCE, rows):
        yield


def passing(
    samples: Samples, index: Tensor | None = None, model: nn.Module | None = None
) -> Iterator[tuple[Any, Tensor]]:
    """The samples (those at ``index``) in the batches of a pass of the model without gradients."""
    images = samples.pixel_shape is not None and samples.device.type == "cuda"
    size = SMALL_BATCH if images and math.prod(samples.shape) <= SMALL else EVAL_BATCH
    return batches(samples, min(size, getattr(model, AT_ONCE, None) or size), index)


def logits(model: nn.Module, samples: Samples, index: Tensor | None = None) -> Tensor:
    """The logits (N, K) of a model in evaluation mode, in float32, on the device of the run."""
    with evaluating(model):
        return torch.cat([forward(model, x).float() for x, _ in passing(samples, index, model)])


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
