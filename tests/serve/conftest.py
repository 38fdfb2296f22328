"""A ledger with a few requests, and its page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from purge.ledger.ledger import Ledger
from tests.ledger.conftest import _hurry, base, trained  # noqa: F401
from tests.serve.pages import Site, site

TODAY = date.today()


def _also_here(connection: Any, record: Any) -> None:
    _hurry(connection, record)  # a listener of our own: those of requests come and go with their tests


@pytest.fixture(scope="session", autouse=True)
def no_waiting() -> Iterator[None]:
    event.listen(Engine, "connect", _also_here)
    yield
    event.remove(Engine, "connect", _also_here)


def small(folder: Path) -> Ledger:
    """Four requests: overdue, due soon, held, for a class."""
    made = Ledger(folder / "requests.db")
    made.add(ids=["ada@planted.example"], received=TODAY - timedelta(days=60), note="by letter")
    made.add(ids=["bob@planted.example"], received=TODAY, due=TODAY + timedelta(days=3))
    made.add(ids=["eve@planted.example"], received=TODAY)
    made.hold(3, "legal claim")
    made.add(classes=["cat"], received=TODAY)
    return made


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return site(small(tmp_path_factory.mktemp("page")))


@pytest.fixture
def page(shared: Site, tmp_path: Path) -> Site:
    """A page of a new ledger; the application, which takes a while to make, is one for all tests."""
    return shared.anew(small(tmp_path))
