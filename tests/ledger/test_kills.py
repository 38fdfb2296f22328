"""A worker that is killed at random moments: nothing is half done, and the next one goes on.

``PURGE_TRIAL_KILLS`` says how often, at least 30 times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from purge.ledger.ledger import Ledger
from purge.ledger.worker import init
from purge.runs.folder import facts_of
from tests.hostile.shell import counted, run
from tests.ledger.people import person

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is limited by what Linux tells"),
]
KILLS = max(30, int(os.environ.get("PURGE_TRIAL_KILLS", "0")))
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
POLICY = "max_share: null\nmax_drift: null\nmax_distance: null\nmax_return: 1.0\n"


@pytest.mark.parametrize("action", ["say", "retrain"])
def test_nothing_is_half_done(trained: Path, tmp_path: Path, action: str):
    """``retrain``: the policy allows no unlearning, so that a training is killed and resumed."""
    base = Path(shutil.copytree(trained, tmp_path / "base"))
    bounds = "max_requests: 1\n" if action == "retrain" else ""
    (tmp_path / "policy.yaml").write_text(f"{POLICY}{bounds}action: {action}\n")
    kept = tmp_path / "kept"
    kept.mkdir()
    with Ledger(kept / "requests.db") as ledger:
        init(ledger, base, versions=tmp_path / "here" / "versions")
        for i in (1, 2):
            ledger.add(ids=[person(i)], received="2026-01-01")
    argv = ["request", "run", "--policy", tmp_path / "policy.yaml", "--set", "steps=8", "--trust", "--quiet"]
    here = tmp_path / "here"
    shutil.copytree(kept, here)
    whole = run(*argv, cwd=here)
    assert whole.code == 0, whole
    digest = facts_of(here / "versions" / "version-0002").digest
    draw, states = random.Random(21), set()
    for i in range(KILLS // 2):
        shutil.rmtree(here)
        shutil.copytree(kept, here)
        by, after = SIGNALS[i % len(SIGNALS)], draw.uniform(0.0, 1.05 * whole.seconds)
        ending = run(*argv, cwd=here, kill_after=after, by=by)
        counted("killed request run", f"{signal.Signals(by).name} after {after:.2f} s: exit {ending.code}")
        assert ending.code in (0, -by, 128 + by), ending
        assert "Traceback" not in ending.err, ending.err
        with Ledger(here / "requests.db") as ledger:
            assert ledger.verify().ok
            (state,) = {r.state for r in ledger.requests()}  # both, or neither
            states.add(state)
            assert len(ledger.versions()) == (2 if state == "done" else 1)
            if state == "done":
                assert facts_of(Path(ledger.versions()[-1].folder)).digest == digest
        again = run(*argv, cwd=here)
        assert again.code == 0, again
        with Ledger(here / "requests.db") as ledger:
            assert ledger.verify().ok
            assert {r.state for r in ledger.requests()} == {"done"}
            assert [b.state for b in ledger.batches()] == ["done"]
            assert [v.digest for v in ledger.versions()][1:] == [digest]
        left = sorted(p.name for p in (here / "versions").iterdir())
        assert left == ["version-0002"], (after, by)
        assert not list((here / "versions").rglob(".*"))
    assert {"open", "running"} & states  # some were hit in the middle
