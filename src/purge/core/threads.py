"""How many threads torch uses on the CPU: one if the work is small, never more than a container may use.

All threads of an operation wait for the slowest. A small network has thousands of short operations a second,
so one thread that waits for its core makes them all many times slower than a single thread would be.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

SMALL = 10**8  # parameters × samples of a batch; up to here one thread is as fast as several


@contextmanager
def threads_for(
    model: nn.Module, device: torch.device, batch: int | None = None, *, seen: set[int] | None = None
) -> Iterator[None]:
    """Run the block with a suitable number of torch threads, then restore the caller's number.

    The number is added to ``seen``, which goes into a record.

    A number that the caller or the environment (OMP_NUM_THREADS, MKL_NUM_THREADS) has set is kept. Set one
    if large models must come out equal bit for bit: sums are rounded differently by other numbers of threads.
    """
    import torch

    before = torch.get_num_threads()
    work = (batch or 128) * sum(p.numel() for p in model.parameters())
    chosen = choose_threads(work, before) if device.type == "cpu" else before
    if chosen != before:
        torch.set_num_threads(chosen)
    if seen is not None:
        seen.add(chosen)
    try:
        yield
    finally:
        if chosen != before:
            torch.set_num_threads(before)


def numbers(seen: set[int]) -> int | list[int] | None:
    """What a record says about threads: a number, or several if parts of the work had different ones."""
    return sorted(seen) if len(seen) > 1 else next(iter(seen), None)


def choose_threads(work: int, current: int) -> int:
    """The number of threads for ``work``, where torch now uses ``current``; never more than that."""
    fixed = any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    cores = _cores()
    if fixed or current == 1 or current not in (len(cores), _physical(cores)):
        return current  # torch starts with the number of cores: another one is somebody's choice
    return 1 if work <= SMALL else min(current, _quota())


def _cores() -> set[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _physical(cores: set[int]) -> int:
    """How many there are if two that share their arithmetic count as one, as torch may count them."""
    try:
        files = [Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in cores]
        return len({file.read_text() for file in files})
    except OSError:
        return len(cores)


def _quota() -> int:
    """How many cores a container may use."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no container, or "max"
        return os.cpu_count() or 1
