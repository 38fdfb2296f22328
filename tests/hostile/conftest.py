"""A world to attack, and how many cases each fuzzer tries."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.hostile import world

CASES = int(os.environ.get("PURGE_TRIAL_CASES", "6"))  # of each fuzzer
KILLS = int(os.environ.get("PURGE_TRIAL_KILLS", "5"))  # of each command
settings.register_profile(
    "trial",
    max_examples=CASES,
    deadline=None,
    derandomize="PURGE_TRIAL_CASES" not in os.environ,  # the default tests are the same every time
    database=None,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="session")
def there(tmp_path_factory: pytest.TempPathFactory) -> world.World:
    """The world, built once; fuzzers put back what they change."""
    return world.build(tmp_path_factory.mktemp("world") / "root")


@pytest.fixture
def fresh(there: world.World, tmp_path: Path) -> world.World:
    """A copy of the world, for a test that changes it."""
    return world.World(Path(shutil.copytree(there.root, tmp_path / "root")))
