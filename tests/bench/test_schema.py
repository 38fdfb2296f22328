"""What a bench's file may say, and that everything else is refused in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from purge.auditor import Auditor
from purge.bench.jobs import Data, read_plan
from purge.bench.schema import PARTS
from purge.bench.store import images
from purge.core.errors import PurgeError
from purge.engine.seeding import seeded
from purge.metrics.registry import METRICS, check_value_name
from purge.runs.folder import build_for, cut
from tests.bench.plans import plan_of


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metod": ["purge"]}, "did you mean 'methods'"),
        ({"seed": [0]}, "did you mean 'seeds'"),
        ({"tasks": [{"dta": "digits"}]}, "did you mean 'data'"),
        ({"data": "digit"}, "did you mean 'digits'"),
        ({"data": None}, "data in small.yaml"),
        ({"model": "small-resnt"}, "did you mean 'small-resnet'"),
        ({"methods": ["purg"]}, "did you mean 'purge'"),
        ({"methods": {"purge": {"rat": 1}}}, "did you mean 'rate'"),
        ({"methods": {"purge": {"rate": "fast"}}}, "a number for rate"),
        ({"methods": {"purge-paper": {"lrr": 1}}}, "did you mean 'lr'"),
        ({"methods": {"purge-paper": {"lr": "fast"}}}, "a number for lr"),
        ({"methods": [{"method": "purge", "lable": "a"}]}, "did you mean 'label'"),
        ({"methods": ["purge", "purge"]}, "'purge' twice"),
        ({"methods": ["retrain"]}, "labels other than"),
        ({"methods": None}, "methods in small.yaml"),
        ({"metrics": ["fa_tset"]}, "did you mean 'fa_test'"),
        ({"recipe": {"epoch": 1}}, "did you mean 'epochs'"),
        ({"seeds": 0}, "a list of whole numbers as seeds"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [-1]}, "seeds >= 0"),
        ({"seeds": [True]}, "a list of whole numbers"),
        ({"seeds": [4294967295]}, "seeds up to 4294966295"),
        ({"seeds": [0, 4294966295], "retrains": 3}, "seeds up to 4294965295"),
        ({"forget": [10]}, "classes from 0 to 9"),
        ({"forget": "all"}, "one of each"),
        ({"forget": []}, "got an empty forget"),
        ({"forget": [0, []]}, "some classes of digits to forget, got none"),
        ({"forget": [[*range(10)]]}, "some classes of digits to forget, got all of them"),
        ({"data": "cifar100", "forget": [-1]}, "classes from 0 of cifar100, got -1"),
        ({"forget": None, "ids": [3, -2]}, "ids >= 0 in small.yaml, got -2"),
        ({"forget": None, "ids": []}, "got an empty ids"),
        ({"data": []}, "at least one data set in small.yaml"),
        ({"methods": []}, "at least one method in small.yaml"),
        ({"methods": {}}, "at least one method in small.yaml"),
        ({"methods": [], "tables": [{"name": "a", "columns": ["ra"]}]}, "at least one method"),
        ({"per_class": 1, "holdout": 0.1}, "two images of each class to hold one out"),
        ({"tasks": [{"seeds": [0]}, {"model": "resnet18"}]}, "one model for all tasks of digits"),
        ({"tasks": [{"size": 8}, {"size": 16}]}, "one size for all tasks of digits, got 8 and 16"),
        ({"tasks": [{"holdout": 0.1}, {}]}, "one holdout for all tasks of digits"),
        ({"tasks": [{"recipe": {"lr": 0.5}}, {"recipe": {"epochs": 30}}]}, "one lr for all tasks of digits"),
        ({"forget": None}, "one of forget, fraction and ids"),
        ({"fraction": 0.5}, "got forget and fraction"),
        ({"draw": 0}, "a fraction to draw, got draw: 0 beside forget"),
        ({"tables": [{"name": "a", "columns": ["ra"], "goals": [{"column": "ra", "most": 1, "times": 2}]}]},
         "times beside original or retrained or floor in the goal for ra"),
        ({"data": "cifar100", "forget": "each"}, "by number"),
        ({"holdout": 0.9}, "holdout >= 0.01 and <= 0.5 in small.yaml, got 0.9"),
        ({"holdout": 10**400}, "a number as holdout in small.yaml"),
        ({"retrains": -1}, "retrains >= 0"),
        ({"set": {"purg": {"rate": 1}}}, "did you mean 'purge'"),
        ({"set": {"purge": {"rat": 1}}}, "did you mean 'rate'"),
        ({"methods": ["sisa"]}, "base: {shards: 5}"),
        ({"methods": ["amnesiac"]}, "base: {log_updates: true}"),
        ({"methods": [{"method": "purge", "base": {"shards": 5}}]}, "no use for it"),
        ({"methods": [{"method": "sisa", "base": {"shards": 1}}]}, "shards from 2"),
        ({"methods": [{"method": "purge", "base": {"epoch": 5}}]}, "did you mean 'epochs'"),
        ({"methods": [{"method": "purge", "base": {"slices": 3}}]}, "shards beside slices"),
        ({"methods": [{"method": "purge", "base": {"vote": "majority"}}]}, "shards beside vote"),
        ({"tables": [{"name": "a", "columns": ["fa_tst"]}]}, "did you mean 'fa_test'"),
        ({"tables": [{"name": "a", "columns": ["ta"]}]}, "a metric of the jobs"),
        ({"tables": [{"name": "a", "columns": ["ra.after"]}]}, "a number of ra in table a"),
        ({"metrics": ["bn_recal"], "tables": [{"name": "a", "columns": ["bn_recal.aftr"]}]},
         "did you mean 'bn_recal.after'"),
        ({"metrics": ["bn_recal"], "tables": [{"name": "a", "columns": ["bn_recal"]}]}, "bn_recal.before"),
        ({"tables": [{"name": "a", "columns": ["ra"], "rows": []}]}, "at least one word in rows of table a"),
        ({"tables": [{"name": "a", "columns": []}]}, "at least one word in columns of table a"),
        ({"tables": [{"name": "a", "columns": ["ra"], "only": {"label": ["purg"]}}]}, "did you mean 'purge'"),
        ({"tables": [{"name": "a", "columns": ["ra"], "only": {"data": ["digit"]}}]}, "mean 'digits'"),
        ({"tables": [{"name": "a", "columns": ["ra"], "only": {"forget": ["1"]}}]}, "a forget of the jobs"),
        ({"tables": [{"name": "a", "columns": ["ra"], "paper": "cifar"}]}, "did you mean 'cifar10'"),
        ({"tables": [{"name": "a", "columns": ["ra"], "rows": ["lable"]}]}, "one of data, forget, label"),
        ({"tables": [{"name": "a", "columns": ["ra"], "rows": ["data"], "also": ["floor"]}]}, "add label"),
        ({"tables": [{"name": "../a", "columns": ["ra"]}]}, "plain names"),
        ({"figures": [{"name": "a", "table": "b"}]}, "a table for figure a"),
        ({"tables": [{"name": "a", "columns": ["ra"]}],
          "figures": [{"name": "f", "table": "a", "only": {"data": ["digits"]}}]}, "add data to the rows"),
        ({"tables": [{"name": "a", "columns": ["ra"]}],
          "figures": [{"name": "f", "table": "a", "only": {"label": ["retrian"]}}]}, "mean 'retrain'"),
        ({"tables": [{"name": "a", "columns": ["ra"]}],
          "figures": [{"name": "f", "table": "a", "columns": ["ta"]}]}, "a column of table a"),
        ({"figures": [{"name": "f"}]}, "table in figures of small.yaml"),
        ({"methods": [{"method": "purge", "search": {"rate": [1]}}]}, "search: {trials"),
        ({"search": {"trials": 2, "score": {"ra": 1}}}, "held-out training data"),
        ({"search": {"trials": 2, "score": {"raa": 1}}, "holdout": 0.1}, "did you mean 'ra'"),
        ({"search": {"trials": 2, "score": {"ta": 1}}, "holdout": 0.1}, "add it to metrics"),
        ({"search": {"trials": 2, "score": {"ra": 1}}, "holdout": 0.1,
          "methods": [{"method": "purge", "search": {"rate": {"low": 2, "high": 1}}}]}, "high} for rate"),
        ({"search": {"trials": 1, "score": {"ra": 1}}, "holdout": 0.1,
          "methods": [{"method": "purge", "search": {"rat": [1]}}]}, "did you mean 'rate'"),
        ({"search": {"trials": 2, "score": {"bn_recal": 1}}, "holdout": 0.1}, "a number of bn_recal"),
        ({"search": {"trials": 2, "score": {"lira.auroc": 1}}, "holdout": 0.1}, "without shadow models"),
        ({"search": {"trials": 2, "score": {"ra": 1}}, "holdout": 0.1, "retrains": 0}, "write retrains: 1"),
        ({"search": {"trials": 2, "score": {"agreement": 1}}, "holdout": 0.1, "retrains": 0,
          "metrics": ["agreement"]}, "a retrained model for agreement"),
        ({"search": {"trials": 2, "score": {"ra": 1}}, "holdout": 0.1,
          "tasks": [{"set": {"purge": {"rate": 0.5}}}, {"forget": [1]}]}, "one set of purge for all tasks"),
        ({"presets": "none.yaml"}, "nothing there"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PurgeError) as error:
        plan_of(tmp_path, **changes)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: digits\ndata: mnist\n", "'data' appears twice in line 1"),
        ("data: [\n", "YAML in"),
        ("- a\n- b\n", "keys and values"),
        ("", "keys and values"),
        ("about: 2024-13-45\n", "month must be in 1..12"),
    ],
)
def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(PurgeError, match=re.escape(words)):
        read_plan(tmp_path / "a.yaml")


def test_other_models_can_be_chosen_for_tables_and_figures(tmp_path: Path) -> None:
    table = {"name": "a", "columns": ["ra", "mia"], "only": {"label": ["purge", *PARTS.values()]}}
    figures = [{"name": "f", "table": "a", "only": {"label": [*PARTS.values()]}}]
    assert plan_of(tmp_path, tables=[table], figures=figures).figures


def test_metrics_of_several_numbers_are_known_by_their_parts() -> None:
    """Those of an audit, except relearning and shadow models, which take long."""
    train, test = images(Data("digits", per_class=20), None, None)
    forget, retain = cut(train, {"forget_classes": [0]})
    with seeded(0, torch.device("cpu")):
        model, original, retrained = (build_for("small-resnet", train) for _ in range(3))
    wanted = [name for name, m in METRICS.items() if m.cost != "shadow" and not name.startswith("relearn")]
    bad = {"truth": forget.labels, "triggered": test}
    auditor = Auditor(forget, retain, test, original=original, retrained=[retrained], check=False, **bad)
    found = auditor.audit(model, metrics=wanted, progress=False).to_dict()["values"]
    names = {name for name, value in found.items() if value["value"] is not None}
    assert {name.partition(".")[0] for name in names} >= {*wanted} - {"tpr_1pct", "tpr_01pct"}
    for name in names:
        check_value_name(name, "the audit")
    parts = {name for kind in wanted if METRICS[kind].parts != "classes" for name in METRICS[kind].names()}
    assert {name for name in parts if "tpr_" not in name} <= names  # there are too few samples for those
    for name in ("destinations", "destinations.all", "cka", "ta.0", "noise.2pct", "tpr_1pct"):
        with pytest.raises(PurgeError, match=f"a number of {name.partition('.')[0]} in table t"):
            check_value_name(name, "table t")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PurgeError, match="nothing there"):
        read_plan(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("goal", "word"),
    [
        ({"column": "ra", "most": 1}, "a goal for a column"),
        ({"column": "fa_test"}, "one of least, most and near"),
        ({"column": "fa_test", "most": 1, "near": 2}, "one of least, most and near"),
        ({"column": "fa_test", "most": "purge"}, "most in goals of tables of small"),
        ({"column": "fa_test", "mots": 1}, "most"),
    ],
)
def test_wrong_goals_are_refused(tmp_path: Path, goal: dict[str, Any], word: str) -> None:
    with pytest.raises(PurgeError, match=word):
        plan_of(tmp_path, tables=[{"name": "t", "columns": ["fa_test"], "goals": [goal]}])


def test_two_goals_for_one_column_are_refused(tmp_path: Path) -> None:
    goals = [{"column": "fa_test", "most": 0.1}, {"column": "fa_test", "least": 0.05}]
    with pytest.raises(PurgeError, match="one goal for fa_test in table t, got two"):
        plan_of(tmp_path, tables=[{"name": "t", "columns": ["fa_test"], "goals": goals}])
