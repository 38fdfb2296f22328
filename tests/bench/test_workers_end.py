"""The processes of a bench end with the one that started them, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.bench.plans import processes_of, until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen in /proc")

# Two workers that say that they are there and are then busy for longer than any test.
BUSY = """
import sys, time
from pathlib import Path
from purge.bench.schema import Resources
from purge.bench.workers import Done, WorkItem, each, workers_on

def work(what):
    Path(sys.argv[1], what).touch()
    time.sleep(300)
    return Done(what)

if __name__ == "__main__":
    with workers_on("processes", 2, 2, Resources(), None) as workers:
        list(each(workers, work, [WorkItem("a", "a"), WorkItem("b", "b")]))
"""
SMOKE = Path(__file__).parents[2] / "configs" / "smoke.yaml"


def ended(leader: int) -> bool:
    """Whether all processes of a group end by themselves; those that do not are killed."""
    all_did = until(lambda: not processes_of(leader), 20)
    for left, _ in processes_of(leader):
        os.kill(left, signal.SIGKILL)
    return bool(all_did)


@pytest.mark.parametrize("everyone", [False, True], ids=["parent", "group"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_busy_workers_end_with_their_parent(tmp_path: Path, number: int, everyone: bool) -> None:
    """``everyone``: a terminal sends Ctrl-C to the workers too; it is the parent that ends them."""
    if everyone and number == signal.SIGKILL:
        pytest.skip("nobody is left to end the others")
    script, at = tmp_path / "busy.py", tmp_path / "at"
    script.write_text(BUSY)
    at.mkdir()
    argv = [sys.executable, script, at]
    with subprocess.Popen(argv, start_new_session=True, stderr=subprocess.PIPE, text=True) as parent:
        assert until(lambda: len(list(at.iterdir())) == 2, 60)
        assert len(processes_of(parent.pid)) == 4  # and the tracker
        (os.killpg if everyone else os.kill)(parent.pid, number)
        _, err = parent.communicate(timeout=30)
    assert ended(parent.pid)
    assert parent.returncode == -number
    assert "SpawnProcess" not in err  # no worker has a traceback to show


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_an_interrupted_bench_with_two_workers(tmp_path: Path, number: int, code: int) -> None:
    """All processes end, one line says how to go on, nothing half done is left; a killed one goes on."""
    config = {
        **yaml.safe_load(SMOKE.read_text()),
        "seeds": [0],
        "retrains": 0,
        "metrics": ["ra"],
        "per_class": 50,
    }
    config |= {"metrics": ["ra"], "tables": [{"name": "t", "columns": ["ra"]}], "figures": []}
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(config))
    argv = [sys.executable, "-m", "purge", "bench", str(file), "--out", str(out), "--jobs", "2", "--quiet"]
    with subprocess.Popen(argv, start_new_session=True, stderr=subprocess.PIPE, text=True) as bench:
        assert until(lambda: any(out.glob("jobs/*.json")) or bench.poll() is not None, 120)
        bench.send_signal(number)
        _, err = bench.communicate(timeout=60)
    assert ended(bench.pid)
    assert bench.returncode == code, err
    if code > 0:
        (line,) = err.splitlines()
        assert line.startswith(f"Interrupted by {signal.Signals(number).name}. ")
        assert line.endswith(f"jobs are done in {out}; --resume runs the rest.")
        assert not [p.name for p in out.rglob(".*.json.*")]
    if number == signal.SIGKILL:  # it left the most behind
        again = subprocess.run([*argv, "--resume"], capture_output=True, text=True, timeout=300)
        assert again.returncode == 0, again.stderr
