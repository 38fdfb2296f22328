"""Requests of any size: `purge` never ends further from Retrain than the model it started from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmark import benchmark

SEEDS = range(50, 53)  # other ones than those of the table

KINDS = ["1 sample", "37 memorised samples", "one class", "wrong labels, a tenth"]


@pytest.fixture(scope="module")
def sizes() -> Any:
    """benchmarks/sizes.py, which made the table in docs/results.md."""
    return benchmark("sizes")


@pytest.fixture(scope="module")
def originals(sizes: Any) -> Any:
    return sizes.Originals(sizes.prepare(sizes.options("", sizes.OUT, epochs=sizes.EPOCHS).parse_args([])))


def row(kl: dict[str, float]) -> dict[str, Any]:
    return {"models": {model: {"kl_retrain": value} for model, value in kl.items()}}


@pytest.mark.parametrize(
    ("ours", "floor", "worse"),
    [
        ([0.5, 0.6, 0.7], 0.1, True),  # 0.3, 0.3 and 0.3 more than the original
        ([0.3, 0.4, 0.9], 0.1, True),  # 0.1, 0.1 and 0.5 more: the mean is 0.233, its standard error 0.133
        ([0.2, 0.2, 0.9], 0.1, False),  # 0, -0.1 and 0.5 more: 0.133, but the standard error is 0.186
        ([0.5, 0.6, 0.7], 0.8, False),  # a second retraining is no nearer
        ([0.1, 0.2, 0.3], 0.0, False),
    ],
)
def test_worse_is_beyond_the_noise_of_seeds_and_of_retrainings(sizes, ours, floor, worse):
    rows = [
        row({"original": before, "purge": after, sizes.AGAIN: floor})
        for before, after in zip([0.2, 0.3, 0.4], ours, strict=True)
    ]
    found = sizes.judged(rows, "purge", "kl_retrain")
    assert found.original == pytest.approx(0.3)
    assert found.worse == worse


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")  # a correlation of one sample
def test_never_further_from_retrain_than_the_original(sizes, originals, kind):
    rows = list(sizes.measured(originals.setup, kind, SEEDS, originals))
    for model in sizes.OURS:
        for key in sizes.DISTANCES:
            found = sizes.judged(rows, model, key)
            assert not found.worse, f"{model}, {key}: {found}"
