"""Two ranks give what one rank gives with the whole batch, and both have the same bits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import purge
from tests.ranks import jobs
from tests.ranks.starting import start, texts

pytestmark = pytest.mark.dist

CLOSE = {"float32": 1e-5, "float64": 1e-10}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
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
    job = jobs.jobs()[name]
    one, two = jobs.kept(jobs.unlearned(job)), ranks[0]["results"][name]
    assert apart(two["weights"], one["weights"]) < CLOSE[job.dtype]
    assert two["stopped_by"] == one["stopped_by"]
    _same_history(two["history"], one["history"], CLOSE[job.dtype])


def test_training_and_augmented_runs_equal_one(ranks: list[dict[str, Any]]) -> None:
    for name, one in jobs.more().items():
        assert apart(ranks[0]["results"][name]["weights"], one["weights"]) < CLOSE["float64"], name


def test_odd_models_equal_one(ranks: list[dict[str, Any]]) -> None:
    for name, one in jobs.odd().items():
        two = ranks[0]["results"][name]
        if name == "half":  # rounded to three digits in every layer
            losses = [[row["retain_loss"] for row in found["history"][1:]] for found in (two, one)]
            assert losses[0] == pytest.approx(losses[1], rel=0.05)
        else:
            assert apart(two["weights"], one["weights"]) < CLOSE["float64"], name


def _same_history(two: list[dict[str, Any]], one: list[dict[str, Any]], close: float) -> None:
    assert len(two) == len(one)
    for a, b in zip(two, one, strict=True):
        assert a.keys() == b.keys()
        for key, value in b.items():
            if not isinstance(value, float) or math.isnan(value):
                assert a[key] == value or math.isnan(value)
            else:
                assert a[key] == pytest.approx(value, rel=max(close, 1e-6), abs=max(close, 1e-6)), key


def test_every_rank_has_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    for part in ("results", "random"):
        for name, first in ranks[0][part].items():
            second = ranks[1][part][name]
            assert all(torch.equal(t, second["weights"][k]) for k, t in first["weights"].items()), name
            assert first["history"] == second["history"], name
    assert ranks[0]["audit"] == ranks[1]["audit"]


def test_an_audit_equals_that_of_one_rank(ranks: list[dict[str, Any]]) -> None:
    one = jobs.audited()
    assert ranks[0]["audit"].keys() == one.keys()
    for name, value in one.items():
        found = ranks[0]["audit"][name]
        assert found == pytest.approx(value, abs=1e-4) if value is not None else found is None, name


@pytest.mark.parametrize("name", ["resnet-batchnorm", "vit"])
def test_no_step_raises_the_retain_loss_of_the_whole_batch(name: str, ranks: list[dict[str, Any]]) -> None:
    """⟨θ − θ', g⟩ ≥ 0 for the gradient of all of D_r, computed here from the weights before each step."""
    x, y = jobs.parts(True)[1]
    model = jobs.network(name)
    for m in model.modules():
        m.train(isinstance(m, torch.nn.modules.batchnorm._BatchNorm))  # dropout is off in a run
    shapes = [p.shape for p in model.parameters()]
    assert len(ranks[0]["steps"][name]) == 9
    for before, after, used in ranks[0]["steps"][name]:
        parts = before.split([math.prod(shape) for shape in shapes])
        with torch.no_grad():
            for p, part, shape in zip(model.parameters(), parts, shapes, strict=True):
                p.copy_(part.view(shape))
        loss = F.cross_entropy(model(x), y)
        g = torch.cat([t.flatten() for t in torch.autograd.grad(loss, [*model.parameters()])]).double()
        assert float((used.double() - g).norm() / g.norm()) < 1e-4
        moved = before.double() - after.double()
        assert float(moved.norm()) > 0
        assert float(moved @ used.double()) >= 0
        assert float(moved @ g) >= -1e-4 * float(moved.norm() * g.norm())


def test_methods_that_share_their_batches_are_those_that_say_so() -> None:
    shared = {name for name, e in purge.methods.registry.METHODS.items() if e.method.distributes}
    assert {"purge", "purge-close", "purge-pull", "purge-paper", "retrain", "finetune"} <= shared
    assert not {"ssd", "fisher", "influence", "sisa", "exact-head", "mu-mis"} & shared
