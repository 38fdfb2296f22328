"""Overviews of audits and runs, reports as tables of pandas, and what objects print of themselves."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from torch.utils.data import TensorDataset

import purge
from purge.data.split import Split
from purge.metrics.value import Value
from purge.report.overview import overview
from tests.nets import blobs, plain_mlp

X, Y = blobs(90)


@pytest.fixture(scope="module")
def parts() -> tuple[Any, Any]:
    return purge.split((X, Y), classes=[0])


@pytest.fixture(scope="module")
def trained() -> purge.Result:
    return purge.train(plain_mlp(), (X, Y), epochs=3, batch_size=16, progress=False)


@pytest.fixture(scope="module")
def result(trained: purge.Result, parts: tuple[Any, Any]) -> purge.Result:
    return purge.unlearn(trained, *parts, steps=6, check_every=2, progress=False, check=False)


@pytest.fixture(scope="module")
def report(result: purge.Result, trained: purge.Result, parts: tuple[Any, Any]) -> purge.Report:
    forget, retain = parts
    wanted = ["fa_train", "fa_test", "ra", "mia", "bn_recal"]
    kept = purge.train(plain_mlp(), retain, epochs=3, batch_size=16, seed=1, progress=False)
    others = {"original": trained, "retrained": kept, "check": False}
    return purge.audit(result, forget, retain, None, metrics=wanted, progress=False, **others)


def dots(ax: Axes) -> dict[str, list[float]]:
    """What a panel shows of each model: the values of its dots, from the first row down."""
    found: dict[str, list[tuple[float, float]]] = {}
    for container in ax.containers:
        (x,), (y,) = container.lines[0].get_data()
        found.setdefault(container.lines[0].get_marker(), []).append((-y, float(x)))
    words = {"^": "original", "o": "this model", "s": "retrained"}
    return {words[marker]: [x for _, x in sorted(points)] for marker, points in found.items()}


# -- the overview ---------------------------------------------------------------------------------


def test_the_overview_shows_every_model_and_says_what_is_missing(report: purge.Report) -> None:
    forgotten, stays, membership, treated = report.plot().axes
    percents = {
        "original": report.original, "this model": report.values, "retrained": report.retrained
    }  # fmt: skip
    for ax, name in ((forgotten, "fa_train"), (stays, "ra")):
        assert dots(ax) == {who: [100 * of[name].value] for who, of in percents.items()}
    assert not membership.containers
    assert [t.get_text() for t in membership.texts] == ["No test data was given."]
    assert "No test data" in treated.texts[0].get_text() or "BatchNorm" in treated.texts[0].get_text()
    (legend,) = report.plot().legends
    assert [t.get_text() for t in legend.get_texts()] == ["original", "this model", "retrained"]


def test_an_overview_needs_no_other_model_and_no_number_at_all() -> None:
    alone = purge.Report({"ra": Value(0.5, 0.25, 0.75, 8)}, {}, {})
    _, stays, *others = alone.plot().axes
    assert dots(stays) == {"this model": [50.0]}
    assert all("metrics='standard'" in ax.texts[0].get_text().replace("\n", " ") for ax in others)
    nothing = overview({"values": {}, "retrained": {}, "original": {}, "info": {}, "curves": {}})
    assert len(nothing.axes) == 4
    assert not nothing.legends
    formula = purge.Report({"mia": Value.missing("costs $x_{1$ and more")}, {}, {})
    formula.plot().draw_without_rendering()


def test_a_run_is_drawn_with_losses_checks_and_cosines(result: purge.Result) -> None:
    losses, accuracy, cosines = result.plot().axes
    frame = result.history_frame()
    checks = frame.dropna(subset="check_forget_accuracy")
    (line,) = [line for line in accuracy.lines if line.get_label() == "forget accuracy"]
    assert line.get_xdata().tolist() == checks["step"].tolist() == [0, 2, 4, 6]
    assert line.get_ydata().tolist() == (100 * checks["check_forget_accuracy"]).tolist()
    shown = {line.get_label(): line.get_ydata().tolist() for line in losses.lines}
    assert shown["retained batch"] == frame["retain_loss"].dropna().tolist()
    taken = next(line for line in cosines.lines if str(line.get_label()).startswith("step taken"))
    assert taken.get_ydata().tolist() == frame["displacement_cosine"].dropna().tolist()


def test_a_training_is_drawn_with_its_losses_and_shards_one_after_the_other(trained: purge.Result) -> None:
    (ax,) = trained.plot().axes
    assert ax.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert ax.lines[0].get_ydata().tolist() == [row["loss"] for row in trained.history]
    assert ax.get_xlabel() == "epoch"
    bare = purge.Result(trained.model, None, [], "schedule", 0.0, 0)
    assert bare.plot().axes[0].texts[0].get_text() == "This run has no history."
    assert bare.history_frame().empty
    sharded = purge.train_sharded(plain_mlp(), (X, Y), shards=2, epochs=2, progress=False)
    (ax,) = sharded.plot().axes
    assert ax.lines[0].get_xdata().tolist() == list(range(1, len(sharded.history) + 1))


# -- tables ---------------------------------------------------------------------------------------


def test_a_frame_has_a_row_for_each_value(report: purge.Report) -> None:
    frame = report.to_frame()
    assert frame.columns.tolist() == [
        "name", "section", "unit", "value", "low", "high", "n", "why", "retrained", "original", "floor",
    ]  # fmt: skip
    assert sorted(frame["name"]) == sorted(report.values)
    rows = frame.set_index("name")
    assert rows.loc["ra", ["value", "low", "high", "n"]].tolist() == [
        report["ra"].value, report["ra"].low, report["ra"].high, report["ra"].n,
    ]  # fmt: skip
    assert rows.loc["ra", "retrained"] == report.retrained["ra"].value
    assert rows.loc["ra", "original"] == report.original["ra"].value
    assert math.isnan(rows.loc["ra", "floor"])
    assert math.isnan(rows.loc["mia", "value"])
    assert rows.loc["mia", "why"] == report["mia"].why
    assert pd.api.types.is_float_dtype(frame["value"])
    assert purge.Report({}, {}, {}).to_frame().empty


# -- one line each --------------------------------------------------------------------------------


def test_everything_prints_itself_in_one_short_line(report, result, trained, parts) -> None:
    forget, retain = parts
    owned = purge.split((X, Y), ids=["a"], id_of=["a", "b", "c"] * 30)
    dataset = purge.split(TensorDataset(X, Y, Y), ids=[0], id_of=2)
    images = purge.Images(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 1]))
    seen = [report, result, trained, forget, retain, *owned, *dataset, images, result.method, report["ra"]]
    for thing in seen:
        assert "\n" not in repr(thing)
        assert len(repr(thing)) <= 160, repr(thing)
    assert repr(result).startswith("Result(Sequential by purge, 6 steps in ")
    assert repr(trained).startswith("Result(Sequential by training, ")
    assert repr(report).startswith(f"Report({int((Y == 0).sum())} samples forgotten, ")
    assert f"ra {100 * report['ra'].value:.1f} %" in repr(report)
    assert repr(owned[0]) == f"Samples(30 of 1 id, each ({X.shape[1]},) of float32)"
    assert "of 1 id" in repr(dataset[0])
    assert repr(Value(0.51234567, 0.4, 0.6, 36)) == "Value(0.5123, low=0.4, high=0.6, n=36)"
    assert repr(Value.missing("no test data")) == "Value(None, why='no test data')"
    split = Split(owned[0], owned[1], None, 3, frozenset({1}))
    assert repr(split) == "Split(forget 30, retain 60, test none, classes [1] of 3 go)"
