"""Workers that share the jobs of a bench: this process, several of them, or whatever else takes jobs.

Items come in groups, and an item may need other groups to be finished: jobs need models. A worker stays with
the group whose data and models it has loaded; items that need nothing go first, since others may wait for
them. If a process dies (out of memory, say), its item has failed and a fresh process takes over. If this one
dies or is interrupted, all of them end with it. What was found comes back to this process, which writes it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol, TypeVar

from purge.core.errors import expected

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KILLED = expected(
    "a result", "none: the process that ran it died, perhaps out of memory",
    "give fewer --jobs, or more memory in resources on a cluster, and continue with --resume",
)  # fmt: skip


class Item(NamedTuple):
    """Something to do."""

    what: Any
    group: str
    needs: frozenset[str] = frozenset()  # groups that must be finished before


class Tried(NamedTuple):
    """What came of an item."""

    error: str = ""  # empty: all went well
    found: Any = None


class Done(NamedTuple):
    """An item that was done, or given up because something it needs failed."""

    what: Any
    error: str  # empty: all went well
    tried: bool = True
    killed: bool = False  # its process died
    found: Any = None


Work = Callable[[Any], Tried]
Each = Callable[[Work, Sequence[Item]], Iterator[Done]]
H = TypeVar("H", bound="Hands")


class Crew(NamedTuple):
    """Workers: a function that lets them work on each item, and how many they are."""

    each: Each
    n: int


class Hands(Protocol):
    """A worker: it does one thing after another, somewhere."""

    started: Future[Any]  # before that it gets nothing to do; an error is the end of the bench

    def submit(self, work: Work, what: Any, /) -> Future[Tried]:
        """Do something; BrokenProcessPool if the worker died of it."""


class Worker(ProcessPoolExecutor):
    """Another process, which ends when this one does, however it ends."""

    def __init__(self, threads: int | None = None) -> None:
        context = get_context("spawn")
        theirs, self._line = context.Pipe(duplex=False)  # only this process can write: it ends with it
        super().__init__(1, context, initializer=_follow, initargs=(theirs, threads))
        self.started: Future[None] = Future()
        self.started.set_result(None)  # it starts with the first thing to do

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        """Give the process something to do."""
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


def _follow(line: Connection, threads: int | None) -> None:
    """In a worker: end when the other end of the line is closed, by the parent or by its death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means

    def wait_for_the_end() -> None:
        with suppress(EOFError, OSError):
            line.recv_bytes()
        os._exit(1)  # also in the middle of a long computation

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    if threads is not None:
        import torch

        torch.set_num_threads(threads)  # also if there are fewer cores


@contextmanager
def processes(n: int, cpus: int | None = None) -> Iterator[Crew]:
    """Work on each item in this process or in ``n`` others, each with ``cpus`` threads.

    By default, several processes share the cores, and a single one uses as many as it finds useful. With one
    process, the items must be in dependency order.
    """
    if n == 1:
        with _threads(cpus):
            yield Crew(_one_by_one, 1)
        return
    with environment({name: str(cpus or max(1, (os.cpu_count() or 1) // n)) for name in THREADS}):
        pools = [Worker(cpus) for _ in range(n)]
        try:
            yield Crew(partial(side_by_side, pools, lambda _: Worker(cpus)), n)
        except BaseException:  # what they are doing will not be asked for
            for pool in pools:
                pool.end()
            raise
        finally:
            for pool in pools:
                pool.shutdown(cancel_futures=True)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that start within the block: libraries read them on import."""
    before = dict(os.environ)
    os.environ |= values
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():  # Ray sets some of its own
            del os.environ[name]
        os.environ |= before


@contextmanager
def _threads(n: int | None) -> Iterator[None]:
    """Let torch use ``n`` threads in this process, whatever the work is."""
    if n is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    with environment(dict.fromkeys(THREADS, str(n))):  # which says that the number is a choice
        torch.set_num_threads(n)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _one_by_one(work: Work, items: Sequence[Item]) -> Iterator[Done]:
    failed: dict[str, str] = {}
    for item in items:
        blocked = _blocked(item, failed)
        error, found = Tried(blocked) if blocked else work(item.what)
        if error:
            failed.setdefault(item.group, error)
        yield Done(item.what, error, tried=not blocked, found=found)


def side_by_side(
    pools: list[H], replaced: Callable[[H], H], work: Work, items: Sequence[Item]
) -> Iterator[Done]:
    """Do all items with workers of one process each; a worker whose process died is replaced."""
    left: dict[str, deque[Item]] = {}
    for item in items:
        left.setdefault(item.group, deque()).append(item)
    unfinished = Counter(item.group for item in items)
    failed: dict[str, str] = {}
    at: dict[int, str] = {}  # the group of each worker
    running: dict[Future[Tried], tuple[int, Item]] = {}
    starting = {pool.started: i for i, pool in enumerate(pools)}
    idle = set[int]()
    while True:
        for future in [future for future in starting if future.done()]:
            future.result()
            idle.add(starting.pop(future))
        for queue in left.values():
            while queue and (error := _blocked(queue[0], failed)):
                unfinished[queue[0].group] -= 1
                yield Done(queue.popleft().what, error, tried=False)
        ready = {g: q for g, q in left.items() if q and not any(unfinished[need] for need in q[0].needs)}
        for i in sorted(idle):
            if (more := _next(ready, at, i)) is not None:
                try:
                    given = pools[i].submit(work, more.what)
                except BrokenProcessPool:  # its process died while it had nothing to do
                    pools[i] = replaced(pools[i])
                    given = pools[i].submit(work, more.what)
                running[given] = i, more
                idle.remove(i)
        if not running and not (starting and any(left.values())):
            return
        for future in wait([*running, *starting], return_when=FIRST_COMPLETED).done & running.keys():
            i, item = running.pop(future)
            idle.add(i)
            unfinished[item.group] -= 1
            killed = isinstance(future.exception(), BrokenProcessPool)
            if killed:
                pools[i] = replaced(pools[i])
            error, found = Tried(KILLED) if killed else future.result()
            if error:
                failed.setdefault(item.group, error)
            yield Done(item.what, error, killed=killed, found=found)


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
