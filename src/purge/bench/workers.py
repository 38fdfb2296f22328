"""Workers that share the jobs of a bench: this process, others of this machine, or those of a Ray cluster.

A worker does one thing after another; it stays with the group of items whose data and models it has loaded.
If its process dies (out of memory, say), its item has failed and another process takes over. If this process
dies or is interrupted, all of them end with it. What was found comes back to this process, which writes it.
"""

from __future__ import annotations

import os
import re
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

PROCESSES = "processes"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
KILLED = expected(
    "a result", "none: the process that ran it died, perhaps out of memory",
    "give fewer --jobs, or more memory in resources on a cluster, and continue with --resume",
)  # fmt: skip


class WorkItem(NamedTuple):
    """Something to do; what is of one group shares data and models."""

    what: Any
    group: str


class Done(NamedTuple):
    """What came of it."""

    what: Any
    error: str = ""  # empty: all went well
    result: Any = None
    killed: bool = False  # its process died


Work = Callable[[Any], Done]


class Worker(Protocol):
    """What does one thing after another, somewhere; where its process has died, another takes over."""

    @property
    def started(self) -> Future[Any] | None:
        """Until then it gets nothing to do; an error is the end of the bench."""

    def submit(self, work: Work, what: Any, /) -> Future[Done]:
        """Do something; BrokenProcessPool if the process died of it."""


def each(workers: Sequence[Worker], work: Work, items: Sequence[WorkItem]) -> Iterator[Done]:
    """Do all items, and yield what came of each when it is done."""
    waiting = [*items]
    at: dict[int, str] = {}  # the group that each worker is at
    idle = {i for i, worker in enumerate(workers) if not worker.started}
    running: dict[Future[Any], tuple[int, WorkItem | None]] = {}  # no item: it is starting
    running |= {w.started: (i, None) for i, w in enumerate(workers) if w.started}
    while waiting or any(item for _, item in running.values()):
        for i in sorted(idle)[: len(waiting)]:
            crowd = Counter(group for other, group in at.items() if other != i)
            item = min(waiting, key=lambda it: (it.group != at.get(i), crowd[it.group]))
            waiting.remove(item)
            running[workers[i].submit(work, item.what)] = i, item
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
                yield future.result()


# -- workers of this machine --------------------------------------------------------------------


class Here:
    """This process: what it is given is done at once."""

    started = None

    def submit(self, work: Work, what: Any, /) -> Future[Done]:
        """Do it."""
        future: Future[Done] = Future()
        future.set_result(work(what))
        return future


class Process:
    """Another process, which ends when this one does, however it ends."""

    started = None  # it starts with the first thing to do

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        theirs, self._line = context.Pipe(duplex=False)  # only this process can write: it ends with it
        self._pool = ProcessPoolExecutor(1, context, initializer=_follow, initargs=(theirs, self._threads))

    def submit(self, work: Work, what: Any, /) -> Future[Done]:
        """Give it something to do; a process that starts now is spared a Ctrl-C, which goes to all."""
        mask = getattr(signal, "pthread_sigmask", lambda *_: ())  # Windows has none
        before = mask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._pool.submit(work, what)
        except BrokenProcessPool:  # the process died of what it did last, or while it was idle
            self._start()
            return self._pool.submit(work, what)
        finally:
            mask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        """End the process at once, whatever it is doing."""
        self._line.close()
        self._pool.shutdown(cancel_futures=True)


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
def workers_on(
    on: str, n: int | None, items: int, resources: Resources, device: str | None
) -> Iterator[Sequence[Worker]]:
    """``n`` workers for so many items.

    ``on``: processes, one by default, which is this one; several share the cores unless ``resources`` say how
    many each gets. ray, a cluster of this machine alone that is started and stopped; ray:ADDRESS or
    ray://HOST:PORT, a cluster that is there. A cluster has as many workers as there is room for by default.
    """
    if on == PROCESSES:
        choose_device(device, nn.Identity())
        n, cpus, before = n or 1, resources.cpus, torch.get_num_threads()
        share = cpus or (max(1, (os.cpu_count() or 1) // n) if n > 1 else None)
        others = [Process(cpus) for _ in range(n)] if n > 1 else []
        with environment({} if share is None else dict.fromkeys(THREADS, str(share))):
            try:
                if not others:
                    torch.set_num_threads(cpus or before)
                yield others or [Here()]
            finally:
                torch.set_num_threads(before)
                for other in others:
                    other.end()
        return
    if not (match := re.fullmatch("ray(?::(.+))?", on)):
        fix = "write ray, ray:HOST:PORT or ray://HOST:PORT"
        raise DeviceError("a place to run jobs on", repr(on), fix)
    from purge.bench.on_ray import ray_workers  # the extra may be missing

    address = match[1] or ""
    with ray_workers(on if address[:2] == "//" else address, n, items, resources, device) as workers:
        yield workers
