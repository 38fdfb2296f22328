"""What a worker tells of itself while it works, and how it is asked to stop."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from purge.callbacks import Callback
from purge.core.errors import PurgeError
from purge.ledger.journal import progress

if TYPE_CHECKING:
    from purge.ledger.ledger import Ledger

PAUSE = 1.0  # seconds between two looks into the ledger


class Stopped(Exception):
    """Somebody has asked the worker to stop."""


class Watched(Callback):
    """Tells the ledger how far a batch is, and ends it at the next step if somebody has asked for that."""

    def __init__(self, ledger: Ledger, batch: int) -> None:
        self._ledger, self._batch = ledger, batch
        self._doing, self._began, self._looked = "", 0.0, 0.0

    def begins(self, doing: str) -> None:
        """Another part of the work begins."""
        self._doing, self._began = doing, time.monotonic()
        self._look(0, 0)

    def on_step(self, step: int, steps: int) -> None:
        """Look now and then; a ledger that cannot be read just now is asked again."""
        if time.monotonic() - self._looked >= PAUSE:
            self._look(step, steps)

    def _look(self, step: int, steps: int) -> None:
        now = time.monotonic()
        left = None if not step else (now - self._began) / step * (steps - step)
        far = {"doing": self._doing, "batch": self._batch, "step": step, "steps": steps, "seconds_left": left}
        with suppress(PurgeError):
            if progress(self._ledger, far):
                raise Stopped
        self._looked = now
