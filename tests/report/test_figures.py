"""Figures show the numbers of the report: what is drawn is read back from the axes, not from pixels."""

from __future__ import annotations

import copy
import math
import re
import subprocess
import sys
from typing import Any

import matplotlib
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import purge
from purge.core.errors import MetricError
from purge.metrics.metric import Metric, Words
from purge.metrics.registry import METRICS
from purge.report import figures as plots
from purge.report import tables
from purge.report import theme as style
from purge.report.overview import overview

CLASSES = 4
NAMES = ["cat", "dog", "owl", "fox"]


def value(
    v: float | None, low: float | None = None, high: float | None = None, n: int = 50
) -> dict[str, Any]:
    return {"value": v, "low": low, "high": high, "n": n, "why": "" if v is not None else "not there"}


def full_report() -> dict[str, Any]:
    """A report with all that figures are drawn from; class 1 was forgotten."""
    steps = list(range(31))
    checked = {0: (1.0, 0.1), 10: (0.5, 0.2), 20: (0.1, 0.3), 30: (0.0, 0.2)}
    history = {
        "step": steps,
        "check_forget_accuracy": [checked[s][0] if s in checked else None for s in steps],
        "check_retain_loss": [checked[s][1] if s in checked else None for s in steps],
        "projected": [None, *(i % 2 == 0 for i in range(30))],
        "cosine": [None, *(-0.5 + i / 30 for i in range(30))],
        "displacement_cosine": [None, *(i / 30 for i in range(30))],
    }
    fpr = [0.001, 0.01, 0.1, 0.5, 1.0]
    models = {"audited": 0.0, "retrained": 0.1, "original": 0.5}
    curves: dict[str, Any] = {
        name: {
            "roc": {"loss": {"fpr": fpr, "tpr": [shift, 0.02, 0.2, 0.6, 1.0]},
                    "lira": {"fpr": fpr, "tpr": [0.05, 0.1, 0.3, 0.7, 1.0]}},
            "relearn": {"few": {"step": [0, 5, 10], "forget_accuracy": [shift, 0.5, 1.0]},
                        "retain": {"step": [0, 5, 10], "forget_accuracy": [shift, shift, shift]}},
            "features": {"x": [0.0, 1.0, 2.0, 3.0], "y": [shift, 1.0, 2.0, 3.0], "label": [0, 1, 2, 1],
                         "forgotten": [0, 1, 0, 1]},
        }
        for name, shift in models.items()
    }  # fmt: skip
    curves["audited"]["history"] = history
    accuracy = {
        "original": [0.9, 1.0, 0.95, 0.8],
        "audited": [0.88, 0.02, 0.94, 0.6],
        "retrained": [0.9, 0.0, 0.93, 0.81],
    }
    goes = {"original": [0, 1, 0, 0], "audited": [0.3, 0.1, 0.6, 0.0], "retrained": [0.2, 0.0, 0.7, 0.1]}
    parts: dict[str, dict[str, Any]] = {}
    for name in models:
        parts[name] = {
            **{f"class_accuracy.{k}": value(v, v - 0.05, v) for k, v in enumerate(accuracy[name])},
            **{f"destinations.{k}": value(v, v, v) for k, v in enumerate(goes[name])},
            "fa_test": value(accuracy[name][1], 0.0, 1.0, 1000),
            "fa_train": value(accuracy[name][1], 0.0, 1.0, 1000),
            "ta_retain": value(0.8, 0.78, 0.82, 3000),
            "ra": value(0.99, 0.98, 1.0, 3000),
            "mia_loss": value(0.55, 0.5, 0.6, 1400),
            "mia": value(0.54, 0.5, 0.58, 1400),
            "lira.auroc": value(0.52, 0.49, 0.55, 1400),
            "bn_recal.after": value(0.03, 0.0, 0.06, 1000),
            "bn_recal.delta": value(0.01, 0.0, 0.02, 1000),
            "quantise.int8": value(0.02, 0.0, 0.04, 1000),
        }
    parts["audited"]["retrain_gap"] = value(0.02, n=4)
    return {
        "values": parts["audited"],
        "retrained": parts["retrained"],
        "original": parts["original"],
        "floor": {"retrain_gap": value(0.01, 0.01, 0.01, 1)},
        "info": {
            "seed": 0, "classes": CLASSES, "forget_classes": [1], "names": NAMES,
            "forget_samples": 400, "retain_samples": 1200, "test_samples": 4000,
            "versions": {"torch": "2"}, "hardware": {"gpu": None},
            "run": {"method": "Purge", "preset": "purge", "stopped_by": "forget_target", "steps": 30,
                    "seconds": 1.5, "forget_target": 0.25, "retain_budget": 0.5, "digest": "0" * 64},
        },
        "curves": curves,
        "metrics": {name: metric.describe() for name, metric in METRICS.items()},
    }  # fmt: skip


@pytest.fixture
def report() -> dict[str, Any]:
    return full_report()


def lines(ax: Axes) -> dict[str, Any]:
    return {str(line.get_label()): line for line in ax.lines}


def bars(ax: Axes) -> dict[str, list[float]]:
    return {str(c.get_label()): [round(p.get_height(), 6) for p in c.patches] for c in ax.containers}


# -- what is drawn ------------------------------------------------------------------------------


def test_the_trajectory_shows_checks_target_and_budget(report):
    top, bottom = plots.draw(report, "trajectory").axes
    assert lines(top)["forget accuracy"].get_xdata().tolist() == [0, 10, 20, 30]
    assert lines(top)["forget accuracy"].get_ydata().tolist() == [100, 50, 10, 0]
    assert lines(bottom)["retain loss"].get_ydata().tolist() == [0.1, 0.2, 0.3, 0.2]
    assert set(lines(top)["target"].get_ydata()) == {25}
    assert set(lines(bottom)["budget"].get_ydata()) == {0.5}
    assert bottom.get_yscale() == "linear"
    report["info"]["run"]["retain_budget"] = 10.0  # far above the losses: it must not flatten the curve
    assert plots.draw(report, "trajectory").axes[1].get_yscale() == "log"
    report["curves"]["audited"]["history"]["check_retain_loss"][0] = 0.0  # no logarithm of that
    assert plots.draw(report, "trajectory").axes[1].get_yscale() == "linear"
    report["info"]["run"] |= {"forget_target": None, "retain_budget": None}
    top, bottom = plots.draw(report, "trajectory").axes
    assert not {"target", "budget"} & {*lines(top), *lines(bottom)}


def test_steps_show_the_running_share_of_projections_and_both_cosines(report):
    top, bottom = plots.draw(report, "steps").axes
    (share,) = top.lines
    hits = [i % 2 == 0 for i in range(30)]
    expected = [
        100 * sum(hits[max(0, i - 19) : i + 1]) / len(hits[max(0, i - 19) : i + 1]) for i in range(30)
    ]
    assert share.get_ydata().tolist() == pytest.approx(expected)
    assert share.get_xdata().tolist() == list(range(1, 31))  # nothing happened at step 0
    history = report["curves"]["audited"]["history"]
    taken, gradients = bottom.lines[0], bottom.lines[1]
    assert taken.get_ydata().tolist() == history["displacement_cosine"][1:]
    assert gradients.get_ydata().tolist() == history["cosine"][1:]


def test_roc_curves_are_on_log_axes_beside_the_retrained_models(report):
    ours, theirs = plots.draw(report, "roc").axes
    for ax in (ours, theirs):
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        assert ax.get_xlim() == pytest.approx((1e-3, 1))  # 1,400 of which 400 forgotten: one in a thousand
    assert (ours.get_title(), theirs.get_title()) == ("this model", "retrained")
    assert set(lines(ours)) == {"loss", "LiRA", "guessing"}
    assert lines(ours)["loss"].get_xdata().tolist() == [0.001, 0.01, 0.1, 0.5, 1.0]
    # a rate of 0 has no place on a log axis: it lies on the edge
    assert lines(ours)["loss"].get_ydata().tolist() == pytest.approx([1e-3, 0.02, 0.2, 0.6, 1.0])
    assert lines(theirs)["loss"].get_ydata()[0] == 0.1
    assert {t.get_text() for t in ours.get_xticklabels()} >= {"0.1", "1", "10", "100"}  # percent, no powers


def test_a_new_attack_is_one_row_of_the_table_of_metrics(report):
    report["curves"]["audited"]["roc"] = {"own": {"fpr": [0.5, 1.0], "tpr": [0.5, 1.0]}}
    assert "own" in lines(plots.draw(report, "roc").axes[0])  # also one that nobody described
    known = len(plots.looks(report))
    for i in range(20):
        words = Words(f"AUROC of attack {i}", {"membership": f"attack {i}"}, main=True)
        new = Metric(f"new{i}", "new", "a new attack", "own:new", curve=f"new{i}", words={"auroc": words},
                     parts=("auroc",), section="membership")  # fmt: skip
        report["metrics"][new.name] = new.describe()
        report["values"][f"{new.name}.auroc"] = value(0.6, 0.5, 0.7)
        report["curves"]["audited"]["roc"][new.name] = {"fpr": [0.5, 1.0], "tpr": [0.5, 1.0]}
    looks = plots.looks(report)
    assert len(looks) == known + 20
    assert len({(look.colour, look.marker) for look in looks.values()}) == len(looks)
    assert lines(plots.draw(report, "roc").axes[0])["attack 19"].get_color() == looks["new19"].colour
    rows = [t.get_text() for t in plots.draw(report, "membership").axes[0].get_yticklabels()]
    assert {f"attack {i}" for i in range(20)} <= set(rows)
    assert len(overview(report).axes[2].containers) > 20
    assert "AUROC of attack 19" in tables.in_a_sentence(report, "new19.auroc")
    assert "new19.auroc" in tables.main_values(report)


def test_classes_and_destinations_are_bars_beside_the_other_models(report):
    (ax,) = plots.draw(report, "classes").axes
    assert bars(ax) == {
        "original": [90, 100, 95, 80],
        "this model": [88, 2, 94, 60],
        "retrained": [90, 0, 93, 81],
    }
    assert [t.get_text() for t in ax.get_xticklabels()] == ["cat", "dog\n(forgotten)", "owl", "fox"]
    (ax,) = plots.draw(report, "destinations").axes
    assert bars(ax) == {"this model": [30, 10, 60, 0], "retrained": [20, 0, 70, 10]}
    report["info"]["names"] = []
    words = [t.get_text() for t in plots.draw(report, "classes").axes[0].get_xticklabels()]
    assert words == ["0", "1\n(forgotten)", "2", "3"]


def test_with_many_classes_the_forgotten_and_the_most_changed_are_shown(report):
    report["info"] |= {"names": [], "classes": 100, "forget_classes": [7]}
    for part in ("values", "retrained", "original"):
        report[part] |= {f"class_accuracy.{k}": value(0.9) for k in range(100)}
    report["values"]["class_accuracy.93"] = value(0.2)
    (ax,) = plots.draw(report, "classes").axes
    words = [t.get_text().split()[0] for t in ax.get_xticklabels()]
    assert len(words) == plots.MOST_CLASSES
    assert {"7", "93"} <= set(words)
    assert "20 of 100 classes" in ax.get_xlabel()


def test_relearning_has_a_line_per_model(report):
    few, retain = plots.draw(report, "relearn").axes
    assert set(lines(few)) == {"original", "this model", "retrained"}
    assert lines(few)["this model"].get_ydata().tolist() == [0, 50, 100]
    assert lines(retain)["original"].get_ydata().tolist() == [50, 50, 50]
    assert lines(few)["retrained"].get_xdata().tolist() == [0, 5, 10]


def test_features_mark_the_forgotten_in_every_panel(report):
    axes = plots.draw(report, "features").axes
    assert [ax.get_title() for ax in axes] == ["original", "this model", "retrained"]
    for ax in axes:
        (gone,) = [c for c in ax.collections if c.get_label() == "forgotten"]
        assert gone.get_offsets().tolist() == [[1, 1], [3, 3]]
        assert sum(len(c.get_offsets()) for c in ax.collections) == 4
        assert {t.get_text() for t in ax.texts} == {"cat", "owl"}
    n = plots.RASTER + 1  # so many points become an image
    points = {"x": [math.sin(i) for i in range(n)], "y": [math.cos(i) for i in range(n)],
              "label": [i % 2 * 2 for i in range(n)], "forgotten": [0] * n}  # fmt: skip
    report["curves"] = {"audited": {"features": points}}
    svg = style.as_inline_svg(plots.draw(report, "features"), "f", "")
    assert "data:image/png;base64" in svg
    assert len(svg) < 200_000


def test_membership_and_robustness_have_a_dot_per_value_and_model(report):
    (ax,) = plots.draw(report, "membership").axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["loss", "mean of loss and\nconfidence", "LiRA"]
    assert len(ax.containers) == 6
    middle = ax.containers[0].lines[0].get_xdata().tolist()
    (reach,) = ax.containers[0].lines[2]
    assert middle == [0.55]
    assert reach.get_segments()[0][:, 0].tolist() == pytest.approx([0.5, 0.6])
    (ax,) = plots.draw(report, "robustness").axes
    words = [t.get_text() for t in ax.get_yticklabels()]
    assert words == ["as it is", "BatchNorm\nrecalibrated", "weights in int8"]
    assert [c.lines[0].get_xdata()[0] for c in ax.containers][:2] == [2, 0]  # percent; then the retrained


def test_a_comparison_has_a_row_per_run(report):
    other = copy.deepcopy(report)
    other["values"]["fa_test"] = value(0.7, 0.6, 0.8)
    axes = plots.comparison({"one": report, "two": other}).axes
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["one", "two"]
    dots = [(c.lines[0].get_xdata()[0], round(c.lines[0].get_ydata()[0])) for c in axes[0].containers]
    assert dots == [(2, 0), (0, 0), (70, -1), (0, -1)]  # this model's and the retrained one's of each run
    with pytest.raises(MetricError, match="main values"):
        plots.comparison({"one": {**report, "values": {}}})


# -- what is not there --------------------------------------------------------------------------


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_figure_without_data_says_in_one_line_what_to_do(name, report):
    empty = {"values": {}, "retrained": {}, "original": {}, "info": {}, "curves": {}}
    with pytest.raises(MetricError, match=r"^Expected .+ in this report, got none\. Fix: .+\.$") as found:
        plots.draw(empty, name)
    assert "\n" not in str(found.value)
    with pytest.raises(MetricError, match=f"did you mean '{name}'"):
        plots.draw(report, f"{name}e")


@pytest.mark.parametrize("name", plots.PLOTS)
@pytest.mark.parametrize("others", ["none", "without numbers"])
def test_a_figure_needs_no_other_model(name, report, others):
    if others == "none":
        report |= {"retrained": {}, "original": {}, "curves": {"audited": report["curves"]["audited"]}}
    else:
        report |= {part: {key: value(None) for key in report[part]} for part in ("retrained", "original")}
    assert isinstance(plots.draw(report, name), Figure)


@pytest.mark.parametrize("name", plots.PLOTS)
def test_a_figure_is_narrow_enough_for_a_phone(name, report):
    for drawn in (plots.draw(report, name), plots.comparison({"one": report, "two": report})):
        assert drawn.get_figwidth() <= 4.2  # inches: 302 points, so that letters of 9 points stay so
        drawn.draw_without_rendering()
        wide = drawn.bbox.width + 1
        boxes = [ax.get_tightbbox() for ax in drawn.axes] + [box.get_window_extent() for box in drawn.legends]
        assert all(box.x0 >= -1 and box.x1 <= wide for box in boxes if box is not None)


# -- how it looks -------------------------------------------------------------------------------

SAFE = {c.lower() for c in (style.BLUE, style.ORANGE, style.GREEN, style.VERMILION, style.SKY, style.PURPLE)}


def test_series_differ_in_colour_and_in_shape(report):
    for looks in (style.MODELS, plots.looks(report)):
        colours = {to_hex(look.colour) for look in looks.values()}
        assert colours <= SAFE | {style.INK.lower(), style.GREY.lower()}
        assert len(colours) == min(len(looks), len(style.COLOURS))
        assert len({look.marker for look in looks.values()}) == len(looks)
    for kind in ("hatch", "line"):  # of models also without colour
        assert len({getattr(look, kind) for look in style.MODELS.values()}) == len(style.MODELS)


@pytest.mark.parametrize("name", ["$x_{$", "日本語", "a\x00b\nc", "<script>alert(1)</script>", "", "x" * 500])
def test_any_name_of_a_class_can_be_drawn(name, report):
    report["info"]["names"] = [name, "dog", "owl", "fox"]
    for figure in ("classes", "features"):
        svg = style.as_svg(plots.draw(report, figure))
        assert "<script" not in svg
        assert "\x00" not in svg
    words = plots.draw(report, "classes").axes[0].get_xticklabels()[0].get_text()
    assert len(words) <= 30


def test_files_are_written_as_png_and_svg_with_a_folder_for_each_of_several_runs(
    report, tmp_path, monkeypatch
):
    monkeypatch.setattr(plots, "PLOTS", {"destinations": plots.PLOTS["destinations"]})
    files = plots.save_all({"run": report}, tmp_path / "one")
    assert files == sorted((tmp_path / "one").iterdir())
    assert {f.name: f.read_bytes()[:4] for f in files} == {
        "destinations.png": b"\x89PNG", "destinations.svg": b"<?xm",
    }  # fmt: skip
    files = plots.save_all({"a/b": report, "c": full_report()}, tmp_path / "two")
    names = [f"{name}.{kind}" for name in ("destinations", "comparison") for kind in ("png", "svg")]
    found = sorted(f.relative_to(tmp_path / "two").as_posix() for f in files)
    assert found == sorted([*names[2:], *(f"{run}/{name}" for run in ("a_b", "c") for name in names[:2])])
    a, c = (tmp_path / "two" / name / "destinations.svg" for name in ("a_b", "c"))
    assert a.read_bytes() == c.read_bytes(), "the same numbers give the same bytes"


def test_an_inline_figure_is_self_contained_and_uses_the_colours_of_the_page(report):
    svg = style.as_inline_svg(plots.draw(report, "classes"), "here", 'a "quoted" <b>')
    assert svg.startswith('<svg role="img" aria-label="a &quot;quoted&quot; &lt;b>"')
    assert "http" not in svg
    assert "<style" not in svg
    assert style.INK.lower() not in svg.lower()
    assert "currentColor" in svg
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert ids
    assert all(i.startswith("here-") for i in ids)
    used = re.findall(r'(?:url\(#|href="#)([^)"]+)', svg)
    assert used
    assert set(used) <= set(ids)


# -- in Python ----------------------------------------------------------------------------------


def test_a_report_and_a_result_draw_figures_that_a_notebook_displays(toy):
    model, forget, retain, test = toy
    result = purge.unlearn(model, forget, retain, seed=3, progress=False, steps=12, batch_size=32)
    report = purge.audit(result, forget, retain, test, metrics=["fa_test", "destinations"], progress=False)
    fig = report.plot("trajectory")
    assert isinstance(fig, Figure)
    checks = [row["check_forget_accuracy"] for row in result.history]
    drawn = lines(fig.axes[0])["forget accuracy"].get_ydata().tolist()
    assert drawn == [100 * v for v in checks if v is not None]
    assert fig._repr_png_().startswith(b"\x89PNG")
    assert set(lines(fig.axes[0])["target"].get_ydata()) == {100 * result.info["forget_target"]}
    losses = [row["check_retain_loss"] for row in result.history]
    own = lines(result.plot("trajectory").axes[1])["retain loss"].get_ydata().tolist()
    assert own == [v for v in losses if v is not None]
    for has_none, name in ((report, "relearn"), (result, "classes")):
        with pytest.raises(MetricError, match="Fix: audit"):
            has_none.plot(name)


def test_drawing_does_not_change_the_settings_of_matplotlib_or_pyplot(report):
    before = dict(matplotlib.rcParams)
    fig = plots.draw(report, "roc")
    style.as_png(fig)
    style.as_svg(fig)
    assert dict(matplotlib.rcParams) == before
    assert not Gcf.figs  # what pyplot would show, and keep in memory


def test_importing_purge_imports_neither_matplotlib_nor_jinja2():
    code = (
        "import sys, purge, purge.cli\n"
        "there = {'matplotlib', 'jinja2', 'purge.plots', 'purge.html'} & set(sys.modules)\n"
        "assert not there, there"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
