"""Base models by the default recipes, and one reference without class 0: results/base_models.json.

uv run python benchmarks/base_models.py --data-dir DIR            # needs a GPU; minutes
uv run python benchmarks/base_models.py --data-dir DIR mnist      # one data set; the others' rows stay
uv run python benchmarks/base_models.py --table                   # print the README's table

Each training counts from the first step to the last weight, with all images on the device. The
first one in a process also pays for starting CUDA and choosing cuDNN's algorithms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

import torch

import purge
from purge.core.files import write_json
from purge.data.catalog import DATASETS
from purge.engine.seeding import seeded
from purge.models.forward import logits
from purge.result import environment
from purge.runs.folder import build_for

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "base_models.json"
SEEDS = (0, 1, 2)
FORGET = 0
NAMES = ("cifar10", "mnist", "pathmnist")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, help="other than the data set's own")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.out.read_text())))
        return
    old = json.loads(asked.out.read_text())["rows"] if asked.out.is_file() else []
    rows = [row for row in old if row["data"] not in asked.names]
    for name in asked.names:
        loaded = purge.load(name, data_dir=asked.data_dir, size=asked.size)
        train, test = (part.to(asked.device) for part in loaded)
        _, retain = purge.split(train, classes=[FORGET])
        jobs: list[tuple[int, purge.Images, int | None]] = [(seed, train, None) for seed in SEEDS]
        if name == "cifar10":  # the reference: the same recipe, another seed
            jobs.append((SEEDS[-1] + 1, retain, FORGET))
        for seed, data, without in jobs:
            rows.append(row(name, data, test, seed, without, asked.device))
            print(rows[-1], flush=True)
            write_json(
                asked.out,
                {"seeds": SEEDS, "model": "resnet18", "commit": commit(), **environment(), "rows": rows},
            )


def row(
    name: str, data: purge.Images, test: purge.Images, seed: int, without: int | str, device: str
) -> dict:
    recipe = dict(DATASETS[name].recipe)
    with seeded(seed, torch.device("cpu")):
        model = build_for("resnet18", data)
    result = purge.train(model, data, test=test, seed=seed, device=device, **recipe)
    forgotten = result.info["class_accuracy"][FORGET]
    kept = test.labels != FORGET
    right = logits(result.model, test).argmax(1).cpu() == test.labels
    return {
        "data": name,
        "size": data.shape[1],
        "without_class": without,
        "seed": seed,
        "test_accuracy": result.info["test_accuracy"],
        "test_accuracy_class_0": forgotten,
        "test_accuracy_other_classes": float(right[kept].float().mean()),
        "seconds": result.seconds,
        "images_per_second": result.steps * result.method.batch_size / result.seconds,
        "last_loss": result.history[-1]["loss"],
        "recipe": recipe,
        "commit": commit(),  # rows of other data sets stay when one is measured again
    }


def table(content: dict) -> str:
    """A Markdown table: the mean over seeds with its range."""
    lines = ["| data | size | epochs | seconds | images/s | test accuracy |", "|---|---|---|---|---|---|"]
    for name, without in dict.fromkeys((r["data"], r["without_class"]) for r in content["rows"]):
        rows = [r for r in content["rows"] if (r["data"], r["without_class"]) == (name, without)]
        seconds, rate = (statistics.mean(r[k] for r in rows) for k in ("seconds", "images_per_second"))
        key = "test_accuracy" if without is None else "test_accuracy_other_classes"
        found = [100 * r[key] for r in rows]
        spread = f" ({min(found):.2f}–{max(found):.2f})" if len(rows) > 1 else ", on the others"
        called = name if without is None else f"{name} without class {without}"
        lines.append(
            f"| {called} | {rows[0]['size']} | {rows[0]['recipe']['epochs']} | {seconds:.1f} "
            f"| {rate:,.0f} | {statistics.mean(found):.2f} %{spread} |"
        )
    return "\n".join(lines)


def commit() -> str:
    """The commit that made the numbers, from git or, where there is none, from $PURGE_COMMIT."""
    if given := os.environ.get("PURGE_COMMIT"):
        return given
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
