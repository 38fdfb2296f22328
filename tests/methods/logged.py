"""A training whose updates are logged, for the tests of the log and of the method that reads it."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import torch

import purge
from purge.data.accept import as_samples
from purge.engine.seeding import seeded
from purge.engine.trainer import Recipe, fit
from purge.methods.amnesiac import Amnesiac
from purge.methods.update_log import UpdateLog
from tests.nets import blobs, small_mlp

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=3, lr=0.05, batch_size=16)


def samples(data):
    return as_samples(data, CPU, "data")


def train(folder, data=None, model=None, *, only=None, recipe=RECIPE, seed=0, more=None):
    """A model trained with a log, or with another observer of its updates."""
    data, model = data or blobs(), copy.deepcopy(model or small_mlp())
    part = None if only is None else samples(only)
    log = more or UpdateLog(folder, model, samples(data), recipe, only=part)
    with seeded(seed, CPU):
        fit([model], [samples(data)], recipe, seeds=[seed], watch=log.step)
    log.finish(model)
    model.zero_grad(set_to_none=True)
    return model


def forget(model, gone, kept, log, **changes):
    given = {"method": Amnesiac(), "log": str(log), "progress": False, **changes}
    return purge.unlearn(model, gone, kept, **given)


class Snapshots:
    """An observer that keeps the weights before and after each step."""

    def __init__(self):
        self.steps, self.first = [], None

    @contextmanager
    def step(self, model, step, index):
        before = [p.detach().clone() for p in model.parameters()]
        self.first = self.first or before
        yield
        self.steps.append((step, index.tolist(), before, [p.detach().clone() for p in model.parameters()]))

    def finish(self, model):
        self.last = [p.detach().clone() for p in model.parameters()]
