"""Estimates of how long a bench takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import save_file

from purge.bench import dry_run as outlook
from purge.bench.store import cached
from purge.core.files import write_json
from tests.bench.plans import place_of, plan_of, result_of


def test_estimates_come_from_what_was_measured(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, recipe={"epochs": 10}, seeds=[0, 1])
    place = place_of(tmp_path / "out")
    guess = outlook.outlook(plan, place)
    assert guess[0].seconds == pytest.approx(10 * outlook.IMAGES * outlook.VISIT_SECONDS)
    base = plan.trainings()[0]
    folder = place.models / f"{base.spec}-12345678"
    folder.mkdir(parents=True)
    save_file({}, folder / "model.safetensors")
    write_json(
        folder / "run.json",
        {"data": "digits", "seconds": 30.0, "samples": 1000, "settings": {"epochs": 10}},
    )
    (tmp_path / "out" / "jobs").mkdir()
    done = {**result_of(plan.jobs[0], {"ra": 0.5}), "wall_seconds": 7.0}
    write_json(place.file(plan.jobs[0]), done)
    assert cached(base, place.models) == folder
    steps = {step.what: step for step in outlook.outlook(plan, place)}
    assert steps[f"train {base}"][1:] == (1, 1, 0.0)
    other = plan.trainings()[1]
    assert steps[f"train {other}"].seconds == pytest.approx(10 * outlook.IMAGES * 30 / 10_000)
    assert steps["digits 0: purge"][1:] == (2, 1, 7.0)
    assert steps["digits 0: finetune"][1:] == (2, 0, 14.0)
