"""A small company: a third of digits, three images a person, and a small network."""

from __future__ import annotations

import torch
from torch import nn

from purge.data.images import Images
from purge.data.load import load

ROWS, MORE = 480, 60


def person(i: int) -> str:
    return f"person-{i:04d}@planted.example"


def data(rows: int = ROWS) -> tuple[Images, Images]:
    train, test = load("digits", progress=False)
    part = train.select(torch.arange(rows))
    part.owners = tuple(person(i // 3) for i in range(rows))
    return part, test


def grown() -> tuple[Images, Images]:
    """More of the same; person 1 is back with two new rows."""
    train, test = data(ROWS + MORE)
    whose = list(train.owners)
    whose[ROWS + 5] = whose[ROWS + 6] = person(1)
    train.owners = tuple(whose)
    return train, test


def anonymous() -> tuple[Images, Images]:
    """The data without ids: rows have numbers."""
    train, test = load("digits", progress=False)
    return train.select(torch.arange(ROWS)), test


def anonymous_grown() -> tuple[Images, Images]:
    train, test = load("digits", progress=False)
    return train.select(torch.arange(ROWS + MORE)), test


def anonymous_turned() -> tuple[Images, Images]:
    """The same rows in another order."""
    train, test = load("digits", progress=False)
    return train.select(torch.arange(ROWS).flip(0)), test


def cleaned() -> tuple[Images, Images]:
    """The grown data without the rows of persons 0 to 4, as after a clean-up of the store."""
    train, test = grown()
    gone = {person(i) for i in range(5)}
    stays = torch.tensor([one not in gone for one in train.owners])
    part = train.select(stays)
    left = zip(train.owners, stays.tolist(), strict=True)
    part.owners = tuple(one for one, s in left if s)
    return part, test


def mlp(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, classes))
