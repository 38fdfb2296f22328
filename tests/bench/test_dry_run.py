"""What a bench would do, and how long it would take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from purge.bench.dry_run import Step, as_table, steps_of
from purge.bench.models import cached
from purge.core.files import write_json
from purge.models.checkpoint import file_digest
from tests.bench.plans import place_of, plan_of, result_of


def test_times_are_those_measured_in_the_folder_and_otherwise_unknown(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, recipe={"epochs": 10}, seeds=[0, 1])
    place = place_of(tmp_path / "out")
    assert {step.seconds for step in steps_of(plan, place)} == {None}
    base = plan.trainings()[0]
    folder = place.models / f"{base.spec}-12345678"
    folder.mkdir(parents=True)
    save_file({}, folder / "model.safetensors")
    facts: dict[str, Any] = {"data": "digits", "model": "small-resnet", "seconds": 30.0}
    facts |= {"settings": {"epochs": 5}, "digest": file_digest(folder / "model.safetensors")}
    write_json(folder / "run.json", facts)
    (tmp_path / "out" / "jobs").mkdir()
    done = {**result_of(plan.jobs[0], {"ra": 0.5}), "wall_seconds": 7.0}
    write_json(place.file(plan.jobs[0]), done)
    assert cached(base, place.models) == folder
    steps = {step.what: step for step in steps_of(plan, place)}
    assert steps[f"train {base}"][1:] == (1, 1, 0.0)
    assert steps[f"train {plan.trainings()[1]}"][1:] == (1, 0, 60.0)  # ten epochs
    assert steps["digits 0: purge"][1:] == (2, 1, 7.0)
    assert steps["digits 0: finetune"][1:] == (2, 0, None)
    write_json(place.file(plan.jobs[0]), {**plan.jobs[0].keys, "error": "no room", "kind": "OSError"})
    failed = next(step for step in steps_of(plan, place) if step.what == "digits 0: purge")
    assert failed[1:] == (2, 0, None)
    other = {**facts, "model": "resnet18"}
    write_json(folder / "run.json", other)
    assert steps_of(plan, place)[1].seconds is None  # another model was measured


def test_the_table_has_a_sum_if_every_time_is_known() -> None:
    steps = [Step("train a model", 1, 1, 0.0), Step("digits 0: purge", 3, 1, 90.0)]
    heads, rows = as_table(steps)
    assert heads == ["what", "number", "there", "time left"]
    assert rows[1:] == [["digits 0: purge", "3", "1", "1.5 min"], ["all", "4", "2", "1.5 min"]]
    assert as_table([*steps, Step("digits 0: finetune", 1, 0, None)])[1][-2:] == [
        ["digits 0: finetune", "1", "0", "unknown"],
        ["all", "5", "2", "unknown"],
    ]
