"""Rows of several sets of samples as one set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from purge.data.images import Images
from purge.data.prefetch import Order
from purge.data.samples import Samples, Tensors, batches, part_of, streamed


def joined(parts: Sequence[tuple[Samples, Tensor]], device: torch.device) -> Samples:
    """The given rows of several sets, one after the other, as one set.

    Images that are prepared in the same way stay images, which can be augmented.
    """
    if any(streamed(s) for s, _ in parts):
        return Joined([part_of(s, rows) for s, rows in parts])
    images = [s.select(rows) for s, rows in parts if isinstance(s, Images)]
    forms = {(s.mean, s.std, s.size, s.channels, s.dtype, s.pixel_shape, s.transform) for s in images}
    if len(images) == len(parts) and len(forms) == 1:
        first, pixels = images[0], [s.pixels for s in images]
        if len({p.device for p in pixels}) > 1:  # some did not fit
            pixels = [p.cpu() for p in pixels]
        whole = Images(
            torch.cat(pixels),
            torch.cat([s.labels for s in images]),
            mean=first.mean,
            std=first.std,
            size=first.size,
            channels=first.channels,
            names=first.names,
            device_fraction=first.device_fraction,
            transform=first.transform,
        )
        return whole.to(device, first.dtype)
    x = _cat([tree_map(Tensor.cpu, x) for s, rows in parts for x, _ in batches(s, 4096, rows)])
    return Tensors(x, torch.cat([s.labels[rows] for s, rows in parts]), device)


def _cat(inputs: Sequence[Any]) -> Any:
    return tree_map(lambda *tensors: torch.cat(tensors), *inputs)


class Joined:
    """Several sets as one, each read in its own way; for those too large to keep."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.labels = torch.cat([part.labels for part in parts])
        self._parts = parts
        self._ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Any, Tensor]:
        """The samples at ``index``."""
        return next(self.stream([index]))

    def stream(self, order: Order) -> Iterator[tuple[Any, Tensor]]:
        """The samples at each index tensor of ``order``; every set reads its own ahead."""
        order = [index.cpu() for index in order]
        owners = [torch.bucketize(index, self._ends, right=True) for index in order]
        streams = []
        for n, (part, end) in enumerate(zip(self._parts, self._ends, strict=True)):
            own = [index[owner == n] - (end - len(part)) for index, owner in zip(order, owners, strict=True)]
            streams.append(iter(part.stream([index for index in own if len(index)])))
        # Which sets have rows in a batch is found now, so that nothing is read between two batches.
        present = [owner.unique().tolist() for owner in owners]
        backs = [owner.argsort(stable=True).argsort() for owner in owners]
        return self._mixed(streams, present, backs)

    @staticmethod
    def _mixed(
        streams: Sequence[Iterator[tuple[Any, Tensor]]], present: list[list[int]], backs: list[Tensor]
    ) -> Iterator[tuple[Any, Tensor]]:
        """Batches made of one from each set that is present, their rows put back in order."""
        for sets, order in zip(present, backs, strict=True):
            xs, ys = zip(*(next(streams[n]) for n in sets), strict=True)
            y = torch.cat(ys)
            back = order.to(y.device)
            yield tree_map(lambda x, back=back: x[back], _cat(xs)), y[back]
