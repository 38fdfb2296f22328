"""One measured number with its interval, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from purge.core.errors import MetricError

Bound = Literal["", "least", "most", "none"]


class Missing(Exception):
    """Raised inside a metric where there is no number to give; the message is the reason."""


@dataclass(frozen=True)
class Value:
    """A measured number with its 95 % interval, or None and the reason why there is none.

    Attributes:
        value: the number; None if it could not be measured. Shares are fractions.
        low: the lower end of the interval; None if there is no interval.
        high: its upper end.
        n: how many samples it was measured on.
        why: the reason for a missing value, or a note to one that was cut off.
        bound: of a value that was cut off: the true one is at ``least`` or at ``most`` this, or it says
            nothing (``none``).

    Example:
        >>> Value(0.5, 0.4, 0.6, n=100)
        Value(0.5, low=0.4, high=0.6, n=100)
        >>> Value.missing("no test data was given")
        Value(None, why='no test data was given')
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    why: str = ""
    bound: Bound = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.why:
            raise MetricError("a reason for a missing value", "none", "pass why=…")

    def __repr__(self) -> str:
        """One line, rounded, without what is not there."""
        if self.value is None:
            return f"Value(None, why={self.why!r})"
        ends = {"low": self.low, "high": self.high}
        parts = [f"{self.value:.4g}", *(f"{name}={v:.4g}" for name, v in ends.items() if v is not None)]
        parts += [] if self.n is None else [f"n={self.n}"]
        return f"Value({', '.join(parts + ([f'why={self.why!r}'] if self.why else []))})"

    @classmethod
    def missing(cls, why: str) -> Value:
        """No number, and why.

        Args:
            why: the reason, as a clause without a full stop.

        Returns:
            A value that is None.
        """
        return cls(None, why=why)
