"""Tables, figures, findings and the page of a report; they lay out what others computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from purge.core.plugins import imported_on_use

if TYPE_CHECKING:
    from purge.report import theme
    from purge.report.page import page as html_page
    from purge.report.page import script_digest
    from purge.report.sentences import broken_words, standing_alone, title_for
    from purge.report.tables import (
        WIDTH,
        as_text,
        audit_table,
        class_words,
        fitted,
        flop_words,
        listing,
        plain_table,
        shown,
    )
    from purge.report.words import HEADLINES, LEVELS, SIGNS

__all__ = [
    "HEADLINES", "LEVELS", "SIGNS", "WIDTH", "as_text", "audit_table", "broken_words", "class_words",
    "fitted", "flop_words", "html_page", "listing", "plain_table", "script_digest", "shown",
    "standing_alone", "theme", "title_for",
]  # fmt: skip

_HOMES = {
    **dict.fromkeys(__all__, "report.tables"), "broken_words": "report.sentences",
    "html_page": "report.page:page", "script_digest": "report.page", "standing_alone": "report.sentences",
    "title_for": "report.sentences", **dict.fromkeys(("HEADLINES", "LEVELS", "SIGNS"), "report.words"),
}  # fmt: skip
_HOMES.pop("theme")  # a module of its own

__getattr__ = imported_on_use(__name__, _HOMES)
