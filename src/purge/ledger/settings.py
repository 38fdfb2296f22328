"""What was settled when a ledger got its first model: where versions are, and what audits may use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from purge.core.errors import LedgerError

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

SETTINGS = "settings"  # the kind of entry that says it


def settings_of(ledger: Ledger) -> tuple[Path, bool]:
    """Where versions are, and whether forgotten samples may be kept for audits."""
    found = [entry.payload for entry in ledger.entries(SETTINGS)]
    if not found or ledger.current() is None:
        fix = "purge request init RUN names the model that requests begin with"
        raise LedgerError(f"a model in {ledger.name}", "none", fix)
    return Path(found[-1]["versions"]), bool(found[-1]["keep_for_audit"])
