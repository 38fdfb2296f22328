"""Which worker does what and when, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from purge.bench.schema import Resources
from purge.bench.workers import KILLED, THREADS, Done, Item, each, workers_on
from purge.core.errors import PurgeError


class AtOnce:
    """Stands in for a process: does at once what it is given, and logs it."""

    def __init__(self, log: list[tuple[int, Any]], me: int, started: Future[Any] | None = None) -> None:
        self.log, self.me, self.started = log, me, started

    def submit(self, work: Any, what: Any, /) -> Future[Done]:
        self.log.append((self.me, what))
        future: Future[Done] = Future()
        future.set_result(work(what))
        return future


def fine(what: Any) -> Done:
    return Done(what)


ITEMS = [Item(f"{group}{i}", group) for group in "ab" for i in range(3)]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_everything_is_done_once(n: int) -> None:
    log: list[tuple[int, Any]] = []
    done = list(each([AtOnce(log, i) for i in range(n)], fine, ITEMS))
    assert sorted(d.what for d in done) == sorted(item.what for item in ITEMS)
    assert not any(d.error for d in done)


def test_a_worker_stays_with_its_group_and_helps_where_fewest_work() -> None:
    log: list[tuple[int, Any]] = []
    list(each([AtOnce(log, i) for i in range(3)], fine, ITEMS))
    groups = [{what[0] for me, what in log if me == i} for i in range(3)]
    assert groups[:2] == [{"a"}, {"b"}]
    assert log[:3] == [(0, "a0"), (1, "b0"), (2, "a1")]


def test_a_failure_is_that_of_its_item_alone() -> None:
    workers = [AtOnce([], 0), AtOnce([], 1)]
    done = {d.what: d.error for d in each(workers, lambda what: Done(what, "broke" * (what == "a1")), ITEMS)}
    assert {what for what, error in done.items() if error} == {"a1"}


def test_a_worker_that_starts_late_joins_the_others_and_is_not_waited_for() -> None:
    log: list[tuple[int, Any]] = []
    late: list[Future[Any]] = [Future(), Future()]
    workers = [AtOnce(log, 0), *(AtOnce(log, i + 1, f) for i, f in enumerate(late))]
    going = each(workers, fine, ITEMS)
    next(going)
    late[0].set_result(None)
    assert len(list(going)) == len(ITEMS) - 1
    assert {me for me, _ in log} == {0, 1}


def test_a_worker_that_cannot_start_is_the_end() -> None:
    broken: Future[Any] = Future()
    broken.set_exception(OSError("no such node"))
    with pytest.raises(OSError, match="no such node"):
        list(each([AtOnce([], 0), AtOnce([], 1, broken)], fine, [Item("x", "x")]))


# -- processes ----------------------------------------------------------------------------------


def deadly(what: str) -> Done:
    if what.startswith("killer"):
        os._exit(9)
    return Done(what, "", os.getpid())


@pytest.mark.slow
def test_an_item_that_kills_its_process_has_failed_and_the_others_are_done() -> None:
    """Each is tried once. Afterwards there are still two workers, also if one dies while it is idle."""
    names = ["killer a", "b", "killer c", "d", "e"]
    with workers_on("processes", 2, 5, Resources(), None) as workers:
        done = {d.what: d for d in each(workers, deadly, [Item(name, name) for name in names])}
        os.kill(done["e"].result, signal.SIGKILL)
        time.sleep(1)
        again = list(each(workers, deadly, [Item(name, name) for name in "xyz"]))
    assert {name: (d.error, d.killed) for name, d in done.items()} == {
        name: (KILLED, True) if "killer" in name else ("", False) for name in names
    }
    assert sorted(d.what for d in again) == ["x", "y", "z"]
    assert not any(d.error for d in again)
    assert os.getpid() not in {d.result for d in again}


def threads(what: Any) -> Done:
    return Done(what, "", (torch.get_num_threads(), {name: os.environ.get(name) for name in THREADS}))


@pytest.mark.parametrize(
    ("n", "cpus", "expected"),
    [
        (1, 3, 3),
        pytest.param(2, 3, 3, marks=pytest.mark.slow),
        pytest.param(2, None, max(1, (os.cpu_count() or 1) // 2), marks=pytest.mark.slow),
    ],
)
def test_each_worker_has_its_threads(
    n: int, cpus: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch, NumPy and scikit-learn of each get their part; afterwards the caller's settings are back."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before, environment = torch.get_num_threads(), dict(os.environ)
    with workers_on("processes", n, 1, Resources(cpus), None) as workers:
        assert [*each(workers, threads, [Item("x", "x")])] == [
            Done("x", result=(expected, dict.fromkeys(THREADS, str(expected))))
        ]
    assert torch.get_num_threads() == before
    assert dict(os.environ) == environment


# -- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "device", "words"),
    [
        *((on, None, "a place to run jobs on") for on in ("rai", "ray:", "processes:4", "", "Ray")),
        ("ray://nowhere", None, "a Ray cluster at ray://nowhere, got no HOST:PORT"),
        ("ray:nowhere", None, "a Ray cluster at nowhere, got no HOST:PORT"),
        ("ray", "cuda", "gpus in resources, for --device cuda, got none"),
        ("ray", "cuda:1", "--device cpu or cuda on a cluster, got 'cuda:1'"),
    ],
)
def test_a_place_that_cannot_be_is_refused(on: str, device: str | None, words: str, tmp_path: Path) -> None:
    with pytest.raises(PurgeError, match=f"Expected {words}"), workers_on(on, 1, 1, Resources(), device):
        pass
