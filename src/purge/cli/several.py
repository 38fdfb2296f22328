"""A command that torchrun has started several times: its ranks work together, and one of them speaks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container
from typing import Any

from purge.core.errors import DeviceError, MethodError, RunError, first_line

SHARED = ("train", "unlearn")


def started() -> bool:
    """Has torchrun, or what sets the same variables, started several of this process?"""
    size = os.environ.get("WORLD_SIZE", "")
    return size.isdigit() and int(size) > 1 and {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def shared(command: Callable[[], Any], names: Container[str]) -> Callable[[], Any]:
    """The command, for all ranks together; ``names``: of all commands."""
    if not started():
        return command

    def together() -> Any:
        import torch
        import torch.distributed as dist

        if os.environ["RANK"] != "0":
            sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        try:
            if torch.cuda.is_available():
                torch.cuda.set_device(gpu())
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        except (RuntimeError, ValueError) as error:
            fix = "start it with torchrun --nproc-per-node=N -m purge …"
            raise RunError("to reach the other ranks", first_line(error), fix) from None
        name = next((word for word in sys.argv[1:] if word in names), None)
        if name is not None and name not in SHARED:
            what = "purge train or unlearn for several ranks"
            raise MethodError(what, f"purge {name}, which runs in one process", "run it without torchrun")
        return command()

    return together


def gpu() -> int:
    """The number of the GPU that is this rank's."""
    import torch

    own = int(os.environ.get("LOCAL_RANK", "0"))
    if own >= torch.cuda.device_count():
        got = f"{torch.cuda.device_count()} for rank {own}, counted from 0"
        raise DeviceError(
            "a GPU for each rank on this machine", got, "start fewer ranks with --nproc-per-node"
        )
    return own


def speaks() -> bool:
    """Is this the first rank that has something to say? Of an error that all have, one tells."""
    torch = sys.modules.get("torch")
    if not started() or torch is None or not torch.distributed.is_initialized():
        return True
    try:
        first = torch.distributed.distributed_c10d._get_default_store().add("purge/said", 1) == 1
    except RuntimeError:  # whoever kept the store is gone
        first = True
    if first and sys.__stderr__ is not None:
        sys.stderr = sys.__stderr__
    return bool(first)


def leave(code: int) -> None:
    """Part from the other ranks; after a failure they are not waited for."""
    torch = sys.modules.get("torch")
    if code == 0 and started() and torch is not None and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
