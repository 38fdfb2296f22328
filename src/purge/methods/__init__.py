"""The unlearning methods, one file for each paper.

``purge.methods.Purge(lr=…)`` is the typed form of ``method="purge", lr=…``. A class is imported
when it is first used, since torch takes seconds to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use
from purge.methods.registry import METHODS, all_methods, list_methods, resolve_method, source_digest

if TYPE_CHECKING:
    from purge.methods.base import Method
    from purge.methods.sisa_model import INDEX as SISA_INDEX
    from purge.methods.sisa_model import SisaModel
    from purge.methods.sisa_plan import ShardPlan, Vote

_CLASSES = {cls: f"methods.{module}" for module, cls in (entry.cls.split(":") for entry in METHODS.values())}
_HOMES = _CLASSES | {
    "Method": "methods.base", "SISA_INDEX": "methods.sisa_model:INDEX", "ShardPlan": "methods.sisa_plan",
    "SisaModel": "methods.sisa_model", "Vote": "methods.sisa_plan",
}  # fmt: skip

__all__ = [
    "SISA_INDEX", "Method", "ShardPlan", "SisaModel", "Vote", "all_methods", "list_methods",
    "resolve_method", "source_digest",
]  # fmt: skip

__getattr__ = imported_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
