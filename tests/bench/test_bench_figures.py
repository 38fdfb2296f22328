"""Figures and files of a finished bench whose results are invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex

from purge.bench import figures as charts
from purge.bench.layout import as_markdown
from purge.bench.results import sheet, sheets
from purge.bench.schema import Drawing, Goal, Table
from tests.bench.plans import CONFIGS, NAMES, finished, numbers_of, plan_of, result_of, sheet_of


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_tables_and_figures_of_every_file_can_be_made(path: Path, tmp_path: Path) -> None:
    plan = finished(path, tmp_path / "out")
    found = sheets(tmp_path / "out")
    assert list(found) == [table.name for table in plan.tables]
    for made in found.values():
        assert made.rows
        assert all(cell.n for row in made.rows for cell in row.cells.values() if cell.paper is not None)
        assert "commit abc" in as_markdown(made)
    for drawing in plan.figures:
        figure = charts.draw(drawing, found)
        panels = [ax for ax in figure.axes if ax.axison]
        assert len(panels) == len(drawing.columns or found[drawing.table].table.columns)


def test_a_figure_shows_the_numbers_of_its_table(tmp_path: Path) -> None:
    values = {label: {"ra": (0.5, 0.5, 0.8)} for label in ("purge-paper", "finetune")}
    made = {"t": sheet_of(tmp_path, Table("t", ["ra"], paper="cifar10"), values)}
    (ax,) = charts.draw(Drawing("f", "t"), made).axes
    bars = [[*c] for c in ax.containers if hasattr(c, "patches")]
    assert [[round(bar.get_height(), 6) for bar in c] for c in bars] == [[60.0, 60.0], [96.3, 99.9]]
    assert [[round(bar.get_x() + bar.get_width()) for bar in c] for c in bars] == [[0, 1], [0, 1]]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["purge-paper", "finetune"]
    ranges = [path.vertices[:, 1].tolist() for c in ax.collections for path in c.get_paths()]
    assert ranges == [pytest.approx([50.0, 80.0])] * 2
    (ax,) = charts.draw(Drawing("f", "t", kind="lines", only={"label": ["finetune"]}), made).axes
    lines = [list(line.get_ydata()) for line in ax.lines if line.get_linestyle() in ("-", "--")]
    assert lines == [pytest.approx([60.0]), pytest.approx([99.9])]
    (ax,) = charts.draw(Drawing("f", "t", only={"label": ["salun"]}), made).axes
    assert [text.get_text() for text in ax.texts] == ["no job has such a row"]


def test_a_figure_has_a_legend_only_if_needed(tmp_path: Path) -> None:
    values = {label: {"ra": [0.5], "fa_test": [0.25]} for label in ("purge", "finetune")}
    table = Table("t", ["ra", "fa_test"], goals=[Goal("ra", least=0.875)])
    made = {"t": sheet_of(tmp_path, table, values)}
    assert charts.draw(Drawing("f", "t"), made).legends
    assert not charts.draw(Drawing("f", "t", columns=["fa_test"]), made).legends  # one colour, "ours"


def test_no_two_series_of_a_figure_look_the_same(tmp_path: Path) -> None:
    labels = ["purge-paper", "purge", *(f"label {i}" for i in range(11))]
    settings = [
        {"method": "purge", "label": label, "set": {"kd": 0.01 + 0.001 * i}} for i, label in enumerate(labels)
    ]
    plan = plan_of(tmp_path, methods=settings)
    jobs = [{**job.keys, "data": data} for job in plan.jobs for data in ("cifar10", "mnist")]
    found = [
        {**result_of(plan.jobs[0], {"fa_test": 0.5}), **keys, "id": f"{keys['id']} {keys['data']}"}
        for keys in jobs
    ]
    made = numbers_of(found)
    drawn = {"t": sheet(Table("t", ["fa_test"], rows=["data", "label"], paper="cross_dataset"), made)}
    (ax,) = charts.draw(Drawing("f", "t"), drawn).axes
    bars = {c.get_label(): c[0] for c in ax.containers if hasattr(c, "patches")}
    looks = {
        (to_hex(bar.get_facecolor()), bar.get_hatch(), to_hex(bar.get_edgecolor())) for bar in bars.values()
    }
    assert len(looks) == len(bars) > len(labels)
    theirs = bars["purge-paper, paper"]
    assert to_hex(theirs.get_edgecolor()) == to_hex(bars["purge-paper"].get_facecolor())
    assert (to_hex(theirs.get_facecolor()), theirs.get_hatch()) == ("#ffffff", "////")
    (ax,) = charts.draw(Drawing("f", "t", kind="lines"), drawn).axes
    lines = [line for line in ax.lines if line.get_linestyle() in ("-", "--")]
    assert len({(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}) == len(bars)


def test_units_decide_about_percent_goals_and_axes(tmp_path: Path) -> None:
    """Parts of a metric may be steps or a class; numbers of very different size get a logarithmic axis."""
    values: dict[str, dict[str, Any]] = {
        "purge": {"relearn_few.steps": [7.0], "relearn_few.after": [0.25], "worst_class.class": [3.0],
                  "lira.tpr_1pct": [0.5], "ra": [0.001], "seconds": [0.5], "steps": [1.0]},
        "finetune": {"relearn_few.steps": [7.0], "ra": [1.0], "seconds": [60.0], "steps": [2.0]},
    }  # fmt: skip
    goals = [Goal("relearn_few.steps", least=5.0), Goal("ra", least=0.875)]
    made = {"t": sheet_of(tmp_path, Table("t", [*values["purge"]], goals=goals), values)}
    axes = charts.draw(Drawing("f", "t"), made).axes[:7]
    assert [ax.patches[0].get_height() for ax in axes] == [7.0, 25.0, 3.0, 50.0, 0.1, 0.5, 1.0]
    assert ["(%)" in ax.get_ylabel() for ax in axes] == [False, True, False, True, True, False, False]
    levels = [[line.get_ydata()[0] for line in ax.lines if line.get_label() == "goal"] for ax in axes]
    assert levels == [[5.0], [], [], [], [87.5], [], []]
    assert [ax.get_yscale() for ax in axes[4:]] == ["linear", "log", "linear"]
