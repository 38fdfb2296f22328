"""A network for the computations by hand, and a training whose updates are logged."""

from __future__ import annotations

import pytest

from tests import reference
from tests.methods.logged import Snapshots, train


@pytest.fixture(scope="session")
def half_trained():
    """A half-trained network in double precision, and samples of two of four classes to forget."""
    return reference.half_trained()


@pytest.fixture(scope="session")
def logged(tmp_path_factory):
    """A model and the folder with its full log."""
    folder = tmp_path_factory.mktemp("log") / "updates"
    return train(folder), folder


@pytest.fixture(scope="session")
def recorded():
    """The weights before and after each step of that training."""
    seen = Snapshots()
    train(None, more=seen)
    return seen
