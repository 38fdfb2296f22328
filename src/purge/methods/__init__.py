"""The unlearning methods, one file for each paper.

``purge.methods.Purge(lr=…)`` is the typed form of ``method="purge", lr=…``. A class is imported
when it is first used, since torch takes seconds to import.
"""

from __future__ import annotations

import importlib
from typing import Any


def _modules() -> dict[str, str]:
    """The module of each class, as the table of methods has it."""
    from purge.methods.registry import METHODS

    pairs = [entry.cls.split(":") for entry in METHODS.values()]
    return {"Method": "base", **{cls: module for module, cls in pairs}}


def __getattr__(name: str) -> Any:
    if name[0] == "_" or (module := _modules().get(name)) is None:
        raise AttributeError(f"module 'purge.methods' has no attribute {name!r}")
    cls = globals()[name] = getattr(importlib.import_module(f"purge.methods.{module}"), name)
    return cls


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules()})
