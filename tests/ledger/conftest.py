"""One trained model, with which the stories of requests begin."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from purge.data.sources import DataSource
from purge.ledger.ledger import Ledger
from purge.ledger.policy import Policy
from purge.ledger.worker import init
from purge.runs.folder import read_data
from purge.runs.make import train_run

DATA, MODEL = "tests.ledger.people:data", "tests.ledger.people:mlp"
LAX = Policy(max_share=None, max_drift=None, max_distance=None, max_return=1.0)  # tiny models jump about


def _hurry(connection: Any, _record: Any) -> None:
    if "sqlite3" in type(connection).__module__:
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Ledgers of this process do not wait until the disk has written: no test turns the power off."""
    event.listen(Engine, "connect", _hurry)
    yield
    event.remove(Engine, "connect", _hurry)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a model on the data of a small company."""
    out, choice = tmp_path_factory.mktemp("trained") / "base", DataSource(DATA)
    train, test = read_data(choice, progress=False)
    recipe = {"epochs": 12, "batch_size": 64, "lr": 0.1, "augment": "none"}
    train_run(out, MODEL, choice, train, {}, seed=0, recipe=recipe, test=test, progress=False)
    return out


@pytest.fixture
def base(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "base"))


@pytest.fixture
def ledger(base: Path, tmp_path: Path) -> Ledger:
    """A ledger with its first version."""
    (tmp_path / "requests.db.key").write_text("ab" * 32)  # seeds come from it: every run is the same
    made = Ledger(tmp_path / "requests.db")
    init(made, base)
    return made
