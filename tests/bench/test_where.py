"""What the jobs of a bench may ask for; no cluster is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purge.bench.on_ray import room
from purge.bench.schema import Resources
from purge.core.errors import PurgeError
from tests.bench.plans import plan_of

# -- resources --------------------------------------------------------------------------------


def test_resources_of_a_file(tmp_path: Path) -> None:
    assert plan_of(tmp_path).resources == Resources()
    plan = plan_of(tmp_path, resources={"cpus": 2, "gpus": 0.25, "memory": "4GB"})
    assert plan.resources == Resources(2, 0.25, "4GB")
    assert plan.jobs[0].id == plan_of(tmp_path).jobs[0].id  # the results are the same


@pytest.mark.parametrize(
    ("memory", "found"), [(5, 5), ("7", 7), ("1.5GB", 1_500_000_000), ("2 MiB", 2**21), ("3kB", 3000)]
)
def test_memory(memory: str | int, found: int) -> None:
    assert Resources(memory=memory).memory_bytes == found


@pytest.mark.parametrize(
    "resources",
    [
        {"cpus": 0},
        {"cpus": 1.5},
        {"gpus": -1},
        {"gpus": 1.5},
        {"memory": "4 bananas"},
        {"memory": 0},
        {"gpu": 1},
        [1],
    ],
)
def test_bad_resources_are_refused(tmp_path: Path, resources: Any) -> None:
    with pytest.raises(PurgeError, match=r"Expected .*, got .*\. Fix: "):
        plan_of(tmp_path, resources=resources)


def test_room_on_the_nodes() -> None:
    """What one node has left cannot be joined with what another has."""
    nodes: list[dict[str, float]] = [{"CPU": 3, "memory": 5e9}, {"CPU": 4, "GPU": 1, "memory": 5e9}]
    assert room(nodes, {"CPU": 2, "GPU": 0, "memory": 0}) == 3
    assert room(nodes, {"CPU": 1, "GPU": 0.5, "memory": 0}) == 2
    assert room(nodes, {"CPU": 1, "GPU": 0, "memory": 4e9}) == 2
    with pytest.raises(PurgeError, match=r"room for a job, \{'CPU': 5\}, got at most \{'CPU': 4\}"):
        room(nodes, {"CPU": 5, "GPU": 0, "memory": 0})
