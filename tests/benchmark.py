"""The scripts in benchmarks/ as modules, for tests of what they measure."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def benchmark(name: str) -> Any:
    """The script of that name; scripts that it imports leave no trace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    for other in ("base_models", "cases"):
        sys.modules.pop(other, None)  # they have plain names, which others may want
    return module
