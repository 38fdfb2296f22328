"""Run folders: made by name, read back, and their record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use

if TYPE_CHECKING:
    from purge.engine.resume import kept_epochs
    from purge.engine.trainer import Recipe
    from purge.models.export import words as left_out_words
    from purge.report.figures import save_all as save_figures
    from purge.runs.commands import Trained, Unlearned, audit_folder, train_folder, unlearn_folder
    from purge.runs.record import write_report
    from purge.runs.words import request_words

__all__ = [
    "Recipe", "Trained", "Unlearned", "audit_folder", "kept_epochs", "left_out_words", "request_words",
    "save_figures", "train_folder", "unlearn_folder", "write_report",
]  # fmt: skip

__getattr__ = imported_on_use(
    __name__,
    {
        "Recipe": "engine.trainer", "Trained": "runs.commands", "Unlearned": "runs.commands",
        "audit_folder": "runs.commands", "kept_epochs": "engine.resume",
        "left_out_words": "models.export:words", "request_words": "runs.words",
        "save_figures": "report.figures:save_all", "train_folder": "runs.commands",
        "unlearn_folder": "runs.commands", "write_report": "runs.record",
    },
)  # fmt: skip
