"""Deletion requests over time: what was asked, what was done, and that nobody changed the account of it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from purge.core.errors import LedgerError

if TYPE_CHECKING:
    from purge.ledger.certificate import certificate_of, write_certificate
    from purge.ledger.data import Delivery, deliver
    from purge.ledger.intake import Taken, take_in
    from purge.ledger.ledger import Ledger, verify_export
    from purge.ledger.plan import Outcome
    from purge.ledger.policy import Policy
    from purge.ledger.worker import init, run

if importlib.util.find_spec("sqlalchemy") is None:
    raise LedgerError("the package sqlalchemy, for ledgers", "none", "pip install 'purge-unlearning[ledger]'")

# The module of each name; imported when first used, since what carries requests out needs torch.
_HOMES = {
    "Delivery": "data", "Ledger": "ledger", "Outcome": "plan", "Policy": "policy", "Taken": "intake",
    "certificate_of": "certificate", "deliver": "data", "init": "worker", "run": "worker",
    "take_in": "intake", "verify_export": "ledger", "write_certificate": "certificate",
}  # fmt: skip

__all__ = [
    "Delivery", "Ledger", "Outcome", "Policy", "Taken", "certificate_of", "deliver", "init", "run", "take_in",
    "verify_export", "write_certificate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'purge.ledger' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"purge.ledger.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
