"""Which worker does what and when, what it may use, and what happens when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from purge.bench.on_ray import room
from purge.bench.schema import Resources
from purge.bench.workers import KILLED, THREADS, Done, WorkItem, each, workers_on
from purge.core.errors import PurgeError
from tests.bench.plans import plan_of, processes_of, until


class AtOnce:
    """Stands in for a process: does at once what it is given, and logs it."""

    def __init__(self, log: list[tuple[int, Any]], me: int, started: Future[Any] | None = None) -> None:
        self.log, self.me, self.started = log, me, started

    def submit(self, work: Callable[[Any], Done], what: Any, /) -> Future[Done]:
        self.log.append((self.me, what))
        future: Future[Done] = Future()
        future.set_result(work(what))
        return future


def one_breaks(what: Any) -> Done:
    return Done(what, "broken" * (what == "a1"))


ITEMS = [WorkItem(f"{group}{i}", group) for group in "ab" for i in range(3)]


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_everything_is_done_once_by_workers_that_stay_with_their_group(n: int) -> None:
    """A failure is that of its item alone."""
    log: list[tuple[int, Any]] = []
    done = {d.what: d.error for d in each([AtOnce(log, i) for i in range(n)], one_breaks, ITEMS)}
    assert sorted(what for _, what in log) == sorted(done) == sorted(item.what for item in ITEMS)
    assert [what for what, error in done.items() if error] == ["a1"]
    if n == 3:  # a free one helps where fewest work
        assert [{what[0] for me, what in log if me == i} for i in range(2)] == [{"a"}, {"b"}]
        assert log[:3] == [(0, "a0"), (1, "b0"), (2, "a1")]


def test_a_worker_that_starts_late_joins_the_others_and_is_not_waited_for() -> None:
    log: list[tuple[int, Any]] = []
    late: list[Future[Any]] = [Future(), Future()]
    going = each([AtOnce(log, 0), *(AtOnce(log, i + 1, f) for i, f in enumerate(late))], one_breaks, ITEMS)
    next(going)
    late[0].set_result(None)
    assert len(list(going)) == len(ITEMS) - 1
    assert {me for me, _ in log} == {0, 1}


def test_a_worker_that_cannot_start_is_the_end() -> None:
    broken: Future[Any] = Future()
    broken.set_exception(OSError("no such node"))
    with pytest.raises(OSError, match="no such node"):
        list(each([AtOnce([], 0), AtOnce([], 1, broken)], one_breaks, ITEMS[:1]))


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
        done = {d.what: d for d in each(workers, deadly, [WorkItem(name, name) for name in names])}
        os.kill(done["e"].result, signal.SIGKILL)
        time.sleep(1)
        again = list(each(workers, deadly, [WorkItem(name, name) for name in "xyz"]))
    assert {name: (d.error, d.killed) for name, d in done.items()} == {
        name: (KILLED, True) if "killer" in name else ("", False) for name in names
    }
    assert sorted((d.what, d.error) for d in again) == [("x", ""), ("y", ""), ("z", "")]
    assert os.getpid() not in {d.result for d in again}


def threads(what: Any) -> Done:
    return Done(what, "", (torch.get_num_threads(), {name: os.environ.get(name) for name in THREADS}))


@pytest.mark.parametrize(
    ("n", "cpus", "expected"),
    [
        (1, 3, 3), pytest.param(2, 3, 3, marks=pytest.mark.slow),
        pytest.param(2, None, max(1, (os.cpu_count() or 1) // 2), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_each_worker_has_its_threads(
    n: int, cpus: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch, NumPy and scikit-learn of each get their part; afterwards the caller's settings are back."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before, environment = torch.get_num_threads(), dict(os.environ)
    with workers_on("processes", n, 1, Resources(cpus), None) as workers:
        (done,) = each(workers, threads, [WorkItem("x", "x")])
    assert done == Done("x", result=(expected, dict.fromkeys(THREADS, str(expected))))
    assert (torch.get_num_threads(), dict(os.environ)) == (before, environment)


# -- places and resources -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "words"),
    [
        *((on, "a place to run jobs on") for on in ("rai", "ray:", "processes:4", "", "Ray")),
        ("ray://nowhere", "a Ray cluster at ray://nowhere, got no HOST:PORT"),
        ("ray:nowhere", "a Ray cluster at nowhere, got no HOST:PORT"),
    ],
)
def test_a_place_that_cannot_be_is_refused(on: str, words: str) -> None:
    with pytest.raises(PurgeError, match=f"Expected {words}"), workers_on(on, 1, 1, Resources(), None):
        pass


def test_resources_of_a_file(tmp_path: Path) -> None:
    assert plan_of(tmp_path).resources == Resources()
    plan = plan_of(tmp_path, resources={"cpus": 2, "gpus": 0.25, "memory": 4})
    assert plan.resources == Resources(2, 0.25, 4.0)
    assert plan.jobs[0].id == plan_of(tmp_path).jobs[0].id  # the results are the same


def test_room_on_the_nodes() -> None:
    """What one node has left cannot be joined with what another has."""
    nodes: list[dict[str, float]] = [{"CPU": 3, "memory": 5e9}, {"CPU": 4, "GPU": 1, "memory": 5e9}]
    assert room(nodes, {"CPU": 2, "GPU": 0, "memory": 0}) == 3
    assert room(nodes, {"CPU": 1, "GPU": 0.5, "memory": 0}) == 2
    assert room(nodes, {"CPU": 1, "GPU": 0, "memory": 4e9}) == 2
    with pytest.raises(PurgeError, match=r"room for a job, \{'CPU': 5\}, got at most \{'CPU': 4\}"):
        room(nodes, {"CPU": 5, "GPU": 0, "memory": 0})


# -- the end of all of them ------------------------------------------------------------------------

# Two workers that say that they are there and are then busy for longer than any test.
BUSY = """
import sys, time
from pathlib import Path
from purge.bench.schema import Resources
from purge.bench.workers import Done, WorkItem, each, workers_on

def work(what):
    Path(sys.argv[1], what).touch()
    time.sleep(300)
    return Done(what)

if __name__ == "__main__":
    with workers_on("processes", 2, 2, Resources(), None) as workers:
        list(each(workers, work, [WorkItem("a", "a"), WorkItem("b", "b")]))
"""


def ended(leader: int) -> bool:
    """Whether all processes of a group end by themselves; those that do not are killed."""
    all_did = until(lambda: not processes_of(leader), 20)
    for left, _ in processes_of(leader):
        os.kill(left, signal.SIGKILL)
    return bool(all_did)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen in /proc")
@pytest.mark.parametrize("everyone", [False, True], ids=["parent", "group"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_busy_workers_end_with_their_parent(tmp_path: Path, number: int, everyone: bool) -> None:
    """``everyone``: a terminal sends Ctrl-C to the workers too; it is the parent that ends them."""
    if everyone and number == signal.SIGKILL:
        pytest.skip("nobody is left to end the others")
    script, at = tmp_path / "busy.py", tmp_path / "at"
    script.write_text(BUSY)
    at.mkdir()
    argv = [sys.executable, script, at]
    with subprocess.Popen(argv, start_new_session=True, stderr=subprocess.PIPE, text=True) as parent:
        assert until(lambda: len(list(at.iterdir())) == 2, 60)
        assert len(processes_of(parent.pid)) == 4  # and the tracker
        (os.killpg if everyone else os.kill)(parent.pid, number)
        _, err = parent.communicate(timeout=30)
    assert ended(parent.pid)
    assert parent.returncode == -number
    assert "SpawnProcess" not in err  # no worker has a traceback to show
