"""A method and a metric that live outside of the package, run through a bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from purge.bench.runner import bench
from tests.bench.plans import place_of, plan_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_examples_run_through_a_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    plan = plan_of(
        tmp_path,
        trust=True,
        per_class=20,
        recipe={"epochs": 1},
        retrains=0,
        metrics=["fa_test", "own_metric:SURE"],
        methods=[{"method": "own_method:NoisyHead", "label": "noisy", "set": {"epochs": 1, "noise": 0.5}}],
        tables=[{"name": "t", "columns": ["fa_test", "sure.forget"]}],
    )
    place = place_of(tmp_path / "out")
    done = bench(plan, place, progress=False)
    assert (done.ran, done.failed) == (1, {})
    result = json.loads(place.file(plan.jobs[0]).read_text())
    assert [result["values"][f"sure.{part}"]["n"] for part in ("forget", "retain")] == [20, 180]
    assert "| method | FA | sure forget |" in (place.out / "tables" / "t.md").read_text()
