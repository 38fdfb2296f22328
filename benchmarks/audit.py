"""How long the audit of an unlearned model takes: results/audit_speed.json.

uv run python benchmarks/audit.py --data-dir DIR     # needs a GPU; a minute, more if models must be trained

CIFAR-10, ResNet-18 at 32×32, class 0 forgotten by `purge`; base model and Retrain are those of
benchmarks/baselines.py (trained if --models has none). Three models are audited in each call: the
unlearned, the retrained and the original one. The seconds of a metric count what no metric before it
had asked for yet: the first to look at a data set pays for the forward pass over it.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections import Counter
from pathlib import Path

import torch
from base_models import commit
from baselines import FORGET, trained

import purge
from purge.files import write_json
from purge.metrics import METRICS, PANELS, Metric, Subject
from purge.result import environment

OUT = Path(__file__).parents[1] / "results" / "audit_speed.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--models", type=Path, default=Path("runs/baselines"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--epochs", type=int, help="of the base model; for a quick try")
    asked = parser.parse_args()
    train, test = (part.to(asked.device) for part in purge.load(asked.data, data_dir=asked.data_dir))
    forget, retain = purge.split(train, classes=[FORGET])
    base, _ = trained(asked, "base", train, 0)
    reference, _ = trained(asked, "retrain", retain, 1)
    result = purge.unlearn(base, forget, retain, progress=False)
    spent: Counter[str] = Counter()

    def timed(metric: Metric) -> Metric:
        def fn(subject: Subject) -> purge.Value | dict[str, purge.Value]:
            started = time.perf_counter()
            found = metric.fn(subject)
            if subject.model is not None and asked.device == "cuda":
                torch.cuda.synchronize()
            spent[metric.name] += time.perf_counter() - started
            return found

        return dataclasses.replace(metric, fn=fn)

    def seconds(metrics: str | list[Metric]) -> float:
        started = time.perf_counter()
        purge.audit(
            result, forget, retain, test, original=base, retrained=reference, metrics=metrics, progress=False
        )
        return time.perf_counter() - started

    panels = {panel: [seconds(panel) for _ in range(3)] for panel in ("standard", "quick")}
    seconds([timed(METRICS[name]) for name in PANELS["standard"]])
    content = {
        "data": asked.data,
        "samples": {"forget": len(forget), "retain": len(retain), "test": len(test)},
        "models": ["audited", "retrained", "original"],
        "seconds": panels,
        "metrics": dict(spent.most_common()),
        "commit": commit(),
        **environment(),
    }
    write_json(asked.out, content)
    for panel, found in panels.items():
        print(f"{panel}: first {found[0]:.1f} s, then {', '.join(f'{s:.1f}' for s in found[1:])} s")
    for name, s in spent.most_common(12):
        print(f"{name:24} {s:6.2f} s")


if __name__ == "__main__":
    main()
