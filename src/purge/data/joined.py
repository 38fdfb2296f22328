"""Rows of several sets of samples as one set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purge.data import inputs
from purge.data.backends import Several, Tensors
from purge.data.images import together
from purge.data.samples import Samples, batches


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
    if (images := together(chosen)) is not None:
        return images.to(device, images.dtype)
    x = inputs.join([inputs.apply(Tensor.cpu, x) for part in chosen for x, _ in batches(part, 4096)])
    return samples_of(x, torch.cat([part.labels for part in chosen]), device)


def samples_of(x: inputs.Inputs, labels: Tensor, device: torch.device) -> Samples:
    """Tensors that were made here as samples on the device."""
    return Samples(Tensors(x), labels.cpu()).to(device)
