"""The demo over several seeds: writes results/digits.json, from which the README's table is made.

uv run python benchmarks/digits.py            # three seeds, about two minutes on two cores
uv run python benchmarks/digits.py --table    # print the table of the JSON that is there
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import purge
from purge.core.files import write_json
from purge.demo import COLUMNS, MODEL, as_record, run_demo
from purge.metrics.registry import number
from purge.result import environment
from purge.runs.make import fresh_model

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "digits.json"
SEEDS = (0, 10, 20)


def main() -> None:
    if "--table" not in sys.argv:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        rows = []
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                found = run_demo(
                    out=Path(folder), quick=False, seed=seed, force=False, progress=True, say=lambda _: None
                )
                for row in found:
                    delta = row.report["bn_recal.delta"].value
                    record = {"seed": seed, **as_record(row), "bn_recal.delta": delta}
                    rows.append({k: v for k, v in record.items() if k != "folder"})
        content = {"seeds": SEEDS, "commit": commit, **environment(), "speed": speed(), "rows": rows}
        write_json(OUT, content)
    print(table(json.loads(OUT.read_text())))


def speed(runs: int = 5) -> dict[str, list[float]]:
    """Seconds of retraining by the default recipe, and of whole calls of `purge`, in turns."""
    data, _ = purge.load("digits")
    forget, retain = purge.split(data, classes=[0])
    base = purge.train(fresh_model(MODEL, data, seed=0), data, progress=False).model
    found: dict[str, list[float]] = {"retrain": [], "purge": []}
    for seed in range(runs):
        fresh = fresh_model(MODEL, data, seed=seed + 1)
        for name, call in (
            ("retrain", lambda fresh=fresh, seed=seed: purge.train(fresh, retain, seed=seed, progress=False)),
            ("purge", lambda seed=seed: purge.unlearn(base, forget, retain, seed=seed, progress=False)),
        ):
            started = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - started)
    return found


def table(content: dict) -> str:
    """A Markdown table: the mean over seeds, and the range where it is not the same for all."""
    lines = [
        "| | seconds | " + " | ".join(title for title, _ in COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for name in dict.fromkeys(r["method"] for r in content["rows"]):
        rows = [r for r in content["rows"] if r["method"] == name]
        cells = [f"{statistics.mean(r['seconds'] for r in rows):.1f}"]
        for _, key in COLUMNS:
            values = [r[key] for r in rows]
            if None in values:
                cells.append("–")
                continue
            cell = number(key, statistics.mean(values))
            spread = (number(key, min(values)), number(key, max(values)))
            cells.append(cell if spread[0] == spread[1] else f"{cell} ({spread[0].rstrip(' %')}–{spread[1]})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
