"""A step that is recorded once and replayed: on a GPU, one launch instead of some thousand."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

logger = logging.getLogger("purge")

WARM_UP = 1  # calls before recording: libraries start, workspaces are allotted

Scalars = dict[str, "Tensor | None"]


class Recorded:
    """Call ``fn`` with tensors of always the same shapes; on a GPU, by a CUDA graph.

    ``fn`` may change what it has at hand only in place (weights, momentum), reads nothing from the
    device, and returns tensors under names. The first calls are made as they are, the next is recorded;
    from then on a call copies its inputs to where the recording expects them and replays it. A step that
    cannot be recorded (a model that looks at its own values, say) is made as it is, and so is a call with
    other shapes.
    """

    def __init__(self, fn: Callable[..., Scalars], *, device: torch.device, enabled: bool) -> None:
        self._fn, self._device, self._enabled = fn, device, enabled
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: Scalars = {}

    def __call__(self, *inputs: Tensor) -> Scalars:
        """What ``fn`` returns for these inputs."""
        self._calls += 1
        if self._enabled and self._graph is None and self._calls > WARM_UP:
            self._record(inputs)
        if self._graph is None or any(
            held.shape != new.shape for held, new in zip(self._inputs, inputs, strict=True)
        ):
            return _let_go(self._fn(*inputs))
        for held, new in zip(self._inputs, inputs, strict=True):
            held.copy_(new)
        self._graph.replay()
        return _let_go({k: None if v is None else v.clone() for k, v in self._outputs.items()})

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        """Nothing is computed while recording; ``fn`` is only watched."""
        self._inputs = [x.clone() for x in inputs]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self._device), torch.cuda.graph(graph):
                self._outputs = self._fn(*self._inputs)
        except RuntimeError as error:
            self._enabled, self._inputs = False, []
            with torch.cuda.graph(torch.cuda.CUDAGraph()):  # one that succeeds: torch's generator of random
                torch.zeros((), device=self._device)  # numbers would otherwise believe it is still recording
            logger.info("A step of this model cannot be recorded: %s", (str(error) or "?").splitlines()[0])
            return
        self._graph = graph


def _let_go(found: Scalars) -> Scalars:
    """Values without how they came about: a graph that a caller still holds can keep a step from being
    recorded, since its nodes belong to another stream."""
    return {k: None if v is None else v.detach() for k, v in found.items()}
