"""The data sets known by name; the only place where a constant of one of them is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from purge.data import Images
from purge.errors import DataError, did_you_mean, expected


class DatasetEntry(NamedTuple):
    """A data set: how to read it, and what is known about it."""

    load: Callable[[], tuple[Images, Images]]  # (train, test)
    classes: int
    channels: int
    about: str


@cache
def _digits() -> tuple[Images, Images]:
    """1,797 handwritten digits of 8×8 pixels that come with scikit-learn; a fifth is for testing."""
    raw = load_digits()
    pixels = torch.from_numpy(raw.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(raw.target).long()
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=raw.target)
    everything = Images(
        pixels, labels, mean=(0.3053,), std=(0.3760,), names=tuple("0123456789"), source="digits"
    )
    return everything.select(torch.tensor(train)), everything.select(torch.tensor(test))


DATASETS: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(_digits, 10, 1, "1,797 handwritten digits, 8×8, inside scikit-learn: no download"),
}


def load(name: str) -> tuple[Images, Images]:
    """The training and test images of a data set."""
    if name not in DATASETS:
        raise DataError(expected("the name of a data set", repr(name), did_you_mean(name, DATASETS)))
    return DATASETS[name].load()
