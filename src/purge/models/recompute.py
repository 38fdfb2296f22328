"""Activation checkpointing: what a block computes on its way is not kept but computed again for gradients.

It costs a second forward pass and changes no result: dropout draws the same numbers, BatchNorm normalises as
it did in the first pass, and running statistics are updated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from purge.core.errors import MethodError
from purge.data.inputs import Inputs
from purge.models.hooks import set_own
from purge.models.inspect import anatomy


@contextmanager
def recomputed(model: nn.Module, x: Inputs) -> Iterator[None]:
    """Within the block, gradients of the model's repeated blocks take a second pass through each of them.

    ``x``: a few inputs, to see which blocks there are.
    """
    names = anatomy(model, x).stack
    blocks = [m for m in map(model.get_submodule, names) if any(m.children())]
    if not blocks:
        fix = "leave checkpoint_activations out, or set a lower batch_size"
        raise MethodError("a network of repeated blocks to checkpoint", f"{len(names)} single layers", fix)
    before = _state(blocks)
    try:
        for m in blocks:
            m.forward = partial(_twice, m, m.forward)
        yield
    finally:
        for m, _, forward in before:
            set_own(m, "forward", forward)


def _twice(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    inner = [m for m in block.modules() if m is not block]
    recording = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return checkpoint(
        partial(forward, **kwargs),
        *args,
        use_reentrant=False,
        # A recording cannot keep the state of random numbers; in evaluation mode nothing draws any.
        preserve_rng_state=not recording or any(m.training for m in block.modules()),
        context_fn=lambda: (nullcontext(), _as_then(_state(inner))),
    )


State = list[tuple[nn.Module, bool, Any]]  # of each module: its training flag, and a forward of its own


def _state(modules: list[nn.Module]) -> State:
    return [(m, m.training, m.__dict__.get("forward")) for m in modules]


@contextmanager
def _as_then(state: State) -> Iterator[None]:
    """Modules as in the first pass, which has updated the running statistics: now copies are updated."""
    now = _state([m for m, *_ in state])
    norms = [m for m, training, _ in state if training and isinstance(m, _BatchNorm)]
    buffers = [dict(m._buffers) for m in norms]
    try:
        _restore(state)
        for m, own in zip(norms, buffers, strict=True):
            m._buffers.update({name: None if t is None else t.clone() for name, t in own.items()})
        yield
    finally:
        _restore(now)
        for m, own in zip(norms, buffers, strict=True):
            m._buffers.update(own)


def _restore(state: State) -> None:
    for m, training, forward in state:
        m.training = training
        set_own(m, "forward", forward)
