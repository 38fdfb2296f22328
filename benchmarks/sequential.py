"""Deletion requests one after another, each step beside a retraining: results/sequential.json.

uv run python benchmarks/sequential.py            # digits, minutes on a core
uv run python benchmarks/sequential.py --table    # print the table of docs/requests.md

Three sequences: 20 requests for 0.5 % of the samples each; one class after another, of which two stay; and
both in turns. Each version is unlearned from the one before. Beside it a model is trained on the same
remainder. For every earlier request the attack is compared between the two, since what was forgotten must
stay forgotten. The last step has a second retraining, which tells how far apart two of them are. Seconds are
those of one processor, whoever else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from base_models import commit
from torch import Tensor, nn

import purge
from purge.core.files import write_json
from purge.data.sources import DataSource
from purge.ledger.data import OwnedData
from purge.ledger.version_audits import Group, answers, audit_rows
from purge.models.checks import training_data
from purge.models.forward import logits
from purge.result import environment
from purge.runs.make import fresh_model

OUT = Path(__file__).parents[1] / "results" / "sequential.json"
MODEL, EPOCHS, SHARE = "small-resnet", 12, 0.005
CPU = torch.device("cpu")


def requests(kind: str, labels: Tensor, classes: int, seed: int) -> list[tuple[str, Tensor]]:
    """What each request names: a kind and a mask (N,) of the training data."""
    n, each = len(labels), round(SHARE * len(labels))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))

    def samples(i: int) -> Tensor:
        found = torch.zeros(n, dtype=torch.bool)
        found[order[i * each : (i + 1) * each]] = True
        return found

    if kind == "samples":
        return [("samples", samples(i)) for i in range(20)]
    if kind == "classes":
        return [("classes", labels == c) for c in range(classes - 2)]
    both = [(("samples", samples(c)), ("classes", labels == c)) for c in range(5)]
    return [one for pair in both for one in pair]


def compared(a: nn.Module, b: nn.Module, test: Any, stays: Tensor) -> dict[str, float]:
    """Two models on test data of the classes that stay; ``b`` is the retrained one."""
    za, zb = (logits(m, training_data(m, test, CPU))[stays] for m in (a, b))
    y = test.labels[stays]
    kl = F.kl_div(za.log_softmax(1), zb.log_softmax(1), reduction="batchmean", log_target=True)
    right = [float((z.argmax(1) == y).double().mean()) for z in (za, zb)]
    agree = float((za.argmax(1) == zb.argmax(1)).double().mean())
    return {"agreement": agree, "kl": float(kl), "ta_retain": right[0], "ta_retain_retrained": right[1]}


def sequence(kind: str, seed: int) -> list[dict[str, Any]]:
    """Every step of one sequence."""
    grounds = OwnedData.load(DataSource("digits"))
    train, test, labels = grounds.train, grounds.test, grounds.train.labels

    def trained(keep: Tensor, seed: int) -> tuple[nn.Module, float]:
        started = time.process_time()
        model = fresh_model(MODEL, train, seed=seed)
        result = purge.train(model, train.select(keep), epochs=EPOCHS, seed=seed, progress=False)
        return result.model, time.process_time() - started

    model, _ = trained(torch.ones(len(labels), dtype=torch.bool), seed)
    gone, groups, rows = torch.zeros(len(labels), dtype=torch.bool), list[Group](), []
    asked = requests(kind, labels, len(train.names), seed)
    for step, (what, mask) in enumerate(asked, 1):
        before = [int(c) for g in groups for c in g.classes]
        forget, gone = mask & ~gone, gone | mask
        classes = tuple(labels[mask].unique().tolist()) if what == "classes" else ()
        groups.append(Group(step, what, (step,), mask, classes))
        unseen = test.select(~torch.isin(test.labels, torch.tensor(before)))
        started = time.process_time()
        model = purge.unlearn(
            model, train.select(forget), train.select(~gone), test=unseen, seed=seed, progress=False
        ).model
        seconds = time.process_time() - started
        reference, slow = trained(~gone, 1000 * (seed + 1) + step)
        whole = sorted({*before, *classes})
        stays = ~torch.isin(test.labels, torch.tensor(whole))
        row = {
            "sequence": kind, "seed": seed, "step": step, "what": what, "forgotten": int(gone.sum()),
            "classes": len(whole), "seconds": seconds, "seconds_retrained": slow,
            **compared(model, reference, test, stays),
            **earlier(model, reference, grounds, groups, gone, whole),
        }  # fmt: skip
        if step == len(asked):
            other, _ = trained(~gone, 1000 * (seed + 1) + 500)
            floor = compared(other, reference, test, stays)
            floor |= earlier(other, reference, grounds, groups, gone, whole)
            row["floor"] = floor
        rows.append(row)
        print(
            {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items() if k != "floor"},
            flush=True,
        )
    return rows


def earlier(
    model: nn.Module,
    reference: nn.Module,
    grounds: OwnedData,
    groups: list[Group],
    gone: Tensor,
    whole: list[int],
) -> dict[str, Any]:
    """What is still known of all requests so far: the attack beside Retrain's, and the classes."""
    singles = []
    for group in groups:
        rows = group.rows & ~torch.isin(grounds.train.labels, torch.tensor(whole))
        if group.kind == "samples" and rows.any():
            singles.append(Group(group.batch, "samples", group.requests, rows))
    gaps = [_mia(model, grounds, g, gone, whole) - _mia(reference, grounds, g, gone, whole) for g in singles]
    found: dict[str, Any] = {"mia_gaps": gaps, "mia": None, "mia_retrained": None}
    if singles:
        together = torch.stack([g.rows for g in singles]).any(0)
        pooled = Group(0, "samples", (), together)
        for name, one in (("mia", model), ("mia_retrained", reference)):
            found[name] = _mia(one, grounds, pooled, gone, whole)
    given, truth = answers(model, grounds, seed=0, device="cpu"), grounds.test.labels
    known = [float((given == truth)[truth == c].double().mean()) for c in whole]
    return {**found, "worst_class": max(known, default=None)}


def _mia(model: nn.Module, data: OwnedData, group: Group, gone: Tensor, whole: list[int]) -> float:
    value = audit_rows(model, data, group.rows, gone, whole, metrics=("mia",), device="cpu")["mia"].value
    assert value is not None
    return value


def table(content: dict[str, Any]) -> str:
    """The table of docs/requests.md: the last step of each sequence, mean over seeds, (Retrain) beside it."""
    head = ("sequence", "TA_r", "agreement", "KL", "MIA, all earlier", "largest gap of one", "worst class",
            "processor seconds a step")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for kind in dict.fromkeys(r["sequence"] for r in content["rows"]):
        every = [r for r in content["rows"] if r["sequence"] == kind]
        last = [r for r in every if "floor" in r]
        floor = [r["floor"] for r in last]
        slow = _mean([r["seconds_retrained"] for r in every])
        cells = [
            f"{last[0]['step']} of {kind}",
            f"{_percent(last, 'ta_retain')} ({_percent(last, 'ta_retain_retrained')})",
            f"{_percent(last, 'agreement')} ({_percent(floor, 'agreement')})",
            f"{_number(last, 'kl')} ({_number(floor, 'kl')})",
            f"{_number(last, 'mia')} ({_number(last, 'mia_retrained')})",
            f"{_largest(last)} ({_largest(floor)})", _percent(last, "worst_class"),
            f"{_mean([r['seconds'] for r in every]):.1f} ({slow:.1f})",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells).replace('– (–)', '–')} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _percent(rows: list[dict[str, Any]], key: str) -> str:
    values = [r[key] for r in rows]
    return "–" if None in values else f"{100 * _mean(values):.1f} %"


def _number(rows: list[dict[str, Any]], key: str) -> str:
    values = [r[key] for r in rows]
    return "–" if None in values else f"{_mean(values):.3f}"


def _largest(rows: list[dict[str, Any]]) -> str:
    gaps = [max(map(abs, r["mia_gaps"])) for r in rows if r["mia_gaps"]]
    return f"{_mean(gaps):.3f}" if gaps else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.out.read_text())))
        return
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for seed in range(asked.seeds):
        for kind in ("samples", "classes", "mixed"):
            rows += sequence(kind, seed)
            about = {"data": "digits", "model": MODEL, "epochs": EPOCHS, "share": SHARE}
            write_json(asked.out, {**about, "rows": rows, "commit": commit(), **environment()})


if __name__ == "__main__":
    main()
