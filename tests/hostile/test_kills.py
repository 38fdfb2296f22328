"""Commands that are killed at random moments: nothing is half done, and the same command then does its work.

``PURGE_TRIAL_KILLS`` says how often each command is killed. The moments come from a fixed seed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.conftest import KILLS
from tests.hostile.shell import Ending, counted, run
from tests.hostile.world import World

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited by what Linux tells"),
]
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
SEED = 19


def moments(whole: float, seed: int, kills: int = KILLS) -> list[tuple[float, int]]:
    """When to send which signal: at any time of a command that takes so many seconds."""
    draw = random.Random(seed)
    return [(draw.uniform(0.0, 1.05 * whole), SIGNALS[i % len(SIGNALS)]) for i in range(kills)]


def kill(world: World, after: float, by: int, *argv: Any) -> Ending:
    """Send a command a signal; it ends by it, as it says it does, or was done before."""
    ending = run(*argv, "--quiet", cwd=world.here, kill_after=after, by=by)
    counted(f"killed {argv[0]}", f"{signal.Signals(by).name} after {after:.2f} s: exit {ending.code}")
    polite = {signal.SIGTERM: 143, signal.SIGINT: 130}.get(by)
    assert ending.code in (0, 1, -by, polite), ending
    assert "Traceback" not in ending.err, ending.err
    return ending


def whole(world: World, *argv: Any) -> float:
    """Run a command undisturbed; how long it takes."""
    ending = run(*argv, "--quiet", cwd=world.here)
    assert ending.code in (0, 1), ending
    return ending.seconds


def facts(folder: Path) -> Any:
    return json.loads((folder / "run.json").read_text())


def litter(folder: Path) -> list[str]:
    """Temporary files that a finished command must not leave."""
    return [p.name for p in folder.rglob(".*") if p.name not in (".locks",) and p.parent.name != ".locks"]


def test_train_is_resumed_to_the_same_bits(fresh: World) -> None:
    argv = ["train", "--like", "base", "--set", "epochs=12", "--seed", 5]
    seconds = whole(fresh, *argv, "--out", "whole")
    for after, by in moments(seconds, SEED):
        ending = kill(fresh, after, by, *argv, "--out", "out")
        out = fresh.here / "out"
        if ending.code != 0 and (out / "run.json").exists() and not list(out.glob("*state*")):
            assert facts(out)["digest"] == facts(fresh.here / "whole")["digest"]
        whole(fresh, *argv, "--out", "out", "--resume")
        assert facts(out)["digest"] == facts(fresh.here / "whole")["digest"], (after, by)
        assert not litter(out)
        shutil.rmtree(out)


def test_unlearn_leaves_the_old_run_or_the_new_one(fresh: World) -> None:
    argv = ["unlearn", "base", "--forget-class", 1, "--set", "steps=8", "--out", "out"]
    seconds = whole(fresh, *argv, "--seed", 0)
    first = facts(fresh.here / "out")["digest"]
    shutil.copytree(fresh.here / "out", fresh.here / "kept")
    seconds = min(seconds, whole(fresh, *argv, "--seed", 1, "--force"))
    second = facts(fresh.here / "out")["digest"]
    assert first != second
    for after, by in moments(seconds, SEED + 1):
        shutil.rmtree(fresh.here / "out")
        shutil.copytree(fresh.here / "kept", fresh.here / "out")
        kill(fresh, after, by, *argv, "--seed", 1, "--force")
        assert facts(fresh.here / "out")["digest"] in (first, second), (after, by)
        read = run("audit", "out", "--metrics", "fa_test", "--quiet", cwd=fresh.here)
        assert read.code == 0, read  # whichever it is, it is whole
        whole(fresh, *argv, "--seed", 1, "--force")
        assert facts(fresh.here / "out")["digest"] == second
        assert not litter(fresh.here / "out")


def test_audit_leaves_the_old_audit_or_the_new_one(fresh: World) -> None:
    argv = ["audit", "run", "--metrics", "quick", "--retrained", "retrained"]
    seconds = whole(fresh, *argv)
    for after, by in moments(seconds, SEED + 2):
        kill(fresh, after, by, *argv)
        assert "values" in json.loads((fresh.here / "run" / "audit.json").read_text())
        page = run("report", "run", "--out", "page.html", "--force", cwd=fresh.here)
        assert page.code == 0, page
    whole(fresh, *argv)
    assert not litter(fresh.here / "run")


def test_bench_is_resumed_to_the_same_tables(fresh: World) -> None:
    argv = ["bench", "plan.yaml", "--out", "out", "--jobs", 2]
    seconds = whole(fresh, *argv)
    tables = {p.name: p.read_text() for p in (fresh.here / "out" / "tables").iterdir()}
    for after, by in moments(seconds, SEED + 5, max(2, KILLS // 3)):  # processes take seconds to start
        shutil.rmtree(fresh.here / "out")
        kill(fresh, after, by, *argv)
        assert not children_of_the_dead(fresh.here)
        whole(fresh, *argv, "--resume")
        again = {p.name: p.read_text() for p in (fresh.here / "out" / "tables").iterdir()}
        assert again == tables, (after, by)
        assert not litter(fresh.here / "out")


def children_of_the_dead(folder: Path) -> list[str]:
    """Processes in a folder that nobody waits for any more, after a moment to end."""
    for _ in range(50):
        left = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended, or is not ours
                if entry.name != str(os.getpid()) and os.readlink(entry / "cwd") == str(folder):
                    left.append(entry.name)
        if not left:
            return []
        time.sleep(0.1)
    return left
