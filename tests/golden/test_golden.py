"""The numbers of the golden files come out again; see record.py for how they were written."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.golden import ledger, record

RECORDED = json.loads((record.HERE / "methods.json").read_text())
SAME_MACHINE = RECORDED["machine"] == record.machine()


@pytest.fixture(scope="module")
def scene() -> dict[str, Any]:
    return record.scene()


def close(ours: Any, theirs: Any, tolerance: float) -> bool:
    if isinstance(theirs, float) and isinstance(ours, (int, float)):
        return math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance)
    return ours == theirs


@pytest.mark.parametrize("name", RECORDED["methods"])
def test_a_method_delivers_what_it_did(name, scene, tmp_path):
    recorded = RECORDED["methods"][name]
    method, _, samples = name.partition(", ")
    result = record.unlearned(scene, method, samples=bool(samples), folder=tmp_path)
    last = result.history[-1]
    assert last.keys() == recorded["last"].keys()
    tolerance = 1e-12 if SAME_MACHINE else 0.05
    wrong = {k: (last[k], v) for k, v in recorded["last"].items() if not close(last[k], v, tolerance)}
    assert not wrong
    if SAME_MACHINE:
        assert record.digest(result.model) == recorded["digest"]


def test_every_method_is_recorded():
    assert {name.partition(",")[0] for name in RECORDED["methods"]} == set(record.METHODS)


def test_an_audit_finds_what_it_did(scene):
    recorded = json.loads((record.HERE / "audit.json").read_text(encoding="utf-8"))
    found = record.of_audit(scene)
    tolerance = 1e-9 if SAME_MACHINE else 0.1
    for part, values in recorded.items():
        assert found[part].keys() == values.keys()
        for name, value in values.items():
            for key, number in value.items():
                assert close(found[part][name][key], number, tolerance), (part, name, key)


@pytest.mark.skipif(not SAME_MACHINE, reason="tables print digits that other processors round otherwise")
@pytest.mark.slow
def test_a_bench_makes_the_tables_it_did(tmp_path, monkeypatch):
    monkeypatch.setenv("PURGE_COMMIT", "COMMIT")
    assert record.of_bench(tmp_path) == (record.HERE / "bench.txt").read_text(encoding="utf-8")


def same(ours: Any, theirs: Any, where: str = "") -> None:
    """The same keys, texts and, within rounding, numbers."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key, value in theirs.items():
            same(ours[key], value, f"{where}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for i, value in enumerate(theirs):
            same(ours[i], value, f"{where}[{i}]")
    else:
        assert close(ours, theirs, 1e-9 if SAME_MACHINE else 0.3), (where, ours, theirs)


def test_a_ledger_tells_the_story_it_did(tmp_path):
    """Kinds and payloads of its chain, certificates and their pages; times, folders and hashes are masked."""
    recorded = json.loads((ledger.HERE / "ledger.json").read_text(encoding="utf-8"))
    same(ledger.story(tmp_path), recorded)
