"""When to stop, and why: a forget target and a retain budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from purge.core.settings import normalise, setting


class Check(NamedTuple):
    """What was measured at one check."""

    forget_accuracy: float
    retain_loss: float


@dataclass(frozen=True)
class Stopping:
    """Stop when the forget accuracy is low enough, or the retain loss too high.

    The two reasons are called ``forget_target`` and ``retain_budget``; a run that neither of them ends
    goes to the end of its schedule, ``schedule``.

    Args:
        forget_target: stop at this accuracy on the forget set; by default 1/K for a class, and held-out
            accuracy for single samples.
        retain_budget: stop when the retain loss exceeds this many times its start; None: never.
        retain_floor: a starting retain loss below this counts as this.
        early: stop before the schedule ends if there is a reason.
        check_every: steps between two checks; 0: at epoch ends only.
        epoch_ends: also check at the end of each pass over the data.
        check_samples: a check looks at no more than this many samples of each set.

    Example:
        >>> Stopping(retain_budget=3.0).budget(0.5)
        1.5
    """

    forget_target: float | None = setting(
        None, "stop at this accuracy on the forget set; none: 1/K for a class, "
        "held-out accuracy for samples", low=0, high=1,
    )  # fmt: skip
    retain_budget: float | None = setting(
        5.0, "α: stop when the retain loss exceeds α times its start; none: no budget", above=0
    )
    retain_floor: float = setting(
        0.02, "a starting retain loss below this counts as this, so that a near-perfect model "
        "does not stop at once", low=0,
    )  # fmt: skip
    early: bool = setting(
        True, "stop before the schedule ends if there is a reason; if False, record but never stop"
    )
    check_every: int = setting(50, "steps between two checks; 0: at epoch ends only", low=0)
    epoch_ends: bool = setting(True, "also check at the end of each pass over the data")
    check_samples: int = setting(10_000, "a check looks at no more than this many samples of each set", low=1)

    def __post_init__(self) -> None:
        normalise(self)

    def budget(self, start: float) -> float | None:
        """The retain loss that ends the run.

        Args:
            start: the retain loss before the first step.

        Returns:
            The loss; None without a budget.
        """
        return None if self.retain_budget is None else self.retain_budget * max(start, self.retain_floor)


def beyond_chance(accuracy: float, target: float, samples: int) -> bool:
    """Is an accuracy on so many samples further above the target than one in a hundred would be by chance?

    >>> beyond_chance(1.0, 0.98, 29), beyond_chance(1.0, 0.98, 400), beyond_chance(0.5, 0.1, 29)
    (False, True, True)
    """
    from scipy.stats import binom

    return bool(binom.sf(round(accuracy * samples) - 1, samples, target) < 0.01)
