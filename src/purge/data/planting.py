"""Canaries: samples that are put into the training data by the toss of a coin, so that a model can be tested.

Whoever planted them knows which coins came up heads. If a model lets that be guessed better than by chance,
it remembers them, and how much better bounds from below what it gives away: see metrics/canaries.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from purge.core.errors import DataError
from purge.core.settings import checked_seed
from purge.data.accept import accepted
from purge.data.samples import Data, Origin, Samples

LEAST = 10  # canaries


@dataclass(frozen=True)
class Canaries:
    """Training data with canaries in it, and the record of which there are.

    The same data, number and seed give the same record again.
    """

    data: Samples  # what to train on: all other samples, and the canaries whose coin said so
    rows: Tensor  # where in ``data`` those canaries are: purge.split(planted.data, indices=planted.rows)
    samples: Samples  # all canaries, with the labels that they are planted with
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
        >>> planted, len(planted.data)
        (Canaries(6 of 20 planted), 86)
    """
    what = "the training data"
    samples = accepted({what: data})[what]
    labels = samples.labels
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
    data, canaries = (  # each as data of its own, whose rows are counted from 0
        samples.replaced(labels=planted).select(at).replaced(ids=torch.arange(len(at)), origin=Origin())
        for at in (kept, chosen)
    )
    return Canaries(data, rows, canaries, included)
