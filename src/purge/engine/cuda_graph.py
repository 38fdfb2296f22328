"""A step that is recorded once and replayed: on a GPU, one launch instead of some thousand."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from purge.data.inputs import apply, leaves
from purge.models.batchnorm import steps_to_record
from purge.models.forward import Rows, rows_of
from purge.models.inspect import device_of

logger = logging.getLogger("purge")

WARM_UP = 1  # calls before recording, in which libraries start and allocate their workspaces

Scalars = dict[str, "Tensor | None"]


class Recorded:
    """Call ``fn``, a step of a model, with inputs of always the same shapes; on a GPU, by a CUDA graph.

    ``fn`` changes what it has at hand only in place, reads nothing from the device, and returns tensors by
    name. A step that cannot be recorded always runs as it is, and so does a call with other shapes.
    ``after``: another form of the same step, which runs first, warms up for this one and shares its memory.
    """

    def __init__(
        self,
        fn: Callable[..., Scalars],
        *,
        model: nn.Module,
        enabled: bool,
        after: Recorded | None = None,
    ) -> None:
        self._fn, self._model, self._enabled, self._after = fn, model, enabled, after
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Any, ...] = ()
        self._held: list[Tensor] = []  # the tensors of these inputs
        self._outputs: Scalars = {}
        self._rows = Rows()  # that go through models in each replay

    def __call__(self, *inputs: Any) -> Scalars:
        """What ``fn`` returns for these inputs."""
        self._calls += 1
        before = 0 if self._after is None else self._after._calls
        if self._enabled and self._graph is None and self._calls + before > WARM_UP:
            self._record(inputs)
        if self._graph is None:
            with steps_to_record(self._model) if self._enabled else nullcontext():
                return _detached(self._fn(*inputs))
        pairs = list(zip(self._held, leaves(inputs), strict=True))
        if any(held.shape != new.shape for held, new in pairs):
            return _detached(self._fn(*inputs))
        for held, new in pairs:
            held.copy_(new)
        self._graph.replay()
        rows_of(self._model).add(self._rows)
        return _detached({k: None if v is None else v.clone() for k, v in self._outputs.items()})

    def _record(self, inputs: tuple[Any, ...]) -> None:
        """Nothing is computed while recording; the kernels that ``fn`` launches are noted down."""
        self._inputs = apply(torch.clone, inputs)
        self._held = leaves(self._inputs)
        graph, device = torch.cuda.CUDAGraph(), device_of(self._model)
        rows, before = rows_of(self._model), copy.copy(rows_of(self._model))
        other = None if self._after is None else self._after._graph
        try:
            with (
                torch.cuda.device(device),
                torch.cuda.graph(graph, pool=None if other is None else other.pool()),
                steps_to_record(self._model),
            ):
                self._outputs = self._fn(*self._inputs)
        except RuntimeError as error:
            self._enabled, self._inputs, self._held = False, (), []
            with torch.cuda.graph(torch.cuda.CUDAGraph()):  # one that succeeds: torch's generator of random
                torch.zeros((), device=device)  # numbers would otherwise believe it is still recording
            logger.info("A step of this model cannot be recorded: %s", (str(error) or "?").splitlines()[0])
            rows.graded, rows.plain = before.graded, before.plain
            return
        self._graph = graph
        self._rows = Rows(rows.graded - before.graded, rows.plain - before.plain)
        rows.graded, rows.plain = before.graded, before.plain  # nothing was computed so far


def _detached(values: Scalars) -> Scalars:
    """Values without their graph, which could keep a step from being recorded on another stream."""
    return {k: None if v is None else v.detach() for k, v in values.items()}
