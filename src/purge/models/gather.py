"""What a model answers to a batch that several ranks share: that of the whole batch, on every rank.

Each rank sends its own rows through the model; the rows of all are then put together. So a loss is computed
by every rank from the whole batch, whatever it makes of it, and is the same on all of them. Going back, a
rank takes the gradient of its own rows, times the number of ranks: the mean of the gradients over the ranks
is that of the whole batch, also where a loss looks at weights directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from purge.core import ranks
from purge.data.inputs import Shard

_shard: Shard | None = None  # what goes through a model at the moment


def current() -> Shard | None:
    """The shard that goes through a model at the moment; None where the batch is not shared."""
    return _shard


@contextmanager
def passing_through(shard: Shard) -> Iterator[None]:
    """Within the block, what a layer sees are the rows of this shard."""
    global _shard
    before, _shard = _shard, shard
    try:
        with ranks.apart():  # dropout draws for the rows of this rank
            yield
    finally:
        _shard = before


def whole(z: Tensor, shard: Shard | None) -> Tensor:
    """The rows of all ranks in their order, from those that this rank has."""
    if shard is None:
        return z
    found: Tensor = _Whole.apply(z, shard.rows, shard.total)
    return found


def counted(shard: Shard, leading: float = 1.0) -> float:
    """The share of this rank's rows that are among the ``leading`` ones of the whole batch."""
    held = max(1, len(shard.rows))
    return sum(row < round(leading * shard.total) for row in shard.rows) / held


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, rows: tuple[int, ...], total: int) -> Tensor:
        at = torch.tensor(rows, dtype=torch.long, device=z.device)
        ctx.save_for_backward(at)
        ctx.held, ctx.world = len(z), ranks.world()
        wide = torch.float32 if z.dtype in (torch.float16, torch.bfloat16) else z.dtype
        found = torch.zeros(total, *z.shape[1:], dtype=wide, device=z.device)
        found[at] = z[: len(rows)].to(wide)
        return ranks.summed(found).to(z.dtype)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> Any:
        (at,) = ctx.saved_tensors
        own = dz.new_zeros(ctx.held, *dz.shape[1:])
        own[: len(at)] = dz[at] * ctx.world
        return own, None, None
