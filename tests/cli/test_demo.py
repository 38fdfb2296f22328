"""purge demo."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from purge import demo
from purge.core.folders import free_folder
from purge.metrics.registry import PANELS, number
from tests.cli.commands import names, ran, read
from tests.cli.conftest import ROWS, Demo

pytestmark = pytest.mark.slow


def test_the_demo_ends_well(shown: Demo) -> None:
    assert shown.done.code == 0
    assert "Data: digits" in shown.done.err
    assert "Data: digits" not in shown.done.out
    assert shown.lines[-2].startswith(f"Run folders (weights, history, audits) in {shown.folder};")
    page = shown.folder / "report.html"
    assert shown.lines[-1] == f"The report of purge is {page}; open {page.as_uri()} in a browser."
    assert "purge" in page.read_text()


def test_the_demo_says_what_it_writes_and_writes_nothing_else(shown: Demo) -> None:
    told = f"Six models, their audits and a report will be written to {shown.folder}, nothing elsewhere."
    assert shown.done.err.splitlines()[0] == told
    assert [p.name for p in shown.folder.parent.iterdir()] == ["runs"]  # where it was started
    assert names(shown.folder) == sorted([*ROWS, "report.html"])
    for name in ROWS:
        assert names(shown.folder / name) == [
            "audit.json",
            "history.parquet",
            "model.safetensors",
            "run.json",
        ]


def test_the_quick_demo_takes_less_than_half_a_minute(shown: Demo) -> None:
    assert shown.seconds < 30


def test_the_whole_demo_takes_less_than_a_minute_and_a_half(tmp_path: Path) -> None:
    started = time.process_time()
    ran("demo", "--out", tmp_path / "runs")
    assert time.process_time() - started < 90
    panel = {name.split(".")[0] for name in read(tmp_path / "runs" / "purge" / "audit.json")["values"]}
    assert panel == set(PANELS["standard"])


def test_the_demo_forgets(shown: Demo) -> None:
    assert shown.value("base", "ta") >= 0.9
    assert shown.value("base", "fa_test") >= 0.9
    assert shown.value("retrain", "fa_test") == 0
    assert shown.value("purge", "fa_test") <= 0.02
    assert shown.value("purge", "bn_recal.after") <= 0.02
    assert shown.value("purge", "ta_retain") >= shown.value("retrain", "ta_retain") - 0.03


def test_the_table_shows_the_audits(shown: Demo) -> None:
    head, _, *lines = shown.lines
    assert head.split() == " ".join(["method", "seconds", *(title for title, _ in demo.COLUMNS)]).split()
    for name, line in zip(ROWS, lines, strict=False):
        numbers = [number(key, shown.value(name, key)) for _, key in demo.COLUMNS]
        assert line.split() == " ".join([name, f"{shown.took(name):.1f}", *numbers]).split()


def test_the_three_sentences_agree_with_the_audits(shown: Demo) -> None:
    def percent(name: str, key: str) -> str:
        return f"{100 * shown.value(name, key):.1f}"

    def points(name: str) -> tuple[str, str]:
        kept = 100 * (shown.value(name, "ta_retain") - shown.value("retrain", "ta_retain"))
        return f"{abs(kept):.1f}", "above" if kept >= 0 else "below"

    first, second, third = shown.sentences
    (kept, side), (lost, other) = points("purge"), points("gradient-ascent")
    assert re.findall(r"\d+\.\d", first) == [
        percent("base", "fa_test"), percent("purge", "fa_test"), percent("retrain", "fa_test"), kept,
        f"{shown.took('purge'):.1f}", f"{shown.took('retrain'):.1f}",
    ]  # fmt: skip
    assert f"{kept} points {side} the retrained model" in first
    both = ("purge", "purge-paper")
    assert re.findall(r"\d+\.\d", second) == [
        percent(name, key) for name in both for key in ("bn_recal.before", "bn_recal.after")
    ]
    survivors = [name for name in both if shown.value(name, "bn_recal.delta") <= 0.02]
    assert second.endswith(f"survives it with {' and '.join(survivors) or 'neither'}.")
    assert re.findall(r"\d+\.\d", third) == [
        percent("gradient-ascent", "fa_test"), lost, percent("gradient-ascent", "bn_recal.after"),
    ]  # fmt: skip
    assert f"{lost} points {other} the retrained model" in third


def test_the_demo_as_json(shown: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the demo above, printed for machines."""
    monkeypatch.setattr(demo, "run_demo", lambda *args, **more: shown.rows)
    done = ran("demo", "--quick", "--json", "--out", tmp_path / "again")
    assert [row["method"] for row in done.json["rows"]] == ROWS
    for row in done.json["rows"]:
        assert row["seconds"] == shown.took(row["method"])
        assert Path(row["folder"]) == shown.folder / row["method"]
        for _, key in demo.COLUMNS:
            assert row[key] == shown.value(row["method"], key)
    assert done.json["sentences"] == shown.sentences
    assert done.json["folder"] == str(tmp_path / "again")


def test_a_second_demo_takes_a_new_folder(tmp_path: Path) -> None:
    base = tmp_path / "runs" / "demo"
    assert free_folder(base) == base
    base.mkdir(parents=True)
    assert free_folder(base) == base  # empty: still free
    for taken, free in ((base, "demo-2"), (base.with_name("demo-2"), "demo-3")):
        taken.mkdir(exist_ok=True)
        (taken / "run.json").write_text("{}")
        assert free_folder(base) == base.with_name(free)
