"""A method, a metric and a model of your own in the file of a bench."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from purge.bench.jobs import read_plan
from purge.bench.results import sheets
from purge.bench.runner import bench
from purge.core.errors import PurgeError
from tests.bench.plans import place_of, plan_of

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN: dict[str, Any] = {
    "data": "digits", "model": "own_model:network", "recipe": {"epochs": 1}, "per_class": 20, "forget": [0],
    "metrics": ["ra", "own_metric:SURE"], "seeds": [0, 1],
    "methods": [{"method": "own_method:NoisyHead", "label": "noisy", "set": {"epochs": 1}}],
    "tables": [{"name": "t", "columns": ["ra", "sure.forget", "steps"], "also": ["retrained"]}],
    "figures": [{"name": "f", "table": "t"}],
}  # fmt: skip
NETWORK = """
from torch import nn

def network(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, 16), nn.ReLU(), nn.Linear(16, classes))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder: the two examples, a network, and a bench that names them."""
    for name in ("own_method.py", "own_metric.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    (tmp_path / "own_model.py").write_text(NETWORK)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(OWN))
    return tmp_path


def purge(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in that folder, as the installed script does: the folder is not on the path."""
    code = "import sys; sys.path.remove(''); from purge.cli.app import main; main()"
    argv = [sys.executable, "-c", code, "bench", "own.yaml", "--out", "out", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_examples_run_through_a_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    tables = [{"name": "t", "columns": ["ra", "sure.forget"]}]
    own = {**OWN, "model": "small-resnet", "seeds": [0], "retrains": 0, "tables": tables}
    plan, place = plan_of(tmp_path, trust=True, **own), place_of(tmp_path / "out")
    done = bench(plan, place, progress=False)
    assert (done.ran, done.failed) == (1, {})
    result = json.loads(place.file(plan.jobs[0]).read_text())
    assert [result["values"][f"sure.{part}"]["n"] for part in ("forget", "retain")] == [20, 180]
    assert "| method | RA | sure forget |" in (place.out / "tables" / "t.md").read_text()


@pytest.mark.slow
def test_own_parts_run_in_other_processes_and_get_their_row_and_column(folder: Path) -> None:
    done = purge(folder, "--trust", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "2 jobs run" in done.stdout
    made = sheets(folder / "out")["t"]  # made again from the files alone: the metric is not imported here
    assert [row.keys["label"] for row in made.rows] == ["retrain", "noisy"]
    assert made.columns["sure.forget"] == ("sure forget", "share")
    shares = [row.cells["sure.forget"].mean for row in made.rows]
    assert all(share is not None and 0 <= share <= 1 for share in shares)
    text = (folder / "out" / "tables" / "t.md").read_text()
    assert text.startswith("| method | RA | sure forget | steps |\n")
    assert f"{100 * shares[1]:.1f} %" in text
    assert "0 jobs run, 2 were there" in purge(folder, "--trust", "--resume").stdout


def test_a_column_that_an_own_metric_does_not_have_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    wrong = {**OWN, "tables": [{"name": "t", "columns": ["sure.forgotten"]}]}
    (folder / "own.yaml").write_text(yaml.safe_dump(wrong))
    with pytest.raises(PurgeError, match=r"a number of sure in table t.*did you mean 'sure\.forget'"):
        read_plan(folder / "own.yaml", trust=True)
    for name in ("own_method", "own_metric"):
        monkeypatch.delitem(sys.modules, name, raising=False)
