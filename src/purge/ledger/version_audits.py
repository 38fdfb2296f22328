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

from purge import Metric, Report, Value, audit
from purge.core.threads import threads_for
from purge.data import Samples
from purge.engine import choose_device, seeded
from purge.ledger.data import OwnedData
from purge.ledger.records import TELLS, Request
from purge.metrics import mean_value
from purge.models import copied, logits, training_data
from purge.verdict import FEWEST, Sign

METRICS = ("ta_retain", "fa_train", "fa_test", "ra", "mia_loss", "mia_confidence", "mia")  # of a batch
LATER = ("fa_train", "fa_test", "mia")  # of an earlier one
TOO_SMALL = f"fewer than {FEWEST} samples: the attack on them tells little"


@dataclass(frozen=True)
class Group:
    """Requests of one batch that name samples, or those of it that name classes, or correct labels."""

    batch: int
    kind: str  # a key of TELLS
    requests: tuple[int, ...]
    rows: Tensor  # a mask (N,) of the training data
    classes: tuple[int, ...] = ()
    kept: bool = True  # may its samples be used for this?
    then: Mapping[str, Any] | None = None  # its values right after it was forgotten; None: this is that time


def kind_of(request: Request) -> str:
    """What a request is about: a key of ``TELLS``."""
    return "labels" if request.label is not None else "classes" if request.classes else "samples"


def answers(model: nn.Module, samples: Samples, *, seed: int, device: str | None) -> Tensor:
    """The class that a model gives to each sample, (M,)."""
    at = choose_device(device, model)
    own = copied(model, at)
    own.eval()
    with seeded(seed, at), threads_for(own, at):
        return logits(own, training_data(own, samples, at)).argmax(1).cpu()


def audit_rows(
    model: nn.Module, data: OwnedData, rows: Tensor, forgotten: Tensor, classes: Sequence[int], *,
    metrics: Sequence[str | Metric] = LATER, original: nn.Module | None = None, seed: int = 0,
    device: str | None = None, progress: bool = False,
) -> Report:  # fmt: skip
    """The audit of some forgotten rows, such as those of a batch.

    ``forgotten`` and ``classes``: all that was forgotten, these rows included.
    """
    own = set(data.train.labels[rows].unique().tolist())
    test = data.test_without(set(classes) - own)
    return audit(
        model, data.train.select(rows), data.train.select(~forgotten), test if len(test) else None,
        original=original, metrics=list(metrics), seed=seed, device=device, progress=progress,
    )  # fmt: skip


def measure(
    model: nn.Module, data: OwnedData, groups: Sequence[Group], forgotten: Tensor, classes: Sequence[int], *,
    first: nn.Module | None, max_return: float, seed: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """What a version knows of all that was forgotten, and what became of the rest, as plain values.

    ``first``: the first version of the chain. ``forgotten``: a mask of all that was, ``classes`` included.
    """
    now, truth = answers(model, data.test, seed=seed, device=device), data.test.labels
    right = (now == truth).numpy()
    stays = ~torch.isin(truth, torch.tensor(sorted(classes), dtype=torch.long))
    tested = []
    for group in groups:
        why, values = "", dict[str, Value]()
        if group.then is not None and not group.kept:
            why = "its samples may not be kept for audits"
        elif not group.rows.any():
            why = "its samples are no longer in the training data, or their classes are gone as a whole"
        elif group.kind == "labels":
            given = answers(model, data.train.select(group.rows), seed=seed, device=device)
            wrong, right_one = data.train.labels[group.rows], data.taught(group.rows).labels
            values = {
                "wrong_label": mean_value((given == wrong).numpy(), seed),
                "right_label": mean_value((given == right_one).numpy(), seed),
            }
        else:
            report = audit_rows(model, data, group.rows, forgotten, classes, seed=seed, device=device)
            values = {name: report[name] for name in LATER}
        if why and group.kind == "classes":  # a class can be told from held-out samples alone
            of = torch.isin(truth, torch.tensor(group.classes, dtype=torch.long)).numpy()
            values = {"fa_test": mean_value(right[of], seed)} if of.any() else {}
        tested.append(_compared(group, values, why, max_return))
    return {
        "n": {
            "training": len(data.train), "forgotten": int(forgotten.sum()),
            "retained": int((~forgotten).sum()), "test": len(truth), "test_stays": int(stays.sum()),
        },
        "classes": {
            "gone": list(classes), "stay": sorted(set(data.train.labels[~forgotten].unique().tolist())),
        },
        "held_out": {
            str(c): asdict(mean_value(right[(truth == c).numpy()], seed))
            for c in classes
            if bool((truth == c).any())
        },
        "groups": tested,
        "stays": _stays(right, now, truth, stays, first, data, device, seed),
    }  # fmt: skip


def _compared(group: Group, values: Mapping[str, Value], why: str, max_return: float) -> dict[str, Any]:
    """What the ledger keeps of a group: its values, and which of them rose since it was forgotten."""
    n = int(group.rows.sum())
    too_small = group.kind == "samples" and n < FEWEST
    returned = []
    for name in TELLS[group.kind]:
        now, before = values.get(name), ((group.then or {}).get(name) or {}).get("value")
        if now is None or now.value is None or before is None or (too_small and name == "mia"):
            continue
        surely = now.value if now.low is None else now.low  # beyond chance
        if Sign.ABOVE.holds(surely - before, max_return):
            returned.append(f"{name} rose from {before:.3f} to {now.value:.3f}")
    return {
        "batch": group.batch, "kind": group.kind, "requests": list(group.requests),
        "classes": list(group.classes), "n": n, "tested": bool(values), "why": why,
        "values": {name: asdict(value) for name, value in values.items()},
        "note": TOO_SMALL if values and too_small else "", "returned": returned,
    }  # fmt: skip


def _stays(
    right: Any, now: Tensor, truth: Tensor, stays: Tensor, first: nn.Module | None, data: OwnedData,
    device: str | None, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Accuracy on test data of the classes that stay, now and at the beginning of the chain."""
    at = stays.numpy()
    if not at.any():
        return {"why": "the test data has no sample of a class that stays", "drift": None, "distance": None}
    accuracy = asdict(mean_value(right[at], seed))
    if first is None:
        why = "the first version of the chain is no longer there"
        return {"now": accuracy, "drift": None, "distance": None, "why": why}
    before = answers(first, data.test, seed=seed, device=device)
    was = (before == truth).numpy()[at]
    return {
        "now": accuracy, "why": "", "first": asdict(mean_value(was, seed)),
        "drift": float(was.mean() - right[at].mean()),
        "distance": float((before != now).numpy()[at].mean()),
    }  # fmt: skip


def judged(report: Report) -> dict[str, Any]:
    """What an audit came to, as the ledger keeps it: levels and kinds, without numbers and words."""
    found = [(finding, finding.to_dict()) for finding in report.verdict.findings]
    about = ("rule", "topic", "part", "level")
    findings = [{**{key: d[key] for key in about}, "missing": f.evidence.missing} for f, d in found]
    return {"level": report.verdict.level, "kind": report.verdict.kind, "findings": findings}


def returned(measured: Mapping[str, Any]) -> list[str]:
    """What came back that was forgotten before, each in words."""
    return [
        f"{group['kind']} forgotten in batch {group['batch']} came back: {line}"
        for group in measured["groups"]
        for line in group["returned"]
    ]
