"""Where each sample of a training in shards goes: shard, slice and place in every epoch, by hashes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from purge.core.errors import MethodError
from purge.core.settings import normalise, setting
from purge.engine.trainer import Recipe

Numbers: TypeAlias = "npt.NDArray[np.uint64]"
Vote = Literal["mean", "majority"]

# The purposes of a hash: no two of them may share their numbers.
SHARD, SLICE, ORDER, WEIGHTS, TRAINING = range(5)


@dataclass(frozen=True)
class ShardPlan:
    """All that a SISA training depends on, except the data and the architecture.

    There is a checkpoint before every slice: more slices make a deletion cheaper and the model larger on
    disk. ``recipe.epochs`` counts passes as in a training without slices.
    """

    shards: int = setting(5, "S: models, each trained on its own part of the data", low=1)
    slices: int = setting(1, "R: parts of a shard that are added one after the other", low=1)
    seed: int = setting(0, "draws shards, slices, weights and orders", low=0)
    vote: Vote = setting("mean", "mean of the softmax, or majority")
    recipe: Recipe = Recipe()

    def __post_init__(self) -> None:
        normalise(self)
        if 2 * self.recipe.epochs < self.slices + 1:
            least = math.ceil((self.slices + 1) / 2)
            what = f"at least {least} epochs for {self.slices} slices, so that each of them is trained on"
            raise MethodError(what, str(self.recipe.epochs), "raise epochs, or use fewer slices")

    @property
    def epochs(self) -> list[int]:
        """The epochs of each slice, ⌊(s+1)e⌋ − ⌊s·e⌋ with e = 2E/(R+1), in whole numbers.

        >>> ShardPlan(slices=4, recipe=Recipe(epochs=10)).epochs, ShardPlan(recipe=Recipe(epochs=10)).epochs
        ([4, 4, 4, 4], [10])
        """
        until = [2 * self.recipe.epochs * s // (self.slices + 1) for s in range(self.slices + 1)]
        return [after - before for before, after in itertools.pairwise(until)]

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The shard and the slice of each sample."""
        shard = mixed(self.seed, SHARD, _unsigned(ids)) % np.uint64(self.shards)
        part = mixed(self.seed, SLICE, _unsigned(ids)) % np.uint64(self.slices)
        return torch.from_numpy(shard.astype(np.int64)), torch.from_numpy(part.astype(np.int64))

    def rows(self, ids: Tensor, shard: int, part: int) -> Tensor:
        """Which samples a shard is trained on in a slice: those of this slice and the ones before."""
        of_shard, of_slice = self.places(ids)
        return ((of_shard == shard) & (of_slice <= part)).nonzero()[:, 0]

    def order(self, ids: Tensor, shard: int, before: int, epoch: int) -> Tensor:
        """The order of the samples in an epoch; that of any two does not depend on the others."""
        keys = mixed(self.seed, ORDER, shard, before + epoch, _unsigned(ids))
        return torch.from_numpy(np.lexsort((ids.numpy(), keys)))

    def drawn(self, *what: int) -> int:
        """A seed for one purpose, derived from the plan's own."""
        return int(mixed(self.seed, *what)[0] >> np.uint64(1))


def mixed(*parts: int | Numbers) -> Numbers:
    """A hash of integers and arrays of them: splitmix64, one part after the other.

    >>> [hex(h) for h in mixed(0, np.array([1, 2], np.uint64)).tolist()]
    ['0x8b4fda8c892b50e', '0xd7cc9674ff5ffa39']
    """
    h = np.zeros(1, np.uint64)
    for part in parts:
        h = (h ^ np.asarray(part, np.uint64)) + np.uint64(0x9E3779B97F4A7C15)  # wraps around
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
    return h


def _unsigned(ids: Tensor) -> Numbers:
    return ids.contiguous().numpy().view(np.uint64)
