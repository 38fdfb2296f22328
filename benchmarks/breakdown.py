"""Where the time of `purge` goes, and what each way of saving it is worth: results/breakdown.json.

uv run python benchmarks/breakdown.py --data-dir DIR              # CIFAR-10 at 32×32; needs a GPU; a minute
uv run python benchmarks/breakdown.py --data-dir DIR --size 224   # the entry of the other size stays
uv run python benchmarks/breakdown.py --table                     # print the tables of docs/performance.md

``parts``: one call in which the device is waited for before and after each part, so that their sum is more
than an undisturbed call takes. ``without``: the median of whole calls with one saving turned off at a time.
``floor``: the arithmetic alone, as ``result.info["flop"]`` counts it, at the rate that a large product of
matrices in bf16 reaches on this device.
"""

from __future__ import annotations

import importlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from base_models import commit
from baselines import MODEL
from scene import options, prepare
from speed import clocked, settle

import purge
from purge.core.files import write_json
from purge.result import environment

OUT = Path(__file__).parents[1] / "results" / "breakdown.json"
api, graphs, restart, run, forward, precision, kernels = (
    importlib.import_module(f"purge.{name}")
    for name in (
        "api", "engine.cuda_graph", "methods.purge", "engine.run", "models.forward",
        "engine.precision", "models.batchnorm_kernels",
    )
)  # fmt: skip
PARTS: dict[
    str, list[tuple[Any, str]]
] = {  # what is timed under each name; what calls another has its time too
    "copies of the model": [(api, "copied")],
    "checks of the input": [
        (api, "make_split"),
        (api, "check_differentiable"),
        (api, "check_knows"),
        (api, "described"),
    ],
    "counting the work": [(api, "flop_per_row")],
    "digest of the weights": [(api, "digest")],
    "teacher": [(restart, "_taught")],
    "steps": [(graphs.Recorded, "__call__")],
    "recording (in steps)": [(graphs.Recorded, "_record")],
    "checks": [(run.Run, "_check"), (run.Run, "_start")],
    "recalibration (in checks)": [(restart, "recalibrate")],
    "history": [(run.Run, "log")],
}
WITHOUT: dict[str, Callable[[], Any]] = {  # savings, and how each is turned off
    "CUDA graph": lambda: {"graph": False},
    "bf16": lambda: {"precision": "float32"},
    "channels last": lambda: mock.patch.object(precision, "takes_channels_last", return_value=False),
    "large batches in passes": lambda: mock.patch.object(forward, "SMALL_BATCH", 512),
    "kernels for BatchNorm": lambda: mock.patch.object(kernels, "usable", return_value=False),
    "fewer samples in checks": lambda: {"check_samples": 10_000},
}


@contextmanager
def watched(spent: Counter[str]) -> Iterator[None]:
    """Within the block, the seconds of each part are added up."""
    patches = []
    for name, places in PARTS.items():
        for owner, attribute in places:
            patches.append(
                mock.patch.object(owner, attribute, _timed(getattr(owner, attribute), name, spent))
            )
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def _timed(fn: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    def inner(*args: Any, **settings: Any) -> Any:
        settle()
        started = time.perf_counter()
        try:
            return fn(*args, **settings)
        finally:
            settle()
            spent[name] += time.perf_counter() - started

    return inner


def matrix_rate(device: torch.device) -> float:
    """Operations a second in a large product of matrices in bf16."""
    n = 8192 if device.type == "cuda" else 512
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    a @ a
    seconds = [clocked(lambda: a @ a)[1] for _ in range(5)]
    return 2 * n**3 / statistics.median(seconds)


def main() -> None:
    parser = options(__doc__.splitlines()[0], OUT)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.out.read_text())))
        return
    device = torch.device(asked.device)
    _, train, _, forget, retain, base, _ = prepare(asked)
    size = train.shape[1]

    def unlearn(**settings: Any) -> purge.Result:
        return purge.unlearn(base, forget, retain, progress=False, **settings)

    def median(**settings: Any) -> float:
        unlearn(**settings)
        return statistics.median(clocked(lambda: unlearn(**settings))[1] for _ in range(asked.runs))

    result, seconds = unlearn(), median()
    spent: Counter[str] = Counter()
    with watched(spent):
        _, disturbed = clocked(unlearn)
    without = {}
    for name, change in WITHOUT.items():
        if isinstance(how := change(), dict):
            without[name] = None if device.type != "cuda" and name == "CUDA graph" else median(**how)
        else:
            with how:
                without[name] = median()
    floor = {"operations": result.info["flop"], "rate": matrix_rate(device)}
    entry = {
        "size": size, "data": asked.data, "model": MODEL, "steps": result.steps, "seconds": seconds,
        "parts": dict(spent.most_common()), "seconds_of_parts": disturbed, "without": without,
        "floor": {**floor, "seconds": floor["operations"] / floor["rate"]},
        "commit": commit(), **environment(),
    }  # fmt: skip
    old = json.loads(asked.out.read_text())["sizes"] if asked.out.is_file() else []
    sizes = sorted([entry, *(e for e in old if e["size"] != size)], key=lambda e: e["size"])
    write_json(asked.out, {"sizes": sizes})
    print(table({"sizes": sizes}))


def table(content: dict) -> str:
    """Two Markdown tables per size: the parts of a call, and calls with one saving turned off."""
    parts = []
    for entry in content["sizes"]:
        lines = [f"| {entry['size']}×{entry['size']} | ms |", "|---|---|"]
        lines += [f"| {name} | {1000 * s:.0f} |" for name, s in entry["parts"].items()]
        lines += [
            f"| the call with all these waits | {1000 * entry['seconds_of_parts']:.0f} |",
            f"| **the call undisturbed** | **{1000 * entry['seconds']:.0f}** |",
            f"| the arithmetic alone ({entry['floor']['operations'] / 1e12:.0f} TFLOP at "
            f"{entry['floor']['rate'] / 1e12:.0f} TFLOP/s) | {1000 * entry['floor']['seconds']:.0f} |",
            "",
            f"| {entry['size']}×{entry['size']}, without | ms | times |",
            "|---|---|---|",
        ]
        lines += [
            f"| {name} | {1000 * s:.0f} | {s / entry['seconds']:.2f} |"
            for name, s in entry["without"].items()
            if s is not None
        ]
        parts.append("\n".join(lines) + f"\n\n{entry['hardware']['gpu'] or 'CPU'}, commit {entry['commit']}.")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
