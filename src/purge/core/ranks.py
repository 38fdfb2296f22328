"""The ranks of a program: processes that torch.distributed has brought together to work on one task.

Outside of :func:`together` there is one rank, this process, and nothing here costs anything. torch is
imported only where there are several.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from purge.core.errors import RunError, first_line

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("purge")

PATIENCE = 30.0  # seconds after which a rank says that it waits for the others
LIMIT = 1800.0  # seconds after which it gives up, as torch.distributed does
SAID = "purge/said"
LAST_WORDS = 2.0  # seconds for which rank 0, when it fails, lets the others ask whether to speak
OWN_NUMBERS = 0x5A17  # what rank 0 draws for its own rows must not be what it draws for all


@dataclass
class _Team:
    """The ranks that work together, and what this one keeps for itself."""

    rank: int
    size: int
    group: Any  # of torch.distributed, apart from the program's own
    sharing: bool = False  # is every batch cut among the ranks?
    numbers: dict[str, Any] = field(default_factory=dict)  # the states of this rank's own random numbers


# Gradients are computed in other threads, so these are no context variables.
_team: _Team | None = None
_alone = 0  # blocks of alone() that are open
_meetings = 0  # how often this rank has met the others


def world() -> int:
    """Among how many ranks a batch is cut; 1 where it is not."""
    return _team.size if _team is not None and _team.sharing else 1


def rank() -> int:
    """The number of this rank among those that work together; 0 if there are no others."""
    return 0 if _team is None else _team.rank


def several() -> bool:
    """Do several ranks work together now?"""
    return _team is not None


def writes() -> bool:
    """May this process write what all ranks have? Rank 0 does, also after they have worked together."""
    if _team is None and not _alone and _started():
        return sys.modules["torch"].distributed.get_rank() == 0  # type: ignore[no-any-return]
    return rank() == 0


def own_rows(n: int) -> range:
    """Which rows of a batch of ``n`` this rank takes: every ``world``-th, so that each part is shared."""
    return range(rank(), n, world())


def together(door: Callable[P, T]) -> Callable[P, T]:
    """A function that all ranks call, and in which they work together, if torch.distributed has several."""

    @functools.wraps(door)
    def calling(*args: P.args, **given: P.kwargs) -> T:
        with met(door.__name__):
            return door(*args, **given)

    return calling


@contextmanager
def met(what: str) -> Iterator[None]:
    """Within the block the ranks work together: either all of them come to its end, or none does."""
    global _team
    if _team is not None or _alone or not _started():
        yield
        return
    import torch.distributed as dist

    _wait_for_all(what)
    both = "cpu:gloo,cuda:nccl" if _has_nccl() else "gloo"
    group: Any = dist.new_group(backend=both)
    team = _team = _Team(dist.get_rank(), dist.get_world_size(), group)
    try:
        yield
        check_same("every rank to finish", "")  # what rank 0 writes is there when the others go on
    finally:
        # One that fails leaves: its connections close, and the others, which wait for it, fail too. They
        # close with the last reference to the group, and the traceback of an error holds on to some.
        _team = None
        dist.destroy_process_group(group)
        team.group = group = None


@contextmanager
def alone() -> Iterator[None]:
    """Within the block this rank works by itself, whatever the others do.

    It is for a program with ``torch.distributed`` in which one rank alone calls purge.

    Returns:
        A context manager.

    Example:
        ```python
        if torch.distributed.get_rank() == 0:
            with purge.alone():
                report = purge.audit(model, forget, retain, test)
        ```
    """
    global _alone
    _alone += 1
    try:
        yield
    finally:
        _alone -= 1


@contextmanager
def sharing() -> Iterator[None]:
    """Within the block each rank takes its rows of every batch that goes through a model."""
    if _team is None:
        yield
        return
    team, before = _team, _team.sharing
    if not before:
        team.sharing, team.numbers = True, {}  # what was drawn earlier has no part in what is drawn now
    try:
        yield
    finally:
        team.sharing = before


def _started() -> bool:
    torch = sys.modules.get("torch")  # who has not imported it has not initialised it
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    return bool(torch.distributed.get_world_size() > 1)


def _has_nccl() -> bool:
    import torch

    return torch.cuda.is_available() and torch.distributed.is_nccl_available()


def _wait_for_all(what: str) -> None:
    """Until every rank has come here; a rank that waits alone says what it waits for."""
    global _meetings
    import torch.distributed as dist

    _meetings += 1
    store = dist.distributed_c10d._get_default_store()
    key, size, began, said = f"purge/{_meetings}", dist.get_world_size(), time.monotonic(), False
    try:
        there = store.add(key, 1)
        while there < size:
            waited = time.monotonic() - began
            if waited > LIMIT:
                fix = "call it on every rank, or on one within `with purge.alone():`"
                raise RunError(f"all {size} ranks to call {what}", f"{there} of them", fix)
            if waited > PATIENCE and not said:
                said = True
                logger.warning(
                    "Rank %d waits for the other ranks to call %s too. To work on one rank alone, call it "
                    "within `with purge.alone():`.", dist.get_rank(), what,
                )  # fmt: skip
            time.sleep(0.002 if waited < 1 else 0.05)
            there = store.add(key, 0)
    except RuntimeError as error:  # the store is gone, with the rank that kept it
        raise _gone(error) from None


# -- what ranks tell each other ------------------------------------------------------------------


def _gone(error: RuntimeError) -> RunError:
    return RunError(
        "every rank to go on", f"one that has failed or ended ({first_line(error)[:120]})",
        "see what that rank said, then start all of them again",
    )  # fmt: skip


def first_to_speak() -> bool:
    """Is this the first of all ranks that asks? Of an error that all of them have, one tells."""
    if not _started():
        return True
    import torch.distributed as dist

    try:
        return bool(dist.distributed_c10d._get_default_store().add(SAID, 1) == 1)
    except RuntimeError:  # the rank that kept the store is gone
        return True


def let_others_ask() -> None:
    """Rank 0 keeps what :func:`first_to_speak` looks at, unless torchrun does: wait until all have asked."""
    if not _started() or sys.modules["torch"].distributed.get_rank() > 0:
        return
    import torch.distributed as dist

    store, until = dist.distributed_c10d._get_default_store(), time.monotonic() + LAST_WORDS
    with suppress(RuntimeError):
        while time.monotonic() < until and store.add(SAID, 0) < dist.get_world_size():
            time.sleep(0.02)


def summed(t: Tensor) -> Tensor:
    """The sum of a tensor over the ranks, in its place: the same bits on each of them."""
    assert _team is not None
    import torch.distributed as dist

    try:
        dist.all_reduce(t, group=_team.group)
    except RuntimeError as error:
        raise _gone(error) from None
    return t


def mean(t: Tensor) -> Tensor:
    """The mean of a tensor over the ranks that share batches, in its place; the tensor if there is one."""
    return t if world() == 1 else summed(t).div_(world())


def mean_grads(params: Iterable[Tensor]) -> None:
    """Give each parameter the mean of its gradients over the ranks that share batches."""
    if world() == 1:
        return
    import torch

    grads = [p.grad for p in params if p.grad is not None]
    for dtype in dict.fromkeys(g.dtype for g in grads):
        own = [g for g in grads if g.dtype == dtype]
        flat = mean(torch.cat([g.reshape(-1) for g in own]))
        for g, part in zip(own, flat.split([g.numel() for g in own]), strict=True):
            g.copy_(part.view_as(g))


def from_first(tensors: Iterable[Tensor]) -> None:
    """Give all ranks the values that these tensors have on rank 0."""
    if _team is None:
        return
    import torch.distributed as dist

    try:
        for t in tensors:
            whole = t.detach().contiguous()
            dist.broadcast(whole, dist.get_global_rank(_team.group, 0), group=_team.group)
            t.detach().copy_(whole)
    except RuntimeError as error:
        raise _gone(error) from None


def of_first(value: T) -> T:
    """What this value is on rank 0."""
    if _team is None:
        return value
    import torch.distributed as dist

    held = [value]
    try:
        dist.broadcast_object_list(held, dist.get_global_rank(_team.group, 0), group=_team.group)
    except RuntimeError as error:
        raise _gone(error) from None
    return held[0]


def check_same(what: str, *facts: Any, fix: str = "pass the same to every rank") -> None:
    """Refuse to go on where ranks have different facts."""
    if _team is None:
        return
    import torch

    own = hashlib.sha256(repr(facts).encode()).digest()
    table = torch.zeros(_team.size, len(own), dtype=torch.int64)
    table[_team.rank] = torch.tensor(list(own))
    other = (summed(table) != table[0]).any(1).nonzero()[:, 0].tolist()
    if other:
        raise RunError(what, f"another on rank {other[0]} than on rank 0", fix)


def total(*numbers: int) -> list[int]:
    """The sums of numbers over the ranks."""
    if _team is None:
        return list(numbers)
    import torch

    return [int(n) for n in summed(torch.tensor(numbers, dtype=torch.int64))]


# -- random numbers --------------------------------------------------------------------------------


@contextmanager
def apart() -> Iterator[None]:
    """Within the block, random numbers are this rank's own: they are for its rows alone.

    Those outside stay the same on all ranks, however many each of them has drawn for its rows.
    """
    if _team is None or not _team.sharing:
        yield
        return
    team, outside = _team, _states()
    if not team.numbers:
        _seed(OWN_NUMBERS + team.rank + random.getrandbits(32) + 1)
    else:
        _set(team.numbers)
    try:
        yield
    finally:
        team.numbers = _states()
        _set(outside)


def _states() -> dict[str, Any]:
    import numpy as np
    import torch

    found = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def _set(states: dict[str, Any]) -> None:
    import numpy as np
    import torch

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _seed(seed: int) -> None:
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def _of_rank_0(record: logging.LogRecord) -> bool:
    """Ranks that work together say the same: one of them is enough."""
    return rank() == 0 or record.levelno >= logging.ERROR


logger.addFilter(_of_rank_0)
