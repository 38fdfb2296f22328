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
from purge.data.identity import steady
from purge.data.images import Images, draw_colours, draw_moves, recoloured
from purge.data.inputs import Inputs
from purge.data.prefetch import Order, say_once
from purge.data.samples import Data, Lazy, Part, Samples, as_samples, few, item_of, part_of
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


class Augmented:
    """Samples that are changed at random whenever they are read.

    The moves and colours of images are drawn on the CPU, for a whole stream at once. A function draws its
    own random numbers; one that draws once per batch changes all samples of a batch in the same way.
    """

    moving = True

    def __init__(self, samples: Samples, how: Augmentation | Change, generator: torch.Generator) -> None:
        self.labels = samples.labels
        self._samples, self._how, self._generator = samples, how, generator

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        """The samples at ``index``, changed."""
        return next(self.stream([index]))

    def stream(self, order: Order, own: Sequence[slice] = ()) -> Iterator[tuple[Inputs, Tensor]]:
        """The samples at each index tensor of ``order``, changed.

        With ``own`` only this part of each; an image is changed in the same way as if all were read.
        """
        how = self._how
        if isinstance(how, Augmentation):
            return augmented(self._samples, order, how, self._generator, own)
        return ((_changed_by(how, x), y) for x, y in self._samples.stream(_cut(order, own)))


def _cut(batches: Order, own: Sequence[slice]) -> Order:
    return [one[part] for one, part in zip(batches, own, strict=True)] if own else batches


def augmented(
    samples: Samples, order: Order, how: Augmentation, generator: torch.Generator, own: Sequence[slice] = ()
) -> Iterator[tuple[Inputs, Tensor]]:
    """The batches at each row of ``order``; images are changed at random, other data is not."""
    if not isinstance(samples, Images):
        return samples.stream(_cut(order, own))
    sizes, order = [len(index) for index in order], _cut(order, own)
    moves = None
    if how.moves != "none":
        pad = math.ceil(min(samples.pixel_shape[1:]) / 8) if "crop" in how.moves else 0
        turn = how.moves == "turn"
        drawn = draw_moves(
            sum(sizes), pad=pad, flip=turn or "flip" in how.moves, turn=turn, generator=generator
        )
        moves = _cut(drawn.to(samples.device).split(sizes), own)
    stream = samples.stream(order, moves)
    if how.colour == 0:
        return stream
    colours = draw_colours(sum(sizes), samples.pixel_shape[0], how.colour, generator)
    each = _cut(colours.to(samples.device).split(sizes), own)
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
        return None if steady(samples) else "by the data itself"
    return str(how) if isinstance(how, Augmentation) else f"by {_name(how)}"


def check_change(change: Change, samples: Samples, what: str) -> None:
    """Refuse a function that makes of two samples something else than two samples of the same shape."""
    x = few(samples)
    wanted = _form(x)
    try:
        found = _changed_by(change, inputs.apply(torch.clone, x))
    except Exception as error:  # whatever a user's function may raise
        fix = "pass a function of a batch of inputs on the device of the run"
        raise MethodError(f"augment to take a batch of {what}, {wanted}", first_line(error), fix) from error
    alike = tree_structure(found) == tree_structure(x)
    tensors = alike and all(isinstance(t, Tensor) for t in inputs.leaves(found))
    got = _form(found) if tensors else type(found).__name__
    if got != wanted:
        fix = "return a batch of the same shape and type, or leave augment out"
        raise MethodError(f"augment to return {what} like {wanted}", f"{got} from {_name(change)}", fix)


def _form(x: Inputs) -> str:
    """Shape, type and device of every tensor in a batch."""
    parts = [
        f"{tuple(t.shape)} of {str(t.dtype).removeprefix('torch.')} on {t.device}" for t in inputs.leaves(x)
    ]
    return ", ".join(parts)


def _name(change: Change) -> str:
    return getattr(change, "__name__", type(change).__name__)


@torch.no_grad()
def _changed_by(change: Change, x: Inputs) -> Inputs:
    with torch.autocast(inputs.leaves(x)[0].device.type, enabled=False):  # inputs keep their precision
        return change(x)


# -- without random transforms -------------------------------------------------------------------


def plain(samples: Samples) -> Samples:
    """The samples without random transforms; as they are if these cannot be taken out of their dataset."""
    if isinstance(samples, Part) and not steady(samples):
        whole = plain(samples.whole)
        return samples if whole is samples.whole else part_of(whole, samples.rows)
    if not isinstance(samples, Lazy) or steady(samples):
        return samples
    dataset = _plain(samples.dataset, {}, "A part of the run")
    if dataset is samples.dataset:
        return samples
    found = as_samples(dataset, samples.device, "the data")
    return found if steady(found) else samples


def without_random_transforms(*parts: Data | None) -> tuple[Any, ...]:
    """The same data without the random transforms of torchvision that its datasets list.

    A dataset, or the one under a Subset, is copied (not its files or pixels) and given the transforms that
    are not random; random crops become crops of the centre. What cannot be changed in this way, or would
    then have items of another shape, stays as it is.
    """
    copies: dict[int, Any] = {}  # parts of one dataset stay parts of one dataset
    return tuple(None if data is None else _plain(data, copies, "The audit") for data in parts)


def still_random(split: Split) -> str:
    """Which parts of the data differ whenever they are read, in a sentence; empty if none does."""
    parts = {name: getattr(split, name) for name in ("forget", "retain", "test", "triggered")}
    names = [name for name, part in parts.items() if part is not None and not steady(part)]
    if not names:
        return ""
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    why = (
        "items differ whenever they are read (random transforms?), so these are numbers of distorted samples"
    )
    return f"{listed}: {why}; pass data without random transforms"


def _plain(data: Data, copies: dict[int, Any], reader: str) -> Data:
    if isinstance(data, (Images, tuple, list)):
        return data
    if id(data) not in copies:
        copies[id(data)] = data
        if isinstance(data, Subset):
            base = _plain(data.dataset, copies, reader)
            copies[id(data)] = data if base is data.dataset else Subset(base, data.indices)  # type: ignore[arg-type]
        elif (dropped := _names(getattr(data, "transform", None))) and (plain := _changed(data)) is not None:
            say_once(f"{reader} reads the data without {', '.join(sorted(dropped))}.")
            copies[id(data)] = plain
    found: Data = copies[id(data)]
    return found


def _changed(dataset: Any) -> Any:
    """A shallow copy of a dataset whose transforms are not random; None if its items would not fit."""
    try:
        plain = copy.copy(dataset)
        plain.transform = deterministic(dataset.transform)
        both = getattr(dataset, "transforms", None)  # torchvision keeps it a second time
        if getattr(both, "transform", None) is dataset.transform:
            plain.transforms = copy.copy(both)
            plain.transforms.transform = plain.transform
        shapes = [inputs.describe(item_of(one, "the data")) for one in (dataset, plain)]
    except (AttributeError, TypeError, DataError):
        return None
    return plain if shapes[0] == shapes[1] else None


def deterministic(transform: Any) -> Callable[[Any], Any] | None:
    """A transform without what is random in it; None if nothing is left."""
    if isinstance(transform, nn.Sequential):
        return nn.Sequential(*filter(None, map(deterministic, transform)))  # type: ignore[no-any-return, call-overload]
    if _known(transform) and type(transform).__name__ == "Compose":
        found = copy.copy(transform)
        found.transforms = [*filter(None, map(deterministic, transform.transforms))]
        return found  # type: ignore[no-any-return]
    if not _random(transform):
        return transform  # type: ignore[no-any-return]
    home, name = sys.modules[type(transform).__module__], type(transform).__name__
    if name == "RandomCrop":
        return home.CenterCrop(transform.size)  # type: ignore[no-any-return]
    if name == "RandomResizedCrop":
        size = [transform.size] * 2 if isinstance(transform.size, int) else transform.size
        return nn.Sequential(home.Resize(round(min(size) / WHOLE)), home.CenterCrop(size))
    return None


def _names(transform: Any) -> set[str]:
    """The random transforms in a transform."""
    if isinstance(transform, nn.Sequential) or (_known(transform) and type(transform).__name__ == "Compose"):
        inside = transform if isinstance(transform, nn.Sequential) else transform.transforms
        return set().union(*map(_names, inside))
    return {type(transform).__name__} if _random(transform) else set()


def _known(transform: Any) -> bool:
    return type(transform).__module__.partition(".")[0] in PACKAGES


def _random(transform: Any) -> bool:
    name = type(transform).__name__
    return _known(transform) and (name.startswith("Random") or name in RANDOM)
