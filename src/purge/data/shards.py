"""Batches that several ranks share: each reads its own rows."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from purge.core import ranks
from purge.data.augmented import Augmented
from purge.data.inputs import Inputs, Shard
from purge.data.prefetch import Order
from purge.data.samples import Samples


def shared(samples: Samples, order: Order) -> Iterator[tuple[Inputs, Tensor]]:
    """The batches at each index tensor of ``order``.

    Where ranks share them, the inputs are a :class:`Shard`, and the labels are those of the whole batch.
    """
    return samples.stream(order) if ranks.world() == 1 else _shards(samples, order)


def _shards(samples: Samples, order: Order) -> Iterator[tuple[Inputs, Tensor]]:
    places = [tuple(ranks.own_rows(len(index))) for index in order]
    every = ranks.world()
    own = [slice(rows[0], None, every) if rows else slice(1) for rows in places]
    if isinstance(samples, Augmented):
        stream = samples.stream(order, own)
    else:
        stream = samples.stream([index[part] for index, part in zip(order, own, strict=True)])
    labels: Tensor | None = None
    for index, rows in zip(order, places, strict=True):
        with ranks.apart():  # a dataset may draw random numbers for its items
            x, y = next(stream)
        if labels is None or labels.device != index.device:
            labels = samples.labels.to(index.device)
        yield Shard(x, rows, len(index)), labels[index].to(y.device)
