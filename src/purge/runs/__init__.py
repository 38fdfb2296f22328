"""Run folders: made by name, read back, and their record; what wings use of them, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use

if TYPE_CHECKING:
    from purge.auditor import Auditor
    from purge.core.folders import WEIGHTS
    from purge.engine.resume import kept_epochs
    from purge.engine.trainer import Recipe
    from purge.models.export import words as left_out_words
    from purge.report.figures import save_all as save_figures
    from purge.result import environment
    from purge.runs.audits import audit_folder
    from purge.runs.commands import Trained, Unlearned, train_folder, unlearn_folder
    from purge.runs.evidence import write_report
    from purge.runs.folder import (
        RunFile,
        build_for,
        check_weights,
        choose_model,
        facts_of,
        first_of,
        gone_of,
        read_data,
        read_facts,
        read_model,
        recipe_of,
        request_words,
        same_scale,
    )
    from purge.runs.make import check_recorded, facts_for, train_run, unlearn_run
    from purge.runs.requests import LeftOut, Request, cut

_HOMES = {
    "WEIGHTS": "core.folders", "Auditor": "auditor", "environment": "result", "Recipe": "engine.trainer",
    "kept_epochs": "engine.resume", "left_out_words": "models.export:words",
    "save_figures": "report.figures:save_all", "write_report": "runs.evidence", "audit_folder": "runs.audits",
    **dict.fromkeys(("Trained", "Unlearned", "train_folder", "unlearn_folder"), "runs.commands"),
    **dict.fromkeys(("check_recorded", "facts_for", "train_run", "unlearn_run"), "runs.make"),
    **dict.fromkeys(("LeftOut", "Request", "cut"), "runs.requests"),
}  # fmt: skip

__all__ = [
    "WEIGHTS", "Auditor", "LeftOut", "Recipe", "Request", "RunFile", "Trained", "Unlearned", "audit_folder",
    "build_for", "check_recorded", "check_weights", "choose_model", "cut", "environment", "facts_for",
    "facts_of",
    "first_of", "gone_of", "kept_epochs", "left_out_words", "read_data", "read_facts",
    "read_model", "recipe_of", "request_words", "same_scale", "save_figures", "train_folder", "train_run",
    "unlearn_folder", "unlearn_run", "write_report",
]  # fmt: skip

__getattr__ = imported_on_use(__name__, {**dict.fromkeys(__all__, "runs.folder"), **_HOMES})
