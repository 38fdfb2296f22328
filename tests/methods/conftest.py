"""A network for the computations by hand."""

from __future__ import annotations

import pytest

from tests import reference


@pytest.fixture(scope="session")
def half_trained():
    """A half-trained network in double precision, and samples of two of four classes to forget."""
    return reference.half_trained()
