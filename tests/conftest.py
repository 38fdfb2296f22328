"""Fixtures that many tests share: digits, a base model, a retrained one, small networks."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

import purge
from purge.data.load import load
from purge.runs.make import fresh_model
from tests.nets import blobs, small_mlp

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts programs in the background like that
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the networks are tiny: a second thread waits more than it works,
threadpool_limits(1)  # and so do those of BLAS, while the other worker wants the core


class Digits:
    """The digits data, split by class 0, as purge.Images."""

    def __init__(self) -> None:
        self.train, self.test = load("digits")
        self.forget, self.retain = purge.split(self.train, classes=[0])


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests decode is kept in a folder of theirs; no data of the machine's user is seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PURGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("PURGE_DATA", raising=False)
        patch.delenv("COLUMNS", raising=False)  # xdist sets it, and tables would fit into it
        yield


@pytest.fixture(scope="session")
def digits() -> Digits:
    return Digits()


@pytest.fixture(scope="session")
def base(digits: Digits) -> nn.Module:
    """A small ResNet trained on all digits; tests must not change it."""
    model = fresh_model("small-resnet", digits.train, seed=0)
    return purge.train(model, digits.train, epochs=8, seed=0, progress=False).model


@pytest.fixture(scope="session")
def retrained(digits: Digits) -> nn.Module:
    """The same, without class 0 and from another seed."""
    model = fresh_model("small-resnet", digits.train, seed=1)
    return purge.train(model, digits.retain, epochs=8, seed=1, progress=False).model


@pytest.fixture(scope="session")
def toy() -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A trained MLP with BatchNorm on blobs, and (forget, retain, test) with class 0 to forget."""
    data, test = blobs(), blobs(seed=1)
    model = purge.train(small_mlp(), data, epochs=20, lr=0.05, batch_size=32, progress=False).model
    return model, *purge.split(data, classes=[0]), test
