"""The guarantee over a whole run on a real network, and that it is the projection that keeps it."""

from __future__ import annotations

import pytest

import purge


def worst(digits, base, **changes):
    """The worst cosine of an applied displacement with the retain gradient, over a dozen steps."""
    result = purge.unlearn(
        base,
        digits.forget,
        digits.retain,
        method="purge-paper",
        epochs=6,
        epoch_ends=False,
        progress=False,
        **changes,
    )
    assert result.steps == 12
    assert any(row["projected"] for row in result.history[1:]) == (changes["space"] != "none")
    return min(row["displacement_cosine"] for row in result.history[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "weight_decay": 0.05},
        {"optimizer": "adamw", "lr": 1e-4},
    ],
    ids=str,
)
def test_every_step_of_a_run_is_safe_in_update_space_only(digits, base, optimizer):
    assert worst(digits, base, space="update", **optimizer) >= -1e-6
    assert worst(digits, base, space="gradient", **optimizer) < -0.05
    assert worst(digits, base, space="none", **optimizer) < -0.05
