"""From a file to jobs: what a job is known by and which models jobs share."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from purge.bench.models import images, request_of
from purge.core.errors import PurgeError
from purge.methods.registry import METHODS
from tests.bench.plans import place_of, plan_of


def references(jobs: Any) -> dict[int, list[int]]:
    """The seeds of the retrained models by that of their jobs."""
    return {job.seed: [t.seed for t in job.retrained] for job in jobs}


def test_jobs_are_the_product_of_data_requests_methods_and_seeds(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, forget=[0, [1, 2]], seeds=[3, 4], retrains=2)
    keys = [(j.label, j.forget["classes"], j.seed) for j in plan.jobs]
    assert len({str(k) for k in keys}) == len({job.id for job in plan.jobs}) == len(plan.jobs) == 2 * 2 * 2
    assert ("finetune", [1, 2], 4) in keys
    # two bases; for two requests and two seeds two references each, which the seeds share
    assert len(plan.trainings()) == 2 + 2 * 2
    assert {t.seed for t in plan.trainings()} == {3, 4, 1003, 1004}
    assert references(plan.jobs) == {3: [1003, 1004], 4: [1004, 1003]}
    more = plan_of(tmp_path, forget=[0], seeds=[3, 4], retrains=3)
    assert references(more.jobs) == {3: [1003, 1004, 2003], 4: [1004, 1003, 2004]}
    first, second = plan.jobs[:2]  # methods share their models
    assert (first.label, second.label) == ("purge", "finetune")
    assert [t.spec for t in first.trainings] == [t.spec for t in second.trainings]


@pytest.mark.parametrize(("seeds", "retrains"), [([0, 1000], 3), ([1000, 0, 2000], 5), ([7], 4)])
def test_every_reference_is_another_model(tmp_path: Path, seeds: list[int], retrains: int) -> None:
    others = references(plan_of(tmp_path, seeds=seeds, retrains=retrains).jobs)
    assert all(len({seed, *others[seed]}) == 1 + retrains for seed in seeds)
    assert {seed: others[seed][0] for seed in seeds} == {seed: 1000 + seed for seed in seeds}


def test_a_fraction_that_is_drawn_once_is_the_same_request_for_all_seeds(tmp_path: Path) -> None:
    apart, same = (
        plan_of(tmp_path, forget=None, fraction=0.1, seeds=[0, 1, 2], retrains=3, draw=draw)
        for draw in (None, 5)
    )
    assert [j.forget["seed"] for j in apart.jobs[::2]] == [0, 1, 2]
    assert {j.forget["seed"] for j in same.jobs} == {5}
    assert len(apart.trainings()) == 3 + 3 * 3
    assert len(same.trainings()) == 3 + 3
    assert references(same.jobs) == {0: [1000, 1001, 1002], 1: [1001, 1002, 1000], 2: [1002, 1000, 1001]}
    data, _ = images(same.jobs[0].data, None, None)
    counts = [len({str(request_of(j.forget, data)) for j in plan.jobs}) for plan in (apart, same)]
    assert counts == [3, 1]
    assert len(request_of(same.jobs[0].forget, data)["forget_ids"]) == round(0.1 * len(data))
    assert request_of({}, data) == {}


def test_the_file_of_a_job_has_a_name_of_bounded_length(tmp_path: Path) -> None:
    for letter in "aα":
        variants = [{"method": "purge", "label": letter * 240, "set": {"kd": kd}} for kd in (0.01, 0.02)]
        jobs = plan_of(tmp_path, methods=variants[:1], seeds=[0, 1]).jobs
        jobs += plan_of(tmp_path, methods=variants[1:], forget=[list(range(9))]).jobs
        names = [place_of(tmp_path).file(job).name for job in jobs]
        assert len(set(names)) == 3
        assert all(150 < len(name.encode()) <= 200 for name in names)
        assert all(re.fullmatch(r"digits-[\w+-]+-[0-9a-f]{8}\.json", name) for name in names)
    long = plan_of(tmp_path, data="cifar100", forget=[list(range(80))]).jobs[0]
    assert len(long.id) <= 195
    assert long.keys["forget"].endswith("+78+79")  # tables have all of it


def test_labels_that_file_names_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    def methods(*labels: str, **settings: Any) -> list[dict[str, Any]]:
        return [{"method": "purge", "label": label, "set": settings} for label in labels]

    for labels in (("a b", "a/b"), ("a" * 240 + "b", "a" * 240 + "c")):
        with pytest.raises(PurgeError, match="labels that differ in the names of files"):
            plan_of(tmp_path, methods=methods(*labels))
    assert len(plan_of(tmp_path, methods=[*methods("a b"), *methods("a/b", rate=0.5)]).jobs) == 2
    assert len(plan_of(tmp_path, data=["digits", "digits"], methods=["purge"]).jobs) == 1


OTHER_MODEL: list[dict[str, Any]] = [
    {"model": "resnet18"}, {"recipe": {"epochs": 3}}, {"seeds": [1]}, {"size": 16}, {"per_class": 20},
    {"holdout": 0.2},
]  # fmt: skip
SAME_MODEL: list[dict[str, Any]] = [
    {"methods": [{"method": "purge", "set": {"rate": 0.5}}]}, {"metrics": ["ra"]}, {"retrains": 2},
    {"forget": [1]}, {"repeats": 2},
]  # fmt: skip


@pytest.mark.parametrize("change", [*OTHER_MODEL, *SAME_MODEL], ids=str)
def test_a_job_is_known_by_everything_its_result_depends_on(tmp_path: Path, change: dict[str, Any]) -> None:
    plain = plan_of(tmp_path).jobs[0]
    assert plan_of(tmp_path, about="the text does not matter").jobs[0].id == plain.id
    other = plan_of(tmp_path, **change).jobs[0]
    assert other.id != plain.id
    assert (other.base.spec != plain.base.spec) == (change in OTHER_MODEL)


OWN_METHOD = """
from dataclasses import dataclass

from purge.engine.stopping import Stopping
from purge.methods.base import Method


@dataclass(frozen=True)
class Mine(Method):
    stop: Stopping = Stopping()

    def run(self, model, split, run):
        pass
"""


def test_a_changed_default_and_an_edited_method_are_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So --resume runs them again."""
    before = plan_of(tmp_path, methods=["purge"]).jobs[0].id
    monkeypatch.setitem(METHODS, "purge", dataclasses.replace(METHODS["purge"], settings={"rate": 0.123}))
    assert plan_of(tmp_path, methods=["purge"]).jobs[0].id != before
    file = tmp_path / "method_that_is_edited.py"
    monkeypatch.syspath_prepend(tmp_path)
    ids = set()
    for text in (OWN_METHOD, OWN_METHOD.replace("pass", "return None")):
        file.write_text(text)
        sys.modules.pop("method_that_is_edited", None)
        ids.add(plan_of(tmp_path, methods=["method_that_is_edited:Mine"], trust=True).jobs[0].id)
    assert len(ids) == 2


def test_keys_of_a_task_replace_those_above_it(tmp_path: Path) -> None:
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
    plan = plan_of(tmp_path, tasks=[{}, {"per_class": 20, "recipe": {"epochs": 3}}])
    assert {job.keys["data"] for job in plan.jobs} == {"digits", "digits 20/class"}


def test_folders_of_one_name_need_two_files(tmp_path: Path) -> None:
    folders = [tmp_path / parent / "images" for parent in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
    with pytest.raises(PurgeError, match="one data for all tasks of images"):
        plan_of(tmp_path, data=[*map(str, folders)])
    assert plan_of(tmp_path, data=["digits", str(folders[0])]).jobs


def test_a_sharded_base_is_another_model(tmp_path: Path) -> None:
    bases = [{"shards": 2}, {"shards": 3}, {"shards": 2, "slices": 2}, {"shards": 2, "vote": "majority"}]
    plan = plan_of(
        tmp_path,
        methods=[{"method": "sisa", "label": str(i), "base": base} for i, base in enumerate(bases)],
    )
    assert len({job.base.spec for job in plan.jobs}) == len(bases)
    assert [(job.base.shards, job.base.slices, job.base.vote) for job in plan.jobs] == [
        (2, 1, "mean"), (3, 1, "mean"), (2, 2, "mean"), (2, 1, "majority"),
    ]  # fmt: skip
