"""When approximate deletion is used up: a chain of deletions may go so far, then the model is trained anew.

Everything is counted from the beginning of the chain, the last training, and never from the last deletion:
many small losses would otherwise pass one by one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from purge.core.errors import DataError
from purge.core.files import read_yaml
from purge.core.schema import build
from purge.core.settings import normalise, setting
from purge.ledger.words import POLICY
from purge.verdict import Sign, scaled

BOUNDS = ("requests", "age", "share", "drift", "distance")
UNITS = {"share": "share", "drift": "share", "distance": "share"}  # the others are counts


@dataclass(frozen=True)
class Policy:
    """How far a chain of deletions may go; a bound of None is not looked at.

    >>> Policy(max_requests=20).reasons(Spent(requests=21))
    ['21 requests since the last training, the policy allows 20']
    """

    max_requests: int | None = setting(None, "the most requests since the last training", low=1)
    max_share: float | None = setting(
        0.2, "the largest share of the training data that was forgotten since then", above=0, high=1
    )
    max_drift: float | None = setting(
        0.02, "the largest loss of accuracy on test data of the classes that stay", low=0, high=1
    )
    max_distance: float | None = setting(
        0.1, "the largest share of that data on which the two models answer differently", low=0, high=1
    )
    max_age: int | None = setting(None, "the most days since the last training", low=0)
    max_return: float = setting(
        0.05, "by how much accuracy or MIA of an earlier request may rise, beyond chance", low=0, high=1
    )
    action: Literal["retrain", "say"] = setting(
        "say", "what run does then: retrain, or leave the requests open and say that it is due"
    )

    def __post_init__(self) -> None:
        normalise(self)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """The policy in a YAML file, such as ``max_requests: 20``."""
        return build(cls, read_yaml(Path(path)), str(path))

    def reasons(self, spent: Spent) -> list[str]:
        """Why no further deletion may follow, each in words; empty if one may."""
        return [
            POLICY[name].format(*(scaled(value, UNITS.get(name, "")) for value in pair))
            for name, pair in self.exceeded(spent).items()
        ]

    def exceeded(self, spent: Spent) -> dict[str, tuple[float, float]]:
        """The bounds that a chain has passed: name → how far it has gone, and how far it may go."""
        pairs = {name: (getattr(spent, name), getattr(self, f"max_{name}")) for name in BOUNDS}
        both = {name: pair for name, pair in pairs.items() if None not in pair}
        return {name: pair for name, pair in both.items() if Sign.ABOVE.holds(*pair)}


@dataclass(frozen=True)
class Spent:
    """How far a chain has gone; None: not measured."""

    requests: int = 0
    share: float | None = None  # of the training data
    drift: float | None = None  # accuracy of the first version − that of this one, on the same samples
    distance: float | None = None  # share of these samples with another answer
    age: int | None = None  # days since the last training


def as_policy(policy: Policy | str | os.PathLike[str] | None) -> Policy:
    """A policy, the file of one, or the default."""
    if isinstance(policy, (str, os.PathLike)):
        return Policy.read(policy)
    if policy is None or isinstance(policy, Policy):
        return policy or Policy()
    got, fix = type(policy).__name__, "pass Policy(max_share=0.1)"
    raise DataError("a purge.Policy or the path of one", got, fix)
