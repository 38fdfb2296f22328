"""The REST API does what its description says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.conftest import small
from tests.serve.pages import served

SECONDS = 60


@pytest.mark.slow
def test_what_schemathesis_sends_is_answered_as_described(tmp_path: Path) -> None:
    """No undescribed status, no valid body refused, no invalid one accepted, and none that breaks it."""
    small(tmp_path).close()
    with served(tmp_path, "--quiet") as serving:
        argv = [Path(sys.executable).with_name("schemathesis"), "run", f"{serving.base}/openapi.json"]
        argv += ["--header", f"Authorization: Bearer {serving.token}", "--checks", "all"]
        argv += ["--max-time", str(SECONDS), "--no-shrink", "--seed", "0", "--no-color"]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=10 * SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "13 selected / 13 total" in done.stdout
        assert serving.log.read_text().count("broke") == 0
