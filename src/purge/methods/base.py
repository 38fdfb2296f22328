"""What a method is: a frozen dataclass whose fields are its settings, and one ``run``.

The file of a method imports from here what nearly every loop needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from purge.core.errors import MethodError
from purge.core.settings import in_short, normalise, replace, setting
from purge.data.augmented import Augmentation, Change, as_augmentation
from purge.data.inputs import Inputs
from purge.data.split import Split
from purge.engine.cuda_graph import Scalars
from purge.engine.optimizer import Optim
from purge.engine.run import Run
from purge.engine.stopping import Stopping
from purge.engine.trainer import Recipe

__all__ = ["PUBLISHED", "Inputs", "Method", "Optim", "Run", "Scalars", "Split", "Stopping", "setting"]

# Published methods run their whole schedule; they are checked after each epoch, for the record only.
PUBLISHED = Stopping(early=False, retain_budget=None, check_every=0, check_samples=2048)


class Method(ABC):
    """An unlearning method. Subclass it as a frozen dataclass and write ``run``.

    The fields are the settings; they are cast and checked when the object is made. An object prints those
    that are not the default.

    Example:
        ```python
        @dataclass(frozen=True)
        class Descend(purge.Method):
            epochs: int = setting(3, "passes over the retain set", low=1)
            optim: Optim = Optim(lr=0.02)
            stop: Stopping = Stopping()

            def run(self, model, split, run):
                optimizer = self.optim.make(model)
                for _, (r,) in run.batches(split.retain, epochs=self.epochs, batch_size=64):
                    loss = F.cross_entropy(model(r.x), r.y)
                    self.optim.step(optimizer, loss)
                    run.log(retain_loss=loss)

        result = purge.unlearn(model, forget, retain, method=Descend(epochs=5))
        ```
    """

    # What it needs: "fresh" is an untrained model of the same kind, "shards" and "updates" are what a
    # training can keep for it.
    needs: ClassVar[frozenset[str]] = frozenset({"forget", "retain"})
    # Does it depend on gradients of single samples, or on second derivatives? Then float32 is the default.
    full_precision: ClassVar[bool] = False
    # Are its steps replayed as a CUDA graph on a GPU, unless the caller says otherwise?
    graph: ClassVar[bool] = False
    # Does it read samples that are changed at random (run.augmented), so that augment= means something to it?
    augments: ClassVar[bool] = False
    # Does it train anew without the forgotten samples? Then it cannot fail to forget them.
    retrains: ClassVar[bool] = False
    # Do several ranks of torch.distributed share its batches? Then each step adds up gradients (run.ranks).
    distributes: ClassVar[bool] = False
    # How many samples go through the model at a time, and are activations computed again for gradients?
    # Methods that save memory in these ways have fields of these names.
    micro_batch: int | None = None
    checkpoint_activations: bool = False
    # The samples of a step, and how it trains if it does so by a recipe: fields of methods that have them.
    batch_size: int | None = None
    recipe: Recipe | None = None
    stop: Stopping

    def __init_subclass__(cls) -> None:
        """Keep the short repr: a dataclass writes a long one into every class that has none of its own."""
        super().__init_subclass__()
        if "__repr__" not in vars(cls):
            cls.__repr__ = Method.__repr__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        normalise(self)

    def __repr__(self) -> str:
        return in_short(self)

    @property
    def inner(self) -> Sequence[Method | None]:
        """The methods that it runs in turn; None where one leaves its part alone."""
        return ()

    @abstractmethod
    def run(self, model: nn.Module, split: Split, run: Run) -> None:
        """Unlearn.

        Args:
            model: what to edit: already a copy, on the right device, in evaluation mode.
            split: what must go and what must stay, as samples.
            run: hands out batches, keeps the history and decides when to stop.
        """


def with_augment(method: Method, augment: Any) -> tuple[Method, Augmentation | Change | None]:
    """A method that was given ``augment=``, and how its run changes samples at random.

    To a method that trains by a recipe it is a setting of this recipe. Others must have a use for it.
    """
    if augment is None or method.augments:
        return method, as_augmentation(augment)
    if method.recipe is not None:
        return replace(method, {"augment": augment}), None
    got = f"{type(method).__name__}, which reads the data as it is"
    raise MethodError("a method that augments its data, for augment=…", got, "leave augment out")
