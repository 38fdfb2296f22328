"""What is measured on every new version: its own requests, all earlier ones, and what was to stay.

Every number carries how many samples it rests on. Samples of a class that is gone are in no number about what
stays, and drift is counted from the first version of the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from purge.api import audit
from purge.core.threads import threads_for
from purge.data.samples import Samples, part_of
from purge.data.split import Split
from purge.engine.precision import choose_device
from purge.engine.seeding import seeded
from purge.ledger.grounds import Grounds
from purge.metrics.bootstrap import mean_value
from purge.metrics.metric import Metric
from purge.metrics.registry import resolve_metrics
from purge.metrics.subject import Subject
from purge.metrics.value import Value
from purge.models.checks import training_data
from purge.models.copies import copied
from purge.models.forward import logits
from purge.result import Report
from purge.verdict.compare import Sign
from purge.verdict.rules import FEWEST

METRICS = ("ta_retain", "fa_train", "fa_test", "ra", "mia_loss", "mia_confidence", "mia")  # of a batch
LATER = ("fa_train", "fa_test", "mia")  # of an earlier one
TELLS = {
    "classes": ("fa_test", "fa_train"),
    "samples": ("mia", "fa_train"),
}  # what would rise if it came back


@dataclass(frozen=True)
class Group:
    """Requests of one batch that name samples, or those of it that name classes."""

    batch: int
    kind: str  # a key of TELLS
    requests: tuple[int, ...]
    rows: Tensor  # a mask (N,) of the training data
    classes: tuple[int, ...] = ()
    kept: bool = True  # may its samples be used for this?
    then: Mapping[str, Any] | None = None  # its values right after it was forgotten; None: this is that time


@dataclass(frozen=True)
class Subjects:
    """A model on the device, with the data as it wants it."""

    model: nn.Module
    train: Samples
    test: Samples
    device: torch.device
    seed: int

    @classmethod
    def of(cls, model: nn.Module, grounds: Grounds, *, device: str | None, seed: int) -> Subjects:
        """A copy of the model, which is only looked at."""
        at = choose_device(device, model)
        own = copied(model, at)
        own.eval()
        return cls(own, training_data(own, grounds.train, at), training_data(own, grounds.test, at), at, seed)

    def answers(self) -> Tensor:
        """The class that the model gives to each test sample, (M,)."""
        with seeded(self.seed, self.device), threads_for(self.model, self.device):
            return logits(self.model, self.test).argmax(1).cpu()

    def known(self, group: Group, gone: Tensor, gone_classes: Sequence[int]) -> dict[str, Value]:
        """What the model still knows about a group of forgotten samples."""
        labels = self.train.labels
        own = set(labels[group.rows].unique().tolist())
        there = set(labels[~gone].unique().tolist())
        others = torch.tensor(sorted(set(gone_classes) - own), dtype=torch.long)
        unseen = (~torch.isin(self.test.labels, others)).nonzero()[:, 0]
        split = Split(
            part_of(self.train, group.rows.nonzero()[:, 0]), part_of(self.train, (~gone).nonzero()[:, 0]),
            part_of(self.test, unseen) if len(unseen) else None, _classes(self.train, self.test),
            frozenset(own - there),
        )  # fmt: skip
        subject = Subject(self.model, split, seed=self.seed)
        with seeded(self.seed, self.device), threads_for(self.model, self.device):
            return {k: v for metric in resolve_metrics(LATER) for k, v in subject.named(metric).items()}


def _classes(*parts: Samples) -> int:
    return 1 + max(int(part.labels.max()) for part in parts)


def batch_report(
    model: nn.Module, grounds: Grounds, rows: Tensor, gone: Tensor, gone_classes: Sequence[int], *,
    original: nn.Module | None, metrics: Sequence[Metric], seed: int, device: str | None, progress: bool,
) -> Report:  # fmt: skip
    """The audit of what a batch forgot; ``gone``: all that was forgotten, this batch included."""
    own = set(grounds.train.labels[rows].unique().tolist())
    test = grounds.test_without(set(gone_classes) - own)
    return audit(
        model, grounds.train.select(rows), grounds.train.select(~gone), test if len(test) else None,
        original=original, metrics=list(metrics), seed=seed, device=device, progress=progress,
    )  # fmt: skip


def measure(
    model: nn.Module, grounds: Grounds, groups: Sequence[Group], gone: Tensor, gone_classes: Sequence[int], *,
    first: nn.Module | None, max_return: float, seed: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """What a version knows of all that was forgotten, and what became of the rest, as plain values.

    ``first``: the first version of the chain. ``gone``: a mask of all that was forgotten, classes included.
    """
    subjects = Subjects.of(model, grounds, device=device, seed=seed)
    answers, truth = subjects.answers(), grounds.test.labels
    right = (answers == truth).numpy()
    stays = ~torch.isin(truth, torch.tensor(sorted(gone_classes), dtype=torch.long))
    labels = grounds.train.labels
    found: dict[str, Any] = {
        "n": {
            "training": len(grounds.train), "forgotten": int(gone.sum()), "retained": int((~gone).sum()),
            "test": len(truth), "test_stays": int(stays.sum()),
        },
        "classes": {"gone": list(gone_classes), "stay": sorted(set(labels[~gone].unique().tolist()))},
        "held_out": {
            str(c): asdict(mean_value(right[(truth == c).numpy()], seed))
            for c in gone_classes
            if bool((truth == c).any())
        },
        "groups": [_group(subjects, g, gone, gone_classes, right, truth, max_return) for g in groups],
    }  # fmt: skip
    found["stays"] = _stays(right, answers, truth, stays, first, grounds, device, seed)
    return found


def _group(
    subjects: Subjects, group: Group, gone: Tensor, gone_classes: Sequence[int], right: Any, truth: Tensor,
    max_return: float,
) -> dict[str, Any]:  # fmt: skip
    """One group: its values, or why it cannot be tested, and whether it came back."""
    about: dict[str, Any] = {
        "batch": group.batch, "kind": group.kind, "requests": list(group.requests),
        "classes": list(group.classes), "n": int(group.rows.sum()),
    }  # fmt: skip
    values: dict[str, Value] = {}
    why = ""
    if group.then is not None and not group.kept:
        why = "its samples may not be kept for audits"
    elif not group.rows.any():
        why = "its samples are no longer in the training data, or their classes are gone as a whole"
    else:
        values = subjects.known(group, gone, gone_classes)
    if why and group.kind == "classes":  # a class can be told from held-out samples alone
        of = torch.isin(truth, torch.tensor(group.classes, dtype=torch.long)).numpy()
        if of.any():
            values = {"fa_test": mean_value(right[of], subjects.seed)}
    tested = bool(values)
    about |= {"tested": tested, "why": why, "values": {name: asdict(v) for name, v in values.items()}}
    few = group.kind == "samples" and about["n"] < FEWEST
    about["note"] = f"fewer than {FEWEST} samples: the attack on them tells little" if tested and few else ""
    tells = [name for name in TELLS[group.kind] if not (few and name == "mia")]
    before = {name: ((group.then or {}).get(name) or {}).get("value") for name in tells}
    back = [name for name in tells if _returned(values.get(name), before[name], max_return)]
    about["returned"] = [f"{name} rose from {before[name]:.3f} to {values[name].value:.3f}" for name in back]
    return about


def _returned(now: Value | None, before: float | None, most: float) -> bool:
    """Has a number risen since, beyond chance and by more than is allowed?"""
    if now is None or now.value is None or before is None:
        return False
    return Sign.ABOVE.holds((now.value if now.low is None else now.low) - before, most)


def _stays(
    right: Any, answers: Tensor, truth: Tensor, stays: Tensor, first: nn.Module | None, grounds: Grounds,
    device: str | None, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Accuracy on test data of the classes that stay, now and at the beginning of the chain."""
    at = stays.numpy()
    if not at.any():
        return {"why": "the test data has no sample of a class that stays", "drift": None, "distance": None}
    found: dict[str, Any] = {"now": asdict(mean_value(right[at], seed)), "drift": None, "distance": None}
    if first is None:
        return {**found, "why": "the first version of the chain is no longer there"}
    before = Subjects.of(first, grounds, device=device, seed=seed).answers()
    was = (before == truth).numpy()[at]
    differ = (before != answers).numpy()[at]
    return {
        **found, "why": "", "first": asdict(mean_value(was, seed)),
        "drift": float(was.mean() - right[at].mean()), "distance": float(differ.mean()),
    }  # fmt: skip


def returned(found: Mapping[str, Any]) -> list[str]:
    """What came back that was forgotten before, each in words."""
    return [
        f"{group['kind']} forgotten in batch {group['batch']} came back: {line}"
        for group in found["groups"]
        for line in group["returned"]
    ]
