"""Which worker does what and when."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from purge.bench import pool as workers
from purge.bench.pool import Done, Item, Tried


class Pool:
    """Stands in for a process: does at once what it is given, and logs it."""

    def __init__(self, log: list[tuple[int, Any]], me: int) -> None:
        self.log, self.me = log, me
        self.started: Future[None] = Future()
        self.started.set_result(None)

    def submit(self, work: Any, what: Any) -> Future[Tried]:
        self.log.append((self.me, what))
        future: Future[Tried] = Future()
        future.set_result(work(what))
        return future


def fine(_: Any) -> Tried:
    return Tried()


def side_by_side(n: int, items: list[Item], work: Any = fine) -> tuple[list[Done], list[Any]]:
    log: list[tuple[int, Any]] = []
    pools: Any = [Pool(log, i) for i in range(n)]
    return list(workers.side_by_side(pools, no_other, work, items)), log


def no_other(_: Any) -> Any:
    raise AssertionError("no process died")


MODELS = [Item("a", "a"), Item("b", "b"), Item("c", "c")]
JOBS = [
    *(Item(f"ab{i}", "ab", frozenset("ab")) for i in range(3)),
    *(Item(f"bc{i}", "bc", frozenset("bc")) for i in range(3)),
]


@pytest.mark.parametrize("n", [0, 2, 3, 8])
def test_everything_is_done_once_and_after_what_it_needs(n: int) -> None:
    items = [*MODELS, *JOBS]
    done = side_by_side(n, items)[0] if n else list(workers._one_by_one(fine, items))
    order = [d.what for d in done]
    assert sorted(order) == sorted(item.what for item in items)
    for item in items:
        assert all(order.index(need) < order.index(item.what) for need in item.needs)


def test_a_job_starts_as_soon_as_its_own_models_are_there() -> None:
    """Even while a third model is still being trained."""
    busy: Future[Tried] = Future()

    class Slow(Pool):
        def submit(self, work: Any, what: Any) -> Future[Tried]:
            super().submit(work, what)
            return busy if what == "c" else super().submit(fine, f"({what})")

    log: list[tuple[int, Any]] = []
    pools: Any = [Slow(log, i) for i in range(3)]
    going = workers.side_by_side(pools, no_other, fine, [*MODELS, *JOBS])
    first = [next(going).what for _ in range(5)]
    assert set(first) == {"a", "b", "ab0", "ab1", "ab2"}
    busy.set_result(Tried())
    assert {done.what for done in going} == {"c", "bc0", "bc1", "bc2"}


@pytest.mark.parametrize("n", [0, 2])
def test_a_job_whose_model_failed_is_not_tried(n: int) -> None:
    def work(what: str) -> Tried:
        return Tried("no memory" if what == "a" else "")

    items = [*MODELS, *JOBS]
    done = side_by_side(n, items, work)[0] if n else list(workers._one_by_one(work, items))
    told = {d.what: (d.error, d.tried) for d in done}
    assert told.pop("a") == ("no memory", True)
    assert {told.pop(f"ab{i}") for i in range(3)} == {("no memory", False)}
    assert set(told.values()) == {("", True)}


def test_a_failed_job_blocks_no_other() -> None:
    done, _ = side_by_side(2, [*MODELS, *JOBS], lambda what: Tried("broke" * (what == "ab0")))
    assert [d.what for d in done if d.error] == ["ab0"]
    assert all(d.tried for d in done)


def test_a_worker_stays_with_its_group() -> None:
    """Six items of two groups and three workers: the third helps where most is left."""
    a, b = (deque(Item(i, g) for i in of) for g, of in (("a", (1, 2, 3, 4)), ("b", (5, 6))))
    ready, at = {"a": a, "b": b}, dict[int, str]()

    def taken(worker: int) -> Any:
        found = workers._next(ready, at, worker)
        return found and found.what

    assert [taken(worker) for worker in (0, 1, 2, 1, 0, 2)] == [1, 5, 2, 6, 3, 4]
    assert at == {0: "a", 1: "b", 2: "a"}
    ready["c"] = deque([Item(7, "c"), Item(8, "c")])
    assert [taken(1), taken(0), taken(2)] == [7, 8, None]


def test_items_that_need_nothing_go_first() -> None:
    ready = {
        "jobs": deque([Item(i, "jobs", frozenset("m")) for i in range(9)]),
        "m2": deque([Item("m2", "m2")]),
    }
    found = workers._next(ready, {}, 0)
    assert found is not None
    assert found.what == "m2"


def deadly(what: str) -> Tried:
    if what.startswith("killer"):
        os._exit(9)
    return Tried()


@pytest.mark.slow
def test_an_item_that_kills_its_process_has_failed_and_the_others_are_done() -> None:
    """Each is tried once; what needs one is not tried at all. Afterwards, there are still two workers."""
    items = [Item("killer a", "a"), Item("b", "b"), Item("killer c", "c")]
    items += [Item(f"ab{i}", "ab", frozenset("ab")) for i in range(2)]
    items += [Item(f"{'killer ' * (i == 0)}b{i}", "bb", frozenset("b")) for i in range(3)]
    with workers.processes(2) as crew:
        done = list(crew.each(deadly, items))
        again = list(crew.each(deadly, [Item(i, "d") for i in ("x", "y")]))
    told = {d.what: d for d in done}
    assert len(done) == len(told) == len(items)
    for what in ("killer a", "killer c", "killer b0"):
        assert told.pop(what) == Done(what, workers.KILLED, killed=True)
    for what in ("ab0", "ab1"):
        assert told.pop(what) == Done(what, workers.KILLED, tried=False)
    assert set(told.values()) == {Done(what, "") for what in ("b", "b1", "b2")}
    assert sorted(again) == [Done("x", ""), Done("y", "")]


@pytest.mark.slow
def test_a_process_that_dies_while_idle_is_replaced() -> None:
    each: Any
    with workers.processes(2) as (each, _):
        (done,) = each(pid, [Item("x", "x")])
        os.kill(done.found, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while not any(pool._broken for pool in each.args[0]) and time.monotonic() < deadline:
            time.sleep(0.01)
        (after,) = each(pid, [Item("x", "x")])
    assert not after.killed
    assert after.found != done.found


def pid(_: Any) -> Tried:
    return Tried("", os.getpid())


def threads(_: Any) -> Tried:
    return Tried("", (torch.get_num_threads(), {name: os.environ.get(name) for name in workers.THREADS}))


@pytest.mark.slow
def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch, NumPy and scikit-learn of each get their part; afterwards the caller's settings are back."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    wanted = max(1, (os.cpu_count() or 1) // 2)
    with workers.processes(2) as crew:
        (done,) = crew.each(threads, [Item("x", "x")])
    assert done.found == (wanted, dict.fromkeys(workers.THREADS, str(wanted)))
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_worker_has_the_threads_that_were_asked_for(n: int) -> None:
    """Also the only one, in this process, which gets its own number back."""
    before, environment = torch.get_num_threads(), dict(os.environ)
    with workers.processes(n, cpus=3) as crew:
        (done,) = crew.each(threads, [Item("x", "x")])
    assert done.found == (3, dict.fromkeys(workers.THREADS, "3"))
    assert torch.get_num_threads() == before
    assert dict(os.environ) == environment


def test_a_worker_that_starts_late_joins_the_others() -> None:
    """Nothing waits for it while others work; with nobody else it is waited for; it may never come."""
    log: list[tuple[int, Any]] = []
    pools: Any = [Pool(log, i) for i in range(3)]
    for late in pools[1:]:
        late.started = Future()
    going = workers.side_by_side(pools, no_other, fine, [Item(i, str(i)) for i in range(6)])
    next(going)
    pools[1].started.set_result(None)
    assert len(list(going)) == 5
    assert {me for me, _ in log} == {0, 1}


def test_a_worker_that_cannot_start_is_the_end() -> None:
    pools: Any = [Pool([], 0), Pool([], 1)]
    pools[1].started = Future()
    pools[1].started.set_exception(OSError("no such node"))
    with pytest.raises(OSError, match="no such node"):
        list(workers.side_by_side(pools, no_other, fine, [Item("x", "x")]))
