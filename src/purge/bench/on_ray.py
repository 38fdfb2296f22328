"""Workers on a Ray cluster: one that is there, or one of this machine that is started for a bench.

Each worker is an actor with the resources of a job. Ray finds a node for it, starts it again when it dies,
and then tries its item a second time. When this process ends, in whatever way, its actors end with it, and so
does the cluster that it started.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import purge
from purge.bench.schema import Resources
from purge.bench.workers import THREADS, Done, Work, environment
from purge.core.errors import DeviceError, first_line
from purge.core.plugins import from_extra
from purge.engine import choose_device

logger = logging.getLogger("purge")

PATIENCE = 120.0  # seconds without a worker of an existing cluster, after which it is said what is waited for
FIX = "check the address, or leave it out: --on ray starts a cluster on this machine"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # workers run in this environment, not in one made anew by uv
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a worker without a GPU sees none
}


class Seat:
    """What runs on a node; ``path`` and ``folder`` are those of a bench on this machine."""

    def __init__(self, threads: int, path: list[str], folder: str) -> None:
        if folder:
            sys.path[:] = path
            os.chdir(folder)
        torch.set_num_threads(threads)

    def started(self, version: str, device: str) -> None:
        """Refuse a node on which jobs cannot run."""
        if version != purge.__version__:
            here, fix = socket.gethostname(), "install the same version on all nodes"
            raise DeviceError(f"purge {version} on {here}", purge.__version__, fix)
        choose_device(device, nn.Identity())

    def do(self, work: Work, what: Any) -> Done:
        """Work on an item."""
        return work(what)


class Remote:
    """A seat on the cluster, as this process sees it."""

    def __init__(self, actor: Any, device: str) -> None:
        fix = "check that the same purge is installed on all nodes"
        self._actor = actor
        self.started = _future(
            actor.started.remote(purge.__version__, device),
            lambda why: DeviceError("a worker that starts on the cluster", why, fix),
        )

    def submit(self, work: Work, what: Any, /) -> Future[Done]:
        """Give it something to do."""
        return _future(self._actor.do.remote(work, what), BrokenProcessPool)


def _future(reference: Any, died: Callable[[str], Exception]) -> Future[Any]:
    """What Ray will have: a value, what the code has raised, or ``died`` if its process did."""
    from ray.exceptions import RayTaskError

    ours: Future[Any] = Future()

    def settle(theirs: Future[Any]) -> None:
        error = theirs.exception()
        if error is None:
            ours.set_result(theirs.result())
        else:
            ours.set_exception(error.cause if isinstance(error, RayTaskError) else died(first_line(error)))

    reference.future().add_done_callback(settle)
    return ours


@contextmanager
def ray_workers(
    address: str, n: int | None, items: int, resources: Resources, device: str | None
) -> Iterator[list[Remote]]:
    """Workers on the cluster at ``address``, or on one that is started here; not more than there are items.

    Without ``n``, there are as many as the nodes have room for. All get the same number of threads, on which
    the last bits of a result depend.
    """
    device, cpus = device or ("cuda" if resources.gpus else "cpu"), resources.cpus or 1
    memory = None if resources.memory is None else int(resources.memory * 1e9)
    threads = dict.fromkeys(THREADS, str(cpus))
    with ExitStack() as stack:
        stack.enter_context(environment({**QUIET, **threads}))
        ray = _connected(stack, address, cpus * n if n else max(cpus, os.cpu_count() or 1))
        wanted = {"CPU": cpus, "GPU": resources.gpus, "memory": memory or 0}
        n = min(n or room([node["Resources"] for node in ray.nodes() if node["Alive"]], wanted), items)
        seat = ray.remote(Seat).options(
            num_cpus=cpus, num_gpus=resources.gpus, memory=memory, max_restarts=-1, max_task_retries=1,
            runtime_env={"env_vars": threads} if address else None,
        )  # fmt: skip
        here = ([], "") if address else ([*sys.path], str(Path.cwd()))
        workers = [Remote(seat.remote(cpus, *here), device) for _ in range(max(1, n))]
        starts = [worker.started for worker in workers]
        if address and not wait(starts, PATIENCE, FIRST_COMPLETED).done:
            logger.warning("Waiting for a node of the cluster with room for a job: %s.", wanted)
        for future in wait(starts, return_when=FIRST_COMPLETED).done:
            future.result()
        yield workers


def _connected(stack: ExitStack, address: str, cpus: int) -> Any:
    """Ray, connected with a cluster, or with one of so many CPUs that ends with the stack."""
    own: dict[str, Any] = {}
    if address and address != "auto":  # Ray would wait for half a minute where nobody answers
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except (OSError, ValueError, OverflowError) as error:
            got = first_line(error) if isinstance(error, OSError) else "no HOST:PORT"
            raise DeviceError(f"a Ray cluster at {address}", got, FIX) from None
    elif not address and "RAY_AUTH_MODE" not in os.environ:  # other users of this machine cannot join it
        stack.enter_context(environment({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}))
    ray = from_extra("ray", "bench", "--on ray", DeviceError)
    short = "/tmp" if os.path.isdir("/tmp") else None  # paths of sockets have at most 107 characters
    temporary = tempfile.TemporaryDirectory(prefix="purge-ray-", dir=short, ignore_cleanup_errors=True)
    folder = stack.enter_context(temporary)
    if not address:
        own = {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": folder}
        own["object_store_memory"] = 100 * 2**20  # bytes: results are small
    stack.callback(_shut_down, ray)
    handler = signal.getsignal(signal.SIGTERM)  # which Ray replaces
    try:
        # Ray lets workers import from the current folder; see current_folder_importable for why not.
        with chdir(folder), warnings.catch_warnings(action="ignore"):  # the error says it
            ray.init(address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except Exception as error:  # a cluster of another version, one that asks for a token, no memory
        got = first_line(error)
        raise DeviceError(f"a Ray cluster {f'at {address}' if address else 'here'}", got, FIX) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    ray._private.worker._worker_logs_enabled = False  # it tells on stdout that workers died
    return ray


def _shut_down(ray: Any) -> None:
    """End Ray while nothing goes to stderr: its own threads write there what will not be done."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        ray.shutdown()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def room(nodes: list[dict[str, float]], wanted: dict[str, float]) -> int:
    """How many jobs fit on the nodes.

    >>> room([{"CPU": 8, "GPU": 1}], {"CPU": 1.0, "GPU": 0.25, "memory": 0})
    4
    """
    amounts = {name: amount for name, amount in wanted.items() if amount}
    fit = sum(int(min(node.get(name, 0) / amount for name, amount in amounts.items())) for node in nodes)
    if not fit:
        most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in amounts}
        fix = "lower resources; if the cluster will grow, say with --jobs how many fit then"
        raise DeviceError(f"a node with room for a job, {amounts}", f"at most {most}", fix)
    return fit
