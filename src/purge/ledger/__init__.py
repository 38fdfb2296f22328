"""Deletion requests over time: what was asked, what was done, and that nobody changed the account of it."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from purge.core.errors import LedgerError
from purge.core.plugins import imported_on_use

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

__all__ = [
    "Delivery", "Ledger", "Outcome", "Policy", "Taken", "certificate_of", "deliver", "init", "run", "take_in",
    "verify_export", "write_certificate",
]  # fmt: skip

__getattr__ = imported_on_use(
    __name__,
    {
        "Delivery": "ledger.data", "Ledger": "ledger.ledger", "Outcome": "ledger.plan",
        "Policy": "ledger.policy", "Taken": "ledger.intake", "certificate_of": "ledger.certificate",
        "deliver": "ledger.data", "init": "ledger.worker", "run": "ledger.worker",
        "take_in": "ledger.intake", "verify_export": "ledger.ledger",
        "write_certificate": "ledger.certificate",
    },
)  # fmt: skip
