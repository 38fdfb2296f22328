"""Two ranks give what one rank gives with the whole batch, and both have the same bits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ranks import jobs
from tests.ranks.starting import start, texts

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks has."""
    folder = tmp_path_factory.mktemp("ranks")
    assert start(jobs.everything, folder) == [0, 0], texts(folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest difference of two weights, relative to their size where that is above 1."""
    assert a.keys() == b.keys()
    return max(
        float(((a[k] - b[k]).abs() / b[k].abs().clamp_min(1)).max()) for k in a if a[k].is_floating_point()
    )


@pytest.mark.parametrize("name", jobs.jobs())
def test_two_ranks_equal_one(name: str, ranks: list[dict[str, Any]]) -> None:
    job, close = jobs.jobs()[name]
    one, two = jobs.kept(job()), ranks[0]["shared"][name]
    assert apart(two["weights"], one["weights"]) < close
    assert two["stopped_by"] == one["stopped_by"]
    assert len(two["history"]) == len(one["history"])
    for a, b in zip(two["history"], one["history"], strict=True):
        assert a.keys() == b.keys()
        for key, value in b.items():
            if not isinstance(value, float) or math.isnan(value):
                assert a[key] == value or math.isnan(value)
            else:
                assert a[key] == pytest.approx(value, rel=max(close, 1e-6), abs=max(close, 1e-6)), key


def test_every_rank_has_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    for part in ("shared", "own"):
        for name, first in ranks[0][part].items():
            second = ranks[1][part][name]
            assert all(torch.equal(t, second["weights"][k]) for k, t in first["weights"].items()), name
            assert first["history"] == second["history"], name


def few_rows(folder: Path) -> None:
    """More ranks than a batch has rows."""
    found = jobs.run("purge", "vgg", torch.float64, classes=False, batch_size=2)
    torch.save(found.model.state_dict(), folder / f"{torch.distributed.get_rank()}.pt")


def test_more_ranks_than_rows(tmp_path: Path) -> None:
    assert start(few_rows, tmp_path, ranks=3) == [0, 0, 0], texts(tmp_path, 3)
    one = jobs.run("purge", "vgg", torch.float64, classes=False, batch_size=2).model.state_dict()
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    assert apart(found[0], one) < 1e-10
    assert all(torch.equal(t, other[k]) for other in found[1:] for k, t in found[0].items())
