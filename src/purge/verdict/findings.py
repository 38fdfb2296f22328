"""What an audit shows, typed and without a sentence in it; ``report.findings`` has the sentences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from purge.verdict.numbers import Number
from purge.verdict.rules import Level, Part, Rule, Topic


class Against(StrEnum):
    """What a number was compared with."""

    RETRAINED = "retrained"
    ORIGINAL = "original"
    CHANCE = "chance"
    AIM = "aim"
    FLOOR = "floor"  # further retrained models


class WhyOpen(StrEnum):
    """Why a question could not be judged."""

    MEASUREMENT = "measurement"  # it was not measured
    REFERENCE = "reference"  # there is no retrained model
    FLOOR = "floor"  # there is only one
    FORGETTING = "forgetting"  # nothing was forgotten that could come back
    METHOD = "method"  # no test for single samples


class Help(StrEnum):
    """What would decide an open question."""

    RETRAINED = "retrained"
    ORIGINAL = "original"
    MORE_SAMPLES = "more_samples"
    SHARPER_ATTACKS = "sharper_attacks"
    SECOND_RETRAINED = "second_retrained"
    SHADOW_MODELS = "shadow_models"
    FROZEN_FEATURES = "frozen_features"
    REMOVED_COPIES = "removed_copies"


class Headline(StrEnum):
    """What a verdict comes to."""

    CONTRADICTED = "contradicted"  # by evidence about what was to be forgotten
    DAMAGED = "damaged"
    TOLD_APART = "told_apart"  # from a retrained model
    NOT_CONTRADICTED = "not_contradicted"
    OPEN = "open"


@dataclass(frozen=True)
class Compared:
    """A number of the model beside what it was compared with."""

    ours: Number
    theirs: Number
    against: Against
    difference: Number
    margin: float  # of a distance: the factor by which another retraining may be further
    level: Level
    original: Number | None = None  # the original's number
    original_difference: Number | None = None
    tells: bool = False  # does the same test tell the original?
    bound: str = ""  # of a number that was cut off: least, most or none

    @property
    def name(self) -> str:
        """The name of the value."""
        return self.ours.name


@dataclass(frozen=True)
class Evidence:
    """What a finding rests on; the comparison that decided comes first."""

    compared: tuple[Compared, ...] = ()
    measured: Number | None = None  # without anything to compare it with
    missing: WhyOpen | None = None
    help: Help | None = None
    not_computed: tuple[str, ...] = ()  # names of values


@dataclass(frozen=True)
class Finding:
    """One thing that was shown, was contradicted, or could not be decided."""

    rule: Rule
    level: Level
    evidence: Evidence = Evidence()
    part: Part = Part.WHOLE

    @property
    def topic(self) -> Topic:
        """The kind of evidence, as the rule has it."""
        return self.rule.topic

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        about = {"rule": self.rule.name, "topic": self.rule.topic, "question": self.rule.question}
        return {**about, "part": self.part, "level": self.level, "evidence": asdict(self.evidence)}


@dataclass(frozen=True)
class Verdict:
    """All findings of an audit, and what they come to.

    ``basis`` is the finding that the headline rests on; ``open_parts`` are those parts of a mixed request of
    which nothing was shown.
    """

    level: Level
    kind: Headline
    findings: tuple[Finding, ...]
    basis: Finding | None = None
    open_parts: tuple[Part, ...] = ()

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that the numbers contradict."""
        return tuple(f for f in self.findings if f.level is Level.FAILED)

    @property
    def open(self) -> tuple[Finding, ...]:
        """The questions that were asked and are not decided."""
        return tuple(f for f in self.findings if f.level is Level.UNKNOWN and f.topic is not Topic.LIMITS)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"level": self.level, "kind": self.kind, "findings": [f.to_dict() for f in self.findings]}
