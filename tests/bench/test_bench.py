"""A bench from the file to the figures.

``configs/smoke.yaml`` is run once; the other tests look at what it left or borrow its models.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import purge
from purge.bench.jobs import Job, read_plan
from purge.bench.models import Place, sound, trained
from purge.bench.runner import commit, run_job
from purge.data.load import load
from purge.models.checkpoint import digest
from purge.runs.folder import read_model
from tests.cli.commands import Done, command, read

pytestmark = pytest.mark.slow
SMOKE = Path(__file__).parents[2] / "configs" / "smoke.yaml"


def bench(*argv: Any, code: int = 0) -> Done:
    """Run ``purge bench`` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PURGE_COMMIT", "abc1234")
        done = command("bench", *argv)
    assert done.code == code, done.err
    return done


def smaller(tmp_path: Path, methods: list[Any], **changes: Any) -> Path:
    """The smoke bench with other methods and one table."""
    tables = [{"name": "t", "columns": ["ra"]}]
    content = {**yaml.safe_load(SMOKE.read_text()), "methods": methods, "tables": tables, "figures": []}
    (tmp_path / "mixed.yaml").write_text(yaml.safe_dump({**content, **changes}))
    return tmp_path / "mixed.yaml"


def stamps(files: Any) -> dict[str, int]:
    return {str(f): f.stat().st_mtime_ns for f in files}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the smoke bench: six jobs with two bases, and two references that both seeds share."""
    out = tmp_path_factory.mktemp("bench") / "out"
    done = bench(SMOKE, "--out", out)
    assert "6 jobs run, 0 were there, 4 models trained, 0 failed" in done.out
    return out


@pytest.fixture
def copied(smoke: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to spoil."""
    return Path(shutil.copytree(smoke, tmp_path / "out"))


def job_of(label: str, seed: int) -> Job:
    return next(j for j in read_plan(SMOKE).jobs if (j.label, j.seed) == (label, seed))


def test_a_result_says_how_it_was_made(smoke: Path) -> None:
    for job in read_plan(SMOKE).jobs:
        result = read(smoke / "jobs" / f"{job.id}.json")
        numbers = result["numbers"]
        assert result["commit"] == "abc1234"
        assert {"label", "method", "settings", "recipe", "request", "stopped_by", "digest", "versions",
                "hardware", "wall_seconds", "checks"} <= result.keys()  # fmt: skip
        assert result["settings"]["stop"]["forget_target"] is None
        assert numbers["speedup"] == pytest.approx(numbers["retrain_seconds"] / numbers["seconds"])
        assert 0 < numbers["pflop"] == result["flop"] / 1e15
        assert 0 < numbers["retrain_pflop"] < 1
        for part in ("values", "retrained", "original", "floor"):
            assert {"value", "low", "high", "n", "why", "bound"} == result[part]["fa_test"].keys()
        assert result["retrained"]["agreement"]["why"]
        assert [m["seed"] for m in result["models"]] == [job.seed, 1000 + job.seed, 1001 - job.seed]
        if job.label == "purge":
            assert numbers["raising"] == 0  # the guarantee, at every step
            assert result["checks"][0]["step"] == 0
            assert len(result["checks"]) > 1


def test_the_seconds_of_trainings_that_ran_side_by_side_are_left_out(copied: Path, tmp_path: Path) -> None:
    models = copied / "models"
    for path in models.glob("*/run.json"):
        facts = read(path)
        assert facts["at_once"] == 1
        path.write_text(json.dumps({**facts, "at_once": 3}))
    numbers = run_job(job_of("finetune", 0), Place(tmp_path, models))["numbers"]
    assert numbers["seconds"] > 0
    assert numbers["retrain_seconds"] is numbers["speedup"] is None


def test_a_job_is_what_the_two_doors_give(smoke: Path) -> None:
    """The same weights and the same numbers as by hand."""
    job, place = job_of("finetune", 1), Place(smoke, smoke / "models")
    data, test = load("digits")
    base, *references = [read_model(trained(t, place), None, data) for t in job.trainings]
    forget, retain = purge.split(data, classes=[0])
    result = purge.unlearn(base, forget, retain, method="finetune", seed=1, progress=False, epochs=1)
    report = purge.audit(
        result, forget, retain, test, original=base, retrained=references, metrics=job.metrics, seed=1,
        progress=False,
    )  # fmt: skip
    ours = read(place.file(job))
    assert ours["digest"] == digest(result.model)
    written = purge.Report({}, {}, {}).to_dict() | report.to_dict()
    for part in ("values", "retrained", "original", "floor"):
        assert ours[part] == json.loads(json.dumps(written[part]))


def test_tables_and_figures_show_the_results_and_are_remade_from_them(smoke: Path) -> None:
    plan, tables = read_plan(SMOKE), smoke / "tables"
    made = {f"{table.name}.{ending}" for table in plan.tables for ending in ("md", "tex", "csv")}
    before = {f: f.read_bytes() for f in tables.iterdir()}
    assert {f.name for f in before} == made
    drawn = {f"{figure.name}.{ending}" for figure in plan.figures for ending in ("png", "svg")}
    assert {f.name for f in (smoke / "figures").iterdir()} == drawn
    text = (tables / "methods.md").read_text()
    rows = {line.split(" | ")[0].lstrip("| "): line for line in text.splitlines()}
    assert {"original", "retrain", "floor", "purge", "purge-paper", "finetune"} <= rows.keys()
    ra = [read(f)["values"]["ra"]["value"] for f in (smoke / "jobs").glob("digits-0-finetune-s*.json")]
    assert f"{100 * sum(ra) / 2:.1f} %" in rows["finetune"]
    assert "commit abc1234" in text
    jobs = stamps(smoke.glob("jobs/*.json"))
    for file in before:
        file.unlink()
    summary = json.loads(bench(SMOKE, "--out", smoke, "--resume", "--json").out)
    assert (summary["ran"], summary["skipped"], summary["failed"]) == (0, 6, {})
    assert {f: f.read_bytes() for f in tables.iterdir()} == before
    assert stamps(smoke.glob("jobs/*.json")) == jobs
    assert bench(smoke).out == f"{len(summary['files'])} files made in {smoke}.\n"
    refused = bench(SMOKE, "--out", smoke, code=2)  # without --resume
    assert "--resume" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_a_dry_run_shows_what_is_there_and_writes_nothing(smoke: Path, tmp_path: Path) -> None:
    done = bench(SMOKE, "--out", tmp_path / "out", "--models", smoke / "models", "--dry-run")
    assert not (tmp_path / "out").exists()
    assert "all 10 4 unknown" in " ".join(done.out.split())
    steps = json.loads(bench(SMOKE, "--out", smoke, "--dry-run", "--json").out)
    assert (sum(step["done"] for step in steps), sum(step["seconds"] for step in steps)) == (10, 0)


@pytest.mark.dist
def test_several_processes_get_the_same_results_as_one(smoke: Path, tmp_path: Path) -> None:
    """Of the methods that are named; the others are left out."""
    here = ("--out", tmp_path / "out", "--models", smoke / "models", "--only", "finetune")
    steps = json.loads(bench(SMOKE, *here, "--dry-run", "--json").out)
    assert {s["what"] for s in steps if not s["what"].startswith("train")} == {"digits 0: finetune"}
    done = bench(SMOKE, *here, "--jobs", 2)
    assert "2 jobs run, 0 were there, 4 left out, 0 models trained, 0 failed" in done.out
    for seed in (0, 1):
        name = f"{job_of('finetune', seed).id}.json"
        one, two = (read(out / "jobs" / name) for out in (smoke, tmp_path / "out"))
        assert (one["digest"], one["values"]) == (two["digest"], two["values"])
    table = (tmp_path / "out" / "tables" / "methods.md").read_text()
    assert "| purge | – |" in table
    assert "| finetune | – |" not in table
    wrong = bench(SMOKE, *here, "--only", "fintune", "--resume", code=2)
    assert "did you mean 'finetune'" in wrong.err


def test_a_failed_job_is_recorded_and_the_others_run(smoke: Path, tmp_path: Path) -> None:
    """Also: models of another bench are reused, and SISA and Amnesiac get base models of their own."""
    methods = [
        {"method": "finetune", "label": "too fast", "set": {"epochs": 1, "lr": 1e30}},
        {"method": "sisa", "base": {"shards": 2, "epochs": 1}},
        {"method": "amnesiac", "base": {"epochs": 1}},
    ]
    file = smaller(tmp_path, methods, seeds=[0], retrains=1, metrics=["ra", "fa_test"])
    models = smoke / "models"
    before = len(list(models.iterdir()))
    done = bench(file, "--out", tmp_path / "out", "--models", models, code=3)
    assert "3 jobs run, 0 were there, 2 models trained, 1 failed" in done.out
    assert len(list(models.iterdir())) == before + 2
    failed, *others = [read(tmp_path / "out" / "jobs" / f"{job.id}.json") for job in read_plan(file).jobs]
    assert failed["kind"] == "RunError"
    assert "\n" not in failed["error"]
    assert f"Failed: too fast: digits 0, seed 0: {failed['error']}" in done.out
    assert all(result["values"]["ra"]["value"] > 0.05 for result in others)
    assert str(models) not in json.dumps(others)  # results may be published
    assert "| too fast | – |" in (tmp_path / "out" / "tables" / "t.md").read_text()
    again = bench(file, "--out", tmp_path / "out", "--models", models, "--resume", code=3)
    assert "1 jobs run, 2 were there" in again.out


DEADLY = """
import os

from purge.bench import models as store
from purge.cli import app
from purge.methods.finetune import FineTune

run, train = FineTune.run, store.train_run
FineTune.run = lambda self, *rest: os._exit(9) if self.negate else run(self, *rest)
store.train_run = lambda *rest, seed, **how: os._exit(9) if seed == 7 else train(*rest, seed=seed, **how)

if __name__ == "__main__":  # the processes that it starts import it, too
    app.main()
"""


@pytest.mark.dist
def test_a_job_or_training_that_kills_its_process_has_failed_and_the_others_run(
    smoke: Path, tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    methods = [
        {"method": "finetune", "label": "killer", "set": {"epochs": 1, "negate": True}},
        {"method": "finetune", "set": {"epochs": 1}},
    ]
    file, out = smaller(tmp_path, methods, seeds=[0, 7], retrains=0, metrics=["ra"]), tmp_path / "out"
    argv = [sys.executable, tmp_path / "deadly.py", "bench", file, "--out", out, "--jobs", "2"]
    argv += ["--models", smoke / "models"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
    assert "4 jobs run, 0 were there, 0 models trained, 3 failed" in done.stdout
    results = {(r["label"], r["seed"]): r for r in map(read, (out / "jobs").iterdir())}
    assert {key: r.get("kind") for key, r in results.items()} == {
        ("killer", 0): "process ended", ("finetune", 0): None,
        ("killer", 7): "no model", ("finetune", 7): "no model",
    }  # fmt: skip
    errors = [r["error"] for r in results.values() if "kind" in r]
    assert all("the process that ran it died" in error for error in errors)
    assert f"Failed: killer: digits 0, seed 0: {errors[0]}" in done.stdout
    assert "| killer | – |" in (out / "tables" / "t.md").read_text()


def test_what_is_damaged_is_made_again(copied: Path) -> None:
    out, job = copied, job_of("finetune", 1)
    file = out / "jobs" / f"{job.id}.json"
    before = read(file)
    file.write_text(file.read_text()[:100])
    short, lost = (next(out.glob(f"models/{t.spec}-*")) for t in job.trainings[:2])
    os.truncate(short / "model.safetensors", (short / "model.safetensors").stat().st_size - 1)
    (lost / "model.safetensors").unlink()
    done = bench(SMOKE, "--out", out, "--resume")
    assert "1 of 6 jobs to run; 2 of 3 models to train." in done.err
    assert "1 jobs run, 5 were there, 2 models trained, 0 failed" in done.out
    assert sound(short)
    assert sound(lost)
    assert read(file)["digest"] == before["digest"]


def test_a_sharded_model_counts_only_with_all_of_its_files(tmp_path: Path) -> None:
    methods = [{"method": "sisa", "base": {"shards": 2, "slices": 2}}]
    file = smaller(tmp_path, methods, per_class=20, metrics=["ra"], recipe={"epochs": 2})
    training, place = read_plan(file).jobs[0].base, Place(tmp_path, tmp_path / "models")
    folder = trained(training, place)
    files = [f for f in folder.iterdir() if f.suffix in (".safetensors", ".json")]
    assert len(files) == 1 + 2 + 1 + 2  # weights, shards, samples; sisa.json and run.json
    for file in files:
        whole = file.read_bytes()
        assert sound(folder)
        file.write_bytes(whole[:-3])
        assert not sound(folder), file
        file.unlink()
        assert not sound(folder), file
        if file.suffix == ".safetensors":
            file.write_bytes(whole[:-3] + b"abc")
            assert not sound(folder), file
        file.write_bytes(whole)
    (folder / "sisa-shard-1.safetensors").unlink()
    assert sound(trained(training, place))


def test_a_search_writes_the_best_settings(tmp_path: Path) -> None:
    config = {
        "data": "digits", "model": "small-resnet", "recipe": {"epochs": 1}, "forget": [0],
        "holdout": 0.2, "per_class": 50,
        "metrics": ["ra", "fa_test"],
        "search": {"trials": 3, "score": {"ra": 1, "fa_test": 1}},
        "methods": [{"method": "finetune", "set": {"epochs": 1}, "search": {"lr": [1e-6, 0.05]}}],
        "tables": [{"name": "trials", "columns": ["score", "ra"]}],
    }  # fmt: skip
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump(config))
    bench(file, "--out", tmp_path / "out")
    results = {r["label"]: r for r in map(read, (tmp_path / "out" / "jobs").iterdir())}
    for result in results.values():
        ours, aim = ({k: result[p][k]["value"] for k in ("ra", "fa_test")} for p in ("values", "retrained"))
        assert result["numbers"]["score"] == pytest.approx(sum(abs(ours[k] - aim[k]) for k in ours))
        assert result["test_samples"] == round(0.2 * (result["test_samples"] + result["forget_samples"]
                                                     + result["retain_samples"]))  # fmt: skip
    (winner,) = yaml.safe_load((tmp_path / "out" / "presets.yaml").read_text())["methods"]
    best = min(results.values(), key=lambda r: (r["numbers"]["score"], r["label"]))
    assert (winner["trial"], winner["set"]) == (best["label"], best["changes"])
    file.write_text(yaml.safe_dump({**config, "search": None, "holdout": None, "presets": "out/presets.yaml",
                                    "methods": ["finetune"], "tables": []}))  # fmt: skip
    assert read_plan(file).jobs[0].changes == best["changes"]


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
