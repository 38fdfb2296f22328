"""Processes that work side by side on what there is to do, each with its part of the cores.

Items come in groups, and some need other groups to be through: jobs need models. A worker goes on with the
group whose data and models it knows; what nothing is needed for goes first, as others may wait for it.
An item whose process ends (killed for want of memory, say) has failed, and a fresh process goes on.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch

from purge.core.errors import expected

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KILLED = expected(
    "a result", "none: the process that ran it ended, perhaps for want of memory",
    "give fewer --jobs, and go on with --resume",
)  # fmt: skip


class Item(NamedTuple):
    """Something to do."""

    what: Any
    group: str
    needs: frozenset[str] = frozenset()  # the groups that have to be through before


class Done(NamedTuple):
    """An item that was done, or given up as something it needs went wrong."""

    what: Any
    error: str  # "": all went well
    tried: bool = True
    killed: bool = False  # its process ended before it did


Each = Callable[[Callable[[Any], str], Sequence[Item]], Iterator[Done]]


@contextmanager
def workers(n: int) -> Iterator[Each]:
    """A function that does work on each item, in this process or in ``n`` others, and gives them as they end.

    The work returns what went wrong. Items of the one process are to be in an order that they can be done in.
    """
    if n == 1:
        yield _one_by_one
        return
    threads = max(1, (os.cpu_count() or 1) // n)
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ |= dict.fromkeys(THREADS, str(threads))  # NumPy and scikit-learn read them when they start
    fresh = partial(
        ProcessPoolExecutor, 1, get_context("spawn"), initializer=torch.set_num_threads, initargs=(threads,)
    )
    pools = [fresh() for _ in range(n)]
    try:
        yield partial(_side_by_side, pools, fresh)
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {} if value is None else {name: value}


def _one_by_one(work: Callable[[Any], str], items: Sequence[Item]) -> Iterator[Done]:
    failed: dict[str, str] = {}
    for item in items:
        hindered = _hindered(item, failed)
        error = hindered or work(item.what)
        if error:
            failed.setdefault(item.group, error)
        yield Done(item.what, error, tried=not hindered)


def _side_by_side(
    pools: list[ProcessPoolExecutor], fresh: Callable[[], ProcessPoolExecutor], work: Callable[[Any], str],
    items: Sequence[Item],
) -> Iterator[Done]:  # fmt: skip
    """Do all items with pools of one process each; one whose process ended gives way to a fresh one."""
    left: dict[str, deque[Item]] = {}
    for item in items:
        left.setdefault(item.group, deque()).append(item)
    unfinished = Counter(item.group for item in items)
    failed: dict[str, str] = {}
    at: dict[int, str] = {}  # the group that a worker is in
    running: dict[Future[str], tuple[int, Item]] = {}
    idle = set(range(len(pools)))
    while True:
        for queue in left.values():
            while queue and (error := _hindered(queue[0], failed)):
                unfinished[queue[0].group] -= 1
                yield Done(queue.popleft().what, error, tried=False)
        ready = {
            group: queue
            for group, queue in left.items()
            if queue and not any(unfinished[need] for need in queue[0].needs)
        }
        for i in sorted(idle):
            if (more := _next(ready, at, i)) is not None:
                try:
                    future = pools[i].submit(work, more.what)
                except BrokenProcessPool:  # it ended while it had nothing to do
                    pools[i] = fresh()
                    future = pools[i].submit(work, more.what)
                running[future] = i, more
                idle.remove(i)
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            i, item = running.pop(future)
            idle.add(i)
            unfinished[item.group] -= 1
            killed = isinstance(future.exception(), BrokenProcessPool)
            if killed:
                pools[i] = fresh()
            if error := KILLED if killed else future.result():
                failed.setdefault(item.group, error)
            yield Done(item.what, error, killed=killed)


def _hindered(item: Item, failed: dict[str, str]) -> str:
    """What went wrong with something that an item needs."""
    return next((failed[need] for need in sorted(item.needs) if need in failed), "")


def _next(ready: dict[str, deque[Item]], at: dict[int, str], worker: int) -> Item | None:
    """What a worker does next: more of its group, what needs nothing, or a part of where most is left."""
    if not ready.get(at.get(worker, "")):
        crowd = Counter(group for other, group in at.items() if other != worker)
        most = {g: (not q[0].needs, len(q) / (1 + crowd[g])) for g, q in ready.items() if q}
        at[worker] = max(most, key=most.__getitem__, default="")
    queue = ready.get(at[worker])
    return queue.popleft() if queue else None
