"""A random search over settings: its trials, its score, its presets and its limit of seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from purge.bench import runner
from purge.bench.jobs import Plan
from purge.bench.models import Place
from purge.bench.results import JobResult, is_done, result_in
from purge.bench.search import score_of, winners
from purge.core.errors import PurgeError
from purge.core.files import write_json
from tests.bench.plans import place_of, plan_of, result_of


def search(tmp_path: Path, trials: int, methods: list[Any], **changes: Any) -> Plan:
    how = {"trials": trials, "score": {"ra": 1}, **changes.pop("how", {})}
    return plan_of(tmp_path, holdout=0.2, search=how, methods=methods, **changes)


RANGES: dict[str, Any] = {
    "lr": {"low": 1e-3, "high": 0.1, "log": True}, "epochs": {"low": 2, "high": 9},
    "norm": ["frozen", "train"],
}  # fmt: skip
METHODS: list[Any] = [
    {"method": "finetune", "set": {"batch_size": 64}, "search": RANGES},
    {"method": "purge", "search": {"kd": {"low": 0, "high": 1}, "forget_target": {"low": 0, "high": 1}}},
]


def test_every_method_has_as_many_trials_and_the_first_is_unchanged(tmp_path: Path) -> None:
    """A setting that takes fractions is drawn as one, also between whole numbers."""
    plan = search(tmp_path, 5, METHODS)
    trials = {of: [job.changes for job in plan.jobs if job.trial_of == of] for of in ("finetune", "purge")}
    assert [len(of) for of in trials.values()] == [5, 5]
    assert [of[0] for of in trials.values()] == [{"batch_size": 64}, {}]
    tuned, purged = trials["finetune"][1:], trials["purge"][1:]
    assert all(1e-3 <= d["lr"] <= 0.1 and d["batch_size"] == 64 for d in tuned)
    assert all(isinstance(d["epochs"], int) and 2 <= d["epochs"] <= 9 for d in tuned)
    assert len({d["lr"] for d in tuned}) == 4
    assert all(isinstance(d[key], float) and 0 < d[key] < 1 for d in purged for key in d)
    assert len(plan.trainings()) == 2  # one base and one reference for all trials


def test_a_search_is_drawn_from_its_seed_and_shares_the_settings_of_its_tasks(tmp_path: Path) -> None:
    def drawn(seed: int) -> list[dict[str, Any]]:
        return [job.changes for job in search(tmp_path, 3, METHODS, how={"seed": seed}).jobs]

    assert drawn(0) == drawn(0) != drawn(1)
    own = {"set": {"purge": {"rate": 0.5}}}
    plan = search(tmp_path, 3, METHODS, tasks=[{**own, "forget": [0]}, {**own, "forget": [1]}])
    assert {job.changes["rate"] for job in plan.jobs if job.trial_of == "purge"} == {0.5}


def test_the_score_is_the_distance_to_the_aims() -> None:
    values = {"ra": 0.9, "kl_retrain": 0.5, "bn_recal.after": 0.3}
    report: dict[str, Any] = {
        "values": {name: {"value": value} for name, value in values.items()},
        "retrained": {"ra": {"value": 0.95}, "bn_recal.after": {"value": 0.1}},
    }
    weights = {"ra": 2, "kl_retrain": 0.1, "bn_recal.after": 1}
    assert score_of(weights, report) == pytest.approx(2 * 0.05 + 0.1 * 0.5 + 0.2)
    report["values"]["ra"] = {"value": None}
    assert score_of(weights, report) is None


ONE = ["purge", {"method": "finetune", "label": "a", "search": {"lr": {"low": 0.01, "high": 0.1}}}]


def test_the_best_trial_wins_unless_it_failed_somewhere(tmp_path: Path) -> None:
    scores: dict[str, list[float | None]] = {
        "purge #0": [0, 0], "a #0": [0.5, 0.5], "a #1": [0.1, None], "a #2": [0.2, 0.6],
    }  # fmt: skip
    jobs = search(tmp_path, 3, ONE, seeds=[0, 1]).jobs
    each = [scores[job.label][job.seed] for job in jobs]
    results = [
        JobResult(**job.keys, error="x" * (score is None), numbers={"score": score})
        for job, score in zip(jobs, each, strict=True)
    ]
    _, winner = winners(zip(jobs, results, strict=True))
    assert winner["set"] == next(job.changes for job in jobs if job.label == "a #2")
    facts = {"label": "a", "trial": "a #2", "score": 0.4, "first_score": 0.5, "trials": 3}
    assert {key: winner[key] for key in facts} == pytest.approx(facts)


@pytest.mark.parametrize("left", [None, "{", '{"numbers": {"score": "0"}}'])
def test_a_trial_with_a_result_that_cannot_be_read_does_not_win(tmp_path: Path, left: str | None) -> None:
    """Its other seed alone would have won; with --only it is not run again."""
    plan, place = search(tmp_path, 3, ONE, seeds=[0, 1]), place_of(tmp_path / "out")
    (place.out / "jobs").mkdir(parents=True)
    scores = {"a #0": 0.5, "a #1": 0.1, "a #2": 0.3, "purge #0": 0.0}
    for job in plan.jobs:
        write_json(place.file(job), result_of(job, {"ra": 0.5}, score=scores[job.label]))
    damaged = next(place.file(job) for job in plan.jobs if job.label == "a #1" and job.seed == 1)
    damaged.unlink() if left is None else damaged.write_text(left)
    runner.bench(plan, place, only=["purge"], resume=True, progress=False)
    _, winner = yaml.safe_load((place.out / "presets.yaml").read_text())["methods"]
    assert (winner["trial"], winner["score"]) == ("a #2", 0.3)


def test_presets_are_settings_of_a_later_file(tmp_path: Path) -> None:
    presets = {"methods": [{"method": "finetune", "label": "finetune", "set": {"lr": 0.5}, "score": 1.0}]}
    (tmp_path / "presets.yaml").write_text(yaml.safe_dump(presets))
    plan = plan_of(tmp_path, presets="presets.yaml", methods=["purge", {"method": "finetune"}])
    assert [job.changes for job in plan.jobs] == [{}, {"lr": 0.5}]
    with pytest.raises(PurgeError, match="a label of methods in presets"):
        plan_of(tmp_path, presets="presets.yaml", methods=["purge"])


@pytest.mark.parametrize(
    "row",
    ["{method: purge, set: 5}", "{method: purge, label: [purge], set: {}}", "{set: {}}", "5"],
)
def test_malformed_presets_are_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "presets.yaml").write_text(f"methods:\n  - {row}\n")
    with pytest.raises(PurgeError, match=r"methods of .*presets\.yaml"):
        plan_of(tmp_path, presets="presets.yaml")


# -- a limit of seconds ---------------------------------------------------------------------------

TOOK = {"finetune": 2.0, "delete": 0.5}  # seconds of a job


def timed(tmp_path: Path, seconds: float | None, methods: list[Any] | None = None, **changes: Any) -> Plan:
    """Four trials of two methods with two seeds each."""
    how = {} if seconds is None else {"seconds": seconds}
    lr = {"lr": {"low": 0.001, "high": 0.01}}
    usual = [{"method": method, "search": lr} for method in TOOK]
    tables = [{"name": "trials", "columns": ["score", "ra"]}]
    return search(tmp_path, 4, methods or usual, how=how, **{"seeds": [0, 1], "tables": tables, **changes})


def write_trials(plan: Plan, place: Place, **until: int) -> None:
    """Results of the first trials of each method; a later trial scores better."""
    (place.out / "jobs").mkdir(parents=True, exist_ok=True)
    for job in plan.jobs:
        if job.trial <= until[job.trial_of]:
            result = result_of(job, {"ra": 0.5}, score=1 - 0.1 * job.trial)
            write_json(place.file(job), {**result, "spent_seconds": TOOK[job.trial_of]})


def best_of(place: Place, *keys: str) -> list[tuple[Any, ...]]:
    rows = yaml.safe_load((place.out / "presets.yaml").read_text())["methods"]
    return [tuple(row[key] for key in keys) for row in rows]


def test_a_method_gets_no_trial_after_its_seconds(tmp_path: Path) -> None:
    """finetune takes 2 s in each of two jobs of a trial, so 10 s end it after three trials."""
    plan, place = timed(tmp_path, 10), place_of(tmp_path / "out")
    write_trials(plan, place, finetune=2, delete=3)
    done = runner.bench(plan, place, resume=True, progress=False)
    assert (done.ran, done.over, done.failed) == (0, 2, {})
    assert "2 not begun, as their search has no seconds left" in runner.in_words(done, place)[-1]
    late = [job for job in plan.jobs if not is_done(place.file(job))]
    words = "3 trials took 12.0 s; the search allows 10 s"
    skipped = [(job.label, getattr(result_in(place.file(job)), "skipped", None)) for job in late]
    assert skipped == [("finetune #3", words)] * 2
    assert best_of(place, "trial", "trials", "seconds", "ended") == [
        ("finetune #2", 3, 12.0, "seconds"), ("delete #3", 4, 4.0, "trials"),
    ]  # fmt: skip
    text = (place.out / "tables" / "trials.md").read_text()
    assert "finetune #2" in text
    assert "finetune #3" not in text
    assert "14 jobs, 2 not begun for lack of seconds" in text
    # With more seconds they are run; with less, results that are there stay.
    more = timed(tmp_path, 20)
    write_trials(more, place, finetune=3, delete=3)
    assert runner.bench(more, place, resume=True, progress=False).over == 0
    assert runner.bench(timed(tmp_path, 3), place, resume=True, progress=False).over == 0
    assert best_of(place, "trial", "trials", "ended")[0] == ("finetune #0", 1, "seconds")


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_first_trial_runs_however_little_time_there_is(tmp_path: Path, at_once: int) -> None:
    """From the file to the presets; a trial that fails has used time as well."""
    calm = {"method": "finetune", "set": {"epochs": 1}, "search": {"lr": {"low": 0.01, "high": 0.1}}}
    wild = {"method": "finetune", "label": "wild", "set": {"epochs": 1, "lr": 1e30}, "search": {"l1": [1]}}
    few = {"seeds": [0], "recipe": {"epochs": 1}, "metrics": ["ra", "fa_test"], "per_class": 20}
    plan, place = timed(tmp_path, 1e-6, [calm, wild], **few), place_of(tmp_path / "out")
    done = runner.bench(plan, place, at_once=at_once, progress=False)
    assert (done.ran, done.over, len(done.failed)) == (2, 6, 1)
    results = {job.label: json.loads(place.file(job).read_text()) for job in plan.jobs}
    first = results["finetune #0"]
    assert first["spent_seconds"] == pytest.approx(first["numbers"]["seconds"])
    assert results["wild #0"]["spent_seconds"] > 0
    assert all("skipped" in results[f"{label} #{i}"] for label in ("finetune", "wild") for i in (1, 2, 3))
    assert best_of(place, "trial", "ended") == [("finetune #0", "seconds")]
