"""What every rank of a test would import by itself: ranks are forks of a process that has it already."""

import scipy.stats
import torch

import purge.api
import purge.cli.app
from tests.ranks import jobs

torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimiser imports for seconds

__all__ = ["jobs", "purge", "scipy"]
