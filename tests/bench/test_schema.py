"""What a bench's file may say, and that everything else is refused in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from purge.auditor import Auditor
from purge.bench.jobs import Data, read_plan
from purge.bench.models import images
from purge.bench.schema import PARTS
from purge.core.errors import PurgeError
from purge.engine.seeding import seeded
from purge.metrics.registry import METRICS, check_value_name
from purge.runs.folder import build_for
from purge.runs.requests import cut
from tests.bench.plans import plan_of
from tests.refusals import assert_sentence


def tables(*changes: dict[str, Any], **figure: Any) -> dict[str, Any]:
    """A file with tables of one column, changed, and with a figure."""
    content: dict[str, Any] = {"tables": [{"name": "a", "columns": ["ra"], **change} for change in changes]}
    return {**content, **({"figures": [{"name": "f", "table": "a", **figure}]} if figure else {})}


def goals(*wanted: dict[str, Any]) -> dict[str, Any]:
    return tables({"goals": [{"column": "ra", **goal} for goal in wanted]})


def sought(score: str = "ra", **changes: Any) -> dict[str, Any]:
    return {"search": {"trials": 2, "score": {score: 1}}, "holdout": 0.1, **changes}


def ranges(method: str, **search: Any) -> dict[str, Any]:
    return {"methods": [{"method": method, "search": search}]}


def based(method: str, **base: Any) -> dict[str, Any]:
    return {"methods": [{"method": method, "base": base}]}


REFUSED: dict[str, list[dict[str, Any]]] = {
    # a word that is none of those that there are
    "did you mean 'methods'": [{"metod": ["purge"]}],
    "did you mean 'seeds'": [{"seed": [0]}],
    "did you mean 'data'": [{"tasks": [{"dta": "digits"}]}],
    "did you mean 'digits'": [{"data": "digit"}, tables({"only": {"data": ["digit"]}})],
    "did you mean 'small-resnet'": [{"model": "small-resnt"}],
    "did you mean 'purge'": [{"methods": ["purg"]}, {"set": {"purg": {}}},
                             tables({"only": {"label": ["purg"]}})],
    "did you mean 'rate'": [{"set": {"purge": {"rat": 1}}},
                            {"methods": [{"method": "purge", "set": {"rat": 1}}]},
                            sought(**ranges("purge", rat=[1]))],
    "did you mean 'label'": [{"methods": [{"method": "purge", "lable": "a"}]}],
    "did you mean 'fa_test'": [{"metrics": ["fa_tset"]}, tables({"columns": ["fa_tst"]})],
    "did you mean 'epochs'": [{"recipe": {"epoch": 1}}, based("purge", epoch=5)],
    "did you mean 'ra'": [sought("raa")],
    "did you mean 'bn_recal.after'": [{"metrics": ["bn_recal"], **tables({"columns": ["bn_recal.aftr"]})}],
    "did you mean 'cifar10'": [tables({"paper": "cifar"})],
    "mean 'retrain'": [tables({}, only={"label": ["retrian"]})],
    "most": [goals({"mots": 1}), goals({"most": "purge"})],
    # a value of another type, or out of range
    "a number for rate": [{"set": {"purge": {"rate": "fast"}}}],
    "a list of whole numbers as seeds": [{"seeds": 0}, {"seeds": [True]}],
    "seeds >= 0 and <= 4000000000": [{"seeds": [-1]}, {"seeds": [2**32 - 1]}],
    "ids >= 0 in small.yaml, got -2": [{"forget": None, "ids": [3, -2]}],
    "holdout >= 0.01 and <= 0.5 in small.yaml, got 0.9": [{"holdout": 0.9}],
    "a number as holdout in small.yaml": [{"holdout": 10**400}],
    "retrains >= 0": [{"retrains": -1}],
    "a list of whole numbers or lists of whole numbers as forget": [{"forget": "each"}],
    "one of data, forget, label": [tables({"rows": ["lable"]})],
    "plain names": [tables({"name": "../a"})],
    "seconds > 0": [{"search": {"trials": 2, "score": {"ra": 1}, "seconds": 0}, "holdout": 0.1}],
    # something that is missing, twice, or too much
    "data in small.yaml": [{"data": None}],
    "data, methods and seeds in small.yaml": [
        {"data": []}, {"methods": None}, {"methods": []}, {"seeds": []},
    ],
    "a list of words or a Variant as methods": [{"methods": {"purge": {}}}],
    "rows and columns of table a": [tables({"rows": []}), tables({"columns": []})],
    "table in figures of small.yaml": [{"figures": [{"name": "f"}]}],
    "'purge' twice": [{"methods": ["purge", "purge"]}],
    "'retrain' twice": [{"methods": ["retrain"]}],
    "different names of tables": [tables({}, {})],
    "'ra' twice": [goals({"most": 0.1}, {"least": 0.05})],
    "one of least, most and near": [goals({}), goals({"most": 1, "near": 2})],
    "one of forget, fraction (and draw) and ids for digits": [
        {"forget": None}, {"forget": []}, {"forget": None, "ids": []}, {"fraction": 0.5}, {"draw": 0},
    ],
    "nothing there": [{"presets": "none.yaml"}],
    "a part of one GPU, or a whole number of them": [{"resources": {"gpus": 1.5}}],
    "memory > 0": [{"resources": {"memory": 0}}],
    "a Resources as resources": [{"resources": [1]}],
    # what does not fit the data or the jobs
    "some classes, but not all, from 0 to 9 of digits": [
        {"forget": [10]}, {"forget": [-1]}, {"forget": [0, []]}, {"forget": [[*range(10)]]},
    ],
    "from 0 of cifar100, got [-1]": [{"data": "cifar100", "forget": [-1]}],
    "one model for all tasks of digits": [{"tasks": [{"seeds": [0]}, {"model": "resnet18"}]}],
    "one size for all tasks of digits, got 8 and 16": [{"tasks": [{"size": 8}, {"size": 16}]}],
    "one holdout for all tasks": [{"tasks": [{"holdout": 0.1}, {}]}],
    "one lr for all tasks": [{"tasks": [{"recipe": {"lr": 0.5}}, {"recipe": {"epochs": 30}}]}],
    "a setting of Recipe": [based("purge", shards=5), based("purge", vote="majority")],
    "shards >= 2": [based("sisa", shards=1)],
    "a metric of the jobs": [tables({"columns": ["ta"]})],
    "a number of ra in table a": [tables({"columns": ["ra.after"]})],
    "bn_recal.before": [{"metrics": ["bn_recal"], **tables({"columns": ["bn_recal"]})}],
    "a forget of the jobs": [tables({"only": {"forget": ["1"]}})],
    "rows by label in table a": [tables({"rows": ["data"], "also": ["floor"]})],
    "a goal for a column of table a": [goals({"column": "fa_test", "most": 1})],
    "a table for figure f": [tables({}, table="b")],
    "only rows of table a in figure f": [tables({}, only={"data": ["digits"]})],
    "a column of table a": [tables({}, columns=["ta"])],
    # a search
    "search: {trials": [ranges("purge", rate=[1])],
    "held-out training data": [sought(holdout=None)],
    "add it to metrics": [sought("ta")],
    "high} for rate": [sought(**ranges("purge", rate={"low": 2, "high": 1}))],
    "a number of bn_recal": [sought("bn_recal")],
    "without shadow models": [sought("lira.auroc")],
    "write retrains: 1": [sought(retrains=0), sought("agreement", retrains=0, metrics=["agreement"])],
    "one set for all tasks": [sought(tasks=[{"set": {"purge": {"rate": 0.5}}}, {"forget": [1]}])],
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "changes"), [(words, one) for words, examples in REFUSED.items() for one in examples]
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, words: str, changes: dict[str, Any]) -> None:
    with pytest.raises(PurgeError) as error:
        plan_of(tmp_path, **changes)
    assert words in str(error.value)
    assert_sentence(str(error.value), "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "nothing there"),
        ("data: digits\ndata: mnist\n", "'data' appears twice in line 1"),
        ("data: [\n", "YAML in"),
        ("- a\n- b\n", "keys and values"),
        ("", "keys and values"),
        ("5: 1\n", "a key of a.yaml"),
        ("about: 2024-13-45\n", "month must be in 1..12"),
    ],
)
def test_a_file_that_is_not_yaml_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(PurgeError, match=re.escape(words)):
        read_plan(tmp_path / "a.yaml")


def test_other_models_can_be_chosen_for_tables_and_figures(tmp_path: Path) -> None:
    others = [*PARTS.values()]
    chosen = tables({"only": {"label": ["purge", *others]}}, only={"label": others})
    assert plan_of(tmp_path, **chosen).figures


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
