"""How often the audit accuses an honest retraining: results/honest.json.

uv run python benchmarks/honest.py            # minutes on two cores
uv run python benchmarks/honest.py --table    # print the table of docs/metrics.md

A model is trained on all data, another without what had to go: the original and the retrained model of an
audit. Then further models are retrained honestly from other seeds and audited beside these two. None of
them ever saw the data, so every finding that fails is a false alarm.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from base_models import commit
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from torch import Tensor, nn

import purge
from purge.auditor import Auditor
from purge.core.files import write_json
from purge.models.small_resnet import SmallResNet
from purge.result import environment

OUT = Path(__file__).parents[1] / "results" / "honest.json"
PER_CASE = 4  # honest retrainings of each case
STATED = 0.05  # the share of findings that may fail by chance: the intervals are of 95 %
Pair = tuple[Tensor, Tensor]


class Case(NamedTuple):
    """A data set, a network, and what must be forgotten."""

    data: str
    network: str
    request: dict[str, Any]
    epochs: int


CASES = [
    Case("digits", "resnet", {"classes": [3]}, 12),
    Case("digits", "convolutions", {"classes": [7]}, 15),
    Case("digits", "mlp", {"fraction": 0.1}, 40),
    Case("breast cancer", "mlp", {"fraction": 0.2}, 60),
    Case("wine", "mlp", {"classes": [1]}, 60),
    Case("clusters", "mlp", {"classes": [2]}, 30),
    Case("clusters", "mlp", {"fraction": 0.15}, 30),
]


def table_of(name: str) -> Pair:
    """Rows in random order, standardised; digits as images."""
    if name == "clusters":
        x, y = make_classification(
            2400, 20, n_informative=10, n_classes=6, n_clusters_per_class=2, class_sep=1.2, random_state=0
        )
    else:
        loaders = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}
        x, y = loaders[name](return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.long)
    x = x.view(-1, 1, 8, 8) / 16 if name == "digits" else (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return x[order], y[order]


def networks(inputs: int, classes: int) -> dict[str, Callable[[], nn.Module]]:
    """Untrained networks by name."""
    return {
        "resnet": lambda: SmallResNet(width=8),
        "convolutions": lambda: nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, padding=1),
            nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, classes),
        ),
        "mlp": lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(),
            nn.Linear(32, classes),
        ),
    }  # fmt: skip


def audits(case: Case, seeds: range) -> Iterator[dict[str, Any]]:
    """What the audit says about each honest retraining."""
    x, y = table_of(case.data)
    held = len(y) // 3
    train, test = (x[held:], y[held:]), (x[:held], y[:held])
    build = networks(x[0].numel(), int(y.max()) + 1)[case.network]
    forget, retain = purge.split(train, **case.request)

    def fitted(seed: int, data: Pair) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            fresh = build()
        size = min(128, len(data[1]) // 4)
        return purge.train(fresh, data, seed=seed, epochs=case.epochs, batch_size=size, progress=False).model

    beside = {"original": fitted(1000, train), "retrained": [fitted(1001, retain), fitted(1002, retain)]}
    auditor = Auditor(forget, retain, test, **beside)
    for seed in seeds:
        report = auditor.audit(fitted(seed, retain), metrics="standard", progress=False)
        findings = [f for f in report.verdict.findings if f.topic != "limits"]
        yield {
            "data": case.data, "network": case.network, "request": case.request, "seed": seed,
            "headline": report.level, "findings": len(findings),
            "shown": sum(f.level == "shown" for f in findings),
            "failed": report.sentences(report.failed),
        }  # fmt: skip


def table(content: dict[str, Any]) -> str:
    """The table of docs/metrics.md."""
    rows = content["rows"]
    lines = ["| data, network, request | retrainings | findings | shown | failed |", "|---|---|---|---|---|"]
    keys = dict.fromkeys((r["data"], r["network"], json.dumps(r["request"])) for r in rows)
    for data, network, request in keys:
        own = [
            r for r in rows if (r["data"], r["network"], json.dumps(r["request"])) == (data, network, request)
        ]
        what = "; ".join(f"{k} {v}" for k, v in json.loads(request).items()).replace("[", "").replace("]", "")
        counts = len(own), *(sum(r[k] for r in own) for k in ("findings", "shown"))
        failed = sum(len(r["failed"]) for r in own)
        lines.append(f"| {data}, {network}, {what} | {' | '.join(map(str, (*counts, failed)))} |")
    counts = len(rows), *(sum(r[k] for r in rows) for k in ("findings", "shown"))
    failed = sum(len(r["failed"]) for r in rows)
    lines.append(f"| **all** | {' | '.join(map(str, (*counts, failed)))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.out.read_text())))
        return
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        for row in audits(case, range(PER_CASE)):
            rows.append(row)
            print({**row, "failed": row["failed"]})
    write_json(asked.out, {"rows": rows, "commit": commit(), **environment()})


if __name__ == "__main__":
    main()
