"""Several ranks on this machine, started for a test: processes that have torch and purge imported already."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 300  # after which ranks are taken for stuck

_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["tests.ranks.warm"])


def start(fn: Callable[..., Any], folder: Path, *args: Any, ranks: int = 2, group: bool = True) -> list[Any]:
    """``fn(folder, *args)`` on every rank at the same time; the exit codes, minus the signal of a kill.

    What a rank prints is in out-RANK.txt and err-RANK.txt of the folder. With ``group`` torch.distributed is
    initialised before.
    """
    folder.mkdir(exist_ok=True)
    # Whoever starts ranks keeps what they meet by, as torchrun does.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = [
        _context.Process(target=_rank, args=(fn, folder, args, rank, ranks, store.port, group))
        for rank in range(ranks)
    ]
    for one in started:
        one.start()
    for one in started:
        one.join(SECONDS)
    stuck = [one for one in started if one.is_alive()]
    for one in stuck:
        one.kill()
        one.join()
    assert not stuck, f"ranks did not end: {texts(folder, ranks)}"
    return [one.exitcode for one in started]


def texts(folder: Path, ranks: int = 2) -> list[str]:
    """What each rank has written to stderr."""
    return [(folder / f"err-{rank}.txt").read_text() for rank in range(ranks)]


def _rank(
    fn: Callable[..., Any], folder: Path, args: tuple[Any, ...], rank: int, ranks: int, port: int, group: bool
) -> None:
    about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in {**about, "MASTER_PORT": port}.items()})
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{name}-{rank}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
    torch.set_num_threads(1)
    code = 0
    try:
        if group:
            dist.init_process_group("gloo")
        fn(folder, *args)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
