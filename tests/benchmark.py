"""Scripts in benchmarks/, scripts/ and examples/ as modules, for tests of what they do."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def script(path: Path) -> Any:
    """A file as a module; scripts beside it that it imports leave no trace."""
    loader = SourceFileLoader(f"script_{path.stem}", str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module, before = module_from_spec(spec), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        patch.setitem(sys.modules, loader.name, module)  # dataclasses look their module up
        loader.exec_module(module)
    forget(path.parent, before)
    return module


def forget(folder: Path, before: set[str]) -> None:
    """Take back the imports of modules in a folder: they have plain names, which others may want."""
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def benchmark(name: str) -> Any:
    return script(ROOT / "benchmarks" / f"{name}.py")
