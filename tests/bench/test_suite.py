"""The plan of a bench, what it refuses, and the tables and figures made from results.

Nothing is trained here: results are written by hand, so that every number of a table is known.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from filelock import FileLock
from matplotlib.colors import to_hex
from safetensors.torch import save_file

from purge.api import Auditor
from purge.bench import dry_run as outlook
from purge.bench import figures as charts
from purge.bench import runner as suite
from purge.bench.expand import Data, Job, Plan, read_plan
from purge.bench.search import score_of, winners
from purge.bench.store import Place, cached, few_of_each, images, request_of, trained
from purge.bench.tables import (
    PARTS,
    SEVERAL,
    Cell,
    Drawing,
    Table,
    as_csv,
    as_latex,
    as_markdown,
    check_name,
    ours,
    paper,
    paper_rows,
    records,
    sheet,
    sheets,
)
from purge.core.errors import PurgeError
from purge.core.files import write_json
from purge.core.schema import read_yaml
from purge.engine.seeding import seeded
from purge.methods.registry import METHODS, resolve_method
from purge.metrics.registry import METRICS
from purge.runs.folder import build_for, cut

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
NAMES = [path.stem for path in CONFIGS]

SMALL: dict[str, Any] = {
    "data": "digits",
    "model": "small-resnet",
    "forget": [0],
    "metrics": ["fa_test", "ra", "mia"],
    "methods": ["purge", "finetune"],
}


def plan_of(tmp_path: Path, **changes: Any) -> Plan:
    """The plan of a small file with some keys changed; None takes a key out."""
    content = {k: v for k, v in {**SMALL, **changes}.items() if v is not None}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content))
    return read_plan(tmp_path / "small.yaml")


def place_of(folder: Path) -> Place:
    return Place(folder, folder / "models")


def test_of_two_benches_one_trains_and_the_other_waits(tmp_path: Path) -> None:
    """The other is played by this test, which has the lock and brings the model."""
    plan, place = plan_of(tmp_path, recipe={"epochs": 1}), place_of(tmp_path)
    training = plan.jobs[0].base
    folder = trained(training, place)
    made = (folder / "run.json").read_bytes()
    folder.rename(tmp_path / "elsewhere")
    with ThreadPoolExecutor(1) as pool:
        with FileLock(place.models / ".locks" / folder.name):
            waiting = pool.submit(trained, training, place)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            assert not folder.exists()
            (tmp_path / "elsewhere").rename(folder)
        assert waiting.result(timeout=30) == folder
    assert (folder / "run.json").read_bytes() == made


# -- the files of this repository ---------------------------------------------------------------


def test_there_is_a_file_for_every_experiment() -> None:
    assert set(NAMES) == {
        "paper22", "baselines_cifar10", "ablation", "sweep_budget", "sweep_target", "representation",
        "intra_epoch", "cosine", "cost", "low_data", "tuning", "tuned", "trials",
        "smoke",
    }  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_every_file_can_be_planned_without_its_data(path: Path, tmp_path: Path) -> None:
    """No data set is there (the tests have an empty cache), none is asked for, nothing is written."""
    plan = read_plan(path)
    steps = outlook.outlook(plan, place_of(tmp_path / "out"))
    assert sum(step.jobs for step in steps) == len(plan.jobs) + len(plan.trainings())
    assert all(step.seconds > 0 and step.done == 0 for step in steps)
    assert plan.about
    assert plan.tables
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_rows_of_the_paper_are_rows_of_ours(path: Path) -> None:
    """A label that is spelled otherwise than in paper.json would leave the paper's number out."""
    plan = read_plan(path)
    for table in plan.tables:
        labels = {PARTS[part] for part in table.also}
        rows = set()
        for job in plan.jobs:
            for label in {job.label} | labels:
                keys = {**job.keys, "label": label}
                rows.add(", ".join(str(keys[by]) for by in table.rows))
        theirs = paper_rows(table.paper)
        assert theirs.keys() <= rows, table.name
        for cells in theirs.values():
            assert cells.keys() <= set(table.columns), table.name


def test_every_table_of_the_paper_is_used() -> None:
    used = {table.paper for path in CONFIGS for table in read_plan(path).tables}
    assert used - {None} == set(paper())
    assert all(table["by"] and table["rows"] for table in paper().values())


def test_every_figure_of_the_paper_is_drawn() -> None:
    names = [figure.name for path in CONFIGS if path.stem != "smoke" for figure in read_plan(path).figures]
    assert len(names) == len(set(names))
    assert set(names) >= {
        "method_comparison", "before_after", "cross_dataset", "mia", "ra_preservation", "mnist_per_class",
        "pathmnist_per_class", "ablation", "representation", "pipeline",
    }  # fmt: skip


def test_the_22_tasks_of_the_paper_with_its_settings() -> None:
    plan = read_plan(CONFIGS[NAMES.index("paper22")])
    ours = [job for job in plan.jobs if job.label == "purge-paper"]
    tasks = {(job.data.name, *job.forget["classes"]) for job in ours}
    assert len(tasks) == 22
    assert {name: sum(t[0] == name for t in tasks) for name in ("mnist", "pathmnist")} == {
        "mnist": 10, "pathmnist": 9,
    }  # fmt: skip
    wanted = {  # lr, epochs, erasure, kd, clip, budget, gate, temperature: the paper's table
        "cifar10": (5e-4, 15, 0.05, 2.0, 1.0, 5.0, 0.0, 4.0),
        "mnist": (2e-4, 12, 0.03, 3.0, 1.0, 4.0, 0.0, 4.0),
        "svhn": (2e-4, 15, 0.03, 3.0, 1.0, 5.0, 0.0, 4.0),
        "stl10": (2e-4, 15, 0.05, 5.0, 1.0, 5.0, 0.0, 4.0),
        "pathmnist": (2e-4, 12, 0.03, 5.0, 1.0, 4.0, 0.0, 4.0),
    }
    for job in ours:
        m: Any = resolve_method(job.method, job.changes)
        found = (m.lr, m.epochs, m.erasure, m.kd, m.clip, m.stop.retain_budget, m.gate, m.temperature)
        assert found == wanted[job.data.name]
        assert (m.objective, m.space, m.norm, m.stop.check_every) == ("kl_retain", "gradient", "frozen", 50)
    assert {job.seed for job in ours if job.data.name == "cifar10"} == {0, 1, 2}


def test_baselines_are_all_methods() -> None:
    plan = read_plan(CONFIGS[NAMES.index("baselines_cifar10")])
    assert {job.method for job in plan.jobs} == METHODS.keys() - {"retrain"}


# -- jobs and what they share -------------------------------------------------------------------


def test_jobs_are_the_product_of_data_requests_methods_and_seeds(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, forget=[0, [1, 2]], seeds=[3, 4], retrains=2)
    keys = [(j.label, j.forget["classes"], j.seed) for j in plan.jobs]
    assert len(keys) == len({str(k) for k in keys}) == 2 * 2 * 2
    assert ("finetune", [1, 2], 4) in keys
    # two bases; for two requests and two seeds two references each, which the seeds share
    assert len(plan.trainings()) == 2 + 2 * 2
    seeds = {t.seed for t in plan.trainings()}
    assert seeds == {3, 4, 1003, 1004}
    references = {j.seed: [t.seed for t in j.retrained] for j in plan.jobs}
    assert references == {3: [1003, 1004], 4: [1004, 1003]}
    more = plan_of(tmp_path, forget=[0], seeds=[3, 4], retrains=3)
    references = {j.seed: [t.seed for t in j.retrained] for j in more.jobs}
    assert references == {3: [1003, 1004, 2003], 4: [1004, 1003, 2004]}
    assert len({job.id for job in plan.jobs}) == len(plan.jobs)
    assert all(re.fullmatch(r"[\w.+-]+", job.id) for job in plan.jobs)


@pytest.mark.parametrize(("seeds", "retrains"), [([0, 1000], 3), ([1000, 0, 2000], 5), ([7], 4)])
def test_every_reference_is_another_model(tmp_path: Path, seeds: list[int], retrains: int) -> None:
    jobs = plan_of(tmp_path, seeds=seeds, retrains=retrains).jobs
    for job in jobs:
        others = [t.seed for t in job.retrained]
        assert len({job.seed, *others}) == 1 + retrains
    assert {job.seed: job.retrained[0].seed for job in jobs} == {seed: 1000 + seed for seed in seeds}


def test_the_file_of_a_job_has_a_name_of_bounded_length(tmp_path: Path) -> None:
    for letter in "aα":
        variants = [{"method": "purge", "label": letter * 240, "set": {"lr": lr}} for lr in (0.01, 0.02)]
        jobs = plan_of(tmp_path, methods=variants[:1], seeds=[0, 1]).jobs
        jobs += plan_of(tmp_path, methods=variants[1:], forget=[list(range(9))]).jobs
        names = [place_of(tmp_path).file(job).name for job in jobs]
        assert len(set(names)) == 3
        assert all(150 < len(name.encode()) <= 200 for name in names)
        assert all(re.fullmatch(r"digits-[\w+-]+-[0-9a-f]{8}\.json", name) for name in names)
    long = plan_of(tmp_path, data="cifar100", forget=[list(range(80))]).jobs[0]
    assert len(long.id) <= 195
    assert long.keys["forget"].endswith("+78+79")  # tables have all of it


def test_labels_that_differ_only_where_a_file_name_cannot_are_refused(tmp_path: Path) -> None:
    def methods(*labels: str, **settings: Any) -> list[dict[str, Any]]:
        return [{"method": "purge", "label": label, "set": settings} for label in labels]

    for labels in (("a b", "a/b"), ("a" * 240 + "b", "a" * 240 + "c")):
        with pytest.raises(PurgeError, match="labels that differ in the names of files"):
            plan_of(tmp_path, methods=methods(*labels))
    assert len(plan_of(tmp_path, methods=[*methods("a b"), *methods("a/b", lr=0.5)]).jobs) == 2
    assert len(plan_of(tmp_path, data=["digits", "digits"], methods=["purge"]).jobs) == 1


def test_methods_share_their_models(tmp_path: Path) -> None:
    first, second = plan_of(tmp_path).jobs
    assert first.base.spec == second.base.spec
    assert [t.spec for t in first.retrained] == [t.spec for t in second.retrained]
    assert first.base.spec != first.retrained[0].spec


@pytest.mark.parametrize(
    "change",
    [
        {"model": "resnet18"}, {"recipe": {"epochs": 3}}, {"seeds": [1]}, {"size": 16}, {"per_class": 20},
        {"holdout": 0.2},
    ],
)  # fmt: skip
def test_another_model_has_another_digest(tmp_path: Path, change: dict[str, Any]) -> None:
    before, after = plan_of(tmp_path).jobs[0], plan_of(tmp_path, **change).jobs[0]
    assert before.base.spec != after.base.spec
    assert before.id != after.id


def test_a_job_is_known_by_all_that_its_result_depends_on(tmp_path: Path) -> None:
    plain = plan_of(tmp_path, methods=["purge"]).jobs[0]
    same = plan_of(tmp_path, methods={"purge": {}}, about="words change nothing").jobs[0]
    assert plain.id == same.id
    others = [
        plan_of(tmp_path, methods={"purge": {"lr": 0.5}}),
        plan_of(tmp_path, methods=["purge"], metrics=["ra"]),
        plan_of(tmp_path, methods=["purge"], retrains=2),
        plan_of(tmp_path, methods=["purge"], forget=[1]),
    ]
    assert len({plain.id, *(plan.jobs[0].id for plan in others)}) == 5


def test_a_changed_default_is_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan_of(tmp_path, methods=["purge"]).jobs[0].id
    changed = dataclasses.replace(METHODS["purge"].method, lr=0.123)  # type: ignore[call-arg]
    monkeypatch.setitem(METHODS, "purge", METHODS["purge"]._replace(method=changed))
    assert plan_of(tmp_path, methods=["purge"]).jobs[0].id != before


def test_what_a_task_says_goes_before_what_stands_above_it(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        data=None,
        seeds=[0, 1],
        methods=[{"method": "finetune", "set": {"lr": 0.5, "epochs": 3}}],
        tasks=[{"data": "digits", "seeds": [5], "set": {"finetune": {"lr": 0.25}}},
               {"data": "digits", "fraction": 0.1}],
    )  # fmt: skip
    first, *others = plan.jobs
    assert (first.seed, first.changes) == (5, {"lr": 0.25, "epochs": 3})
    assert [job.forget for job in others] == [{"fraction": 0.1, "seed": s} for s in (0, 1)]
    assert [job.changes for job in others] == [{"lr": 0.5, "epochs": 3}] * 2


def test_numbers_of_yaml_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 5e-4\nb: 1E3\nc: -2.5e+1\nd: 2e\ne: 12\n")
    assert read_yaml(tmp_path / "a.yaml") == {"a": 5e-4, "b": 1e3, "c": -25.0, "d": "2e", "e": 12}


# -- what is refused ------------------------------------------------------------------------------


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
        ({"methods": {"purge": {"lrr": 1}}}, "did you mean 'lr'"),
        ({"methods": {"purge": {"lr": "fast"}}}, "a number for lr"),
        ({"methods": [{"method": "purge", "lable": "a"}]}, "did you mean 'label'"),
        ({"methods": ["purge", "purge"]}, "'purge' twice"),
        ({"methods": ["retrain"]}, "labels other than"),
        ({"methods": None}, "methods in small.yaml"),
        ({"metrics": ["fa_tset"]}, "did you mean 'fa_test'"),
        ({"recipe": {"epoch": 1}}, "did you mean 'epochs'"),
        ({"seeds": 0}, "a list, each a whole number as seeds"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [-1]}, "whole number from 0"),
        ({"seeds": [True]}, "a list, each a whole number"),
        ({"seeds": [4294967295]}, "seeds up to 4294966295"),
        ({"seeds": [0, 4294966295], "retrains": 3}, "seeds up to 4294965295"),
        ({"forget": [10]}, "classes from 0 to 9"),
        ({"forget": "all"}, "one of each"),
        ({"forget": []}, "got an empty forget"),
        ({"forget": [0, []]}, "some classes of digits to forget, got none"),
        ({"forget": [[*range(10)]]}, "some classes of digits to forget, got all of them"),
        ({"data": "cifar100", "forget": [-1]}, "classes from 0 of cifar100, got -1"),
        ({"forget": None, "ids": [3, -2]}, "ids from 0, got -2"),
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
        ({"data": "cifar100", "forget": "each"}, "by number"),
        ({"holdout": 0.9}, "holdout from 0.01 to 0.5"),
        ({"holdout": 10**400}, "holdout from 0.01 to 0.5"),
        ({"retrains": -1}, "retrains from 0"),
        ({"set": {"purg": {"lr": 1}}}, "did you mean 'purge'"),
        ({"set": {"purge": {"lrr": 1}}}, "did you mean 'lr'"),
        ({"methods": ["sisa"]}, "base: {shards: 5}"),
        ({"methods": ["amnesiac"]}, "base: {log_updates: true}"),
        ({"methods": [{"method": "purge", "base": {"shards": 5}}]}, "no use for it"),
        ({"methods": [{"method": "sisa", "base": {"shards": 1}}]}, "shards from 2"),
        ({"methods": [{"method": "purge", "base": {"epoch": 5}}]}, "did you mean 'epochs'"),
        ({"methods": [{"method": "purge", "base": {"slices": 3}}]}, "shards beside slices"),
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
        ({"figures": [{"name": "f", "kind": "pipeline", "columns": ["ra"]}]}, "a column of table"),
        ({"methods": [{"method": "purge", "search": {"lr": [1]}}]}, "search: {trials"),
        ({"search": {"trials": 2, "score": {"ra": 1}}}, "held-out training data"),
        ({"search": {"trials": 2, "score": {"raa": 1}}, "holdout": 0.1}, "did you mean 'ra'"),
        ({"search": {"trials": 2, "score": {"ta": 1}}, "holdout": 0.1}, "add it to metrics"),
        ({"search": {"trials": 2, "score": {"ra": 1}}, "holdout": 0.1,
          "methods": [{"method": "purge", "search": {"lr": {"low": 2, "high": 1}}}]}, "{low, high} for lr"),
        ({"search": {"trials": 1, "score": {"ra": 1}}, "holdout": 0.1,
          "methods": [{"method": "purge", "search": {"lrr": [1]}}]}, "did you mean 'lr'"),
        ({"search": {"trials": 2, "score": {"bn_recal": 1}}, "holdout": 0.1}, "a number of bn_recal"),
        ({"search": {"trials": 2, "score": {"lira.auroc": 1}}, "holdout": 0.1}, "without shadow models"),
        ({"search": {"trials": 2, "score": {"ra": 1}}, "holdout": 0.1, "retrains": 0}, "write retrains: 1"),
        ({"search": {"trials": 2, "score": {"agreement": 1}}, "holdout": 0.1, "retrains": 0,
          "metrics": ["agreement"]}, "a retrained model for agreement"),
        ({"search": {"trials": 2, "score": {"ra": 1}}, "holdout": 0.1,
          "tasks": [{"set": {"purge": {"lr": 0.5}}}, {"forget": [1]}]}, "one set of purge for all tasks"),
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
        ("data: digits\ndata: mnist\n", "'data' stands twice in line 1"),
        ("data: [\n", "YAML in"),
        ("- a\n- b\n", "keys and values"),
        ("", "keys and values"),
        ("about: 2024-13-45\n", "month must be in 1..12"),
    ],
)
def test_what_is_no_yaml_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(PurgeError, match=re.escape(words)):
        read_plan(tmp_path / "a.yaml")


def test_settings_can_be_merged_from_another_place_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    path.write_text("a: &a {lr: 5e-2, epochs: 1}\nb: {<<: *a, epochs: 2}\nc: {<<: [*a, {kd: 3}]}\n")
    assert read_yaml(path) == {
        "a": {"lr": 0.05, "epochs": 1},
        "b": {"lr": 0.05, "epochs": 2},
        "c": {"lr": 0.05, "epochs": 1, "kd": 3},
    }
    path.write_text("a: &a {lr: 1}\nb: {<<: *a, epochs: 2, epochs: 3}\n")
    with pytest.raises(PurgeError, match="'epochs' stands twice in line 2"):
        read_yaml(path)


def test_folders_of_one_name_need_two_files(tmp_path: Path) -> None:
    folders = [tmp_path / parent / "images" for parent in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
    with pytest.raises(PurgeError, match="one data for all tasks of images"):
        plan_of(tmp_path, data=[*map(str, folders)])
    assert plan_of(tmp_path, data=["digits", str(folders[0])]).jobs


def test_a_task_may_have_few_images_beside_another_with_all(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, tasks=[{}, {"per_class": 20, "recipe": {"epochs": 3}}])
    assert {job.keys["data"] for job in plan.jobs} == {"digits", "digits 20/class"}


def test_other_models_can_be_chosen_for_tables_and_figures(tmp_path: Path) -> None:
    table = {"name": "a", "columns": ["ra", "mia"], "only": {"label": ["purge", *PARTS.values()]}}
    figures = [{"name": "f", "table": "a", "only": {"label": [*PARTS.values()]}},
               {"name": "g", "kind": "pipeline"}]  # fmt: skip
    assert plan_of(tmp_path, tables=[table], figures=figures).figures


def test_metrics_of_several_numbers_are_known_by_their_parts() -> None:
    """Those of an audit, but for relearning, which takes long, and for shadow models."""
    train, test = images(Data("digits", per_class=20), None, None)
    forget, retain = cut(train, {"forget_classes": [0]})
    with seeded(0, torch.device("cpu")):
        model, original, retrained = (build_for("small-resnet", train) for _ in range(3))
    wanted = [name for name, m in METRICS.items() if m.cost != "shadow" and not name.startswith("relearn")]
    auditor = Auditor(forget, retain, test, original=original, retrained=[retrained])
    found = auditor.audit(model, metrics=wanted, progress=False).to_dict()["values"]
    names = {name for name, value in found.items() if value["value"] is not None}
    assert {name.partition(".")[0] for name in names} >= {*wanted} - {"tpr_1pct", "tpr_01pct"}
    for name in names:
        check_name(name, "the audit")
    told = {f"{metric}.{part}" for metric, parts in SEVERAL.items() for part in parts if metric in wanted}
    assert {name for name in told if not name.startswith("tpr")} <= names
    for name in ("destinations", "destinations.all", "cka", "ta.0", "noise.2pct", "tpr_1pct"):
        with pytest.raises(PurgeError, match=f"a number of {name.partition('.')[0]} in table t"):
            check_name(name, "table t")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PurgeError, match="nothing there"):
        read_plan(tmp_path / "a.yaml")


# -- searching ------------------------------------------------------------------------------------

SEARCH: dict[str, Any] = {
    "holdout": 0.2,
    "search": {"trials": 5, "score": {"ra": 1, "fa_test": 2}},
    "methods": [
        {"method": "finetune", "set": {"batch_size": 64},
         "search": {"lr": {"low": 1e-3, "high": 0.1, "log": True}, "epochs": {"low": 2, "high": 9},
                    "norm": ["frozen", "train"]}},
        {"method": "purge", "search": {"kd": {"low": 0, "high": 4}}},
    ],
}  # fmt: skip


def test_every_method_has_the_same_number_of_trials_and_begins_as_it_is(tmp_path: Path) -> None:
    jobs = plan_of(tmp_path, **SEARCH).jobs
    trials = {of: [job for job in jobs if job.trial_of == of] for of in ("finetune", "purge")}
    assert [len(of) for of in trials.values()] == [5, 5]
    assert trials["finetune"][0].changes == {"batch_size": 64}
    drawn = [job.changes for job in trials["finetune"][1:]]
    assert all(1e-3 <= d["lr"] <= 0.1 and d["batch_size"] == 64 for d in drawn)
    assert all(isinstance(d["epochs"], int) and 2 <= d["epochs"] <= 9 for d in drawn)
    assert len({d["lr"] for d in drawn}) == 4
    assert len(plan_of(tmp_path, **SEARCH).trainings()) == 2  # one base and one reference for all trials


def test_a_search_is_drawn_from_its_seed(tmp_path: Path) -> None:
    def drawn(seed: int) -> list[dict[str, Any]]:
        search = {**SEARCH["search"], "seed": seed}
        return [job.changes for job in plan_of(tmp_path, **{**SEARCH, "search": search}).jobs]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


def test_a_setting_that_may_be_any_number_is_drawn_as_such(tmp_path: Path) -> None:
    ranges = {
        "kd": {"low": 0, "high": 1},
        "forget_target": {"low": 0, "high": 1},
        "epochs": {"low": 1, "high": 9},
    }
    methods = [{"method": "purge", "search": ranges}]
    trials = [job.changes for job in plan_of(tmp_path, **{**SEARCH, "methods": methods}).jobs[1:]]
    for key in ("kd", "forget_target"):
        assert all(isinstance(t[key], float) and 0 < t[key] < 1 for t in trials)
    assert all(isinstance(t["epochs"], int) for t in trials)


def test_a_search_over_tasks_with_the_same_set(tmp_path: Path) -> None:
    own = {"set": {"purge": {"lr": 0.5}}}
    plan = plan_of(tmp_path, **SEARCH, tasks=[{**own, "forget": [0]}, {**own, "forget": [1]}])
    assert {job.changes["lr"] for job in plan.jobs if job.trial_of == "purge"} == {0.5}


def test_no_method_of_the_tuning_has_more_trials_than_another() -> None:
    jobs = read_plan(CONFIGS[NAMES.index("tuning")]).jobs
    counts = {of: sum(job.trial_of == of for job in jobs) for of in {job.trial_of for job in jobs}}
    assert set(counts.values()) == {6}
    assert {job.data.holdout for job in jobs} == {0.1}


def test_the_score_is_the_distance_to_the_aims() -> None:
    report = {
        "values": {"ra": {"value": 0.9}, "kl_retrain": {"value": 0.5}, "bn_recal.after": {"value": 0.3}},
        "retrained": {"ra": {"value": 0.95}, "bn_recal.after": {"value": 0.1}},
    }
    weights = {"ra": 2, "kl_retrain": 0.1, "bn_recal.after": 1}
    assert score_of(weights, report) == pytest.approx(2 * 0.05 + 0.1 * 0.5 + 0.2)
    report["values"]["ra"] = {"value": None}  # type: ignore[dict-item]
    assert score_of(weights, report) is None


def test_the_best_trial_wins_unless_it_failed_somewhere() -> None:
    def result(trial: int, score: float | None, seed: int = 0) -> dict[str, Any]:
        made = {
            "label": f"a #{trial}",
            "trial_of": "a",
            "method": "m",
            "changes": {"lr": trial},
            "seed": seed,
        }
        return made | ({"error": "x"} if score is None else {"numbers": {"score": score}})

    results = [
        result(0, 0.5), result(0, 0.5, 1), result(1, 0.1), result(1, None, 1), result(2, 0.2),
        result(2, 0.6, 1), {"label": "b", "trial_of": ""},
    ]  # fmt: skip
    (winner,) = winners(results)
    assert (winner["label"], winner["trial"], winner["set"]) == ("a", "a #2", {"lr": 2})
    assert winner["score"] == pytest.approx(0.4)
    assert winner["first_score"] == pytest.approx(0.5)
    assert winner["trials"] == 3


def test_presets_are_settings_of_a_later_file(tmp_path: Path) -> None:
    presets = {"methods": [{"method": "finetune", "label": "finetune", "set": {"lr": 0.5}, "score": 1.0}]}
    (tmp_path / "presets.yaml").write_text(yaml.safe_dump(presets))
    plan = plan_of(tmp_path, presets="presets.yaml", methods=["purge", {"method": "finetune"}])
    assert [job.changes for job in plan.jobs] == [{}, {"lr": 0.5}]
    with pytest.raises(PurgeError, match="a label of methods in presets"):
        plan_of(tmp_path, presets="presets.yaml", methods=["purge"])


@pytest.mark.parametrize(
    "row",
    ["{label: purge, set: }", "{label: purge, set: 5}", "{label: 5, set: {}}", "{label: [purge], set: {}}",
     "{label: purge, set: {5: 1}}", "{set: {}}", "5"],
)  # fmt: skip
def test_presets_of_another_form_are_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "presets.yaml").write_text(f"methods:\n  - {row}\n")
    with pytest.raises(PurgeError, match="methods with label and set"):
        plan_of(tmp_path, presets="presets.yaml")


# -- data -----------------------------------------------------------------------------------------


def test_few_of_each_class() -> None:
    labels = torch.tensor([0] * 10 + [1] * 20)
    mask = few_of_each(labels, lambda n: n // 5)
    assert [int(mask[labels == c].sum()) for c in (0, 1)] == [2, 4]
    assert torch.equal(mask, few_of_each(labels, lambda n: n // 5))
    with pytest.raises(PurgeError, match="10 of class 0"):
        few_of_each(labels, lambda n: 11)


def test_held_out_images_are_training_images_that_are_not_trained_with() -> None:
    train, test = images(Data("digits"), None, None)
    kept, held = images(Data("digits", holdout=0.2), None, None)
    assert held.source == train.source != test.source  # not one image of the test part
    assert not set(kept.ids.tolist()) & set(held.ids.tolist())
    assert len(kept) + len(held) == len(train)
    counts = torch.bincount(held.labels) / torch.bincount(train.labels)
    assert all(0.17 < share < 0.23 for share in counts.tolist())


def test_a_single_image_of_a_class_cannot_be_held_out() -> None:
    with pytest.raises(PurgeError, match="two training images of each class to hold one out"):
        images(Data("digits", per_class=1, holdout=0.1), None, None)
    kept, held = images(Data("digits", per_class=2, holdout=0.5), None, None)
    assert len(kept) == len(held) == 10


def test_a_small_part_of_each_class() -> None:
    few, test = images(Data("digits", per_class=20, size=16), None, None)
    assert torch.bincount(few.labels).tolist() == [20] * 10
    assert few.shape == (1, 16, 16)
    assert len(test) == len(images(Data("digits"), None, None)[1])


def test_a_fraction_is_drawn_by_its_seed() -> None:
    train, _ = images(Data("digits"), None, None)
    ids = [request_of({"fraction": 0.1, "seed": s}, train)["forget_ids"] for s in (0, 0, 1)]
    assert len(ids[0]) == round(0.1 * len(train))
    assert ids[0] == ids[1] != ids[2]
    assert request_of({}, train) == {}


# -- tables ---------------------------------------------------------------------------------------


def result_of(job: Job, values: dict[str, float | None], **numbers: float) -> dict[str, Any]:
    """A result as a job leaves it, with numbers of our choice for the model and its references."""

    def part(shift: float) -> dict[str, Any]:
        return {k: {"value": None if v is None else v + shift, "why": ""} for k, v in values.items()}

    return {
        **job.keys, "values": part(0), "retrained": part(0.25), "original": part(0.5), "floor": part(0.125),
        "numbers": {"seconds": 2.0, "retrain_seconds": 8.0, **numbers}, "trial_of": "",
        "hardware": {"gpu": "G1", "machine": "m", "cpus": 1}, "commit": "abc",
    }  # fmt: skip


def test_a_cell_is_the_mean_and_the_range_over_seeds(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0, 1], methods=["purge-paper", "finetune"])
    values = {"purge-paper": (0.1, 0.3), "finetune": (0.5, None)}
    found = [result_of(j, {"fa_test": values[j.label][j.seed], "ra": 0.75}) for j in plan.jobs]
    table = Table("t", ["fa_test", "ra", "seconds"], also=["retrained"], paper="cifar10")
    made = sheet(table, records([j.keys for j in plan.jobs], found))
    assert list(made.rows) == [("retrain",), ("purge-paper",), ("finetune",)]
    cell = made.rows["purge-paper",]["fa_test"]
    assert cell[:4] == pytest.approx((0.2, 0.1, 0.3, 2))
    assert cell.paper == pytest.approx(0.084)
    assert made.rows["finetune",]["fa_test"][:4] == pytest.approx((0.5, 0.5, 0.5, 1))
    # the reference of a seed is counted once, though two jobs were compared with it
    assert made.rows["retrain",]["ra"][:4] == pytest.approx((1.0, 1.0, 1.0, 2))
    assert made.rows["retrain",]["seconds"].mean == 8.0
    assert as_markdown(made).splitlines()[:5] == [
        "| method | FA | paper | RA | paper | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
        "| retrain | 45.0 % (35.0 – 55.0 %) | 0.0 % | 100.0 % | 100.0 % | 8.00 |",
        "| purge-paper | 20.0 % (10.0 – 30.0 %) | 8.4 % | 75.0 % | 96.3 % | 2.00 |",
        "| finetune | 50.0 % | 68.3 % | 75.0 % | 99.9 % | 2.00 |",
    ]


def test_a_job_that_failed_leaves_a_dash_beside_the_papers_number(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods=["purge-paper", "salun"])
    good, bad = plan.jobs
    found = [result_of(good, {"ra": 0.5}), {**bad.keys, "error": "no room", "kind": "OSError"}]
    made = sheet(Table("t", ["ra"], paper="cifar10"), records([j.keys for j in plan.jobs], found))
    assert as_markdown(made).splitlines()[3] == "| salun | – | 99.4 % |"


def test_tables_by_data_and_only_some_jobs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, forget=[0, 1])
    found = [result_of(j, {"ra": 0.25 * (j.forget["classes"][0] + 1)}) for j in plan.jobs]
    made = records([j.keys for j in plan.jobs], found)
    by_data = sheet(Table("t", ["ra"], rows=["data", "label"], also=["original"]), made)
    assert {k: row["ra"][:3] for k, row in by_data.rows.items()} == {
        ("digits", "original"): (0.875, 0.75, 1.0),
        ("digits", "purge"): (0.375, 0.25, 0.5),
        ("digits", "finetune"): (0.375, 0.25, 0.5),
    }
    some = sheet(Table("t", ["ra"], rows=["forget"], only={"label": ["purge"], "forget": ["1"]}), made)
    assert {k: row["ra"].mean for k, row in some.rows.items()} == {("1",): 0.5}


def test_goals_are_met_or_missed_by_so_much(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0, 1], methods=["purge", "finetune"])
    ours = {"purge": (0.5, 0.6), "finetune": (0.9, 0.9)}
    found = [
        result_of(j, {"agreement": ours[j.label][j.seed], "mia": 0.5, "fa_test": 0.0}) for j in plan.jobs
    ]
    for one, other in zip(found[::2], found[1::2], strict=True):  # jobs of a seed share their references
        other["floor"] = one["floor"]
    goals: list[dict[str, Any]] = [
        {
            "column": "agreement",
            "least": "floor",
            "slack": 0.05,
        },  # which is .125 above the first job's
        {"column": "mia", "near": "retrained", "slack": 0.2},
        {"column": "fa_test", "most": 0.005},
        {"column": "seconds", "most": 1},
    ]
    table = Table("t", ["agreement", "mia", "fa_test", "seconds"], also=["floor"], goals=goals)
    made = sheet(table, records([j.keys for j in plan.jobs], found))
    assert made.aims == pytest.approx({"agreement": 0.675, "mia": 0.75, "fa_test": 0.005, "seconds": 1.0})
    rows = {k[0]: {c: cell.missed_by for c, cell in row.items()} for k, row in made.rows.items()}
    assert rows["purge"] == pytest.approx({"agreement": 0.075, "mia": 0.05, "fa_test": 0.0, "seconds": 1.0})
    assert rows["finetune"]["agreement"] == 0.0
    assert set(rows["floor"].values()) == {None}
    lines = as_markdown(made).splitlines()
    assert lines[0].endswith("| seconds | goals met |")
    assert lines[2] == "| aim | ≥ 62.5 % | 0.750 ± 0.200 | ≤ 0.5 % | ≤ 1.00 |  |"
    assert lines[4].startswith("| purge | 55.0 % (50.0 – 60.0 %) ✗ by 7.5 % | 0.500 ✗ by 0.050 | 0.0 % ✓ |")
    assert lines[4].endswith("| 1 of 4 |")
    assert r"$\geq$ 62.5 \%" in as_latex(made)
    row = next(r for r in csv.DictReader(io.StringIO(as_csv(made))) if r["label"] == "purge")
    assert float(row["seconds.missed_by"]) == 1.0


def test_a_row_is_judged_by_the_models_that_it_was_compared_with(tmp_path: Path) -> None:
    """A bench that was gone on with after its retrained models were lost has rows with others."""
    plan = plan_of(tmp_path, methods=["purge", "finetune", "random-label"])
    found = [result_of(j, {"agreement": 0.5}) for j in plan.jobs]
    for result, floor in zip(found, (0.5, 0.5, 0.75), strict=True):
        result["floor"] = {"agreement": {"value": floor, "why": ""}}
    table = Table("t", ["agreement"], also=["floor"], goals=[{"column": "agreement", "least": "floor"}])
    made = sheet(table, records([j.keys for j in plan.jobs], found), "Ours.")
    rows = {k[0]: row["agreement"].missed_by for k, row in made.rows.items()}
    assert rows == {"floor": None, "purge": 0.0, "finetune": 0.0, "random-label": 0.25}
    assert made.aims == {"agreement": 0.5}
    assert made.note == "Ours. Compared with other retrained models than those shown: random-label."


def test_a_goal_that_is_missed_by_less_than_is_printed_is_missed_narrowly() -> None:
    cells = [Cell(0.948, 0.948, 0.948, 1, None, missed_by=by) for by in (0.0, 0.0004, 0.0006)]
    assert [ours("ta", cell) for cell in cells] == ["94.8 % ✓", "94.8 % ✗ narrowly", "94.8 % ✗ by 0.1 %"]
    assert ours("kl_retrain", Cell(9.14e9, 600.9, 1.2e10, 2, None)) == "9.1e+09 (600.900 – 1.2e+10)"


@pytest.mark.parametrize(
    ("goal", "word"),
    [
        ({"column": "ra", "most": 1}, "a goal for a column"),
        ({"column": "fa_test"}, "one of least, most and near"),
        ({"column": "fa_test", "most": 1, "near": 2}, "one of least, most and near"),
        ({"column": "fa_test", "most": "purge"}, "most in goals of table t"),
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


def test_rows_of_one_data_set_stand_together_its_other_models_first(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, forget=[0, 1])
    found = [result_of(j, {"ra": 0.5}) for j in plan.jobs]
    made = records([j.keys for j in plan.jobs], found)
    table = sheet(Table("t", ["ra"], rows=["forget", "label"], also=["original", "retrained"]), made)
    labels = ["original", "retrain", *dict.fromkeys(j.label for j in plan.jobs)]
    assert list(table.rows) == [(c, label) for c in "01" for label in labels]


def test_latex_and_csv(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods=[{"method": "purge", "label": "50 % & α_1"}])
    found = [result_of(plan.jobs[0], {"ra": 1 / 3, "mia": 0.5})]
    table = Table("name", ["ra", "mia"], title="100 % of it", paper="before_after")
    made = sheet(table, records([plan.jobs[0].keys], found), "A note.")
    latex = as_latex(made)
    assert r"50 \% \& $\alpha$\_1 & 33.3 \% & 0.500 \\" in latex
    assert r"\begin{tabular}{lrr}" in latex
    assert r"\caption{100 \% of it. A note.}" in latex
    assert latex.count("{") == latex.count("}")
    (row,) = csv.DictReader(io.StringIO(as_csv(made)))
    assert row["label"] == "50 % & α_1"
    assert float(row["ra"]) == 1 / 3
    assert (row["ra.n"], row["ra.paper"]) == ("1", "")


def test_shares_of_the_paper_are_fractions() -> None:
    rows = paper_rows("ablation")
    wanted = {"ta": 0.891, "fa_test": 0.586, "ra": 0.962, "mia": 0.262, "gated": 0.98}
    assert rows["gate 0.9"] == pytest.approx(wanted)
    assert paper_rows("cost")["cifar10, purge-paper"] == {"seconds": 200, "steps": 70, "speedup": 13}
    assert paper_rows(None) == {}


# -- a bench that is finished, made by hand -------------------------------------------------------


def finished(path: Path, out: Path) -> Plan:
    """The results that a file asks for, invented."""
    plan = read_plan(path)
    place = place_of(out)
    (out / "jobs").mkdir(parents=True)
    suite._write_manifest(plan, place)
    for i, job in enumerate(plan.jobs):
        names = {c for t in plan.tables for c in t.columns}
        values: dict[str, float | None] = {name: ((7 * i + len(name)) % 10) / 20 for name in sorted(names)}
        write_json(place.file(job), result_of(job, values, steps=i, speedup=4.0, gated=0.5, score=0.1 * i))
    return plan


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_tables_and_figures_of_every_file_can_be_made(path: Path, tmp_path: Path) -> None:
    plan = finished(path, tmp_path / "out")
    found = sheets(tmp_path / "out")
    assert list(found) == [table.name for table in plan.tables]
    for made in found.values():
        assert made.rows
        cells = [cell for row in made.rows.values() for cell in row.values()]
        assert all(cell.n for cell in cells if cell.paper is not None)
        assert "commit abc" in as_markdown(made)
    for drawing in plan.figures:
        figure = charts.draw(drawing, found)
        panels = [ax for ax in figure.axes if ax.axison]
        assert len(panels) == (0 if drawing.kind == "pipeline" else len(drawing.columns or
                               found[drawing.table].table.columns))  # fmt: skip


def test_a_figure_shows_the_numbers_of_its_table(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[0, 1], methods=["purge-paper", "finetune"])
    found = [result_of(j, {"ra": {0: 0.5, 1: 0.75}[j.seed]}) for j in plan.jobs]
    table = Table("t", ["ra"], paper="cifar10")
    made = {"t": sheet(table, records([j.keys for j in plan.jobs], found))}
    (ax,) = charts.draw(Drawing("f", "t"), made).axes
    heights = [[round(bar.get_height(), 6) for bar in c] for c in ax.containers if hasattr(c, "patches")]
    assert heights == [[62.5, 62.5], [96.3, 99.9]]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["purge-paper", "finetune"]
    (ax,) = charts.draw(Drawing("f", "t", kind="lines", only={"label": ["finetune"]}), made).axes
    lines = [list(line.get_ydata()) for line in ax.lines if line.get_linestyle() in ("-", "--")]
    assert lines == [[62.5], pytest.approx([99.9])]
    (ax,) = charts.draw(Drawing("f", "t", only={"label": ["salun"]}), made).axes
    assert [text.get_text() for text in ax.texts] == ["no job has such a row"]


def test_a_figure_shows_what_is_aimed_at_and_explains_what_needs_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, methods=["purge", "finetune"])
    found = [result_of(j, {"ra": 0.5, "fa_test": 0.25}) for j in plan.jobs]
    table = Table("t", ["ra", "fa_test"], goals=[{"column": "ra", "least": 0.875}])
    made = {"t": sheet(table, records([j.keys for j in plan.jobs], found))}
    aimed, without = charts.draw(Drawing("f", "t"), made).axes
    level = [line.get_ydata()[0] for line in aimed.lines if line.get_label() == "what is aimed at"]
    assert level == [87.5]
    assert "what is aimed at" not in without.get_legend_handles_labels()[1]
    assert charts.draw(Drawing("f", "t"), made).legends
    assert not charts.draw(Drawing("f", "t", columns=["fa_test"]), made).legends  # one colour, "ours"


def test_no_two_series_of_a_figure_look_the_same(tmp_path: Path) -> None:
    labels = ["purge-paper", "purge", *(f"label {i}" for i in range(11))]
    settings = [
        {"method": "purge", "label": label, "set": {"lr": 0.01 + 0.001 * i}} for i, label in enumerate(labels)
    ]
    plan = plan_of(tmp_path, methods=settings)
    jobs = [{**job.keys, "data": data} for job in plan.jobs for data in ("cifar10", "mnist")]
    found = [
        {**result_of(plan.jobs[0], {"fa_test": 0.5}), **keys, "id": f"{keys['id']} {keys['data']}"}
        for keys in jobs
    ]
    made = records([{**keys, "id": f"{keys['id']} {keys['data']}"} for keys in jobs], found)
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


def test_numbers_of_several_orders_are_drawn_on_a_logarithmic_axis(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    numbers = {"purge": (0.5, 1.0), "finetune": (60.0, 2.0)}
    found = [
        result_of(j, {"ra": 0.001 if j.label == "purge" else 1.0}, seconds=numbers[j.label][0],
                  steps=numbers[j.label][1]) for j in plan.jobs
    ]  # fmt: skip
    made = {"t": sheet(Table("t", ["seconds", "steps", "ra"]), records([j.keys for j in plan.jobs], found))}
    axes = charts.draw(Drawing("f", "t"), made).axes
    assert [ax.get_yscale() for ax in axes[:3]] == ["log", "linear", "linear"]


def test_files_are_made_from_the_results_alone(tmp_path: Path) -> None:
    """The folder may have been copied: no configuration, no model, no data is looked at."""
    out = tmp_path / "out"
    finished(CONFIGS[NAMES.index("sweep_budget")], out)
    files = suite.make(out)
    assert sorted(str(f.relative_to(out)) for f in files) == [
        "figures/sweep_budget.png", "figures/sweep_budget.svg", "tables/sweep_budget.csv",
        "tables/sweep_budget.md", "tables/sweep_budget.tex",
    ]  # fmt: skip
    assert files[-2].read_bytes()[1:4] == b"PNG"
    before = {f: f.read_bytes() for f in files}
    assert {f: f.read_bytes() for f in suite.make(out)} == before
    text = (out / "tables" / "sweep_budget.md").read_text()
    assert "| α = 1.5 |" in text
    assert "85.4 %" in text  # the paper's
    (out / "bench.json").write_text("{}")
    with pytest.raises(PurgeError, match=r"another bench\.json"):
        suite.make(out)


# -- estimates ------------------------------------------------------------------------------------


def test_estimates_come_from_what_was_measured(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, recipe={"epochs": 10}, seeds=[0, 1])
    place = place_of(tmp_path / "out")
    guess = outlook.outlook(plan, place)
    assert guess[0].seconds == pytest.approx(10 * outlook.IMAGES * outlook.VISIT_SECONDS)
    base = plan.trainings()[0]
    folder = place.models / f"{base.spec}-12345678"
    folder.mkdir(parents=True)
    save_file({}, folder / "model.safetensors")
    write_json(
        folder / "run.json",
        {"data": "digits", "seconds": 30.0, "samples": 1000, "settings": {"epochs": 10}},
    )
    (tmp_path / "out" / "jobs").mkdir()
    done = {**result_of(plan.jobs[0], {"ra": 0.5}), "wall_seconds": 7.0}
    write_json(place.file(plan.jobs[0]), done)
    assert cached(base, place.models) == folder
    steps = {step.what: step for step in outlook.outlook(plan, place)}
    assert steps[f"train {base}"][1:] == (1, 1, 0.0)
    other = plan.trainings()[1]
    assert steps[f"train {other}"].seconds == pytest.approx(10 * outlook.IMAGES * 30 / 10_000)
    assert steps["digits 0: purge"][1:] == (2, 1, 7.0)
    assert steps["digits 0: finetune"][1:] == (2, 0, 14.0)


def test_the_state_of_a_training_is_no_model(tmp_path: Path) -> None:
    base = plan_of(tmp_path).trainings()[0]
    folder = tmp_path / f"{base.spec}-12345678"
    folder.mkdir()
    save_file({}, folder / "model.safetensors")
    assert cached(base, tmp_path) is None
    (folder / "run.json").write_text("{}")
    assert cached(base, tmp_path) == folder
    (folder / "state.safetensors").write_text("")
    assert cached(base, tmp_path) is None


def test_paper_json_is_plain(tmp_path: Path) -> None:
    text = (Path(suite.__file__).parent / "paper.json").read_text()
    numbers = [
        v for t in json.loads(text)["tables"].values() for row in t["rows"].values() for v in row.values()
    ]
    assert len(numbers) > 150
    assert all(isinstance(v, (int, float)) for v in numbers)
