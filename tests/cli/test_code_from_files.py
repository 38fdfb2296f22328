"""No file makes purge import code: neither by a name in it, nor by its place in the current folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from purge.core.errors import FileError
from purge.runs.audits import _shadows
from purge.runs.folder import choose_model, read_facts
from tests.cli.commands import Done, command, good, read, refusal
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


ALL = [
    *CODE,
    "stranger.inner:build",
    "os:fork",
    "pdb:set_trace",
    "timm.models:create_model",
    "hf.x:y",
    " hf:x",
]


@pytest.mark.parametrize("code", ALL)
def test_every_name_of_code_needs_trust(runs: Path, code: str) -> None:
    edit(runs / "run", model=code)
    with pytest.raises(FileError, match=r"--model on this command line or --trust"):
        choose_model(read_facts(runs / "run"), None)


AUDIT = ("audit", "run", "--metrics", "quick", "--quiet")


@BY_CODE
@pytest.mark.parametrize(
    ("folder", "argv"),
    [
        ("run", AUDIT),
        ("base", AUDIT),  # which run.json names as its original
        ("retrained", (*AUDIT, "--retrained", "retrained")),
        ("retrained", (*AUDIT, "--original", "retrained")),
        ("base", ("unlearn", "base", "--forget-class", "3", "--quiet", "--out", "out")),
        ("base", ("train", "--like", "base", "--quiet", "--out", "out")),
    ],
)
def test_a_model_that_run_json_names(runs: Path, folder: str, argv: tuple[str, ...], code: str) -> None:
    edit(runs / folder, model=code)
    said = refusal(command(*argv))
    assert f"Expected --model on this command line or --trust, got {code!r} from run.json" in said
    assert not (runs / "out").exists()


@BY_CODE
def test_a_model_at_the_end_of_a_chain_of_runs(runs: Path, code: str) -> None:
    edit(runs / "run", deployed=None, original=str(runs / "retrained"))
    edit(runs / "retrained", original=str(runs / "base"))
    edit(runs / "base", model=code)
    assert f"{code!r} from run.json" in refusal(command(*AUDIT))


@BY_CODE
def test_data_that_run_json_names(runs: Path, code: str) -> None:
    for folder in ("run", "base"):
        edit(runs / folder, data=code)
    for argv in (
        AUDIT,
        ("unlearn", "base", "--forget-class", "3", "--quiet", "--out", "out"),
        ("train", "--like", "base", "--quiet", "--out", "out"),
    ):
        said = refusal(command(*argv))
        assert f"Expected --data on this command line or --trust, got {code!r} from run.json" in said


def test_a_method_that_run_json_names_is_not_made(runs: Path) -> None:
    """It is only shown; shadow models are not unlearned with it."""
    for key in ("preset", "method", "took", "stopped_by", "model_class"):
        edit(runs / "run", **{key: "os:abort"})
    good(command(*AUDIT))
    good(command("report", "run"))
    assert _shadows(read_facts(runs / "run"), runs / "base", 4, small_mlp()).method is None


@BY_CODE
def test_settings_that_run_json_names(runs: Path, code: str) -> None:
    edit(runs / "base", settings={**read(runs / "base" / "run.json")["settings"], "augment": code})
    refusal(command("train", "--like", "base", "--quiet", "--out", "out"))
    refusal(command("unlearn", "base", "--forget-class", "3", "--quiet", "--out", "out"))
    edit(runs / "base", log_updates=code, settings={})
    argv = ("unlearn", "base", "--method", "amnesiac", "--forget-class", "3", "--quiet", "--out", "out")
    assert "a complete log of updates" in refusal(command(*argv))


def test_the_plan_of_a_sharded_model(runs: Path) -> None:
    code = "os:abort"
    argv = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=1", "--shards", 2, "--quiet")
    good(command("train", *argv, "--out", "sharded"))
    plan = read(runs / "sharded" / "sisa.json")["plan"]
    for changed in ({"vote": code}, {"recipe": code}, {code: 1}):
        edit(runs / "sharded", "sisa.json", plan={**plan, **changed})
        refusal(command("unlearn", "sharded", "--method", "sisa", "--forget-class", "3", "--out", "out"))


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
IN_A_CONFIG: dict[str, Callable[[str], dict[str, Any]]] = {
    "model": lambda code: {"model": code},
    "data": lambda code: {"data": code},
    "method": lambda code: {"methods": [code]},
    "method with settings": lambda code: {"methods": [{"method": code, "label": "finetune"}]},
    "metric": lambda code: {"metrics": ["ra", code]},
    "one metric": lambda code: {"metrics": code},
    "score": lambda code: {"search": {"trials": 1, "score": {code: 1}}, "holdout": 0.2},
    "column": lambda code: {"tables": [{"name": "t", "columns": [code]}]},
    "goal": lambda code: {
        "tables": [{"name": "t", "columns": ["ra"], "goals": [{"column": code, "most": 1}]}]
    },
    "recipe": lambda code: {"recipe": {"augment": code}},
    "set": lambda code: {"set": {"finetune": {"augment": code}}},
    "task": lambda code: {"tasks": [{"model": code}]},
    "metric of a task": lambda code: {"tasks": [{"metrics": [code]}]},
    "presets": lambda code: {"presets": "presets.yaml"},
}


@BY_CODE
@pytest.mark.parametrize("where", IN_A_CONFIG)
def test_code_that_a_config_names(runs: Path, where: str, code: str) -> None:
    (runs / "c.yaml").write_text(yaml.safe_dump({**CONFIG, **IN_A_CONFIG[where](code)}))
    (runs / "presets.yaml").write_text(yaml.safe_dump({"methods": [{"method": code, "set": {"lr": 0.1}}]}))
    refusal(command("bench", "c.yaml", "--out", "out", "--quiet"))
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
NAMES = [
    "yaml",
    "json",
    "torchvision",
    "typer",
    "rich",
    "numpy",
    "random",
    "multiprocessing",
    "signal",
    "purge_x",
]


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


@pytest.mark.parametrize("module", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_file_named_like_a_library_is_not_imported(shadowed: Path, module: bool) -> None:
    good(purge(shadowed, "report", "run", module=module))


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize(
    "argv",
    [
        ("list", "methods"),
        ("list", "datasets"),
        ("list", "metrics"),
        AUDIT,
        ("bench", "c.yaml", "--out", "out", "--jobs", "2", "--quiet"),
    ],
)
def test_no_command_imports_such_a_file(shadowed: Path, argv: tuple[str, ...], module: bool) -> None:
    small = {"per_class": 10, "recipe": {"epochs": 1}, "retrains": 0}
    (shadowed / "c.yaml").write_text(yaml.safe_dump({**CONFIG, **small}))
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
    assert "a classifier hf:" in refusal(command(*AUDIT))


@pytest.mark.parametrize(
    "name", ["timm:hf-hub:somebody/model", "timm:hf_hub:somebody/model", "timm:local-dir:vit"]
)
def test_timm_builds_only_models_that_it_knows_by_name(runs: Path, name: str) -> None:
    edit(runs / "run", model=name)
    assert "the name of a model of timm" in refusal(command(*AUDIT))
