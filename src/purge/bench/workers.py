"""Workers that share the jobs of a bench: this process, others of this machine, or those of a Ray cluster.

A worker does one thing after another; ``submit`` gives it the next and returns a Future. It stays with the
group of items whose data and models it has loaded. If its process dies (out of memory, say), its item has
failed and another process takes over. If this one dies or is interrupted, all of them end with it. What was
found comes back to this process, which writes it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from purge.bench.schema import Resources
from purge.core.errors import DeviceError, expected
from purge.engine import choose_device

PROCESSES, RAY = "processes", "ray"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KILLED = expected(
    "a result", "none: the process that ran it died, perhaps out of memory",
    "give fewer --jobs, or more memory in resources on a cluster, and continue with --resume",
)  # fmt: skip


class Item(NamedTuple):
    """Something to do; what is of one group shares data and models."""

    what: Any
    group: str


class Tried(NamedTuple):
    """What came of an item."""

    error: str = ""  # empty: all went well
    result: Any = None


class Done(NamedTuple):
    """An item that was done."""

    what: Any
    error: str = ""  # empty: all went well
    result: Any = None
    killed: bool = False  # its process died


Work = Callable[[Any], Tried]


class Worker(Protocol):
    """What does one thing after another, somewhere; where its process has died, another takes over."""

    @property
    def started(self) -> Future[Any] | None:
        """Until then it gets nothing to do; an error is the end of the bench."""

    def submit(self, work: Work, what: Any, /) -> Future[Tried]:
        """Do something; BrokenProcessPool if the process died of it."""


class Crew:
    """Workers that share what is to be done."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers

    def each(self, work: Work, items: Sequence[Item]) -> Iterator[Done]:
        """Do all items, and yield each when it is done."""
        waiting = [*items]
        at: dict[int, str] = {}  # the group that each worker is at
        idle = {i for i, worker in enumerate(self.workers) if not worker.started}
        running: dict[Future[Any], tuple[int, Item | None]] = {}  # no item: it is starting
        running |= {w.started: (i, None) for i, w in enumerate(self.workers) if w.started}
        while waiting or any(item for _, item in running.values()):
            for i in sorted(idle)[: len(waiting)]:
                crowd = Counter(group for other, group in at.items() if other != i)
                item = min(waiting, key=lambda it: (it.group != at.get(i), crowd[it.group]))
                waiting.remove(item)
                running[self.workers[i].submit(work, item.what)] = i, item
                at[i] = item.group
                idle.remove(i)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                i, done = running.pop(future)
                idle.add(i)
                if done is None:
                    future.result()
                elif isinstance(future.exception(), BrokenProcessPool):
                    yield Done(done.what, KILLED, killed=True)
                else:
                    yield Done(done.what, *future.result())


# -- workers of this machine --------------------------------------------------------------------


class Here:
    """This process: what it is given is done at once."""

    started = None

    def submit(self, work: Work, what: Any, /) -> Future[Tried]:
        """Do it."""
        future: Future[Tried] = Future()
        future.set_result(work(what))
        return future


class Process:
    """Another process, which ends when this one does, however it ends."""

    started = None  # it starts with the first thing to do

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        theirs, self._line = context.Pipe(duplex=False)  # only this process can write: it ends with it
        self._pool = ProcessPoolExecutor(1, context, initializer=_follow, initargs=(theirs, self._threads))

    def submit(self, work: Work, what: Any, /) -> Future[Tried]:
        """Give it something to do."""
        with _no_interruption():
            try:
                return self._pool.submit(work, what)
            except BrokenProcessPool:  # the process died of what it did last, or while it was idle
                self._start()
                return self._pool.submit(work, what)

    def end(self) -> None:
        """End the process at once, whatever it is doing."""
        self._line.close()
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def _no_interruption() -> Iterator[None]:
    """A process that starts within the block is spared a Ctrl-C, which the terminal sends to all of them."""
    mask = getattr(signal, "pthread_sigmask", None)
    before = mask(signal.SIG_BLOCK, {signal.SIGINT}) if mask else None
    try:
        yield
    finally:
        if mask:
            mask(signal.SIG_SETMASK, before)


def _follow(line: Connection, threads: int | None) -> None:
    """In a worker: end when the other end of the line is closed, by the parent or by its death."""

    def wait_for_the_end() -> None:
        with suppress(EOFError, OSError):
            line.recv_bytes()
        os._exit(1)  # also in the middle of a long computation

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    if threads is not None:
        torch.set_num_threads(threads)  # also if there are fewer cores


@contextmanager
def processes(n: int, cpus: int | None = None) -> Iterator[Crew]:
    """This process or ``n`` others, each with ``cpus`` threads.

    By default several processes share the cores, and a single one uses as many as it finds useful.
    """
    share = cpus or (max(1, (os.cpu_count() or 1) // n) if n > 1 else None)
    others = [Process(cpus) for _ in range(n)] if n > 1 else []
    before = torch.get_num_threads()
    with environment({} if share is None else dict.fromkeys(THREADS, str(share))):
        try:
            if not others:
                torch.set_num_threads(cpus or before)
            yield Crew(others or [Here()])
        finally:
            torch.set_num_threads(before)
            for other in others:
                other.end()


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
def crew_on(on: str, n: int | None, items: int, resources: Resources, device: str | None) -> Iterator[Crew]:
    """``n`` workers for so many items, by default as many as there is room for.

    ``on``: processes; ray, a cluster of this machine alone that is started and stopped; ray:ADDRESS or
    ray://HOST:PORT, a cluster that is there.
    """
    kind, _, address = on.partition(":")
    if on == PROCESSES:
        choose_device(device, nn.Identity())
        with processes(n or 1, resources.cpus) as crew:
            yield crew
    elif on == RAY or (kind == RAY and address):
        from purge.bench.on_ray import ray_workers  # the extra may be missing

        at = on if address.startswith("//") else address
        with ray_workers(at, n, items, resources, device) as workers:
            yield Crew(workers)
    else:
        fix = "write ray, ray:HOST:PORT or ray://HOST:PORT"
        raise DeviceError("a place to run jobs on", repr(on), fix)
