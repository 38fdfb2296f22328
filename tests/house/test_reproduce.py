"""scripts/reproduce finds published cells again, and says so when it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tests.benchmark

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "reproduce"


@pytest.fixture(scope="module")
def script():
    return tests.benchmark.script(SCRIPT)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (0.5, "same"), (0.5004, "same"), (0.45, "within"), (0.6, "within"), (0.399, "within"),
        (0.38, "outside"), (0.62, "outside"), (None, "missing"),
    ],
)  # fmt: skip
def test_a_cell_agrees_within_its_interval_and_a_sample(script, new, expected):
    assert script.finding({"value": 0.5, "low": 0.4, "high": 0.6, "n": 100}, new) == expected


def test_a_cell_without_an_interval_must_be_the_same(script):
    old = {"value": 2.0, "low": None, "high": None, "n": None}
    assert [script.finding(old, new) for new in (2.0001, 2.1)] == ["same", "outside"]


def test_what_could_not_be_computed_must_stay_so(script):
    old = {"value": None, "low": None, "high": None, "n": None}
    assert [script.finding(old, new) for new in (None, 0.0)] == ["same", "missing"]


def test_a_changed_number_and_a_lost_job_are_told(script):
    folder = ROOT / "results" / "readme" / "jobs"
    published = json.loads(sorted(folder.glob("*-salun-*.json"))[0].read_text())
    again = json.loads(json.dumps(published))
    assert {c.finding for c in script.compared("job", published, again)} == {"same"}
    again["values"]["ra"]["value"] = 0.2
    wrong = [c for c in script.compared("job", published, again) if c.finding != "same"]
    assert [(c.part, c.metric, c.finding) for c in wrong] == [("values", "ra", "outside")]
    assert "outside: job, values ra: " in script.summary(wrong)
    for lost in ({}, {"error": "no model"}):
        assert [c.finding for c in script.compared("job", published, lost)] == ["missing"]
    assert [c.finding for c in script.compared("job", {}, again)] == ["missing"]


def test_its_quick_jobs_are_published(script):
    from purge.bench.jobs import read_plan

    for name in script.CONFIGS:
        known = script.by_key(ROOT / "results" / name / "jobs")
        assert {script.key_of(job.keys) for job in read_plan(ROOT / "configs" / f"{name}.yaml").jobs} <= set(
            known
        )
    assert script.QUICK.keys() <= set(script.CONFIGS)


@pytest.mark.slow
def test_the_published_cells_are_found_again():
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    count, _, of = done.stdout.splitlines()[-1].split()[:3]
    assert count == of
    assert int(of) >= 90
