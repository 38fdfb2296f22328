"""How purge takes bad input, kills and many calls: results/hostile.json.

uv run python benchmarks/hostile.py            # about half an hour on two cores
uv run python benchmarks/hostile.py --table    # print the table of docs/reliability.md

Runs the tests of tests/hostile with more cases than usual, from random seeds, and the tables of bad requests
among the other tests, and counts: cases, how they ended, failures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

from base_models import commit

from purge.core.files import write_json
from purge.result import environment

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "hostile.json"
WRITTEN = {  # cases that people thought of
    "bad requests in Python": ["api/test_refusals.py", "api/test_odd_input.py", "api/test_wrong_sets.py"],
    "bad requests in the shell": ["cli/test_refusals.py", "cli/test_odd_input.py", "cli/test_wrong_sets.py"],
    "odd data and files": ["data/test_odd_data.py", "core/test_odd_files.py", "bench/test_odd_bench.py"],
    "code named in files, other weights": ["cli/test_code_from_files.py", "cli/test_digests.py"],
    "crashes, signals, full disks": [
        "cli/test_endings.py",
        "bench/test_workers_end.py",
        "core/test_folders.py",
    ],
    "two processes at once": ["cli/test_two_at_once.py"],
    "models as they come": ["models/test_promises.py"],
}


def trial(cases: int, kills: int) -> dict[str, Any]:
    """Run everything once; cases by kind with their endings, and the tests that failed."""
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        more = {"PURGE_TRIAL_CASES": str(cases), "PURGE_TRIAL_KILLS": str(kills), "PURGE_TRIAL_LOG": str(log)}
        failed += _failures(_ran(["tests/hostile"], folder, more))
        by_kind: dict[str, Counter[str]] = {}
        for line in map(json.loads, log.read_text().splitlines()):
            by_kind.setdefault(line["kind"], Counter())[_short(line["ending"])] += 1
        for kind, endings in sorted(by_kind.items()):
            rows.append({"kind": kind, "cases": endings.total(), "endings": dict(endings.most_common())})
        for kind, files in WRITTEN.items():
            tests = _ran([f"tests/{file}" for file in files], folder, {})
            failed += _failures(tests)
            rows.append({"kind": kind, "cases": len(tests), "endings": {}})
    return {"rows": rows, "failed": failed}


def _ran(files: list[str], folder: str, more: dict[str, str]) -> list[ET.Element]:
    """Run tests, slow ones too, and return what pytest says of each."""
    report = Path(folder) / "tests.xml"
    argv = [sys.executable, "-m", "pytest", *files, "-m", "not gpu and not download", f"--junitxml={report}"]
    subprocess.run(argv, cwd=ROOT, env={**os.environ, **more}, stdout=subprocess.DEVNULL)
    return [t for t in ET.parse(report).iter("testcase") if t.find("skipped") is None]


def _failures(tests: list[ET.Element]) -> list[str]:
    return [
        f"{t.get('classname')}::{t.get('name')}" for t in tests if len(t) and t[0].tag in ("failure", "error")
    ]


def _short(ending: str) -> str:
    """An ending without its seconds, so that equal ones are counted together."""
    return re.sub(r" after [0-9.]+ s", "", ending)


def table(found: dict[str, Any]) -> str:
    """The rows of docs/reliability.md."""
    lines = ["| what was tried | cases | how they ended |", "|---|---|---|"]
    for row in found["rows"]:
        ends = ", ".join(f"{end} ({n:,})" for end, n in row["endings"].items())
        lines.append(f"| {row['kind']} | {row['cases']:,} | {ends or 'as the tests say'} |")
    kills = sum(row["cases"] for row in found["rows"] if row["kind"].startswith("killed"))
    total = sum(row["cases"] for row in found["rows"])
    lines.append(f"| **all** | **{total:,}**, {kills} of them kills | **{len(found['failed'])} failures** |")
    return "\n".join(lines)


def main() -> None:
    """Try, count and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=120, help="of each fuzzer")
    parser.add_argument("--kills", type=int, default=13, help="of each command")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    asked = parser.parse_args()
    if not asked.table:
        started = time.perf_counter()
        found = trial(asked.cases, asked.kills)
        settings = {"cases_of_each": asked.cases, "kills_of_each": asked.kills}
        about = {**settings, "seconds": round(time.perf_counter() - started)}
        write_json(asked.out, {**about, **found, **environment(), "commit": commit()})
        print("\n".join(found["failed"]))
    print(table(json.loads(asked.out.read_text())))


if __name__ == "__main__":
    main()
