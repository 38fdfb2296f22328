"""What each model is in an audit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a model is in an audit."""

    AUDITED = "audited"
    RETRAINED = "retrained"
    ORIGINAL = "original"


@dataclass(frozen=True)
class Slot:
    """The place of a model in an audit; of several retrained ones, 0 is the one to compare with."""

    role: Role
    number: int = 0

    @property
    def name(self) -> str:
        """The name that files have for it: retrained, retrained 1, …"""
        return f"{self.role} {self.number}" if self.number else str(self.role)
