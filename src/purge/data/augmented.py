"""Samples changed at random for training: how they are changed, and how they are read without it."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_structure
from torch.utils.data import Subset

from purge.core.errors import DataError, MethodError, first_line
from purge.core.schema import fit
from purge.core.settings import normalise, setting
from purge.data import inputs
from purge.data.backends import Items
from purge.data.images import draw_colours, draw_moves, recoloured
from purge.data.inputs import Inputs
from purge.data.items import as_tensors, input_and_label
from purge.data.prefetch import Order, say_once
from purge.data.samples import Samples, cut, few
from purge.data.split import Split

Augment = Literal["none", "crop", "flip", "crop-flip", "turn"]
Change: TypeAlias = Callable[[Inputs], Inputs]  # a batch on the device, changed at random

PACKAGES = ("torchvision", "timm")  # whose transforms are known by their names
RANDOM = {
    "AugMix", "AutoAugment", "ColorJitter", "ElasticTransform", "GaussianBlur", "GaussianNoise", "JPEG",
    "RandAugment", "ScaleJitter", "TrivialAugmentWide",
}  # fmt: skip
WHOLE = 0.875  # the share of the shorter side that evaluation usually crops from the centre


@dataclass(frozen=True)
class Augmentation:
    """How images are changed at random whenever a model is trained on them, as a Recipe says it.

    Args:
        moves: ``none``, ``crop``, ``flip``, ``crop-flip`` or ``turn``.
        colour: how strongly colours change, from 0 to 1.

    Example:
        >>> Augmentation("turn", colour=0.3)
        Augmentation(moves='turn', colour=0.3)
    """

    moves: Augment = setting("none", "crop (shift by up to an eighth), flip, both, or turn (8 ways)")
    colour: float = setting(
        0.0, "random gain and shift of each colour channel, up to this share of its spread", low=0, high=1
    )

    def __post_init__(self) -> None:
        normalise(self)

    def __str__(self) -> str:
        return f"{self.moves}, colour {self.colour:g}" if self.colour else self.moves


@dataclass(frozen=True)
class Drawn:
    """Changes that are drawn anew for every stream of samples.

    The moves and colours of images are drawn on the CPU, for a whole stream at once. A function draws its
    own random numbers; one that draws once per batch changes all samples of a batch in the same way.
    """

    how: Augmentation | Change
    generator: torch.Generator

    def stream(
        self, samples: Samples, order: Order, own: Sequence[slice] = ()
    ) -> Iterator[tuple[Inputs, Tensor]]:
        """The samples at each index tensor of ``order``, changed.

        With ``own`` only this part of each; an image is changed in the same way as if all were read.
        """
        how, shape = self.how, samples.pixel_shape
        if not isinstance(how, Augmentation):
            return ((_changed_by(how, x), y) for x, y in samples.stream(order, own=own))
        if shape is None:
            return samples.stream(order, own=own)
        sizes, order = [len(index) for index in order], cut(order, own)
        moves = None
        if how.moves != "none":
            pad = math.ceil(min(shape[1:]) / 8) if "crop" in how.moves else 0
            turn = how.moves == "turn"
            drawn = draw_moves(
                sum(sizes), pad=pad, flip=turn or "flip" in how.moves, turn=turn, generator=self.generator
            )
            moves = cut(drawn.to(samples.device).split(sizes), own)
        stream = samples.moved(order, moves)
        if how.colour == 0:
            return stream
        colours = draw_colours(sum(sizes), shape[0], how.colour, self.generator)
        each = cut(colours.to(samples.device).split(sizes), own)
        return ((recoloured(x, c), y) for (x, y), c in zip(stream, each, strict=True))


def as_augmentation(augment: Any) -> Augmentation | Change | None:
    """What ``augment=`` says: the name of an Augmentation becomes one, a function stays one."""
    if isinstance(augment, str):
        return Augmentation(fit(augment, Augment, "augment"))
    if augment is None or isinstance(augment, Augmentation) or callable(augment):
        known: Augmentation | Change | None = augment
        return known
    what = "a name such as 'crop-flip', a purge.Augmentation or a function of a batch for augment"
    raise MethodError(what, repr(augment)[:80], "leave augment out to read the data as it is")


def in_words(how: Augmentation | Change | None, samples: Samples) -> str | None:
    """How samples are changed at random, for a record; None if it is not known."""
    if how is None:
        return None if samples.steady else "by the data itself"
    return str(how) if isinstance(how, Augmentation) else f"by {_name(how)}"


def check_change(change: Change, samples: Samples, what: str) -> None:
    """Refuse a function that makes of two samples something else than two samples of the same shape."""
    x, fix = few(samples), "return a batch of the same shape and type, or leave augment out"

    def form(batch: Inputs) -> str:
        """Shape, type and device of every tensor in a batch."""
        tensors = all(isinstance(t, Tensor) for t in inputs.leaves(batch))
        if not tensors or tree_structure(batch) != tree_structure(x):
            return type(batch).__name__
        kinds = [(tuple(t.shape), str(t.dtype).partition(".")[2], t.device) for t in inputs.leaves(batch)]
        return ", ".join(f"{shape} of {dtype} on {device}" for shape, dtype, device in kinds)

    try:
        got = form(_changed_by(change, inputs.apply(torch.clone, x)))
    except Exception as error:  # whatever a user's function may raise
        got, fix = first_line(error), "pass a function of a batch of inputs on the device of the run"
    if got != form(x):
        raise MethodError(f"augment to return {what} like {form(x)}", f"{got} from {_name(change)}", fix)


def _name(change: Change) -> str:
    return getattr(change, "__name__", type(change).__name__)


@torch.no_grad()
def _changed_by(change: Change, x: Inputs) -> Inputs:
    with torch.autocast(inputs.leaves(x)[0].device.type, enabled=False):  # inputs keep their precision
        return change(x)


# -- without random transforms -------------------------------------------------------------------


def plain(samples: Samples, reader: str = "A part of the run") -> Samples:
    """The samples without the random transforms of torchvision that their dataset lists.

    The dataset, or the one under a Subset, is copied (not its files or pixels) and given the transforms that
    are not random; random crops become crops of the centre. What cannot be changed in this way, or would
    then have items of another shape, stays as it is. Parts of one dataset stay parts of one dataset.
    """
    items = samples.backend
    if not isinstance(items, Items) or samples.steady:
        return samples
    without = items.with_dataset(lambda dataset: _plain(dataset, reader))
    if without.dataset is items.dataset or without.moving:
        return samples
    return samples.replaced(backend=without).to(samples.device)


def still_random(split: Split) -> str:
    """Which parts of the data differ whenever they are read, in a sentence; empty if none does."""
    parts = {name: getattr(split, name) for name in ("forget", "retain", "test", "triggered")}
    names = [name for name, part in parts.items() if part is not None and not part.steady]
    if not names:
        return ""
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    why = (
        "items differ whenever they are read (random transforms?), so these are numbers of distorted samples"
    )
    return f"{listed}: {why}; pass data without random transforms"


def _plain(dataset: Any, reader: str) -> Any:
    """The same dataset, or Subset of it, without random transforms; as it is if its items would not fit."""
    if isinstance(dataset, Subset):
        base = _plain(dataset.dataset, reader)
        return dataset if base is dataset.dataset else Subset(base, dataset.indices)
    dropped: set[str] = set()
    transform = deterministic(getattr(dataset, "transform", None), dropped)
    if not dropped:
        return dataset
    try:
        without = copy.copy(dataset)
        without.transform = transform
        both = getattr(dataset, "transforms", None)  # torchvision keeps it a second time
        if getattr(both, "transform", None) is dataset.transform:
            without.transforms = copy.copy(both)
            without.transforms.transform = transform
        firsts = [as_tensors(input_and_label(one[0])[0], "the data") for one in (dataset, without)]
    except (AttributeError, TypeError, DataError):
        return dataset
    if inputs.describe(firsts[0]) != inputs.describe(firsts[1]):
        return dataset
    say_once(f"{reader} reads the data without {', '.join(sorted(dropped))}.")
    return without


def deterministic(transform: Any, dropped: set[str] | None = None) -> Any:
    """A transform without what is random in it; None if nothing is left. Its names go into ``dropped``."""
    dropped = set() if dropped is None else dropped
    module, name = type(transform).__module__, type(transform).__name__
    known = module.partition(".")[0] in PACKAGES
    if isinstance(transform, nn.Sequential):
        return nn.Sequential(*filter(None, (deterministic(part, dropped) for part in transform)))
    if known and name == "Compose":
        composed = copy.copy(transform)
        parts = (deterministic(part, dropped) for part in transform.transforms)
        composed.transforms = [*filter(None, parts)]
        return composed
    if not known or not (name.startswith("Random") or name in RANDOM):
        return transform
    dropped.add(name)
    home = sys.modules[module]
    if name == "RandomCrop":
        return home.CenterCrop(transform.size)
    if name == "RandomResizedCrop":
        size = [transform.size] * 2 if isinstance(transform.size, int) else transform.size
        return nn.Sequential(home.Resize(round(min(size) / WHOLE)), home.CenterCrop(size))
    return None
