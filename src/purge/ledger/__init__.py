"""Deletion requests over time: what was asked, what was done, and that nobody changed the account of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purge.ledger.certificate import certificate_of, write_certificate
    from purge.ledger.delivery import Delivery, deliver
    from purge.ledger.inbox import Taken, take_in
    from purge.ledger.ledger import Ledger, verify_export
    from purge.ledger.policy import Policy
    from purge.ledger.worker import Outcome, init, run

# The module of each name; imported when first used, since what carries requests out needs torch.
_HOMES = {
    "Delivery": "delivery", "Ledger": "ledger", "Outcome": "worker", "Policy": "policy", "Taken": "inbox",
    "certificate_of": "certificate", "deliver": "delivery", "init": "worker", "run": "worker",
    "take_in": "inbox", "verify_export": "ledger", "write_certificate": "certificate",
}  # fmt: skip

__all__ = [
    "Delivery", "Ledger", "Outcome", "Policy", "Taken", "certificate_of", "deliver", "init", "run", "take_in",
    "verify_export", "write_certificate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'purge.ledger' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"purge.ledger.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
