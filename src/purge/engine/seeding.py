"""Random numbers from a seed, with the caller's generators put back afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def _python_and_numpy(seed: int) -> Iterator[None]:
    before, arrays = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(arrays)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from ``seed``, those of Python and NumPy too, which a dataset may draw from.

    The caller's generators are put back afterwards.
    """
    on_gpu = device.type == "cuda"
    with _python_and_numpy(seed), torch.random.fork_rng([device] if on_gpu else []):
        _seed_torch(seed, device)
        yield


def apart(*seeds: int, device: torch.device) -> None:
    """Go on with random numbers from these seeds, one of which is of a rank, in a block of :func:`seeded`."""
    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    _seed_torch(seed, device)


def _seed_torch(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed every GPU
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
