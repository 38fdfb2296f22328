"""The house itself: public names, arrows between modules, documents in step with the code."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import purge
from purge.cli.app import app
from purge.data.sources import OPTIONS, option_name

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "purge"

# Import arrows point down only: a room may import from rooms in the rows below it.
ROWS = [
    ["cli"],
    ["serve"],
    ["bench", "ledger"],
    ["runs"],
    ["api"],
    ["metrics"],
    ["methods"],
    ["engine"],
    ["models"],
    ["data"],
    ["report", "verdict", "core"],
]
RANK = {room: len(ROWS) - i for i, row in enumerate(ROWS) for room in row} | {"verdict": 1.3, "report": 1.6}
ROOM = {
    "result": "api",
    "training": "api",
    "audit_report": "api",
    "auditor": "api",
    "heads": "api",
    "callbacks": "api",
    "__main__": "cli",
    "demo": "cli",
    "__init__": "core",
}  # files beside the rooms, and where they count


def room_of(module: str) -> str:
    first = module.split(".")[0]
    return ROOM.get(first, first)


def test_public_names_are_sorted_and_there():
    assert purge.__all__ == sorted(purge.__all__)
    assert all(hasattr(purge, name) for name in purge.__all__)


def test_packages_are_packages():
    """`purge.methods` and its sisters are what they say, whatever was imported before."""
    for name in ("methods", "metrics", "models", "data"):
        assert getattr(purge, name).__name__ == f"purge.{name}"


def imports_of(path: Path) -> set[str]:
    """What a file imports from purge; a public name stands for the module that it is in."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "purge":
            names = (alias.name for alias in node.names if not alias.name.startswith("_"))
            modules.update(purge._HOMES.get(name, name) for name in names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("purge."):
            modules.add(str(node.module).removeprefix("purge."))
        elif isinstance(node, ast.Import):
            modules.update(a.name.removeprefix("purge.") for a in node.names if a.name.startswith("purge."))
    return modules


def test_import_arrows_point_down():
    for path in SRC.rglob("*.py"):
        here = room_of(".".join(path.relative_to(SRC).with_suffix("").parts))
        if path == SRC / "__init__.py":
            continue
        for module in imports_of(path):
            there = room_of(module)
            assert there == here or RANK[there] < RANK[here], f"{path} imports {module}"


# The wings use purge as its users do: public names, core, and what rooms publish in their __all__.
WINGS = {"bench": {"bench"}, "cli": {"cli", "bench", "ledger", "serve"}, "ledger": {"ledger"},
         "serve": {"serve", "ledger"}}  # fmt: skip


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_uses_the_core_as_a_user_would(wing):
    inside = set()
    for path in (SRC / wing).rglob("*.py"):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
        for node in (n for n in nodes if "purge." in str(n.module)):
            published = getattr(importlib.import_module(str(node.module)), "__all__", ())
            if str(node.module).count(".") > 1 or not {a.name for a in node.names} <= {*published}:
                inside.add(str(node.module).removeprefix("purge."))
    assert {module for module in inside if room_of(module) not in WINGS[wing] | {"core"}} == set()


# Modules and classes have names of their own, but for these, which do the same in their rooms. A module of
# cli is called like its command.
ALIKE = {"__init__", "app", "audits", "figures", "registry", "schema", "words"}


def test_no_two_modules_or_classes_share_a_name():
    modules = [p.stem for p in SRC.rglob("*.py") if p.parent.name != "cli" and p.stem not in ALIKE]
    trees = [ast.parse(p.read_text()) for p in SRC.rglob("*.py")]
    classes = [n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    for names in (modules, classes):
        assert sorted(name for name in {*names} if names.count(name) > 1) == []


def test_an_option_of_data_is_a_field():
    """Every command that reads data has an option for each field, by its name and with its help."""
    group = typer.main.get_command(app).commands
    for command in (*map(group.get, ("train", "unlearn", "audit")), group["request"].commands["deliver"]):
        known = {name: param.help for param in command.params for name in param.opts}
        for field in OPTIONS:
            own = command.name == "deliver" and field.name == "data"
            assert own or known[f"--{option_name(field)}"] == field.metadata["help"]


def test_every_room_is_known():
    rooms = {room_of(p.relative_to(SRC).parts[0].removesuffix(".py")) for p in SRC.rglob("*.py")}
    assert rooms == set(RANK)


def test_versions_and_changelog_agree():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{purge.__version__}"' in project
    assert f"[{purge.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {purge.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_the_library_does_not_print():
    for path in SRC.rglob("*.py"):
        if path.parent.name != "cli":
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls), path


def test_importing_needs_no_development_package():
    code = "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None; import purge.cli"
    subprocess.run([sys.executable, "-c", code], check=True)


WITHOUT_EXTRA = """
import sys
sys.modules |= dict.fromkeys(("pandas", "ray"))
import purge, purge.bench.runner, purge.bench.figures, torch
from purge.bench import on_ray
from purge.bench.schema import Resources

def frame(): purge.Report({}, {}, {}).to_frame()
def history(): purge.Result(torch.nn.Linear(2, 2), None, [], "schedule", 1.0, 1).history_frame()
def cluster():
    with on_ray.ray_workers("", 1, 1, Resources(), "cpu"): pass

for use in (frame, history, cluster):
    try:
        use()
    except purge.PurgeError as error:
        print(error)
"""


def test_what_an_extra_brings_is_asked_for_by_name():
    """The core and a bench on this machine do without pandas and ray."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA], check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line.split(",")[0].split()[-1] for line in lines] == ["pandas", "pandas", "ray"]
    assert all(line.endswith("Fix: pip install 'purge-unlearning[bench]'.") for line in lines)
