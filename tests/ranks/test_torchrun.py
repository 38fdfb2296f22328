"""The command line on several ranks: one of them writes and speaks, whatever happens to the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from purge.data.load import load
from purge.data.sources import DataSource
from purge.runs.make import train_run
from tests.ranks.starting import start, texts

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of a small model."""
    folder, (train, test) = tmp_path_factory.mktemp("cli") / "base", load("digits")
    choice = DataSource(data="digits")
    train_run(
        folder, "small-resnet", choice, train, {}, seed=0, recipe={"epochs": 2}, test=test, progress=False
    )
    return folder


def command(folder: Path, *words: str) -> None:
    from purge.cli.app import main

    sys.argv = ["purge", *words]
    main()


def outputs(folder: Path) -> list[str]:
    return [(folder / f"out-{rank}.txt").read_text() for rank in range(2)]


def test_a_command_on_two_ranks(base: Path, tmp_path: Path) -> None:
    """The files are there once, and one rank prints."""
    gone = tmp_path / "gone"
    words = ["unlearn", str(base), "--forget-class", "3", "--set", "steps=6", "--out", str(gone), "--json"]
    codes = start(command, tmp_path / "a", *words, "--export", str(tmp_path / "w.safetensors"), group=False)
    assert codes[0] == codes[1] <= 1, texts(tmp_path / "a")  # six steps need not reach the target
    assert sorted(p.name for p in gone.iterdir()) == ["history.parquet", "model.safetensors", "run.json"]
    assert (tmp_path / "w.safetensors").is_file()
    first, second = outputs(tmp_path / "a")
    assert json.loads(first)["steps"] == 6
    assert second == texts(tmp_path / "a")[1] == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["unlearn", "BASE", "--forget-class", "77", "--out", "OUT"], "Error: Expected"),
        (["unlearn", "BASE", "--forget-class", "3", "--method", "ssd", "--out", "OUT"], "which runs on one"),
        (["unlearn", "BASE", "--no-such-option"], "No such option"),
        (["audit", "BASE"], "purge train or unlearn for several ranks"),
    ],
)
def test_a_bad_request_is_told_once(words: list[str], said: str, base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [{"BASE": str(base), "OUT": str(out)}.get(word, word) for word in words]
    assert start(command, tmp_path / "r", *words, group=False) == [2, 2]
    lines = "".join(texts(tmp_path / "r")).splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert outputs(tmp_path / "r") == ["", ""]
    assert not out.exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the ranks")
def test_torchrun_and_a_rank_that_is_killed(base: Path, tmp_path: Path) -> None:
    """By torchrun itself; after a kill -9 of one rank nothing is written, and purge says one line."""
    out = tmp_path / "out"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    words = ["unlearn", str(base), "--forget-class", "3", "--set", "steps=100000", "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (tmp_path / "err.txt").open("w") as err:
        agent = subprocess.Popen(
            [*torchrun, "-m", "purge", *words], stderr=err, stdout=subprocess.DEVNULL, env=environment
        )
        try:
            began = time.monotonic()
            while not (out / ".purge.lock").exists():
                assert agent.poll() is None, (tmp_path / "err.txt").read_text()
                assert time.monotonic() - began < 240
                time.sleep(0.05)
            time.sleep(1)
            ranks = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
            os.kill(int(ranks[-1]), signal.SIGKILL)
            assert agent.wait(120) != 0
        finally:
            if agent.poll() is None:
                agent.terminate()  # it ends its ranks
                agent.wait(60)
    lines = (tmp_path / "err.txt").read_text().splitlines()
    ours = [line for line in lines if line.startswith(("Error:", "Interrupted"))]
    assert len(ours) == 1, lines
    assert "rank" in ours[0] or "SIGTERM" in ours[0]
    assert not any("purge/core" in line or "purge/api" in line for line in lines)  # no traceback of ours
    assert not out.exists()
