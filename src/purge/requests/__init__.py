"""Deletion requests over time: what was asked, what was done, and that nobody changed the account of it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from purge.requests.certificate import certificate_of, write_certificate
    from purge.requests.delivery import Delivery, deliver
    from purge.requests.inbox import Taken, take_in
    from purge.requests.ledger import Ledger, verify_export
    from purge.requests.policy import Policy
    from purge.requests.worker import Outcome, init, run

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
        raise AttributeError(f"module 'purge.requests' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"purge.requests.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
