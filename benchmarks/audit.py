"""How long the audit of an unlearned model takes: results/audit_speed.json.

uv run python benchmarks/audit.py --data-dir DIR     # needs a GPU; a minute, more if models must be trained

CIFAR-10, ResNet-18 at 32×32, class 0 forgotten by `purge`; base model and Retrain are those of
benchmarks/baselines.py (trained if --models has none). Three models are audited in each call: the
unlearned, the retrained and the original one. The seconds of a metric count what no metric before it
had asked for yet: the first to look at a data set pays for the forward pass over it.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from pathlib import Path

import torch
from base_models import commit
from baselines import trained
from scene import options, prepare

import purge
from purge.core.files import write_json
from purge.metrics.audited import AuditedModel
from purge.metrics.metric import Metric
from purge.metrics.registry import METRICS, PANELS
from purge.result import environment

OUT = Path(__file__).parents[1] / "results" / "audit_speed.json"


def main() -> None:
    asked = options(__doc__.splitlines()[0], OUT).parse_args()
    if asked.table:
        print(summary(json.loads(asked.out.read_text())))
        return
    _, _, test, forget, retain, base, suffix = prepare(asked)
    reference, _ = trained(asked, f"retrain{suffix}", retain, 1)
    result = purge.unlearn(base, forget, retain, progress=False)
    spent: Counter[str] = Counter()

    def timed(metric: Metric) -> Metric:
        def fn(audited: AuditedModel) -> purge.Value | dict[str, purge.Value]:
            started = time.perf_counter()
            found = metric.compute(audited)
            if audited.model is not None and asked.device == "cuda":
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
    print(summary(content))


def summary(content: dict) -> str:
    """The seconds of each panel, and of the metrics that took longest."""
    lines = [
        f"{panel}: first {found[0]:.1f} s, then {', '.join(f'{s:.1f}' for s in found[1:])} s"
        for panel, found in content["seconds"].items()
    ]
    return "\n".join(
        [*lines, *(f"{name:24} {s:6.2f} s" for name, s in list(content["metrics"].items())[:12])]
    )


if __name__ == "__main__":
    main()
