"""What ``purge`` does within a budget: the numbers that a kind of request calls for.

They were chosen on CIFAR-10 with images held out of training (class 5, and a tenth of the samples) and tried
on digits with networks of five kinds; docs/methods/purge.md tells what else was tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from purge.data.split import Split

Budget = Literal["fast", "close"]

BATCH, LEAST, PARTS = 512, 16, 16  # a batch is a sixteenth of D_r, within these limits
HIGHEST = 0.03  # the highest rate
FEW = 0.01  # of fewer samples beside those that stay, a retrained model differs little: distil the original


class Plan(NamedTuple):
    """The settings of a restart; see :class:`purge.methods.Purge`."""

    steps: int
    rate: float  # with one pass over D_r; it grows with the root of the passes, up to three times as high
    plain: float
    kd: float
    fresh_share: float  # only for networks with BatchNorm, which makes up for the size of weights
    average: float

    def words(self, size: int, *, pushes: bool, changed: bool) -> str:
        """What is done, in words."""
        found = f"a restart of {self.steps} steps of {size} retained samples"
        if self.fresh_share:
            found = f"{self.fresh_share:.0%} fresh weights mixed in, then {found}"
        found += f", the longest {self.rate:.1%} of the length of all weights"
        if changed and self.plain < 1:
            found += f"; the first {1 - self.plain:.0%} on augmented samples"
        return found + ("; forgotten classes pushed away" if pushes else "")


PLANS: dict[tuple[Budget, str], Plan] = {
    ("fast", "classes"): Plan(64, 0.01, 0.7, 0.0, 0.0, 0.0),
    ("fast", "samples"): Plan(80, 0.02, 1.0, 0.0, 0.0, 0.0),
    ("close", "classes"): Plan(440, 0.01, 0.4, 1.0, 0.0, 0.25),
    ("close", "samples"): Plan(480, 0.011, 0.3, 1.0, 0.5, 0.25),
}


def chosen(
    budget: Budget, split: Split, normed: bool, batch_size: int | None, given: Mapping[str, Any]
) -> tuple[int, Plan]:
    """The size of a batch and the plan for a request; what was ``given`` stands.

    ``normed``: does the network have BatchNorm?
    """
    n = len(split.retain)
    size = min(batch_size or min(BATCH, max(LEAST, n // PARTS)), n)
    plan = PLANS[budget, "samples" if split.single else "classes"]
    if not normed:
        plan = plan._replace(fresh_share=0.0)
    if len(split.forget) < FEW * n:
        plan = plan._replace(kd=1.0)
    passes = given.get("steps", plan.steps) * size / n
    rate = min(HIGHEST, plan.rate * min(max(passes, 1.0), 9.0) ** 0.5)
    return size, plan._replace(**{"rate": rate, **given})
