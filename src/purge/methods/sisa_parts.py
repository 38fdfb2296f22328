"""Shards of a SISA training that were trained before, perhaps by other processes: a file for each of them."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from purge.core.threads import saw_threads, threads_seen
from purge.engine.store import cpu_copies, read_tensors, write_tensors
from purge.models.checkpoint import tensors_of
from purge.models.forward import Rows, counting, rows_of

Where = Callable[[int], Path]  # the file of a shard
History = list[dict[str, Any]]

_where: ContextVar[Where | None] = ContextVar("_where", default=None)


@contextmanager
def shards_in(where: Where) -> Iterator[None]:
    """Within the block, a training in shards takes those that have a file, and leaves one for each other.

    Whoever names the files must see to it that they are of the same data, network and plan.
    """
    token = _where.set(where)
    try:
        yield
    finally:
        _where.reset(token)


def found_or_trained(
    shard: int, net: nn.Module, checkpoints: list[Any], train: Callable[[], History]
) -> tuple[History, float]:
    """The history of a shard, whose weights and checkpoints are read from its file, or made by ``train``.

    Also the seconds that it took before.
    """
    where = _where.get()
    if where is None:
        return train(), 0.0
    path = where(shard)
    if (tensors := read_tensors(path)) is None:
        began = time.perf_counter()
        with counting(net) as counted, threads_seen() as seen:
            history = train()
        rows, seconds = dataclasses.asdict(counted), time.perf_counter() - began
        about = {"history": history, "rows": rows, "threads": sorted(seen), "seconds": seconds}
        states = [*checkpoints, tensors_of(net)]
        held = cpu_copies({f"{i}/{k}": t for i, state in enumerate(states) for k, t in state.items()})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, held, fix="choose another folder", metadata={"about": json.dumps(about)})
        return history, 0.0
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {})["about"])
    for i, state in enumerate(checkpoints):
        checkpoints[i] = type(state)(_state(tensors, i))
    net.load_state_dict({**net.state_dict(), **_state(tensors, len(checkpoints))})
    rows_of(net).add(Rows(**about["rows"]))
    saw_threads(*about["threads"])
    return list(about["history"]), float(about["seconds"])


def _state(tensors: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    return {k.partition("/")[2]: t for k, t in tensors.items() if k.partition("/")[0] == str(i)}
