"""A bench from the file to the figures: killed on the way, resumed, then checked.

``configs/smoke.yaml`` is run once; the other tests look at what it left or borrow its models.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import purge
from purge.audit_report import Report
from purge.bench.jobs import read_plan
from purge.bench.runner import commit, run_job
from purge.bench.store import Place, finished, sound, trained
from purge.cli import app as cli
from purge.data.load import load
from purge.models.checkpoint import digest
from purge.runs.folder import read_model

pytestmark = pytest.mark.slow
SMOKE = Path(__file__).parents[2] / "configs" / "smoke.yaml"


class Done(NamedTuple):
    """How a command ended."""

    code: Any
    out: str
    err: str


def bench(*argv: Any) -> Done:
    """Run ``purge bench`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["purge", "bench", *map(str, argv)])
        patch.setenv("PURGE_COMMIT", "abc1234")
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return Done(ended.value.code or 0, out.getvalue(), err.getvalue())


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def stamps(folder: Path) -> dict[str, int]:
    return {f.name: f.stat().st_mtime_ns for f in sorted(folder.glob("*.json"))}


class Killed(NamedTuple):
    """The smoke bench: what was there when it was killed, and how the resumed run ended."""

    out: Path
    jobs: dict[str, int]  # the files of finished jobs at the kill
    models: dict[str, int]
    done: Done
    seconds: float  # of both


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    out, began = tmp_path_factory.mktemp("bench") / "out", time.monotonic()
    command = [sys.executable, "-m", "purge", "bench", str(SMOKE), "--out", str(out), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PURGE_COMMIT": "abc1234"}
    with subprocess.Popen(command, env=environment) as process:
        deadline = time.monotonic() + 120
        while not stamps(out / "jobs") and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    jobs, models = (
        stamps(out / "jobs"),
        {p.parent.name: p.stat().st_mtime_ns for p in out.glob("models/*/run.json")},
    )
    done = bench(SMOKE, "--out", out, "--resume")
    return Killed(out, jobs, models, done, time.monotonic() - began)


def test_a_kill_loses_at_most_the_job_that_was_running(smoke: Killed) -> None:
    plan = read_plan(SMOKE)
    assert smoke.seconds < 90
    assert 1 <= len(smoke.jobs) < len(plan.jobs) == 6
    assert smoke.done.code == 0, smoke.done.err
    after = stamps(smoke.out / "jobs")
    assert set(after) == {f"{job.id}.json" for job in plan.jobs}
    assert {name: after[name] for name in smoke.jobs} == smoke.jobs  # none was run again
    now = {p.parent.name: p.stat().st_mtime_ns for p in smoke.out.glob("models/*/run.json")}
    assert len(now) == 4  # two bases, two retrained ones that both seeds share
    assert len(smoke.models) >= 3  # those of the first job, before those of others
    assert {name: now[name] for name in smoke.models} == smoke.models
    jobs, models = 6 - len(smoke.jobs), 4 - len(smoke.models)
    here = f"{jobs} jobs run, {len(smoke.jobs)} were there, {models} models trained, 0 failed"
    assert here in smoke.done.out
    assert f"{jobs} of 6 jobs to run; {models} of" in smoke.done.err


def test_a_result_says_how_it_was_made(smoke: Killed) -> None:
    for job in read_plan(SMOKE).jobs:
        found = read(smoke.out / "jobs" / f"{job.id}.json")
        assert found["commit"] == "abc1234"
        assert {"label", "method", "settings", "recipe", "request", "stopped_by", "digest", "versions",
                "hardware", "wall_seconds", "checks"} <= found.keys()  # fmt: skip
        assert found["settings"]["stop"]["forget_target"] is None
        assert found["numbers"]["seconds"] > 0
        assert found["numbers"]["speedup"] == pytest.approx(
            found["numbers"]["retrain_seconds"] / found["numbers"]["seconds"]
        )
        assert 0 < found["numbers"]["pflop"] == found["flop"] / 1e15
        assert 0 < found["numbers"]["retrain_pflop"] < 1
        for part in ("values", "retrained", "original", "floor"):
            value = found[part]["fa_test"]
            assert {"value", "low", "high", "n", "why", "bound"} == value.keys()
        assert found["retrained"]["agreement"]["why"]
        assert [m["seed"] for m in found["models"]] == [job.seed, 1000 + job.seed, 1001 - job.seed]
    purged = [read(f) for f in (smoke.out / "jobs").glob("digits-0-purge-s*.json")]
    assert all(found["numbers"]["raising"] == 0 for found in purged)  # the guarantee, at every step
    assert all(found["checks"][0]["step"] == 0 and len(found["checks"]) > 1 for found in purged)


def test_the_seconds_of_trainings_that_ran_side_by_side_are_left_out(smoke: Killed, tmp_path: Path) -> None:
    job = next(j for j in read_plan(SMOKE).jobs if j.label == "finetune")
    models = shutil.copytree(smoke.out / "models", tmp_path / "models")
    for path in models.glob("*/run.json"):
        facts = read(path)
        assert facts["at_once"] == 1
        path.write_text(json.dumps({**facts, "at_once": 3}))
    numbers = run_job(job, Place(tmp_path, models))["numbers"]
    assert numbers["seconds"] > 0
    assert numbers["retrain_seconds"] is None
    assert numbers["speedup"] is None


def test_a_job_is_what_the_two_doors_give(smoke: Killed) -> None:
    """The same weights and the same numbers as by hand."""
    job = next(j for j in read_plan(SMOKE).jobs if j.label == "finetune" and j.seed == 1)
    place = Place(smoke.out, smoke.out / "models")
    data, test = load("digits")
    base, *references = [read_model(trained(t, place), None, data) for t in (job.base, *job.retrained)]
    forget, retain = purge.split(data, classes=[0])
    result = purge.unlearn(base, forget, retain, method="finetune", seed=1, progress=False, epochs=1)
    report = purge.audit(
        result, forget, retain, test, original=base, retrained=references, metrics=job.metrics, seed=1,
        progress=False,
    )  # fmt: skip
    found = read(smoke.out / "jobs" / f"{job.id}.json")
    assert found["digest"] == digest(result.model)
    written = Report({}, {}, {}).to_dict() | report.to_dict()
    for part in ("values", "retrained", "original", "floor"):
        assert found[part] == json.loads(json.dumps(written[part]))


def test_tables_and_figures_show_the_results(smoke: Killed) -> None:
    plan = read_plan(SMOKE)
    tables = {f"{table.name}.{ending}" for table in plan.tables for ending in ("md", "tex", "csv")}
    assert {f.name for f in (smoke.out / "tables").iterdir()} == tables
    drawn = {f"{figure.name}.{ending}" for figure in plan.figures for ending in ("png", "svg")}
    assert {f.name for f in (smoke.out / "figures").iterdir()} == drawn
    rows = {
        line.split(" | ")[0].lstrip("| "): line
        for line in (smoke.out / "tables" / "methods.md").read_text().splitlines()
    }
    assert {"original", "retrain", "floor", "purge", "purge-paper", "finetune"} <= rows.keys()
    ra = [read(f)["values"]["ra"]["value"] for f in (smoke.out / "jobs").glob("digits-0-finetune-s*.json")]
    assert f"{100 * sum(ra) / 2:.1f} %" in rows["finetune"]
    assert "commit abc1234" in (smoke.out / "tables" / "methods.md").read_text()


def test_a_finished_bench_only_remakes_its_tables(smoke: Killed) -> None:
    jobs = stamps(smoke.out / "jobs")
    tables = {f: f.read_bytes() for f in (smoke.out / "tables").iterdir()}
    for file in tables:
        file.unlink()
    done = bench(SMOKE, "--out", smoke.out, "--resume", "--json")
    assert done.code == 0
    summary = json.loads(done.out)
    assert (summary["ran"], summary["skipped"], summary["failed"]) == (0, 6, {})
    assert {f: f.read_bytes() for f in (smoke.out / "tables").iterdir()} == tables
    assert stamps(smoke.out / "jobs") == jobs
    assert bench(smoke.out).out == f"{len(summary['files'])} files made in {smoke.out}.\n"


def test_a_folder_that_is_not_empty_is_not_written_to(smoke: Killed) -> None:
    done = bench(SMOKE, "--out", smoke.out)
    assert done.code == 2
    assert "--resume" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_dry_run_shows_what_is_there_and_writes_nothing(smoke: Killed, tmp_path: Path) -> None:
    done = bench(SMOKE, "--out", tmp_path / "out", "--models", smoke.out / "models", "--dry-run")
    assert done.code == 0
    assert not (tmp_path / "out").exists()
    assert "4 models, 6 jobs" in " ".join(done.out.split())
    steps = json.loads(bench(SMOKE, "--out", smoke.out, "--dry-run", "--json").out)
    assert sum(step["done"] for step in steps) == 10
    assert sum(step["seconds"] for step in steps) == 0


@pytest.mark.dist
def test_several_processes_get_the_same_results_as_one(smoke: Killed, tmp_path: Path) -> None:
    done = bench(SMOKE, "--out", tmp_path / "out", "--models", smoke.out / "models", "--jobs", 2)
    assert done.code == 0, done.err
    for job in read_plan(SMOKE).jobs:
        one, two = (read(out / "jobs" / f"{job.id}.json") for out in (smoke.out, tmp_path / "out"))
        assert one["digest"] == two["digest"]
        assert one["values"] == two["values"]


def test_a_failed_job_is_recorded_and_the_others_run(smoke: Killed, tmp_path: Path) -> None:
    """Also: models of another bench are reused, and SISA and Amnesiac get base models of their own."""
    config = {
        **yaml.safe_load(SMOKE.read_text()),
        "seeds": [0],
        "retrains": 1,
        "metrics": ["ra", "fa_test"],
        "methods": [
            {"method": "finetune", "label": "too fast", "set": {"epochs": 1, "lr": 1e30}},
            {"method": "sisa", "base": {"shards": 2, "epochs": 1}},
            {"method": "amnesiac", "base": {"log_updates": True, "epochs": 1}},
        ],
        "tables": [{"name": "t", "columns": ["ra"]}],
        "figures": [],
    }
    file = tmp_path / "mixed.yaml"
    file.write_text(yaml.safe_dump(config))
    models = smoke.out / "models"
    before = len(list(models.iterdir()))
    done = bench(file, "--out", tmp_path / "out", "--models", models)
    assert done.code == 3, done.err
    assert "3 jobs run, 0 were there, 2 models trained, 1 failed" in done.out
    assert len(list(models.iterdir())) == before + 2
    failed, *others = [read(tmp_path / "out" / "jobs" / f"{job.id}.json") for job in read_plan(file).jobs]
    assert failed["kind"] == "RunError"
    assert "\n" not in failed["error"]
    assert f"Failed: too fast: digits 0, seed 0: {failed['error']}" in done.out
    assert all(found["values"]["ra"]["value"] > 0.05 for found in others)
    assert str(models) not in json.dumps(others)  # results may be published
    assert "| too fast | – |" in (tmp_path / "out" / "tables" / "t.md").read_text()
    again = bench(file, "--out", tmp_path / "out", "--models", models, "--resume")
    assert again.code == 3
    assert "1 jobs run, 2 were there" in again.out


DEADLY = """
import os

from purge.bench import store
from purge.cli import app
from purge.methods.finetune import FineTune

run, train = FineTune.run, store.train_run
FineTune.run = lambda self, *given: os._exit(9) if self.negate else run(self, *given)
store.train_run = lambda *given, **how: os._exit(9) if how["seed"] == 7 else train(*given, **how)

if __name__ == "__main__":  # the processes that it starts import it, too
    app.main()
"""


@pytest.mark.dist
def test_a_job_or_training_that_kills_its_process_has_failed_and_the_others_run(
    smoke: Killed, tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    config = {
        **yaml.safe_load(SMOKE.read_text()),
        "seeds": [0, 7],
        "retrains": 0,
        "metrics": ["ra"],
        "methods": [
            {"method": "finetune", "label": "killer", "set": {"epochs": 1, "negate": True}},
            {"method": "finetune", "set": {"epochs": 1}},
            {"method": "random-label", "set": {"epochs": 1}},
        ],
        "tables": [{"name": "t", "columns": ["ra"]}],
        "figures": [],
    }
    file, out = tmp_path / "mixed.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(config))
    models = shutil.copytree(smoke.out / "models", tmp_path / "models")
    command = [sys.executable, tmp_path / "deadly.py", "bench", file, "--out", out, "--models", models]

    def ended(*more: str) -> Done:
        done = subprocess.run([*command, "--jobs", "2", *more], capture_output=True, text=True, timeout=300)
        return Done(done.returncode, done.stdout, done.stderr)

    done = ended()
    assert done.code == 3, done.err
    assert "6 jobs run, 0 were there, 0 models trained, 4 failed" in done.out
    found = {(r["label"], r["seed"]): r for r in map(read, (out / "jobs").iterdir())}
    assert {key: r.get("kind") for key, r in found.items()} == {
        ("killer", 0): "process ended", ("finetune", 0): None, ("random-label", 0): None,
        ("killer", 7): "no model", ("finetune", 7): "no model", ("random-label", 7): "no model",
    }  # fmt: skip
    errors = [r["error"] for r in found.values() if "kind" in r]
    assert all("the process that ran it died" in error for error in errors)
    assert f"Failed: killer: digits 0, seed 0: {errors[0]}" in done.out
    assert "| killer | – |" in (out / "tables" / "t.md").read_text()
    again = ended("--resume")
    assert again.code == 3
    assert "4 jobs run, 2 were there, 0 models trained, 4 failed" in again.out


def test_a_model_with_a_damaged_file_is_trained_again(smoke: Killed, tmp_path: Path) -> None:
    out = tmp_path / "out"
    models = shutil.copytree(smoke.out / "models", out / "models")
    shutil.copytree(smoke.out / "jobs", out / "jobs")
    job = next(j for j in read_plan(SMOKE).jobs if j.label == "finetune" and j.seed == 1)
    before = read(out / "jobs" / f"{job.id}.json")
    (out / "jobs" / f"{job.id}.json").unlink()
    base, gone = (next(models.glob(f"{t.spec}-*")) for t in (job.base, job.retrained[0]))
    os.truncate(base / "model.safetensors", (base / "model.safetensors").stat().st_size - 1)
    (gone / "model.safetensors").unlink()
    done = bench(SMOKE, "--out", out, "--resume")
    assert done.code == 0, done.err
    assert "1 of 6 jobs to run; 2 of 3 models to train." in done.err
    assert "1 jobs run, 5 were there, 2 models trained, 0 failed" in done.out
    assert finished(base)
    assert finished(gone)
    assert read(out / "jobs" / f"{job.id}.json")["digest"] == before["digest"]


def test_a_sharded_model_counts_only_with_all_of_its_files(tmp_path: Path) -> None:
    config = {
        "data": "digits", "model": "small-resnet", "recipe": {"epochs": 2}, "forget": [0], "per_class": 20,
        "metrics": ["ra"], "methods": [{"method": "sisa", "base": {"shards": 2, "slices": 2}}],
    }  # fmt: skip
    (tmp_path / "sisa.yaml").write_text(yaml.safe_dump(config))
    training, place = read_plan(tmp_path / "sisa.yaml").jobs[0].base, Place(tmp_path, tmp_path / "models")
    folder = trained(training, place)
    assert finished(folder)
    files = [f for f in folder.iterdir() if f.suffix in (".safetensors", ".json")]
    assert len(files) == 1 + 2 + 1 + 2  # weights, shards, samples; sisa.json and run.json
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-3])
        assert not finished(folder), file
        file.unlink()
        assert not finished(folder), file
        file.write_bytes(whole)
        assert finished(folder), file
        if file.suffix == ".safetensors":
            file.write_bytes(whole[:-3] + b"abc")
            assert finished(folder), file
            assert not sound(folder), file
            file.write_bytes(whole)
        assert sound(folder), file
    (folder / "sisa-shard-1.safetensors").unlink()
    assert finished(trained(training, place))


def test_an_unreadable_result_counts_as_missing_and_the_tables_are_made(
    smoke: Killed, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(smoke.out / "jobs", out / "jobs")
    here = (SMOKE, "--out", out, "--models", smoke.out / "models", "--resume", "--only", "finetune")
    purged, other = sorted((out / "jobs").glob("digits-0-purge-s*.json"))
    purged.write_text(purged.read_text()[:100])
    other.write_bytes(b"\xff[1]")
    done = bench(*here)
    assert done.code == 0, done.err
    assert "0 jobs run, 2 were there, 4 left out (2 with a file that cannot be read)" in done.out
    assert json.loads(bench(*here, "--json").out)["unread"] == 2
    table = out / "tables" / "methods.md"
    assert "| purge | – |" in table.read_text()
    assert "| finetune | – |" not in table.read_text()
    table.unlink()
    assert bench(out).code == 0
    assert "| purge | – |" in table.read_text()


def test_only_some_methods_are_run(smoke: Killed, tmp_path: Path) -> None:
    here = ("--out", tmp_path / "out", "--models", smoke.out / "models")
    steps = json.loads(bench(SMOKE, *here, "--only", "finetune", "--dry-run", "--json").out)
    assert {s["what"] for s in steps if not s["what"].startswith("train")} == {"digits 0: finetune"}
    done = bench(SMOKE, *here, "--only", "finetune", "--jobs", "2")
    assert done.code == 0, done.err
    assert "2 jobs run, 0 were there, 4 left out, 0 models trained, 0 failed" in done.out
    table = (tmp_path / "out" / "tables" / "methods.md").read_text()
    assert "| purge | – |" in table
    assert "| finetune | – |" not in table
    wrong = bench(SMOKE, *here, "--only", "fintune", "--resume")
    assert wrong.code == 2
    assert "did you mean 'finetune'" in wrong.err


def test_missing_data_fails_only_its_own_jobs(tmp_path: Path) -> None:
    config = {**yaml.safe_load(SMOKE.read_text()), "per_class": 100_000, "seeds": [0], "figures": []}
    file = tmp_path / "large.yaml"
    file.write_text(yaml.safe_dump(config))
    done = bench(file, "--out", tmp_path / "out")
    assert done.code == 3
    results = [read(f) for f in (tmp_path / "out" / "jobs").iterdir()]
    assert {r["kind"] for r in results} == {"no model"}
    assert all("Expected 100000 training images of each class" in r["error"] for r in results)


def test_a_search_writes_the_best_settings(tmp_path: Path) -> None:
    config = {
        "data": "digits", "model": "small-resnet", "recipe": {"epochs": 1}, "forget": [0], "holdout": 0.2,
        "metrics": ["ra", "fa_test"],
        "search": {"trials": 3, "score": {"ra": 1, "fa_test": 1}},
        "methods": [{"method": "finetune", "set": {"epochs": 1}, "search": {"lr": [1e-6, 0.05]}}],
        "tables": [{"name": "trials", "columns": ["score", "ra"]}],
    }  # fmt: skip
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(config))
    done = bench(file, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    results = {r["label"]: r for r in map(read, (tmp_path / "out" / "jobs").iterdir())}
    for found in results.values():
        ours, aim = ({k: found[p][k]["value"] for k in ("ra", "fa_test")} for p in ("values", "retrained"))
        assert found["numbers"]["score"] == pytest.approx(sum(abs(ours[k] - aim[k]) for k in ours))
        assert found["test_samples"] == round(0.2 * (found["test_samples"] + found["forget_samples"]
                                                     + found["retain_samples"]))  # fmt: skip
    (winner,) = yaml.safe_load((tmp_path / "out" / "presets.yaml").read_text())["methods"]
    best = min(results.values(), key=lambda r: (r["numbers"]["score"], r["label"]))
    assert (winner["trial"], winner["set"]) == (best["label"], best["changes"])
    file.write_text(yaml.safe_dump({**config, "search": None, "holdout": None, "presets": "out/presets.yaml",
                                    "methods": ["finetune"], "tables": []}))  # fmt: skip
    assert read_plan(file).jobs[0].changes == best["changes"]


def test_a_wrong_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("data: digits\nmodel: small-resnet\nforgt: [0]\nmethods: [purge]\n")
    done = bench(tmp_path / "a.yaml", "--out", tmp_path / "out")
    assert done.code == 2
    assert "did you mean 'forget'" in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_commit_is_that_of_the_checkout_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURGE_COMMIT", "abc1234")
    assert commit() == "abc1234"
    monkeypatch.delenv("PURGE_COMMIT")
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("the code is not a checkout")
    git = ["git", "--no-optional-locks", "describe", "--always"]
    head = subprocess.run(git, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    assert commit().removesuffix("-dirty") == head
