"""Data with random transforms, as it is brought for training: what an audit reads instead."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.data import Subset

from purge.core.errors import DataError
from purge.data import inputs
from purge.data.identity import steady
from purge.data.images import Images
from purge.data.prefetch import say_once
from purge.data.samples import Data, item_of
from purge.data.split import Split

PACKAGES = ("torchvision", "timm")  # whose transforms are known by their names
RANDOM = {
    "AugMix", "AutoAugment", "ColorJitter", "ElasticTransform", "GaussianBlur", "GaussianNoise", "JPEG",
    "RandAugment", "ScaleJitter", "TrivialAugmentWide",
}  # fmt: skip
WHOLE = 0.875  # the share of the shorter side that evaluation usually crops from the centre


def without_random_transforms(
    forget: Data, retain: Data, test: Data | None
) -> tuple[Data, Data, Data | None]:
    """The same data without the random transforms of torchvision that its datasets list.

    A dataset, or the one under a Subset, is copied (not its files or pixels) and given the transforms that
    are not random; random crops become crops of the centre. What cannot be changed in this way, or would
    then have items of another shape, stays as it is.
    """
    copies: dict[int, Any] = {}  # parts of one dataset stay parts of one dataset
    return _plain(forget, copies), _plain(retain, copies), None if test is None else _plain(test, copies)


def still_random(split: Split) -> str:
    """Which parts of the data differ whenever they are read, in a sentence; empty if none does."""
    parts = {"forget": split.forget, "retain": split.retain, "test": split.test}
    names = [name for name, part in parts.items() if part is not None and not steady(part)]
    if not names:
        return ""
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    why = (
        "items differ whenever they are read (random transforms?), so these are numbers of distorted samples"
    )
    return f"{listed}: {why}; pass data without random transforms"


def _plain(data: Data, copies: dict[int, Any]) -> Data:
    if isinstance(data, (Images, tuple, list)):
        return data
    if id(data) not in copies:
        copies[id(data)] = data
        if isinstance(data, Subset):
            base = _plain(data.dataset, copies)
            copies[id(data)] = data if base is data.dataset else Subset(base, data.indices)  # type: ignore[arg-type]
        elif (dropped := _names(getattr(data, "transform", None))) and (plain := _changed(data)) is not None:
            say_once(f"The audit reads the data without {', '.join(sorted(dropped))}.")
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
