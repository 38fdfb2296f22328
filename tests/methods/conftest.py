"""A network for the computations by hand."""

from __future__ import annotations

import pytest

import purge
from tests.methods.test_distillation import K, network
from tests.nets import blobs


@pytest.fixture(scope="session")
def half_trained():
    """A half-trained network in double precision, and samples of two of four classes to forget."""
    x, y = blobs(classes=K)
    data = (0.3 * x.double(), y)
    model = purge.train(network(), data, epochs=3, lr=0.03, batch_size=32, progress=False).model
    return model, *purge.split(data, classes=[0, 1])
