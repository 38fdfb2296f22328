"""The files in configs/ can be planned and cover the paper's experiments."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from purge.bench.dry_run import steps_of
from purge.bench.jobs import Plan, read_plan
from purge.bench.schema import PARTS, paper
from purge.bench.tables import paper_rows
from purge.methods.registry import METHODS, resolve_method
from tests.bench.plans import CONFIGS, NAMES, place_of


@cache
def plan_of(path: Path) -> Plan:
    """A file is read once: the one for searches takes seconds."""
    return read_plan(path)


def test_there_is_a_file_for_every_experiment() -> None:
    assert set(NAMES) == {
        "paper22", "baselines_cifar10", "ablation", "sweep_budget", "sweep_target", "representation",
        "intra_epoch", "cosine", "cost", "low_data", "tuning", "tuned",
        "smoke", "samples", "requests", "rivals", "restart", "digits", "search", "readme",
    }  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_every_file_can_be_planned_without_its_data(path: Path, tmp_path: Path) -> None:
    """The cache of the tests has no data sets; none is asked for, and nothing is written."""
    plan = plan_of(path)
    steps = steps_of(plan, place_of(tmp_path / "out"))
    assert sum(step.jobs for step in steps) == len(plan.jobs) + len(plan.trainings())
    assert all(step.seconds is None and step.done == 0 for step in steps)
    assert plan.about
    assert plan.tables
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_rows_of_the_paper_are_rows_of_ours(path: Path) -> None:
    """A label that is spelled differently in paper.json would lose the paper's number."""
    plan = plan_of(path)
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


@pytest.mark.slow
def test_every_table_of_the_paper_is_used() -> None:
    used = {table.paper for path in CONFIGS for table in plan_of(path).tables}
    assert used - {None} == set(paper())
    assert all(table["by"] and table["rows"] for table in paper().values())


@pytest.mark.slow
def test_every_figure_of_the_paper_is_drawn() -> None:
    names = [figure.name for path in CONFIGS if path.stem != "smoke" for figure in plan_of(path).figures]
    assert len(names) == len(set(names))
    assert set(names) >= {
        "method_comparison", "before_after", "cross_dataset", "mia", "ra_preservation", "mnist_per_class",
        "pathmnist_per_class", "ablation", "representation",
    }  # fmt: skip


def test_the_22_tasks_of_the_paper_with_its_settings() -> None:
    plan = plan_of(CONFIGS[NAMES.index("paper22")])
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
        assert (m.objective, m.space, m.norm, m.stop.check_every) == (
            "kl_retain",
            "gradient",
            "frozen",
            50,
        )
    assert {job.seed for job in ours if job.data.name == "cifar10"} == {0, 1, 2}


def test_baselines_are_all_methods() -> None:
    plan = plan_of(CONFIGS[NAMES.index("baselines_cifar10")])
    assert {job.method for job in plan.jobs} == METHODS.keys() - {"retrain"}


@pytest.mark.parametrize("name", ["digits", "search"])
def test_the_benches_on_digits_have_every_method(name: str) -> None:
    """A method that is added to the registry must be added here too."""
    plan = plan_of(CONFIGS[NAMES.index(name)])
    assert {job.method for job in plan.jobs} == METHODS.keys()
    assert {job.data.name for job in plan.jobs} == {"digits"}


def test_every_method_can_be_searched_with_one_budget() -> None:
    """As many trials for each, the first with its own settings, the others with drawn ones; and seconds."""
    plan = plan_of(CONFIGS[NAMES.index("search")])
    assert plan.seconds is not None
    trials: dict[str, list[dict[str, Any]]] = {}
    for job in plan.jobs:
        trials.setdefault(job.trial_of, []).append(job.changes)
    assert {len(changes) for changes in trials.values()} == {8}
    for label, (first, *others) in trials.items():
        assert any(changes != first for changes in others), label


def test_samples_has_every_method_that_takes_samples_and_needs_no_base_of_its_own() -> None:
    plan = plan_of(CONFIGS[NAMES.index("samples")])
    apart = {"retrain", "fisher", "fisher-large", "trw", "unsir", "sisa", "amnesiac"}
    assert {job.method for job in plan.jobs} == METHODS.keys() - apart
    assert all(not job.changes for job in plan.jobs)


@pytest.mark.parametrize(("name", "seeds", "requests"), [("samples", 1, 2), ("requests", 3, 5)])
def test_seeds_share_their_retrained_models(name: str, seeds: int, requests: int) -> None:
    plan = plan_of(CONFIGS[NAMES.index(name)])
    assert len({str(job.forget) for job in plan.jobs}) == requests
    assert len(plan.trainings()) == seeds + 3 * requests  # a base each, and three references per request
    assert {len({t.seed for t in job.retrained}) for job in plan.jobs} == {3}


def test_samples_shares_the_first_models_of_requests() -> None:
    samples, requests = (plan_of(CONFIGS[NAMES.index(name)]) for name in ("samples", "requests"))
    ready = {t.spec for t in requests.trainings()}
    assert all({job.base.spec, job.retrained[0].spec} <= ready for job in samples.jobs)


def test_no_method_of_the_tuning_has_more_trials_than_another() -> None:
    jobs = plan_of(CONFIGS[NAMES.index("tuning")]).jobs
    counts = {of: sum(job.trial_of == of for job in jobs) for of in {job.trial_of for job in jobs}}
    assert set(counts.values()) == {6}
    assert {job.data.holdout for job in jobs} == {0.1}
