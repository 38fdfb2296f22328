"""What a method is: a frozen dataclass whose fields are its settings, and one ``run``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import nn

from purge.core.settings import normalise
from purge.data.split import Split
from purge.engine.run import Run
from purge.engine.stopping import Stopping

# A published method goes through its whole schedule; what it does is looked at after each epoch.
PUBLISHED = Stopping(early=False, retain_budget=None, check_every=0, check_samples=2048)


class Method(ABC):
    """An unlearning method. Subclass it as a frozen dataclass and write ``run``.

    The fields are the settings; they are cast and checked when the object is made.
    """

    # What it cannot do without; "fresh": an untrained model of the same kind, "shards" and "updates": a
    # training that kept them.
    needs: ClassVar[frozenset[str]] = frozenset({"forget", "retain"})
    # Does it hang on gradients of single samples, or on second derivatives? Then float32 is the default.
    full_precision: ClassVar[bool] = False
    # Are its steps replayed as a CUDA graph on a GPU, unless the caller says otherwise?
    graph: ClassVar[bool] = False
    stop: Stopping

    def __post_init__(self) -> None:
        normalise(self)

    @abstractmethod
    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Edit ``model``, which is already a copy on the right device, in evaluation mode."""
