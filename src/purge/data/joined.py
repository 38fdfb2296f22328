"""Rows of several sets of samples as one set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from purge.data import inputs
from purge.data.backends import Backend, Tensors
from purge.data.identity import Seen
from purge.data.images import Images
from purge.data.inputs import Inputs
from purge.data.prefetch import Order
from purge.data.samples import Samples, batches


class Several(Backend):
    """Rows of several sets as one, each read in its own way; for those too large to keep."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts, self.device, self.seen = parts, parts[0].device, Seen()
        self.streamed = any(part.streamed for part in parts)
        self.moving = not all(part.steady for part in parts)
        self._ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def bytes(self, rows: int) -> int:
        """How many bytes so many rows take, on average."""
        return rows * sum(part.bytes for part in self.parts) // len(self)

    def delivered(
        self, rows: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> tuple[Several, Tensor | None]:
        """The parts, each delivered to the device."""
        return (self if device == self.device else Several([p.to(device, dtype) for p in self.parts])), rows

    def raw(self, rows: Tensor) -> Inputs:
        """The samples at some rows, on the device."""
        return next(self.stream([rows]))

    def stream(self, order: Iterable[Tensor], moves: Order | None = None) -> Iterator[Inputs]:
        """The samples of each batch; every set reads its own ahead."""
        order = [index.cpu() for index in order]
        which = [torch.bucketize(index, self._ends, right=True) for index in order]
        streams = []
        for n, (part, end) in enumerate(zip(self.parts, self._ends, strict=True)):
            own = [index[at == n] - (end - len(part)) for index, at in zip(order, which, strict=True)]
            streams.append(iter(part.stream([index for index in own if len(index)])))
        # Which sets have rows in a batch is found now, so that nothing is read between two batches.
        present = [at.unique().tolist() for at in which]
        backs = [at.argsort(stable=True).argsort() for at in which]

        def mixed() -> Iterator[Inputs]:
            for sets, back in zip(present, backs, strict=True):
                x = inputs.join([next(streams[n])[0] for n in sets])
                yield inputs.apply(lambda t, back=back: t[back.to(t.device)], x)

        return mixed()


def one_after_another(parts: Sequence[Samples]) -> Samples:
    """Several sets as one, each read in its own way."""
    return Samples(Several(parts), torch.cat([part.labels for part in parts]))


def joined(parts: Sequence[tuple[Samples, Tensor]], device: torch.device) -> Samples:
    """The given rows of several sets, one after the other, as one set.

    Images that are prepared in the same way stay images, which can be augmented.
    """
    chosen = [samples.select(rows) for samples, rows in parts]
    if any(part.streamed for part in chosen):
        return one_after_another(chosen)
    labels = torch.cat([part.labels for part in chosen])
    images = [part for part in chosen if isinstance(part, Images)]
    if len(images) < len(chosen) or len({part.backend.alike() for part in images}) > 1:
        x = inputs.join([inputs.apply(Tensor.cpu, x) for part in chosen for x, _ in batches(part, 4096)])
        return samples_of(x, labels, device)
    pixels, form = [part.pixels for part in images], images[0].backend
    if len({p.device for p in pixels}) > 1:  # some did not fit
        pixels = [p.cpu() for p in pixels]
    whole = Images(
        torch.cat(pixels), labels, mean=form.mean, std=form.std, size=form.size, channels=form.channels,
        names=images[0].names, transform=form.transform,
    )  # fmt: skip
    return whole.to(device, form.dtype)


def samples_of(x: Inputs, labels: Tensor, device: torch.device) -> Samples:
    """Tensors that were made here as samples on the device."""
    return Samples(Tensors(x), labels.cpu()).to(device)
