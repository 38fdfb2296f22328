"""The files in configs/ can be planned and cover the paper's experiments."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from purge.bench.dry_run import steps_of
from purge.bench.jobs import Plan, read_plan
from purge.bench.results import paper_rows
from purge.bench.schema import PARTS, paper
from purge.methods.registry import METHODS, resolve_method
from tests.bench.plans import CONFIGS, NAMES, place_of


@cache
def plan_of(name: str) -> Plan:
    """A file is read once: the one for searches takes seconds."""
    return read_plan(CONFIGS[NAMES.index(name)])


@pytest.mark.parametrize("name", NAMES)
def test_every_file_can_be_planned_without_its_data(name: str, tmp_path: Path) -> None:
    """The cache of the tests has no data sets; none is asked for, and nothing is written."""
    plan = plan_of(name)
    steps = steps_of(plan, place_of(tmp_path / "out"))
    assert sum(step.jobs for step in steps) == len(plan.jobs) + len(plan.trainings())
    assert all(step.seconds is None and step.done == 0 for step in steps)
    assert plan.about
    assert plan.tables
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_the_paper_are_rows_of_ours(name: str) -> None:
    """A label that is spelled differently in paper.json would lose the paper's number."""
    plan = plan_of(name)
    for table in plan.tables:
        rows = set()
        for job in plan.jobs:
            for label in (job.label, *(PARTS[part] for part in table.also)):
                keys = {**job.keys, "label": label}
                rows.add(", ".join(str(keys[by]) for by in table.rows))
        theirs = paper_rows(table.paper) if table.paper else {}
        assert theirs.keys() <= rows, table.name
        assert all(cells.keys() <= set(table.columns) for cells in theirs.values()), table.name


@pytest.mark.slow
def test_every_table_and_figure_of_the_paper_is_made() -> None:
    assert {table.paper for name in NAMES for table in plan_of(name).tables} - {None} == set(paper())
    assert all(table["by"] and table["rows"] for table in paper().values())
    drawn = [figure.name for name in NAMES if name != "smoke" for figure in plan_of(name).figures]
    assert len(drawn) == len(set(drawn))
    assert set(drawn) >= {
        "method_comparison", "before_after", "cross_dataset", "mia", "ra_preservation", "mnist_per_class",
        "pathmnist_per_class", "ablation", "representation",
    }  # fmt: skip


def test_the_22_tasks_of_the_paper_with_its_settings() -> None:
    ours = [job for job in plan_of("paper22").jobs if job.label == "purge-paper"]
    tasks = {(job.data.name, *job.forget["classes"]) for job in ours}
    counts = Counter(name for name, *_ in tasks)
    assert (len(tasks), counts["mnist"], counts["pathmnist"]) == (22, 10, 9)
    wanted = {  # lr, epochs, erasure, kd, clip, budget, gate, temperature: the paper's table
        "cifar10": (5e-4, 15, 0.05, 2.0, 1.0, 5.0, 0.0, 4.0),
        "mnist": (2e-4, 12, 0.03, 3.0, 1.0, 4.0, 0.0, 4.0),
        "svhn": (2e-4, 15, 0.03, 3.0, 1.0, 5.0, 0.0, 4.0),
        "stl10": (2e-4, 15, 0.05, 5.0, 1.0, 5.0, 0.0, 4.0),
        "pathmnist": (2e-4, 12, 0.03, 5.0, 1.0, 4.0, 0.0, 4.0),
    }
    for job in ours:
        m: Any = resolve_method(job.method, job.changes)
        settings = (m.lr, m.epochs, m.erasure, m.kd, m.clip, m.stop.retain_budget, m.gate, m.temperature)
        assert settings == wanted[job.data.name]
        assert (m.objective, m.space, m.norm, m.stop.check_every) == ("kl_retain", "gradient", "frozen", 50)
    assert {job.seed for job in ours if job.data.name == "cifar10"} == {0, 1, 2}


APART = {"retrain", "fisher", "fisher-large", "trw", "unsir", "sisa", "amnesiac"}  # classes, or a base


@pytest.mark.parametrize(
    ("name", "left_out"),
    [("digits", set()), ("search", set()), ("baselines_cifar10", {"retrain"}), ("samples", APART)],
)
def test_a_bench_of_all_methods_has_them_all(name: str, left_out: set[str]) -> None:
    """A method that is added to the registry must be added here too."""
    assert {job.method for job in plan_of(name).jobs} == METHODS.keys() - left_out


@pytest.mark.parametrize(("name", "count"), [("search", 8), ("tuning", 6)])
def test_no_method_of_a_search_has_more_trials_than_another(name: str, count: int) -> None:
    """The first with its own settings, the others with drawn ones."""
    trials: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for job in plan_of(name).jobs:
        trials.setdefault((job.trial_of, str(job.forget), job.seed), []).append(job.changes)
    assert {len(changes) for changes in trials.values()} == {count}
    assert all(any(other != first for other in others) for first, *others in trials.values())
    assert all(job.data.holdout for job in plan_of(name).jobs)
