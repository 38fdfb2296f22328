"""A random search over settings, its score and its presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from purge.bench import runner
from purge.bench.jobs import Plan
from purge.bench.search import score_of, waves, winners
from purge.bench.store import Place, is_done
from purge.bench.tables import result_in
from purge.core.errors import PurgeError
from purge.core.files import write_json
from tests.bench.plans import place_of, plan_of, result_of

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


def test_every_method_has_as_many_trials_and_the_first_is_unchanged(tmp_path: Path) -> None:
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


def test_a_setting_that_takes_fractions_is_drawn_as_a_fraction(tmp_path: Path) -> None:
    ranges = {
        "kd": {"low": 0, "high": 1},
        "forget_target": {"low": 0, "high": 1},
        "steps": {"low": 2, "high": 9},
    }
    methods = [{"method": "purge", "search": ranges}]
    trials = [job.changes for job in plan_of(tmp_path, **{**SEARCH, "methods": methods}).jobs[1:]]
    for key in ("kd", "forget_target"):
        assert all(isinstance(t[key], float) and 0 < t[key] < 1 for t in trials)
    assert all(isinstance(t["steps"], int) for t in trials)


def test_a_search_over_tasks_with_the_same_set(tmp_path: Path) -> None:
    own = {"set": {"purge": {"rate": 0.5}}}
    plan = plan_of(tmp_path, **SEARCH, tasks=[{**own, "forget": [0]}, {**own, "forget": [1]}])
    assert {job.changes["rate"] for job in plan.jobs if job.trial_of == "purge"} == {0.5}


def test_the_score_is_the_distance_to_the_aims() -> None:
    report = {
        "values": {"ra": {"value": 0.9}, "kl_retrain": {"value": 0.5}, "bn_recal.after": {"value": 0.3}},
        "retrained": {"ra": {"value": 0.95}, "bn_recal.after": {"value": 0.1}},
    }
    weights = {"ra": 2, "kl_retrain": 0.1, "bn_recal.after": 1}
    assert score_of(weights, report) == pytest.approx(2 * 0.05 + 0.1 * 0.5 + 0.2)
    report["values"]["ra"] = {"value": None}  # type: ignore[dict-item]
    assert score_of(weights, report) is None


def searched(tmp_path: Path) -> Plan:
    """Three trials of one method with two seeds each."""
    search = {"trials": 3, "score": {"ra": 1}}
    methods = ["purge", {"method": "finetune", "label": "a", "search": {"lr": {"low": 0.01, "high": 0.1}}}]
    return plan_of(tmp_path, holdout=0.2, search=search, methods=methods, seeds=[0, 1])


def test_the_best_trial_wins_unless_it_failed_somewhere(tmp_path: Path) -> None:
    scores: dict[str, list[float | None]] = {"a #0": [0.5, 0.5], "a #1": [0.1, None], "a #2": [0.2, 0.6]}
    jobs = searched(tmp_path).jobs
    results = []
    for job in jobs:
        score = scores[job.label][job.seed] if job.trial_of == "a" else 0.0
        results.append({"error": "x"} if score is None else {"numbers": {"score": score}})
    _, winner = winners(list(zip(jobs, results, strict=True)))
    assert (winner["label"], winner["trial"]) == ("a", "a #2")
    assert winner["set"] == next(job.changes for job in jobs if job.label == "a #2")
    assert winner["score"] == pytest.approx(0.4)
    assert winner["first_score"] == pytest.approx(0.5)
    assert winner["trials"] == 3


@pytest.mark.parametrize(
    "left", [None, "", "{", '{"numbers": {"score": NaN}}', '{"numbers": {"score": "0"}}', "{}"]
)
def test_a_trial_with_a_result_that_cannot_be_read_does_not_win(tmp_path: Path, left: str | None) -> None:
    """Its other seed alone would have won; with --only it is not run again."""
    plan, place = searched(tmp_path), place_of(tmp_path / "out")
    (place.out / "jobs").mkdir(parents=True)
    scores = {"a #0": 0.5, "a #1": 0.1, "a #2": 0.3, "purge #0": 0.0}
    for job in plan.jobs:
        found = result_of(job, {"ra": 0.5}, score=scores[job.label])
        write_json(place.file(job), {**found, "trial_of": job.trial_of, "method": job.method,
                                     "changes": job.changes})  # fmt: skip
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
    ["{method: purge, set: }", "{method: purge, set: 5}", "{method: purge, label: 5, set: {}}",
     "{method: purge, label: [purge], set: {}}", "{method: purge, set: {5: 1}}", "{set: {}}", "5"],
)  # fmt: skip
def test_malformed_presets_are_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "presets.yaml").write_text(f"methods:\n  - {row}\n")
    with pytest.raises(PurgeError, match=r"methods of .*presets\.yaml"):
        plan_of(tmp_path, presets="presets.yaml")


# -- a limit of seconds ---------------------------------------------------------------------------

TIMED: dict[str, Any] = {
    "holdout": 0.2,
    "seeds": [0, 1],
    "tables": [{"name": "trials", "columns": ["score", "ra"]}],
    "methods": [
        {"method": "finetune", "search": {"lr": {"low": 0.01, "high": 0.1}}},
        {"method": "delete", "search": {"lr": {"low": 0.001, "high": 0.01}}},
    ],
}


def timed(tmp_path: Path, seconds: float | None, **changes: Any) -> Plan:
    """Four trials of two methods with two seeds each."""
    search = {"trials": 4, "score": {"ra": 1}, **({} if seconds is None else {"seconds": seconds})}
    return plan_of(tmp_path, **{**TIMED, "search": search, **changes})


def write_trials(plan: Plan, place: Place, took: dict[str, float], until: dict[str, int]) -> None:
    """Results of the first trials of each method; a later trial scores better."""
    (place.out / "jobs").mkdir(parents=True, exist_ok=True)
    for job in plan.jobs:
        if job.trial <= until[job.trial_of]:
            found = result_of(job, {"ra": 0.5}, score=1 - 0.1 * job.trial)
            about = {"trial_of": job.trial_of, "method": job.method, "changes": job.changes}
            write_json(place.file(job), {**found, **about, "spent_seconds": took[job.trial_of]})


def test_a_method_gets_no_trial_after_its_seconds(tmp_path: Path) -> None:
    """finetune takes 2 s in each of two jobs of a trial, so 10 s end it after three trials."""
    plan, place = timed(tmp_path, 10), place_of(tmp_path / "out")
    write_trials(plan, place, {"finetune": 2.0, "delete": 0.5}, {"finetune": 2, "delete": 3})
    done = runner.bench(plan, place, resume=True, progress=False)
    assert (done.ran, done.over, done.failed) == (0, 2, {})
    assert "2 not begun, as their search has no seconds left" in runner.in_words(done, place)[-1]
    left = [result_in(place.file(job)) or {} for job in plan.jobs if job.label == "finetune #3"]
    assert [found["skipped"] for found in left] == ["3 trials took 12.0 s; the search allows 10 s"] * 2
    slow, quick = yaml.safe_load((place.out / "presets.yaml").read_text())["methods"]
    assert (slow["trial"], slow["trials"], slow["seconds"]) == ("finetune #2", 3, 12.0)
    assert (quick["trial"], quick["trials"], quick["seconds"]) == ("delete #3", 4, 4.0)
    assert (slow["ended"], quick["ended"]) == ("seconds", "trials")


def test_trials_that_did_not_begin_have_no_row(tmp_path: Path) -> None:
    plan, place = timed(tmp_path, 10), place_of(tmp_path / "out")
    write_trials(plan, place, {"finetune": 2.0, "delete": 0.5}, {"finetune": 2, "delete": 3})
    runner.bench(plan, place, resume=True, progress=False)
    text = (place.out / "tables" / "trials.md").read_text()
    assert "finetune #2" in text
    assert "finetune #3" not in text
    assert "14 jobs, 2 not begun for lack of seconds" in text


def test_more_seconds_are_used_after_a_resume(tmp_path: Path) -> None:
    """What had no time is asked for again, and a result that is there is kept."""
    place = place_of(tmp_path / "out")
    took = {"finetune": 2.0, "delete": 0.5}
    write_trials(timed(tmp_path, 10), place, took, {"finetune": 2, "delete": 3})
    runner.bench(timed(tmp_path, 10), place, resume=True, progress=False)
    more = timed(tmp_path, 20)
    left = [job for job in more.jobs if not is_done(place.file(job))]
    assert {job.label for job in left} == {"finetune #3"}
    write_trials(more, place, took, {"finetune": 3, "delete": 3})
    assert runner.bench(more, place, resume=True, progress=False).over == 0
    less = runner.bench(timed(tmp_path, 3), place, resume=True, progress=False)
    assert less.over == 0  # results that are there are not replaced
    slow, _ = yaml.safe_load((place.out / "presets.yaml").read_text())["methods"]
    assert (slow["trial"], slow["trials"], slow["ended"]) == ("finetune #0", 1, "seconds")


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_first_trial_runs_however_little_time_there_is(tmp_path: Path, at_once: int) -> None:
    """From the file to the presets; a trial that fails has used time as well."""
    calm = {"method": "finetune", "set": {"epochs": 1}, "search": {"lr": {"low": 0.01, "high": 0.1}}}
    wild = {"method": "finetune", "label": "wild", "set": {"epochs": 1, "lr": 1e30}, "search": {"l1": [1]}}
    plan = timed(
        tmp_path, 1e-6, methods=[calm, wild], seeds=[0], recipe={"epochs": 1}, metrics=["ra", "fa_test"]
    )
    place = place_of(tmp_path / "out")
    done = runner.bench(plan, place, at_once=at_once, progress=False)
    assert (done.ran, done.over, len(done.failed)) == (2, 6, 1)
    found = {job.label: result_in(place.file(job)) or {} for job in plan.jobs}
    assert found["finetune #0"]["spent_seconds"] == pytest.approx(found["finetune #0"]["numbers"]["seconds"])
    assert found["wild #0"]["spent_seconds"] > 0
    assert all("skipped" in found[f"{label} #{i}"] for label in ("finetune", "wild") for i in (1, 2, 3))
    (winner,) = yaml.safe_load((place.out / "presets.yaml").read_text())["methods"]
    assert (winner["trial"], winner["ended"]) == ("finetune #0", "seconds")


def test_without_a_limit_every_trial_is_run_in_one_go(tmp_path: Path) -> None:
    jobs = timed(tmp_path, None).jobs
    assert waves(jobs, None) == [jobs]
    ordered = waves(jobs, 5.0)
    assert [{job.trial for job in wave} for wave in ordered] == [{0}, {1}, {2}, {3}]
    assert sorted(job.id for wave in ordered for job in wave) == sorted(job.id for job in jobs)


def test_the_limit_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(PurgeError, match="seconds"):
        timed(tmp_path, 0)
