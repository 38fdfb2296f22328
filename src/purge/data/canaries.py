"""Canaries: samples that are put into the training data by the toss of a coin, so that a model can be tested.

Whoever planted them knows which coins came up heads. If a model lets that be guessed better than by chance,
it remembers them, and how much better bounds from below what it gives away: see metrics/canaries.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from purge.core.errors import DataError
from purge.core.settings import checked_seed
from purge.data import inputs
from purge.data.accept import accepted, needs_opening
from purge.data.images import Images
from purge.data.items import input_and_label
from purge.data.samples import Data, labels_of, streamed

LEAST = 10  # canaries


@dataclass(frozen=True)
class Canaries:
    """Training data with canaries in it, and the record of which there are.

    The same data, number and seed give the same record again.
    """

    data: Any  # what to train on: all other samples, and the canaries whose coin said so
    rows: Tensor  # where in ``data`` those canaries are: purge.split(planted.data, indices=planted.rows)
    samples: Any  # all canaries, with the labels that they are planted with
    included: Tensor  # (n,) bool: which of them are in ``data``

    def __repr__(self) -> str:
        return f"Canaries({len(self.rows)} of {len(self.included)} planted)"


def plant_canaries(data: Data, n: int, *, seed: int = 0, mislabel: bool = True) -> Canaries:
    """Turn ``n`` random samples of training data into canaries; a fair coin for each says whether it stays.

    Canaries get a random wrong label, which a model can only know by heart; with ``mislabel=False`` they
    keep their own and do no harm to accuracy, but are remembered less. Canaries that stay are trained on
    with the rest, the others are left out. Keep the seed: planting again gives the same record. The seed
    must not be used for anything that the training sees.

    Args:
        data: the training data, in any form that :func:`purge.unlearn` takes.
        n: how many canaries, from 10 to half of the samples.
        seed: draws the canaries, their labels and their coins.
        mislabel: give them a wrong label.

    Returns:
        What to train on, and which canaries are in it.

    Raises:
        DataError: too few samples or classes for it.

    Example:
        >>> planted = plant_canaries((torch.randn(100, 3), torch.arange(100) % 5), 20, seed=1)
        >>> planted, len(planted.data[1])
        (Canaries(6 of 20 planted), 86)
    """
    what = "the training data"
    data = accepted({what: data})[what] if needs_opening(data) else data
    labels = labels_of(data, what)
    most = len(labels) // 2
    if isinstance(n, bool) or not isinstance(n, int) or not LEAST <= n <= most:
        raise DataError(f"from {LEAST} to {most} canaries (half of the data)", repr(n), "pass another n")
    kinds = labels.unique()
    if mislabel and len(kinds) < 2:
        raise DataError("two classes or more, to give canaries a wrong label", "one", "pass mislabel=False")
    generator = torch.Generator().manual_seed(checked_seed(seed))
    chosen = torch.randperm(len(labels), generator=generator)[:n].sort().values
    included = torch.rand(n, generator=generator) < 0.5
    planted = labels.clone()
    if mislabel:
        shift = torch.randint(1, len(kinds), (n,), generator=generator)
        planted[chosen] = kinds[(torch.searchsorted(kinds, labels[chosen]) + shift) % len(kinds)]
    stays = torch.ones(len(labels), dtype=torch.bool)
    stays[chosen[~included]] = False
    kept = stays.nonzero()[:, 0]
    rows = torch.searchsorted(kept, chosen[included])
    return Canaries(_relabelled(data, kept, planted), rows, _relabelled(data, chosen, planted), included)


def _relabelled(data: Data, rows: Tensor, labels: Tensor) -> Data:
    """The samples at ``rows`` of data of any kind, with other labels (of all samples)."""
    if isinstance(data, Images) and not streamed(data):
        part = data.select(rows)
        return Images(
            part.pixels, labels[rows], mean=part.mean, std=part.std, size=part.size, channels=part.channels,
            names=part.names, device_fraction=part.device_fraction, transform=part.transform,
        )  # fmt: skip
    if isinstance(data, (tuple, list)):
        return inputs.take(inputs.apply(torch.as_tensor, data[0]), rows), labels[rows]
    return _Relabelled(data, rows, labels)


class _Relabelled(Dataset[Any]):
    """Some items of a dataset, with labels of their own."""

    def __init__(self, dataset: Any, rows: Tensor, labels: Tensor) -> None:
        self._dataset, self._rows, self.targets = dataset, rows.tolist(), labels[rows].tolist()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return input_and_label(self._dataset[self._rows[i]])[0], self.targets[i]
