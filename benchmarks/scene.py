"""What the benchmarks on one class of CIFAR-10 share: options, data, and the trained base model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from baselines import FORGET, trained
from torch import nn

import purge

LARGE, SHORT = 128, 10  # from this size of images on, models are trained for so many epochs


class Scene(NamedTuple):
    """Data on the device, split for a request, and the model that is to forget."""

    loaded: tuple[purge.Images, purge.Images]  # training and test images before they were moved there
    train: purge.Images
    test: purge.Images
    forget: purge.Images
    retain: purge.Images
    base: nn.Module
    suffix: str  # in the names of kept models: which size they are for, if not the data set's own


def options(about: str, out: Path) -> argparse.ArgumentParser:
    """The options that each of them has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data-dir")
    parser.add_argument("--models", type=Path, default=Path("runs/baselines"), help="where they are kept")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--size", type=int, help="of the images; default: the data set's own")
    parser.add_argument("--epochs", type=int, help=f"of trained models; {SHORT} for large images")
    parser.add_argument("--table", action="store_true", help="print the tables of what was measured")
    return parser


def prepare(asked: argparse.Namespace) -> Scene:
    """Load the data and train the base model, unless it is there already."""
    train_data, test_data = purge.load(asked.data, data_dir=asked.data_dir, size=asked.size, progress=False)
    train, test = train_data.to(asked.device), test_data.to(asked.device)
    forget, retain = purge.split(train, classes=[FORGET])
    suffix = "" if train.shape == train.pixel_shape else f"-{train.shape[1]}"
    asked.epochs = asked.epochs or (SHORT if train.shape[1] >= LARGE else None)
    base, _ = trained(asked, f"base{suffix}", train, 0)
    return Scene((train_data, test_data), train, test, forget, retain, base, suffix)
