"""The number of torch threads: small work gets one, a container its share, and a chosen number is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import purge
from purge.core import threads

LARGE = 50 * threads.SMALL


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend to be on a machine with so many cores."""

    def pretend(cores: int, *, physical: int | None = None, quota: int = 999) -> None:
        monkeypatch.setattr(threads, "_cores", lambda: set(range(cores)))
        monkeypatch.setattr(threads, "_physical", lambda _: physical or cores)
        monkeypatch.setattr(threads, "_quota", lambda: quota)

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return pretend


CHOICES = [  # cores, physical, quota, work, torch's number → what is chosen
    (2, 2, 99, threads.SMALL, 2, 1), (16, 8, 99, 1, 8, 1), (2, 2, 99, LARGE, 2, 2), (16, 16, 3, LARGE, 16, 3),
    (16, 8, 99, LARGE, 8, 8),  # torch may count physical cores
    (8, 8, 99, 1, 3, 3), (8, 8, 99, LARGE, 1, 1),  # the caller's choice
]  # fmt: skip


@pytest.mark.parametrize(("cores", "physical", "quota", "work", "current", "chosen"), CHOICES)
def test_small_work_gets_one_thread_and_large_work_what_there_is(
    machine: Any, cores: int, physical: int, quota: int, work: int, current: int, chosen: int
) -> None:
    machine(cores, physical=physical, quota=quota)
    assert threads.choose_threads(work, current) == chosen
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # the environment wins
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(name, "2")
            assert threads.choose_threads(work, current) == current


class Counts(nn.Module):
    """A classifier that notes with how many threads it is called."""

    seen: set[int] = set()  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        Counts.seen.add(torch.get_num_threads())
        return self.fc(x)


@pytest.fixture
def two_threads(machine: Any) -> Any:
    machine(2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    Counts.seen.clear()
    yield
    torch.set_num_threads(before)


def call(door: str, toy: tuple[Any, ...]) -> Any:
    """What a public function returns for a small model."""
    _, forget, retain, test = toy
    arguments: dict[str, Any] = {
        "train": (retain,), "train_sharded": (retain,), "unlearn": (forget, retain),
        "audit": (forget, retain, test),
    }  # fmt: skip
    more = {"train": {"epochs": 1}, "train_sharded": {"epochs": 1, "shards": 2}, "audit": {"metrics": "ra"}}
    return getattr(purge, door)(Counts(), *arguments[door], progress=False, **more.get(door, {}))


DOORS = ["train", "unlearn", "audit", "train_sharded"]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("cores", "used"), [(2, 1), (8, 2)])
def test_every_door_records_how_many_threads_were_used(
    toy: tuple[Any, ...], two_threads: None, machine: Any, door: str, cores: int, used: int
) -> None:
    """Of two threads: all cores, of which a small model gets one; or somebody's choice among eight."""
    machine(cores)
    assert call(door, toy).info["threads"] == used
    assert used in Counts.seen
    assert torch.get_num_threads() == 2


def test_the_number_is_restored_after_an_error(two_threads: None) -> None:
    def fail() -> None:
        with threads.threads_for(Counts(), torch.device("cpu")):
            assert torch.get_num_threads() == 1
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    with threads.threads_for(Counts(), torch.device("cuda")):
        assert torch.get_num_threads() == 2
    assert [threads.numbers(seen) for seen in (set(), {2}, {2, 1})] == [None, 2, [1, 2]]
