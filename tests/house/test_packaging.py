"""The package as others get it: the wheel, the source archive, their metadata, and clean environments."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import purge

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = ("3.11", "3.12", "3.13")

pytestmark = pytest.mark.skipif(UV is None, reason="uv is not on the path")


def run(*argv: str | Path, at: Path, **env: str) -> str:
    """Run a command outside of the clone, as somebody who has only the package."""
    drop = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    clean = {key: value for key, value in os.environ.items() if key not in drop}
    done = subprocess.run(
        [str(arg) for arg in argv], cwd=at, env={**clean, "OMP_NUM_THREADS": "1", **env},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, which uv makes from the source archive, and that archive."""
    out = tmp_path_factory.mktemp("dist")
    run("uv", "build", "--quiet", "--out-dir", out, ROOT, at=out)
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, archive


def inside(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as file:
        return sorted(file.namelist())


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = [n for n in file.namelist() if n.endswith(".dist-info/METADATA")]
        return Parser().parsestr(file.read(name).decode())


def tracked(folder: str) -> list[str]:
    """Files of the clone below a folder, without what compiling leaves."""
    paths = (p for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(p.relative_to(ROOT / folder).as_posix() for p in paths)


def test_the_wheel_has_every_file_of_the_package_and_no_other(built: tuple[Path, Path]) -> None:
    info = f"purge_unlearning-{purge.__version__}.dist-info"
    meta = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    ours = [name for name in inside(built[0]) if name.startswith("purge/")]
    assert ours == tracked("src")
    assert {*inside(built[0])} - {*ours} == {f"{info}/{name}" for name in meta}
    assert "purge/py.typed" in ours
    assert any(name.endswith(".html.j2") for name in ours)
    assert "purge/bench/paper.json" in ours


def test_the_source_archive_makes_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    run("uv", "build", "--quiet", "--wheel", "--out-dir", tmp_path, ROOT, at=tmp_path)
    (direct,) = tmp_path.glob("*.whl")
    assert inside(direct) == inside(built[0])
    with tarfile.open(built[1]) as archive:
        top = {name.split("/")[1] for name in archive.getnames()}
    docs = {"README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"}
    assert top == {"src", *docs, "pyproject.toml", "hatch_build.py", "PKG-INFO", ".gitignore"}


def test_what_an_index_shows(built: tuple[Path, Path]) -> None:
    found = metadata_of(built[0])
    assert (found["Name"], found["Version"]) == ("purge-unlearning", purge.__version__)
    assert found["Requires-Python"] == f">={PYTHONS[0]}"
    for version in PYTHONS:
        assert f"Programming Language :: Python :: {version}" in found.get_all("Classifier")
    assert found["Description-Content-Type"] == "text/markdown"
    text = str(found.get_payload())
    assert text.startswith("# purge")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)|(?:src|href)=\"(?!https?://|#)", prose) == []
    assert "```python" in text  # code is left as it is


def test_links_that_only_a_clone_has_become_text(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = ModuleType("hatchling.metadata.plugin.interface")  # it is where packages are built, not here
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    standalone = runpy.run_path(str(ROOT / "hatch_build.py"))["standalone"]
    text = '![p](a.png) [b](docs/b.md) [c](https://x.org) [d](#d)\n```\nx[a](b)\n```\n<img src="a.png">'
    assert standalone(text) == " b [c](https://x.org) [d](#d)\n```\nx[a](b)\n```\n"


def test_no_extra_names_torch_and_torch_is_named_once(built: tuple[Path, Path]) -> None:
    needs = metadata_of(built[0]).get_all("Requires-Dist") or []
    torch = [need for need in needs if re.match(r"torch\b(?!vision)", need)]
    assert len(torch) == 1
    assert "extra" not in torch[0]
    assert {*PROJECT["optional-dependencies"]} == {*(metadata_of(built[0]).get_all("Provides-Extra") or [])}


def test_the_installed_package_works_outside_of_the_clone(built: tuple[Path, Path], tmp_path: Path) -> None:
    """In an environment of its own that borrows what purge needs, but not purge, from this one."""
    env = tmp_path / "env"
    run("uv", "venv", "--quiet", "--python", sys.executable, env, at=tmp_path)
    python = env / ("Scripts" if os.name == "nt" else "bin") / "python"
    run("uv", "pip", "install", "--quiet", "--no-deps", "--python", python, built[0], at=tmp_path)
    (site,) = env.rglob("site-packages")
    theirs = Path(pytest.__file__).parents[1]
    (site / "borrowed.pth").write_text(str(theirs))
    command = python.with_name("purge")
    assert run(command, "--version", at=tmp_path) == f"purge {purge.__version__}\n"
    assert "gradient-ascent" in run(command, "list", "methods", at=tmp_path)
    code = (
        "import purge, pathlib; p = pathlib.Path(purge.__file__); print(p, (p.parent / 'py.typed').exists())"
    )
    where, typed = run(python, "-c", code, at=tmp_path).split()
    assert Path(where).is_relative_to(site)
    assert typed == "True"


# -- clean environments -------------------------------------------------------------------------------


def interpreter(version: str) -> str | None:
    """A Python of that version on this machine: on the path, of pyenv, or known to uv."""
    known = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    names = [shutil.which(f"python{version}"), *map(str, sorted(known.glob(f"{version}.*/bin/python")))]
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for name in filter(None, names):
        done = subprocess.run([name, "-c", ask], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return name
    found = subprocess.run(
        ["uv", "python", "find", "--offline", version], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None if found.returncode == 0 else None


@pytest.mark.slow
@pytest.mark.parametrize("version", [PYTHONS[0], PYTHONS[-1]])
def test_a_clean_environment(version: str, built: tuple[Path, Path], tmp_path: Path) -> None:
    """All dependencies are installed as a stranger would; then a model forgets, and a report is written."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    env = tmp_path / "env"
    run("uv", "venv", "--quiet", "--python", python, env, at=tmp_path)
    run("uv", "pip", "install", "--quiet", "--python", env / "bin" / "python", built[0], at=tmp_path)
    command = env / "bin" / "purge"
    assert run(command, "--version", at=tmp_path) == f"purge {purge.__version__}\n"
    data = ("--data", "digits", "--model", "small-resnet", "--set", "epochs=1", "--quiet")
    run(command, "train", *data, "--out", "base", at=tmp_path)
    few = ("--set", "steps=2", "--set", "forget_target=1", "--quiet")
    run(command, "unlearn", "base", "--forget-class", "3", *few, "--out", "new", at=tmp_path)
    run(command, "audit", "new", "--metrics", "quick", "--quiet", at=tmp_path)
    assert "report.html" in run(command, "report", "new", at=tmp_path)
    install = ("uv", "pip", "install", "--quiet", "--python", env / "bin" / "python")
    run(*install, f"{built[0]}[ledger]", at=tmp_path)
    added = run(command, "request", "add", "--class", "3", "--received", "2026-11-01", at=tmp_path)
    assert "request" in added.lower()


@pytest.mark.slow
def test_every_extra_is_resolved_with_the_same_torch(tmp_path: Path) -> None:
    """An extra that wanted another torch would download it a second time."""

    def torch_with(*options: str) -> list[str]:
        lines = run("uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", *options,
                    ROOT / "pyproject.toml", at=tmp_path).splitlines()  # fmt: skip
        return [line for line in lines if re.match(r"torch==", line)]

    plain = torch_with()
    assert len(plain) == 1
    for extra in PROJECT["optional-dependencies"]:
        assert torch_with("--extra", extra) == plain, extra
    assert torch_with("--all-extras") == plain


def test_the_way_to_install_without_a_gpu_is_one_that_uv_has() -> None:
    page = (ROOT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
    assert "uv pip install --torch-backend=cpu purge-unlearning" in page
    shown = subprocess.run(["uv", "pip", "install", "--help"], capture_output=True, text=True, check=True)
    assert "--torch-backend" in shown.stdout
    for name in PROJECT["optional-dependencies"]:
        assert f"`{name}`" in page, name
