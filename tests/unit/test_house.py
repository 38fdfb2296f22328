"""The house itself: public names, arrows between modules, documents in step with the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import purge

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "purge"

# Import arrows point down only: a module may import from its own row's left or from rows below.
ROWS = [
    ["__main__"],
    ["cli"],
    ["suite", "outlook"],
    ["stock"],
    ["plan"],
    ["search"],
    ["configs"],
    ["charts"],
    ["evidence"],
    ["record"],
    ["runs", "demo", "limits"],
    ["__init__"],
    ["api"],
    ["metrics"],
    ["methods"],
    ["result", "shards"],
    ["checks"],
    ["training"],
    ["runtime", "norm"],
    ["objectives", "grads"],
    ["architectures", "datasets", "models", "stopping"],
    ["originals"],
    ["hooks", "reading"],
    ["splits", "decoding"],
    ["data"],
    ["images"],
    ["optim"],
    ["html"],
    ["plots", "verdict"],
    ["style"],
    ["placement", "settings", "tables", "files", "progress", "graphs", "workers"],
    ["errors"],
]
RANK = {name: len(ROWS) - i for i, row in enumerate(ROWS) for name in row}


def test_public_names_are_sorted_and_there():
    assert purge.__all__ == sorted(purge.__all__)
    assert all(hasattr(purge, name) for name in purge.__all__)
    public = {n for n in vars(purge) if not n.startswith("_")} - {p.stem for p in SRC.glob("*")}
    assert public == set(purge.__all__) - {p.stem for p in SRC.glob("*")}


def test_import_arrows_point_down():
    for path in SRC.rglob("*.py"):
        here = path.relative_to(SRC).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("purge"):
                parts = node.module.split(".")
                names = [parts[1]] if len(parts) > 1 else [a.name for a in node.names if a.name in RANK]
            elif isinstance(node, ast.Import):
                names = ["__init__" for a in node.names if a.name == "purge"]
            for name in names:
                assert name == here or RANK[name] < RANK[here], f"{path.name} imports {name}"


def test_every_module_has_a_place():
    assert {p.relative_to(SRC).parts[0].removesuffix(".py") for p in SRC.rglob("*.py")} == set(RANK)


def test_versions_and_changelog_agree():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{purge.__version__}"' in project
    assert f"[{purge.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {purge.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_the_library_does_not_print():
    for path in SRC.rglob("*.py"):
        if path.stem != "cli":
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls), path


def test_the_loop_does_not_branch_on_tensors():
    """No .item(), .cpu(), float(tensor) or `if tensor` between the steps of PURGE."""
    tree = ast.parse((SRC / "methods" / "purge.py").read_text())
    loops = [n for n in ast.walk(tree) if isinstance(n, ast.For)]
    loop = next(n for n in loops if re.search(r"\bsteps\b", ast.unparse(n.iter)))
    body = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "step_of")
    nodes = [*ast.walk(loop), *ast.walk(body)]
    text = ast.unparse(loop) + ast.unparse(body)
    assert not re.search(r"\.(item|cpu|tolist|numpy)\(|(?<![.\w])(float|bool|int)\(", text)
    conditions = [ast.unparse(n.test) for n in nodes if isinstance(n, (ast.If, ast.IfExp, ast.While))]
    known = r"run\.due|self\.\w+( == '\w+')?|landing|layers|i == 0|teacher_r is None( and i % AHEAD == 0)?"
    assert all(re.fullmatch(known, c) for c in conditions), conditions


def test_importing_needs_no_development_package():
    code = "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None; import purge.cli"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_method_is_in_the_table_of_the_documentation():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|(.*)\|$", (ROOT / "docs" / "methods.md").read_text(), re.M)
    assert {name for name, _ in rows} == set(purge.methods())
    assert all(len(re.split(r"(?<!\\)\|", cells)) == 5 for _, cells in rows)
