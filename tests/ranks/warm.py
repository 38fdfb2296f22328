"""What every rank of a test would import by itself: ranks are forks of a process that has it already."""

import importlib
from contextlib import suppress

import torch

import purge.api
import purge.cli.app
from tests.ranks import jobs

torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimiser imports for seconds
for name in ("scipy.stats", "torch.distributed.fsdp", "torch.distributed.tensor", "accelerate", "lightning"):
    with suppress(ImportError):
        importlib.import_module(name)

__all__ = ["jobs", "purge"]
