"""Shards of a SISA training that were trained before, perhaps by other processes: a file for each of them."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn

from purge.engine.context import Context
from purge.engine.store import cpu_copies, read_tensors, write_tensors
from purge.models.checkpoint import tensors_of
from purge.models.forward import Rows, counting, rows_of

Parts = Callable[[int], Path]  # the file of a shard
History = list[dict[str, Any]]


def read_or_trained(
    path: Path, net: nn.Module, checkpoints: list[Any], train: Callable[[Context], History], context: Context
) -> tuple[History, float]:
    """The history of a shard, whose weights and checkpoints are read from its file, or made by ``train``.

    Also the seconds that it took before. Whoever names the file must see to it that it is of the same data,
    network and plan.
    """
    if (tensors := read_tensors(path)) is None:
        began, own = time.perf_counter(), dataclasses.replace(context, threads=set())
        with counting(net) as counted:
            history = train(own)
        context.threads.update(own.threads)
        rows, seconds = dataclasses.asdict(counted), time.perf_counter() - began
        about = {"history": history, "rows": rows, "threads": sorted(own.threads), "seconds": seconds}
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
    context.threads.update(about["threads"])
    return list(about["history"]), float(about["seconds"])


def _state(tensors: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    return {k.partition("/")[2]: t for k, t in tensors.items() if k.partition("/")[0] == str(i)}
