"""How long images take to load, the first time and the second: results/loading.json.

uv run python benchmarks/loading.py DIR     # DIR: a folder of images or Parquet; about half a minute

Each load is a process of its own with a fresh cache for the first; seconds are those of
``purge.load`` alone, memory is the peak of the whole process, imports included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from base_models import commit

from purge.core.files import write_json
from purge.result import environment

OUT = Path(__file__).parents[1] / "results" / "loading.json"

LOAD = """
import json, resource, sys, time
import purge
imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
train, test = purge.load(sys.argv[1], progress=False)
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"images": len(train) + len(test), "shape": train.shape, "seconds": seconds,
                  "peak_gb": peak / 1e6, "peak_gb_of_imports": imports / 1e6}))
"""


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        for which in ("first", "second"):
            done = subprocess.run(
                [sys.executable, "-c", LOAD, sys.argv[1]], env={**os.environ, "PURGE_CACHE": cache},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            found[which] = json.loads(done.stdout)
            print(which, found[which])
    name = Path(sys.argv[1]).name
    write_json(OUT, {"data": name, "commit": commit(), **environment(), **found})


if __name__ == "__main__":
    main()
