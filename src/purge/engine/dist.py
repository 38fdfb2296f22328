"""Training on several ranks of torch.distributed: each has its rows of a batch, and all take the same step.

There is no wrapper around a model. Weights come from rank 0 once. All ranks draw the same batches from the
same seed, and each sends its rows through the model. The loss of a rank counts by its share of the rows, so
the sum of the gradients over the ranks is the gradient of the joint batch: one all-reduce of a flat vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from purge.core.errors import MethodError, RunError, first_line
from purge.data.inputs import Inputs
from purge.data.prefetch import Order
from purge.data.samples import Samples
from purge.models.batchnorm import batchnorms
from purge.models.checkpoint import digest, tensors_of
from purge.models.forward import Rows


@dataclass(frozen=True)
class Ranks:
    """Which of the ranks this process is; by default the only one, and then nothing here does anything."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")  # where a number lies that is told to the others

    @classmethod
    def here(cls, device: torch.device) -> Ranks:
        """The ranks of the program, if it has initialised torch.distributed."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size(), device)

    def part(self, rows: int) -> slice:
        """Which rows of a batch are this rank's: every ``world``-th, or all if there is not one for each."""
        return slice(None) if rows < self.world else slice(self.rank, None, self.world)

    def share(self, rows: int) -> float:
        """How much the mean over this rank's rows counts in the mean over a batch of ``rows``."""
        return 1 / self.world if rows < self.world else len(range(self.rank, rows, self.world)) / rows

    def of_each(self, order: Order) -> Order:
        """This rank's rows of the batches of ``order``."""
        return order if self.world == 1 else [index[self.part(len(index))] for index in order]

    def stream(self, samples: Samples, order: Order) -> Iterator[tuple[Inputs, Tensor]]:
        """This rank's rows of the batches of ``order``; images are moved as in the joint batch."""
        parts = [] if self.world == 1 else [self.part(len(index)) for index in order]
        return samples.stream(order, own=parts)

    def sum(self, t: Tensor) -> Tensor:
        """The sum of a tensor over the ranks, in its place: the same bits on each of them."""
        return t if self.world == 1 else self._together(dist.all_reduce, t)

    def _together(self, collective: Callable[..., Any], t: Tensor, *args: Any) -> Tensor:
        try:
            collective(t, *args)
        except RuntimeError as error:  # a rank that has ended closes its connections
            got = f"one that has failed or ended ({first_line(error)[:120]})"
            fix = "see what that rank said, then start all of them again"
            raise RunError("every rank to go on", got, fix) from None
        return t

    @property
    def over(self) -> Callable[[Tensor], Tensor] | None:
        """What adds up the statistics of BatchNorm; None where no other rank has a part of a batch."""
        return self.sum if self.world > 1 else None

    def mean(self, value: Tensor, rows: int) -> Tensor:
        """The mean over a batch of ``rows``, from the mean over this rank's rows."""
        return value if self.world == 1 else self.sum(self.share(rows) * value.detach())

    def sum_grads(self, params: Iterable[Tensor]) -> None:
        """Give each parameter the sum of its gradients over the ranks."""
        if self.world > 1:
            grads = [p.grad for p in params if p.grad is not None]
            flat = self.sum(torch.cat([g.reshape(-1) for g in grads]))
            for g, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
                g.copy_(part.view_as(g))

    def first(self, t: Tensor) -> Tensor:
        """What rank 0 has of a tensor, in its place."""
        if self.world > 1:
            t.detach().copy_(self._together(dist.broadcast, t.detach().contiguous(), 0))
        return t

    def agreed(self, value: float) -> float:
        """A number that each rank has measured by itself, as rank 0 has it: all must decide alike."""
        return (
            value
            if self.world == 1
            else self.first(torch.tensor(value, dtype=torch.float64, device=self.device)).item()
        )

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Refuse to go on where a rank has other facts than the first one; the keys name them."""
        if self.world == 1:
            return
        own = [list(hashlib.sha256(repr(fact).encode()).digest()) for fact in facts.values()]
        table = torch.zeros(self.world, len(own), len(own[0]), dtype=torch.int64, device=self.device)
        table[self.rank] = torch.tensor(own)
        if different := (self.sum(table) != table[0]).any(2).nonzero().tolist():
            rank, which = different[0]
            what, got = f"the same {[*facts][which]} on every rank", f"another on rank {rank} than on rank 0"
            raise RunError(what, got, "pass the same to every rank: what is shared out is shared out here")

    def refuse(self, what: str) -> None:
        """Refuse what runs on one rank."""
        if self.world > 1:
            fix = "run it without torchrun, or before torch.distributed is initialised"
            raise MethodError("what several ranks can share", f"{what}, which runs on one", fix)

    def begin(self, models: Iterable[nn.Module | None], samples: Iterable[Samples | None], how: Any) -> None:
        """Give these models the weights of rank 0; refuse ranks that were called with other arguments."""
        if self.world == 1:
            return
        here = [model for model in models if model is not None]
        shapes = [[(name, t.shape, t.dtype) for name, t in tensors_of(model).items()] for model in here]
        labels = [None if part is None else part.labels.numpy().tobytes() for part in samples]
        self.check_same({"kind of model": shapes, "method, settings and seed": how, "data": labels})
        for model in here:
            for t in tensors_of(model).values():
                self.first(t)

    def end(self, model: nn.Module, rows: Rows) -> None:
        """Refuse weights that are not the same, bit for bit, on all ranks; count the rows of all of them."""
        if self.world == 1:
            return
        for norm in batchnorms(model):  # each rank has measured them alike, on a GPU up to rounding
            for statistic in norm.buffers():
                self.first(statistic)
        self.check_same({"weights at the end": digest(model)})
        counts = torch.tensor([rows.graded, rows.plain], device=self.device)
        rows.graded, rows.plain = map(int, self.sum(counts).tolist())

    def wait(self) -> None:
        """Until rank 0 is here: what it writes is there when the others go on."""
        self.agreed(0.0)


ALONE = Ranks()
