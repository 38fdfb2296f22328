"""Calls in one process, again and again: memory stays where it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.shell import counted

CALLS, WARM_UP, GROWTH = 30, 6, 40e6  # bytes that may be added after the first calls
SCRIPT = """
import gc, json, resource, sys
import torch
import purge
torch.set_num_threads(1)
train, test = purge.load("digits")
forget, retain = purge.split(train, classes=[0])
from purge.models.small_resnet import SmallResNet
model = purge.train(SmallResNet(width=8), train, epochs=2, progress=False).model
seen, panels = [], ("standard", "quick")
for i in range(int(sys.argv[1])):
    result = purge.unlearn(model, forget, retain, steps=4, seed=i, progress=False)
    panel = panels[i % 3 > 0]
    report = purge.audit(result, forget, retain, test, original=model, metrics=panel, progress=False)
    report.table()
    gc.collect()
    seen.append(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize())
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from what Linux tells")
def test_thirty_calls_need_the_memory_of_a_few() -> None:
    argv = [sys.executable, "-c", SCRIPT, str(CALLS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    grown = seen[-1] - max(seen[:WARM_UP])
    counted("unlearn and audit in one process", f"{grown / 1e6:.1f} MB more after {CALLS} calls")
    assert grown < GROWTH, [f"{n / 1e6:.0f}" for n in seen]
