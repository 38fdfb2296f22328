"""Exact deletion from linear heads, its time and its rivals: results/heads.json.

uv run python benchmarks/heads.py          # two cores, no GPU, no data; some minutes

Times: 1,000 rows are removed from a ridge head of 100,000 random rows of 768 features (10 classes), five
times in a row, and 100 rows from a logistic head of 5,000 rows of 128. Seconds are the median by the clock,
and those of the processor, which depend less on what else runs on the machine. Distances are those to a head
fitted to the rows that are left, relative, in float64.

Beside other methods: the backbone, a small ResNet, was trained on digits 5 to 9 alone and is frozen; a
logistic head was fitted to all digits. 50 samples of the digits 0 to 4 are forgotten. Each method may move
the head alone; the reference is the head fitted without these samples. One seed.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from base_models import commit
from torch import Tensor, nn

import purge
from purge.core.files import write_json
from purge.demo import ASCENT_ON_DIGITS
from purge.models.forward import logits
from purge.result import environment
from purge.runs.make import fresh_model

OUT = Path(__file__).parents[1] / "results" / "heads.json"
SIZES = {"ridge": (100_000, 768, 1000, 5), "logistic": (5_000, 128, 100, 3)}  # rows, features, removed, times
METHODS: dict[str, dict[str, Any]] = {
    "exact-head": {"frozen": True, "kind": "logistic"},
    "finetune": {"lr": 0.05, "batch_size": 64},
    "gradient-ascent": ASCENT_ON_DIGITS,
    "random-label": {"batch_size": 64},
    "salun": {"batch_size": 64, "lr": 0.03},
    "ssd": {"alpha": 8},
    "scrub": {},
}
FORGOTTEN = 50


def random_rows(n: int, width: int) -> tuple[Tensor, Tensor]:
    """Overlapping clusters of ten classes, in float32 as a network would give them."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(10, (n,), generator=g)
    return torch.randn(n, width, generator=g) + 0.1 * torch.randn(10, width, generator=g)[y], y


class Timed(NamedTuple):
    """Seconds by the clock and of the processor, and what came back."""

    wall: float
    cpu: float
    found: Any


def timed(what: Callable[[], Any]) -> Timed:
    """Call it and look at the clock."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = what()
    return Timed(time.perf_counter() - wall, time.process_time() - cpu, found)


def removals(kind: str) -> dict[str, Any]:
    """Seconds of fitting and removing, and the distance to a head that never had the removed rows."""
    n, width, gone, times = SIZES[kind]
    x, y = random_rows(n, width)
    fit = timed(lambda: purge.heads.fit(x, y, kind=kind, lam=10.0))
    head = fit.found
    parts = [slice(i * gone, (i + 1) * gone) for i in range(times)]
    found = [timed(lambda part=part: head.remove(x[part], y[part])) for part in parts]
    left = gone * times
    again = timed(lambda: purge.heads.fit(x[left:], y[left:], kind=kind, lam=10.0))
    fresh = again.found
    return {
        "kind": kind, "rows": n, "features": width, "removed": gone, "fit": fit.wall, "fit_cpu": fit.cpu,
        "remove": statistics.median(t.wall for t in found), "remove_all": [t.wall for t in found],
        "remove_cpu": statistics.median(t.cpu for t in found), "again": again.wall, "again_cpu": again.cpu,
        "off": float((head.weight - fresh.weight).norm() / fresh.weight.norm()),
    }  # fmt: skip


def beside() -> list[dict[str, Any]]:
    """What each method leaves between its model and the one whose head never had the samples."""
    train, test = purge.load("digits")
    late = (train.labels >= 5).nonzero()[:, 0]
    early = (train.labels < 5).nonzero()[:FORGOTTEN, 0]
    backbone = purge.train(
        fresh_model("small-resnet", train, seed=0), train.select(late), epochs=12, progress=False
    ).model
    model, head = purge.heads.of(backbone, train, kind="logistic")
    forget, retain = purge.split(train, indices=early.tolist())
    reference = purge.heads.of(backbone, retain, kind="logistic").model
    layer = list(model.modules())[-1]
    assert isinstance(layer, nn.Linear)
    model.requires_grad_(False)
    layer.requires_grad_(True)
    aim = logits(reference, test).softmax(1)
    rows = [{"method": "original", **distance(logits(model, test).softmax(1), aim), "seconds": None}]
    x, y = purge.heads.features(backbone, train)
    done = timed(lambda: head.remove(x[early], y[early]))
    updated = copy.deepcopy(model)
    head.copy_to(list(updated.modules())[-1])
    far = distance(logits(updated, test).softmax(1), aim)
    rows.append({"method": "head.remove", **far, "seconds": done.wall})
    for name, settings in METHODS.items():
        result = purge.unlearn(model, forget, retain, method=name, progress=False, **settings)
        far = distance(logits(result.model, test).softmax(1), aim)
        rows.append({"method": name, **far, "seconds": result.seconds})
    return rows


def distance(p: Tensor, q: Tensor) -> dict[str, float]:
    """The largest and the mean difference of two models' answers to the test images, in total variation."""
    apart = (p.double() - q.double()).abs().sum(1) / 2
    return {"worst": float(apart.max()), "mean": float(apart.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    torch.set_num_threads(2)
    content = {
        "speed": [removals(kind) for kind in SIZES], "beside": beside(), "threads": 2, "seeds": [0],
        "forgotten": FORGOTTEN, "load": os.getloadavg()[0], "commit": commit(), **environment(),
    }  # fmt: skip
    write_json(asked.out, content)
    print(table(content))


def table(content: dict[str, Any]) -> str:
    """Both tables in Markdown."""
    lines = [
        "| head | rows × features | fitted in | removed | removed in | processor | distance to a new head |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in content["speed"]:
        lines.append(
            f"| {r['kind']} | {r['rows']:,} × {r['features']} | {r['fit']:.2f} s | {r['removed']:,} | "
            f"{r['remove']:.2f} s | {r['remove_cpu']:.2f} s | {r['off']:.0e} |"
        )
    lines += [
        "",
        "| method | mean distance to the model without the samples | largest | seconds |",
        "|---|---|---|---|",
    ]
    for r in content["beside"]:
        took = "–" if r["seconds"] is None else f"{r['seconds']:.2f}"
        lines.append(f"| {r['method']} | {r['mean']:.1e} | {r['worst']:.1e} | {took} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
