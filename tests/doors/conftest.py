"""A company that begins with a model of its customers, trained once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.asking import Company, trained


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def company(base: Path, tmp_path: Path) -> Company:
    return Company(base, tmp_path / "kept" / "requests.db")
