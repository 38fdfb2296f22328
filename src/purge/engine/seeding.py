"""Random numbers from a seed, with the caller's generators put back afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from ``seed``, those of Python and NumPy too, which a dataset may draw from.

    The caller's generators are put back afterwards.
    """
    before, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        _seed(seed, device)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(arrays)


def apart(*seeds: int, device: torch.device) -> None:
    """Go on with random numbers from these seeds, one of which is of a rank, in a block of :func:`seeded`."""
    _seed(int(np.random.SeedSequence(seeds).generate_state(1)[0]), device)


def _seed(seed: int, device: torch.device) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every GPU
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
