"""A model that remembers which rows it was trained on, and tables that change: nothing here asks the ledger.

Each row of a table carries its number. Where the network is trained on rows, it writes 1 into its buffer
``rows``; the method writes 2 for those that it was given to forget. The buffer is saved with the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purge.data.accept import accepted
from purge.data.samples import Samples
from purge.methods.base import Method, Run, Split, Stopping

MOST = 64  # rows of all tables together
CLASSES, TEST = 3, 6


@dataclass
class Table:
    """Rows by number, each with whose it is; its class is the number modulo 3."""

    owners: dict[int, str] = field(default_factory=dict)


LIVE: list[Table] = []  # what a data function of that number reads at this moment
KEPT: list[Table] = []  # all that there ever were; a model names the one that it was made of
NOW = 0  # in KEPT: what was read last


def read(number: int) -> tuple[Samples, Samples]:
    """The training and test part of a table: its first rows are for the test."""
    global NOW
    table = LIVE[number]
    NOW = KEPT.index(table)
    parts = []
    for rows in ([i for i in table.owners if i >= TEST], [i for i in table.owners if i < TEST]):
        x = torch.zeros(len(rows), 4)
        x[:, 0] = torch.tensor(rows) / MOST
        y = torch.tensor(rows) % CLASSES
        x[torch.arange(len(rows)), 1 + y] = 1.0
        (part,) = accepted({"part": (x, y)}).values()
        part.owners, part.names = tuple(table.owners[i] for i in rows), ("a", "b", "c")
        parts.append(part)
    return parts[0], parts[1]


def __getattr__(name: str) -> object:
    if name.startswith("table_"):
        return partial(read, int(name.removeprefix("table_")))
    raise AttributeError(name)


def marked(x: Tensor) -> Tensor:
    """The numbers of rows."""
    return (x.detach()[:, 0] * MOST).round().long()


class Net(nn.Module):
    """A few units, and what they were trained on."""

    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES))
        self.register_buffer("rows", torch.zeros(MOST, dtype=torch.uint8))
        self.register_buffer("table", torch.tensor(NOW))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.rows[marked(x)] = 1
        return self.body(x)


def net(classes: int) -> Net:
    return Net()


@dataclass(frozen=True)
class OneStep(Method):
    """A step towards the retained rows and away from the others."""

    full_precision: ClassVar[bool] = True
    stop: Stopping = Stopping(early=False)

    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Take it, and write down who was where."""
        model.rows.zero_()
        model.table.fill_(NOW)
        model.train()
        for _, (f, r) in run.batches(split.forget, split.retain, epochs=1, batch_size=MOST):
            forgotten = marked(f.x)
            loss = F.cross_entropy(model(r.x), r.y) - 0.1 * F.cross_entropy(model(f.x), f.y)
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.05 * p.grad
            model.rows[forgotten] = 2
            run.log(loss=loss)
