"""What the jobs of a bench may ask for, and models at a URL; no cluster is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purge.bench import shared
from purge.bench.on_ray import _room
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
    assert _room(nodes, {"CPU": 2, "GPU": 0, "memory": 0}) == 3
    assert _room(nodes, {"CPU": 1, "GPU": 0.5, "memory": 0}) == 2
    assert _room(nodes, {"CPU": 1, "GPU": 0, "memory": 4e9}) == 2
    with pytest.raises(PurgeError, match=r"room for a job, \{'CPU': 5\}, got at most \{'CPU': 4\}"):
        _room(nodes, {"CPU": 5, "GPU": 0, "memory": 0})


# -- models at a URL --------------------------------------------------------------------------


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    pytest.importorskip("fsspec")
    return (tmp_path / "shared").as_uri() if request.param == "file" else f"memory://{tmp_path.name}"


def model(folder: Path, text: str = "weights") -> Path:
    (folder / "updates").mkdir(parents=True)
    (folder / "run.json").write_text(text)
    (folder / "updates" / "0").write_bytes(b"\0" * 1000)
    return folder


def test_a_model_travels_as_a_whole(url: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    assert shared.names(url) == []
    assert not shared.fetch(url, there / "m-1")
    shared.publish(model(tmp_path / "here" / "m-1"), url)
    assert shared.names(url) == ["m-1"]
    model(there / "m-1", "unfinished")
    assert shared.fetch(url, there / "m-1")
    assert (there / "m-1" / "run.json").read_text() == "weights"
    assert (there / "m-1" / "updates" / "0").stat().st_size == 1000
    assert [p.name for p in there.iterdir()] == ["m-1"]  # no temporary files


def test_the_first_of_a_name_stays_unless_it_is_replaced(url: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    shared.publish(model(tmp_path / "a" / "m-1", "first"), url)
    shared.publish(model(tmp_path / "b" / "m-1", "second"), url)
    assert shared.fetch(url, tmp_path / "there" / "m-1")
    assert (tmp_path / "there" / "m-1" / "run.json").read_text() == "first"
    shared.publish(tmp_path / "b" / "m-1", url, replace=True)
    assert shared.fetch(url, tmp_path / "there" / "m-1")
    assert (tmp_path / "there" / "m-1" / "run.json").read_text() == "second"
    shared.remove("m-1", url)
    shared.remove("m-1", url)
    assert shared.names(url) == []


def test_half_an_archive_counts_as_missing(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    url = (tmp_path / "shared").as_uri()
    shared.publish(model(tmp_path / "here" / "m-1"), url)
    archive = tmp_path / "shared" / "m-1.zip"
    archive.write_bytes(archive.read_bytes()[:700])
    (tmp_path / "there").mkdir()
    assert not shared.fetch(url, tmp_path / "there" / "m-1")
    assert not [*(tmp_path / "there").iterdir()]


@pytest.mark.parametrize("url", ["nope://x", "s3:////"])
def test_a_url_that_cannot_be_read_is_refused(url: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(PurgeError, match=f"Expected models at {url}, got "):
        shared.checked(url)


def test_what_is_a_url() -> None:
    urls = {"s3://b/m": True, "file:///x": True, "models": False, "/a://b": False, "a/s3://b": False}
    assert {text: shared.is_url(text) for text in urls} == urls
    assert not shared.is_url(Path("s3://x"))
