"""Processes that share the work of a bench, each with its part of the cores.

Items come in groups, and an item may need other groups to be finished: jobs need models. A worker stays with
the group whose data and models it has loaded; items that need nothing go first, since others may wait for
them. If a process dies (out of memory, say), its item has failed and a fresh process takes over. If this one
dies or is interrupted, all of them end with it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from purge.core.errors import expected

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KILLED = expected(
    "a result", "none: the process that ran it died, perhaps out of memory",
    "give fewer --jobs, and continue with --resume",
)  # fmt: skip


class Item(NamedTuple):
    """Something to do."""

    what: Any
    group: str
    needs: frozenset[str] = frozenset()  # groups that must be finished before


class Done(NamedTuple):
    """An item that was done, or given up because something it needs failed."""

    what: Any
    error: str  # empty: all went well
    tried: bool = True
    killed: bool = False  # its process died


Work = Callable[[Any], str]
Each = Callable[[Work, Sequence[Item]], Iterator[Done]]


class Worker(ProcessPoolExecutor):
    """Another process, which ends when this one does, however it ends."""

    def __init__(self) -> None:
        context = get_context("spawn")
        theirs, self._line = context.Pipe(duplex=False)  # only this process can write: it ends with it
        super().__init__(1, context, initializer=_follow, initargs=(theirs,))

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        """Give the process something to do; it starts with the first."""
        with _no_interruption():
            return super().submit(work, *args, **more)

    def end(self) -> None:
        """End the process at once, whatever it is doing."""
        self._line.close()


@contextmanager
def _no_interruption() -> Iterator[None]:
    """A process that starts within the block is spared a Ctrl-C, which the terminal sends to all of them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow(line: Connection) -> None:
    """In a worker: end when the other end of the line is closed, by the parent or by its death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means

    def wait_for_the_end() -> None:
        with suppress(EOFError, OSError):
            line.recv_bytes()
        os._exit(1)  # also in the middle of a long computation

    threading.Thread(target=wait_for_the_end, daemon=True).start()


@contextmanager
def workers(n: int) -> Iterator[Each]:
    """A function that works on each item, in this process or in ``n`` others, and yields what is done.

    The work returns what went wrong. With one process, the items must be in dependency order.
    """
    if n == 1:
        yield _one_by_one
        return
    before = {name: os.environ.get(name) for name in THREADS}
    cores = max(1, (os.cpu_count() or 1) // n)
    os.environ |= dict.fromkeys(THREADS, str(cores))  # torch, NumPy and scikit-learn read them on import
    pools = [Worker() for _ in range(n)]
    try:
        yield partial(_side_by_side, pools, Worker)
    except BaseException:  # what they are doing will not be asked for
        for pool in pools:
            pool.end()
        raise
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {} if value is None else {name: value}


def _one_by_one(work: Work, items: Sequence[Item]) -> Iterator[Done]:
    failed: dict[str, str] = {}
    for item in items:
        blocked = _blocked(item, failed)
        error = blocked or work(item.what)
        if error:
            failed.setdefault(item.group, error)
        yield Done(item.what, error, tried=not blocked)


def _side_by_side(
    pools: list[Worker], fresh: Callable[[], Worker], work: Work, items: Sequence[Item],
) -> Iterator[Done]:  # fmt: skip
    """Do all items with pools of one process each; a pool whose process died is replaced."""
    left: dict[str, deque[Item]] = {}
    for item in items:
        left.setdefault(item.group, deque()).append(item)
    unfinished = Counter(item.group for item in items)
    failed: dict[str, str] = {}
    at: dict[int, str] = {}  # the group of each worker
    running: dict[Future[str], tuple[int, Item]] = {}
    idle = set(range(len(pools)))
    while True:
        for queue in left.values():
            while queue and (error := _blocked(queue[0], failed)):
                unfinished[queue[0].group] -= 1
                yield Done(queue.popleft().what, error, tried=False)
        ready = {g: q for g, q in left.items() if q and not any(unfinished[need] for need in q[0].needs)}
        for i in sorted(idle):
            if (more := _next(ready, at, i)) is not None:
                try:
                    future = pools[i].submit(work, more.what)
                except BrokenProcessPool:  # its process died while it had nothing to do
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


def _blocked(item: Item, failed: dict[str, str]) -> str:
    """The error of a group that an item needs."""
    return next((failed[need] for need in sorted(item.needs) if need in failed), "")


def _next(ready: dict[str, deque[Item]], at: dict[int, str], worker: int) -> Item | None:
    """The next item of a worker: of its own group, one that needs nothing, or of the group with most left."""
    if not ready.get(at.get(worker, "")):
        crowd = Counter(group for other, group in at.items() if other != worker)
        most = {g: (not q[0].needs, len(q) / (1 + crowd[g])) for g, q in ready.items() if q}
        at[worker] = max(most, key=most.__getitem__, default="")
    queue = ready.get(at[worker])
    return queue.popleft() if queue else None
