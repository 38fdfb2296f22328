"""How a run is carried out, whatever it computes: made at the doors, handed to loops and trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from purge.engine.dist import ALONE, Ranks
from purge.engine.precision import Precision

Each = Callable[[int, int], None]  # is given the number of a step that was taken, and how many there will be
Tell = Callable[[int, Mapping[str, float]], None]  # is given a step and what was measured there


@dataclass(frozen=True)
class Context:
    """Device, precision, seed and the like; nothing of it is looked up elsewhere.

    ``graph``: record steps as a CUDA graph. ``tell``: hears what is measured while the run goes on.
    ``each``: hears of every step, and may end the run by an exception.
    ``threads``: the numbers of CPU threads that parts of the work had, which whoever starts a part adds.
    """

    device: torch.device
    seed: int = 0
    precision: Precision = "float32"
    graph: bool = False
    progress: bool = False
    tell: Tell | None = None
    each: Each | None = None
    ranks: Ranks = ALONE
    threads: set[int] = field(default_factory=set)
