"""A method, a metric and a model of your own in the file of a bench."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from purge.bench.jobs import read_plan
from purge.bench.tables import sheets
from purge.core.errors import PurgeError

ROOT = Path(__file__).parents[2]
BENCH: dict[str, Any] = {
    "data": "digits", "model": "own_model:network", "recipe": {"epochs": 1}, "per_class": 20, "forget": [0],
    "metrics": ["ra", "own_metric:SURE"],
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
        shutil.copy(ROOT / "examples" / name, tmp_path)
    (tmp_path / "own_model.py").write_text(NETWORK)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(BENCH))
    return tmp_path


def purge(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in that folder, as the installed script does: the folder is not on the path."""
    code = "import sys; sys.path.remove(''); from purge.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_code_that_a_file_names_is_not_imported_without_trust(folder: Path) -> None:
    done = purge(folder, "bench", "own.yaml", "--out", "out")
    assert done.returncode == 2
    assert "'own_method:NoisyHead' from own.yaml" in done.stderr  # the first of them
    assert "--trust" in done.stderr
    assert not (folder / "out").exists()


@pytest.mark.slow  # test_own_code.py runs the examples by default
def test_an_own_method_and_an_own_metric_run_and_get_their_row_and_column(folder: Path) -> None:
    done = purge(folder, "bench", "own.yaml", "--out", "out", "--trust")
    assert done.returncode == 0, done.stderr
    made = sheets(folder / "out")["t"]  # made again from the files alone: the metric is not imported here
    assert [row.keys["label"] for row in made.rows] == ["retrain", "noisy"]
    assert made.columns["sure.forget"] == ("sure forget", "share")
    shares = [row.cells["sure.forget"].mean for row in made.rows]
    assert all(0 <= share <= 1 for share in shares)
    text = (folder / "out" / "tables" / "t.md").read_text()
    assert text.startswith("| method | RA | sure forget | steps |\n")
    assert f"{100 * shares[1]:.1f} %" in text
    again = purge(folder, "bench", "own.yaml", "--out", "out", "--trust", "--resume")
    assert "0 jobs run, 1 were there" in again.stdout


@pytest.mark.slow
def test_other_processes_find_own_parts_too(folder: Path) -> None:
    (folder / "own.yaml").write_text(yaml.safe_dump({**BENCH, "seeds": [0, 1]}))
    done = purge(folder, "bench", "own.yaml", "--out", "out", "--trust", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "2 jobs run" in done.stdout


def test_a_column_that_an_own_metric_does_not_have_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    wrong = {**BENCH, "tables": [{"name": "t", "columns": ["sure.forgotten"]}]}
    (folder / "own.yaml").write_text(yaml.safe_dump(wrong))
    with pytest.raises(PurgeError, match=r"a number of sure in table t.*did you mean 'sure\.forget'"):
        read_plan(folder / "own.yaml", trust=True)
    for name in ("own_method", "own_metric"):
        monkeypatch.delitem(sys.modules, name, raising=False)
