"""No file makes purge import code: neither by a name in it, nor by its place in the current folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from purge.runs.audits import _shadows
from purge.runs.folder import read_facts
from tests.cli.commands import Done, command, good, ran, read, refused
from tests.nets import small_mlp

pytestmark = pytest.mark.slow

CODE = ["stranger:build", "os:abort"]  # the second would end this process
BY_CODE = pytest.mark.parametrize("code", CODE)
MARK = "import pathlib\npathlib.Path({path!r}).touch()\n"


@pytest.fixture
def runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The run folders with the code of a stranger beside them, in the current folder."""
    for name in ("base", "retrained", "run"):
        (tmp_path / name).mkdir()
        for file in (made / name).iterdir():
            os.link(file, tmp_path / name / file.name) if file.suffix == ".safetensors" else (
                tmp_path / name / file.name
            ).write_bytes(file.read_bytes())
    edit(tmp_path / "run", original=str(tmp_path / "base"), deployed=str(tmp_path / "base"))
    (tmp_path / "stranger").mkdir()
    for file in ("stranger/__init__.py", "stranger/inner.py"):
        (tmp_path / file).write_text(MARK.format(path=str(tmp_path / "executed")) + "build = print\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "executed").exists()
    assert "stranger" not in sys.modules


def edit(run: Path, file: str = "run.json", **changes: Any) -> None:
    (run / file).write_text(json.dumps({**read(run / file), **changes}))


AUDIT = ("audit", "run", "--metrics", "quick", "--quiet")
UNLEARN = ("unlearn", "base", "--forget-class", "3", "--quiet", "--out", "out")
LIKE = ("train", "--like", "base", "--quiet", "--out", "out")


@BY_CODE
def test_a_model_or_data_that_run_json_names(runs: Path, code: str) -> None:
    for key, folder, argv in (
        ("model", "run", AUDIT),
        ("model", "base", AUDIT),  # which run.json names as its original
        ("model", "retrained", (*AUDIT, "--retrained", "retrained")),
        ("model", "retrained", (*AUDIT, "--original", "retrained")),
        ("model", "base", UNLEARN),
        ("model", "base", LIKE),
        ("data", "run", AUDIT),
        ("data", "base", UNLEARN),
        ("data", "base", LIKE),
    ):
        before = read(runs / folder / "run.json")
        edit(runs / folder, **{key: code})
        said = refused(*argv)
        assert f"Expected --{key} on this command line or --trust, got {code!r} from run.json" in said
        assert not (runs / "out").exists()
        edit(runs / folder, **before)
    edit(runs / "run", deployed=None, original=str(runs / "retrained"))  # a chain of runs
    edit(runs / "retrained", original=str(runs / "base"))
    edit(runs / "base", model=code)
    assert f"{code!r} from run.json" in refused(*AUDIT)


def test_a_method_that_run_json_names_is_not_made(runs: Path) -> None:
    """It is only shown; shadow models are not unlearned with it."""
    for key in ("preset", "method", "took", "stopped_by", "model_class"):
        edit(runs / "run", **{key: "os:abort"})
    ran(*AUDIT)
    ran("report", "run")
    assert _shadows(read_facts(runs / "run"), runs / "base", 4, small_mlp()).method is None


@BY_CODE
def test_settings_that_run_json_names(runs: Path, code: str) -> None:
    edit(runs / "base", settings={**read(runs / "base" / "run.json")["settings"], "augment": code})
    refused(*LIKE)
    refused(*UNLEARN)
    edit(runs / "base", log_updates=code, settings={})
    assert "a complete log of updates" in refused(*UNLEARN, "--method", "amnesiac")


def test_the_plan_of_a_sharded_model(runs: Path) -> None:
    code = "os:abort"
    argv = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=1", "--shards", 2, "--quiet")
    ran("train", *argv, "--out", "sharded")
    plan = read(runs / "sharded" / "sisa.json")["plan"]
    for changed in ({"vote": code}, {"recipe": code}, {code: 1}):
        edit(runs / "sharded", "sisa.json", plan={**plan, **changed})
        refused("unlearn", "sharded", *UNLEARN[2:], "--method", "sisa")


def test_metrics_that_an_audit_describes(runs: Path) -> None:
    code = "os:abort"
    found = read(runs / "run" / "audit.json")
    value = next(iter(found["values"].values()))
    about = {"symbol": code, "about": code, "unit": "share", "fn": code, "units": {}, "section": "forgetting"}
    metrics = {**found["metrics"], code: about, "own": about}
    edit(runs / "run", "audit.json", metrics=metrics, values={**found["values"], code: value, "own": value})
    command("report", "run")


CONFIG: dict[str, Any] = {
    "data": "digits", "model": "small-resnet", "forget": [0], "metrics": ["ra"], "methods": ["finetune"],
    "tables": [{"name": "t", "columns": ["ra"]}],
}  # fmt: skip
GOAL = {"name": "t", "columns": ["ra"], "goals": [{"column": "CODE", "most": 1}]}
IN_A_CONFIG: list[dict[str, Any]] = [
    {"model": "CODE"},
    {"data": "CODE"},
    {"methods": ["CODE"]},
    {"methods": [{"method": "CODE", "label": "finetune"}]},
    {"metrics": ["ra", "CODE"]},
    {"metrics": "CODE"},
    {"search": {"trials": 1, "score": {"CODE": 1}}, "holdout": 0.2},
    {"tables": [{"name": "t", "columns": ["CODE"]}]},
    {"tables": [GOAL]},
    {"recipe": {"augment": "CODE"}},
    {"set": {"finetune": {"augment": "CODE"}}},
    {"tasks": [{"model": "CODE"}]},
    {"tasks": [{"metrics": ["CODE"]}]},
    {"presets": "presets.yaml"},
]


@BY_CODE
def test_code_that_a_config_names(runs: Path, code: str) -> None:
    presets = {"methods": [{"method": code, "set": {"lr": 0.1}}]}
    (runs / "presets.yaml").write_text(yaml.safe_dump(presets))
    for changes in IN_A_CONFIG:
        (runs / "c.yaml").write_text(yaml.safe_dump({**CONFIG, **changes}).replace("CODE", code))
        refused("bench", "c.yaml", "--out", "out", "--quiet")
        assert not (runs / "out").exists()


@BY_CODE
def test_metrics_that_a_bench_describes(runs: Path, code: str) -> None:
    (runs / "out" / "jobs").mkdir(parents=True)
    about = {"symbol": code, "unit": "share", "units": {}, "fn": code}
    content = {"name": "x", "about": "", "jobs": [], "metrics": {"own": about, code: about}, "figures": []}
    tables = [{"name": "t", "columns": ["own", code]}]
    (runs / "out" / "bench.json").write_text(json.dumps({**content, "tables": tables}))
    command("bench", "out")


# -- files in the current folder ----------------------------------------------------------------


def purge(folder: Path, *argv: str, module: bool) -> Done:
    """Run the command in a process of its own, as a script or with ``python -m``."""
    script = [sys.executable, "-m", "purge"] if module else [str(Path(sys.executable).with_name("purge"))]
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    done = subprocess.run([*script, *argv], cwd=folder, env=env, capture_output=True, text=True)
    return Done(done.returncode, done.stdout, done.stderr)


# Not importlib, typing and __future__: python -m itself imports them, before any line of purge.
NAMES = ["yaml", "json", "torchvision", "typer", "rich", "numpy", "random", "multiprocessing", "purge_x"]


@pytest.fixture
def shadowed(runs: Path) -> Path:
    """Files named like libraries, and a package that claims to be an installed plugin."""
    for name in NAMES:
        (runs / f"{name}.py").write_text(MARK.format(path=str(runs / "executed")) + "raise ImportError\n")
    (runs / "purge_x-1.0.dist-info").mkdir()
    (runs / "purge_x-1.0.dist-info" / "METADATA").write_text("Name: purge-x\nVersion: 1.0\n")
    points = "".join(f"[purge.{group}]\nx = purge_x:X\n" for group in ("methods", "metrics", "datasets"))
    (runs / "purge_x-1.0.dist-info" / "entry_points.txt").write_text(points)
    return runs


@pytest.mark.parametrize("module", [False, True])
def test_no_command_imports_a_file_named_like_a_library(shadowed: Path, module: bool) -> None:
    small = {"per_class": 10, "recipe": {"epochs": 1}, "retrains": 0}
    (shadowed / "c.yaml").write_text(yaml.safe_dump({**CONFIG, **small}))
    for argv in (
        ("list", "methods"),
        ("list", "datasets"),
        ("list", "metrics"),
        AUDIT,
        ("report", "run"),
        ("bench", "c.yaml", "--out", "out", "--jobs", "2", "--quiet"),
    ):
        good(purge(shadowed, *argv, module=module))


def test_a_matplotlibrc_in_the_current_folder_is_not_read(runs: Path) -> None:
    """Old versions of Matplotlib evaluate parts of it, and any would call LaTeX."""
    (runs / "matplotlibrc").write_text("text.usetex: True\nsavefig.dpi: 7\n")
    good(purge(runs, "report", "run", module=False))


# -- names of other packages ----------------------------------------------------------------------


def test_a_hugging_face_folder_cannot_bring_its_own_code(runs: Path) -> None:
    """config.json names classes of a file beside it, which only trust_remote_code would import."""
    (runs / "vit").mkdir()
    auto = {"AutoConfig": "code.Config", "AutoModelForImageClassification": "code.Model"}
    config = {"model_type": "unheard-of", "auto_map": auto, "architectures": ["Model"]}
    (runs / "vit" / "config.json").write_text(json.dumps(config))
    (runs / "vit" / "code.py").write_text(MARK.format(path=str(runs / "executed")))
    edit(runs / "run", model="hf:vit")
    assert "a classifier hf:" in refused(*AUDIT)


def test_timm_builds_only_models_that_it_knows_by_name(runs: Path) -> None:
    for name in ("timm:hf-hub:somebody/model", "timm:hf_hub:somebody/model", "timm:local-dir:vit"):
        edit(runs / "run", model=name)
        assert "the name of a model of timm" in refused(*AUDIT)
