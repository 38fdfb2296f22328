"""Run folders: made by name, read back, and their record; what wings use of them, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use

if TYPE_CHECKING:
    from purge.auditor import Auditor
    from purge.engine.resume import kept_epochs
    from purge.engine.trainer import Recipe
    from purge.models.export import words as left_out_words
    from purge.report.figures import save_all as save_figures
    from purge.result import environment
    from purge.runs.commands import Trained, Unlearned, audit_folder, train_folder, unlearn_folder
    from purge.runs.evidence import write_report
    from purge.runs.folder import (
        RunFile,
        build_for,
        choose_model,
        facts_of,
        first_of,
        gone_of,
        read_data,
        read_facts,
        read_model,
        recipe_of,
        same_scale,
    )
    from purge.runs.make import check_recorded, facts_for, fresh_model, train_run, unlearn_run
    from purge.runs.requests import LeftOut, Request, cut
    from purge.runs.weights import WEIGHTS, check_weights
    from purge.runs.words import request_words

_HOMES = {
    "Auditor": "auditor", "environment": "result", "Recipe": "engine.trainer", "kept_epochs": "engine.resume",
    "left_out_words": "models.export:words", "save_figures": "report.figures:save_all",
    "request_words": "runs.words", "write_report": "runs.evidence",
    **dict.fromkeys(
        ("Trained", "Unlearned", "audit_folder", "train_folder", "unlearn_folder"), "runs.commands"
    ),
    **dict.fromkeys(
        ("RunFile", "build_for", "choose_model", "facts_of", "first_of", "gone_of",
         "read_data", "read_facts", "read_model", "recipe_of", "same_scale"), "runs.folder"
    ),
    **dict.fromkeys(
        ("check_recorded", "facts_for", "fresh_model", "train_run", "unlearn_run"), "runs.make"
    ),
    **dict.fromkeys(("LeftOut", "Request", "cut"), "runs.requests"),
    **dict.fromkeys(("WEIGHTS", "check_weights"), "runs.weights"),
}  # fmt: skip

__all__ = [
    "WEIGHTS", "Auditor", "LeftOut", "Recipe", "Request", "RunFile", "Trained", "Unlearned", "audit_folder",
    "build_for", "check_recorded", "check_weights", "choose_model", "cut", "environment", "facts_for",
    "facts_of", "first_of", "fresh_model", "gone_of", "kept_epochs", "left_out_words", "read_data",
    "read_facts", "read_model", "recipe_of", "request_words", "same_scale", "save_figures", "train_folder",
    "train_run", "unlearn_folder", "unlearn_run", "write_report",
]  # fmt: skip

__getattr__ = imported_on_use(__name__, _HOMES)
