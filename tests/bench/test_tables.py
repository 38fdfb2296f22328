"""Tables of results whose numbers are known."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from purge.bench import results as tables
from purge.bench.layout import FORMS, as_csv, as_latex, as_markdown
from purge.bench.results import Sheet, paper_rows, sheet, sheets
from purge.bench.schema import NUMBERS, Goal, Table, paper
from purge.core.errors import PurgeError
from purge.core.files import read_json
from purge.metrics.registry import METRICS
from tests.bench.plans import numbers_of, plan_of, result_of

RESULTS = sorted(file.parent for file in (Path(__file__).parents[2] / "results").glob("*/bench.json"))


def column(made: Sheet, name: str, *stats: str) -> dict[Any, Any]:
    """A column of a table by the words of its rows: one of its statistics, or a tuple of several."""
    values = {made.key(row): [getattr(row.cells[name], stat) for stat in stats] for row in made.rows}
    words = {row[0] if len(row) == 1 else row: found for row, found in values.items()}
    return {row: found[0] if len(stats) == 1 else tuple(found) for row, found in words.items()}


def test_a_cell_is_the_mean_and_the_range_over_seeds(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0, 1], methods=["purge-paper", "finetune", "salun"])
    values = {"purge-paper": (0.1, 0.3), "finetune": (0.5, None), "salun": (0, 0)}
    found = [
        result_of(j, {"fa_test": values[j.label][j.seed], "ra": 0.75}, pflop=0.000712345, retrain_pflop=30.4)
        for j in plan.jobs if j.label != "salun"
    ]  # fmt: skip
    found += [
        {**job.keys, "error": "no room", "kind": "OSError"} for job in plan.jobs if job.label == "salun"
    ]
    table = Table("t", ["fa_test", "ra", "seconds", "pflop"], also=["retrained"], paper="cifar10")
    made = sheet(table, numbers_of(found))
    fa = column(made, "fa_test", "mean", "low", "high", "n")
    assert list(fa) == ["retrain", "purge-paper", "finetune", "salun"]
    assert fa["purge-paper"] == pytest.approx((0.2, 0.1, 0.3, 2))
    assert fa["finetune"] == pytest.approx((0.5, 0.5, 0.5, 1))
    assert column(made, "fa_test", "paper")["purge-paper"] == pytest.approx(0.084)
    # the reference of a seed is counted once, although two jobs were compared with it
    assert column(made, "ra", "mean", "low", "high", "n")["retrain"] == pytest.approx((1.0, 1.0, 1.0, 2))
    assert as_markdown(made).splitlines()[:6] == [
        "| method | FA | paper | RA | paper | seconds | PFLOP |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| retrain | 45.0 % (35.0 – 55.0 %) | 0.0 % | 100.0 % | 100.0 % | 8.00 | 30.4 |",
        "| purge-paper | 20.0 % (10.0 – 30.0 %) | 8.4 % | 75.0 % | 96.3 % | 2.00 | 0.000712 |",
        "| finetune | 50.0 % | 68.3 % | 75.0 % | 99.9 % | 2.00 | 0.000712 |",
        "| salun | – | 0.7 % | – | 99.4 % | – | – |",
    ]


def test_tables_by_data_and_only_some_jobs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, forget=[0, 1])
    found = [result_of(j, {"ra": 0.25 * (j.forget["classes"][0] + 1)}) for j in plan.jobs]
    made = numbers_of(found)
    by_data = sheet(Table("t", ["ra"], rows=["data", "label"], also=["original"]), made)
    assert column(by_data, "ra", "mean", "low", "high") == {
        ("digits", "original"): (0.875, 0.75, 1.0),
        ("digits", "purge"): (0.375, 0.25, 0.5),
        ("digits", "finetune"): (0.375, 0.25, 0.5),
    }
    some = sheet(Table("t", ["ra"], rows=["forget"], only={"label": ["purge"], "forget": ["1"]}), made)
    assert column(some, "ra", "mean") == {"1": 0.5}
    table = sheet(Table("t", ["ra"], rows=["forget", "label"], also=["original", "retrained"]), made)
    labels = ["original", "retrain", "purge", "finetune"]
    assert [table.key(row) for row in table.rows] == [(c, label) for c in "01" for label in labels]
    none = sheet(Table("t", ["ra"], only={"label": ["retrain"]}), made)
    assert as_markdown(none) == "| method | RA |\n| --- | --- |\n"
    assert as_csv(none).splitlines() == ["label,ra,ra.low,ra.high,ra.n,ra.paper,ra.missed_by"]
    with pytest.raises(PurgeError, match="different rows in table t, got 'label' twice"):
        Table("t", ["ra"], rows=["label", "label"])


def test_goals_are_met_or_missed_by_a_margin(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0, 1], methods=["purge", "finetune"])
    ours = {"purge": (0.5, 0.6), "finetune": (0.9, 0.9)}
    found = [
        result_of(j, {"agreement": ours[j.label][j.seed], "mia": 0.5, "fa_test": 0.0}) for j in plan.jobs
    ]
    for result in found:  # jobs of a seed share their references
        result["floor"] = found[result["seed"] * 2]["floor"]
    goals = [
        Goal("agreement", least="floor", slack=0.05),  # the floor is .125 above the first job
        Goal("mia", near="retrained", slack=0.2),
        Goal("fa_test", most=0.005),
        Goal("seconds", most=1),
    ]
    table = Table("t", ["agreement", "mia", "fa_test", "seconds"], also=["floor"], goals=goals)
    made = sheet(table, numbers_of(found))
    assert made.aims == pytest.approx({"agreement": 0.675, "mia": 0.75, "fa_test": 0.005, "seconds": 1.0})
    missed = {name: column(made, name, "missed_by") for name in table.columns}
    purge = {name: rows["purge"] for name, rows in missed.items()}
    assert purge == pytest.approx({"agreement": 0.075, "mia": 0.05, "fa_test": 0.0, "seconds": 1.0})
    assert missed["agreement"]["finetune"] == 0.0
    assert {rows["floor"] for rows in missed.values()} == {None}
    lines = as_markdown(made).splitlines()
    assert lines[0].endswith("| seconds | goals met |")
    assert lines[2] == "| aim | ≥ 62.5 % | 0.750 ± 0.200 | ≤ 0.5 % | ≤ 1.00 |  |"
    assert lines[4].startswith("| purge | 55.0 % (50.0 – 60.0 %) ✗ by 7.5 % | 0.500 ✗ by 0.050 | 0.0 % ✓ |")
    assert lines[4].endswith("| 1 of 4 |")
    assert r"$\geq$ 62.5 \%" in as_latex(made)
    row = next(r for r in csv.DictReader(io.StringIO(as_csv(made))) if r["label"] == "purge")
    assert float(row["seconds.missed_by"]) == 1.0


def test_a_goal_may_be_a_multiple_of_another_model(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, forget=[0, 1], methods=["purge"], metrics=["kl_retrain"])
    found = [result_of(j, {"kl_retrain": 0.5 + j.forget["classes"][0]}) for j in plan.jobs]  # 0.5 and 1.5
    for result in found:
        result["floor"] = {"kl_retrain": {"value": {"0": 0.4, "1": 0.8}[result["forget"]], "why": ""}}
    goals = [Goal("kl_retrain", most="floor", times=1.5, slack=0.01)]
    made = sheet(
        Table("t", ["kl_retrain"], rows=["forget", "label"], also=["floor"], goals=goals), numbers_of(found)
    )
    missed = column(made, "kl_retrain", "missed_by")
    assert missed["0", "purge"] == 0.0  # 0.5 <= 0.61
    assert missed["1", "purge"] == pytest.approx(1.5 - 1.21)
    assert made.aims == pytest.approx({"kl_retrain": 0.9})  # of the mean floor, before the slack
    assert as_markdown(made).splitlines()[2] == "| aim |  | ≤ 0.910 |  |"


def test_a_row_is_judged_by_the_models_it_was_compared_with(tmp_path: Path) -> None:
    """A bench resumed after its retrained models were lost has rows that were compared with new ones."""
    plan = plan_of(tmp_path, methods=["purge", "finetune", "random-label"])
    floors = {"purge": 0.5, "finetune": 0.5, "random-label": 0.75}
    found = [
        {**result_of(j, {"agreement": 0.5}), "floor": {"agreement": {"value": floors[j.label], "why": ""}}}
        for j in plan.jobs
    ]
    table = Table("t", ["agreement"], also=["floor"], goals=[Goal("agreement", least="floor")])
    made = sheet(table, numbers_of(found), "Ours.")
    missed = {"floor": None, "purge": 0.0, "finetune": 0.0, "random-label": 0.25}
    assert column(made, "agreement", "missed_by") == missed
    assert made.aims == {"agreement": 0.5}
    assert made.note == "Ours. Compared with other retrained models than those shown: random-label."
    without = sheet(table, numbers_of({**result, "floor": None} for result in found))
    assert without.aims == {}
    assert as_markdown(without).splitlines()[2] == "| purge | 50.0 % |"


def test_the_numbers_of_the_paper_are_known_and_say_where_they_are_from() -> None:
    """Shares are fractions; what the authors published later replaces no table of the paper."""
    wanted = {"ta": 0.891, "fa_test": 0.586, "ra": 0.962, "mia": 0.262, "gated": 0.98}
    assert paper_rows("ablation")["gate 0.9"] == pytest.approx(wanted)
    assert paper_rows("cost")["cifar10, purge-paper"] == {"seconds": 200, "steps": 70, "speedup": 13}
    assert paper_rows("cifar10")["purge-paper"]["fa_test"] == pytest.approx(0.084)
    assert paper_rows("cifar10_later")["purge-paper"]["fa_test"] == pytest.approx(0.021)
    room = Path(tables.__file__).parent
    first, later = (read_json(room / name)["tables"] for name in ("paper.json", "paper_later.json"))
    assert not first.keys() & later.keys()
    assert paper() == {**first, **later}
    assert all(table["by"].startswith("purge.tex, ") for table in first.values())
    origin = "the authors' repository, vedjaw/la_purge, "
    assert all(table["by"].startswith(origin) for table in later.values())
    for name, table in paper().items():
        for cells in table["rows"].values():
            assert all(type(value) in (int, float) for value in cells.values()), name
            assert all(c in NUMBERS or c in METRICS[c.partition(".")[0]].names() for c in cells), name


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_the_tables_in_results_are_made_from_the_results_beside_them(folder: Path) -> None:
    for name, made in sheets(folder).items():
        for ending, form in FORMS.items():
            assert form(made) == (folder / "tables" / f"{name}.{ending}").read_text(encoding="utf-8")
