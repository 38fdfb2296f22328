"""A bench whose files somebody else wrote: names stay in the folder, and tables obey nothing."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from purge.bench import runner
from purge.bench.jobs import Plan
from purge.bench.layout import as_csv, as_latex, as_markdown
from purge.bench.results import is_done, sheet
from purge.bench.schema import Table
from purge.core.errors import FileError, PurgeError
from purge.core.files import write_json
from tests.bench.plans import numbers_of, place_of, plan_of, result_of
from tests.refusals import assert_sentence, tree

TABLE = {"name": "t", "columns": ["ra"]}


def made(tmp_path: Path) -> tuple[Plan, Path]:
    """A small bench with a table and a figure, and its results."""
    plan = plan_of(tmp_path, tables=[TABLE], figures=[{"name": "f", "table": "t"}])
    out = tmp_path / "out"
    (out / "jobs").mkdir(parents=True)
    runner.write_manifest(plan, out)
    for job in plan.jobs:
        write_json(place_of(out).file(job), result_of(job, {"ra": 0.5}))
    return plan, out


NAMES = ["../../../x", "/tmp/x", "a\0b", "x" * 300, ".", "..", "", "a/b", "a\\b", "CON", 3, None, ["t"]]
WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("tables", {"name": name}) for name in NAMES), *(("figures", {"name": name}) for name in NAMES),
    *(("jobs", {"id": name}) for name in NAMES),
    ("tables", {"columns": "ra"}), ("tables", {"columns": ["nonsense"]}), ("tables", {"paper": "nonsense"}),
    ("tables", {"goals": [{"columns": 3}]}), ("tables", {"strange": 1}), ("tables", {"rows": ["id"]}),
    ("figures", {"table": "nonsense"}), ("figures", {"kind": "cake"}), ("jobs", {"seed": "x"}),
    ("jobs", {"label": 3}), ("figures", {"columns": [""]}), ("figures", {"columns": ["--help"]}),
    ("figures", {"only": {"data": ["digits"], "seed": ["0"]}}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "change"), WRONG, ids=ascii)
def test_a_bench_of_other_names_and_types_is_refused(
    tmp_path: Path, key: str, change: dict[str, Any]
) -> None:
    """No name leads out of the folder, and nothing is written."""
    _, out = made(tmp_path)
    content = json.loads((out / "bench.json").read_text())
    content[key][0] |= change
    (out / "bench.json").write_text(json.dumps(content))
    before = tree(tmp_path)
    with pytest.raises(PurgeError) as caught:
        runner.make(out)
    assert_sentence(str(caught.value), "")
    assert tree(tmp_path) == before


JOBS: list[dict[str, Any]] = [
    {}, {"error": 3}, {"values": 3}, {"values": {"ra": {}}}, {"values": {"ra": 3}},
    {"values": {"ra": {"value": "high"}}},
    {"numbers": {"seconds": "long"}}, {"numbers": []}, {"hardware": "fast"}, {"seed": [0]},
    {"values": {"ra": {"value": float("nan")}}},
]  # fmt: skip


@pytest.mark.parametrize("change", JOBS, ids=map(str, JOBS))
def test_a_job_file_of_other_types_counts_as_missing(tmp_path: Path, change: dict[str, Any]) -> None:
    plan, out = made(tmp_path)
    file = place_of(out).file(plan.jobs[0])
    assert is_done(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change} if change else {}))
    assert not is_done(file)
    runner.make(out)
    assert "| purge | – |" in (out / "tables" / "t.md").read_text()


def test_a_folder_named_by_a_file_stays_below_runs(tmp_path: Path) -> None:
    plan, _ = made(tmp_path)
    for name in ("..", "", ".hidden"):
        with pytest.raises(FileError):
            runner.locate(Plan(name, "", plan.jobs, [], []), None, None, None, None)


LABELS = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "<script>alert(1)</script>", "a|b`c`\\|d", "![x](http://e)",
          "two\nlines", "a & b_c $1 {x} #2 ^~ 5%", "\x1b[31mred"]  # fmt: skip


def test_labels_are_text_in_every_form_of_a_table(tmp_path: Path) -> None:
    (job, *_) = plan_of(tmp_path).jobs
    results = [{**result_of(job, {"ra": -0.5}), "label": label, "id": label} for label in LABELS]
    found = sheet(Table(**TABLE), numbers_of(results), note="<img src=x>")
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert [row["label"] for row in rows[:5]] == ["'=1+1", "+1", "-1", "'@SUM(A1)", "'\tx"]
    assert all(float(row["ra"]) == -0.5 for row in rows)
    page = as_markdown(found)
    assert len(page.splitlines()) == 2 + len(LABELS) + 2
    assert not [text for text in ("<script", "<img", "\x1b") if text in page]
    assert r"| a\|b\`c\`\\\|d |" in page
    assert r"!\[x\](http://e)" in page
    assert "| two lines |" in page
    tex = as_latex(found)
    assert r"a \& b\_c \$1 \{x\} \#2 \textasciicircum{}\textasciitilde{} 5\%" in tex
    assert "\x1b" not in tex


@pytest.mark.parametrize("name", ["tables", "figures"])
def test_a_link_in_the_folder_of_a_bench_is_not_followed(tmp_path: Path, name: str) -> None:
    _, out = made(tmp_path)
    runner.make(out)
    shutil.rmtree(out / name)
    (tmp_path / "elsewhere").mkdir()
    (out / name).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(PurgeError, match="got a link to another place"):
        runner.make(out)
    assert not list((tmp_path / "elsewhere").iterdir())
