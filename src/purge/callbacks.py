"""What happens in a run, told to objects of yours: for a tracker of experiments, or a rule that ends a run.

The documentation has recipes for TensorBoard, Weights & Biases and MLflow under "Experiments".

Values are told at checks, and after the epochs of a training. Of the steps in between only their numbers are
told; their values are told at the end, in ``result.history``: to read each from a GPU would make it wait.

An exception in a callback ends the run and reaches the caller as it is, with a note that names the callback;
this is also how a callback stops a run. Once there is a result, an exception becomes a warning in the log,
since it must not lose the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from purge.core.errors import DataError
from purge.core.files import writes
from purge.engine.seeding import seeded

if TYPE_CHECKING:
    from purge.audit_report import Report
    from purge.result import Result

__all__ = ["Callback"]

logger = logging.getLogger("purge")


class Callback:
    """The events of a run; each does nothing unless you write it. A callback need not be a subclass.

    Example:
        >>> class Patience(Callback):
        ...     def on_check(self, step, values):
        ...         if values["check_retain_loss"] > 2:
        ...             raise RuntimeError("this is going nowhere")
        >>> Patience().on_check(50, {"check_retain_loss": 0.1})
    """

    def on_start(self, info: Mapping[str, Any]) -> None:
        """Before the first step.

        Args:
            info: ``kind`` (``train`` or ``unlearn``), ``method``, ``settings``, ``seed``, ``device``, and how
                many samples there are. Plain JSON values.
        """

    def on_check(self, step: int, values: Mapping[str, float]) -> None:
        """At a check of an unlearning, also before its first step, and after each epoch of a training.

        Args:
            step: the number of steps taken, or of epochs.
            values: ``check_forget_accuracy`` and ``check_retain_loss``, or ``loss``.
        """

    def on_step(self, step: int, steps: int) -> None:
        """After each step of an unlearning or a training, before its values are known.

        Args:
            step: how many were taken.
            steps: how many there will be, unless it ends early.
        """

    def on_end(self, result: Result) -> None:
        """When the result is there, and written if it was to be.

        Args:
            result: what the caller gets; its ``history`` has all steps.
        """

    def on_report(self, report: Report) -> None:
        """When an audit is done.

        Args:
            report: what the caller gets.
        """


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class Listeners:
    """The callbacks of one call, and what becomes of their exceptions."""

    def __init__(self, callbacks: Callback | Sequence[Callback]) -> None:
        self._all = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        for one in self._all:
            if isinstance(one, type) or not any(callable(getattr(one, event, None)) for event in EVENTS):
                got = one.__name__ if isinstance(one, type) else type(one).__name__
                fix = "pass an object with on_check(step, values), say"
                raise DataError("objects with " + " or ".join(EVENTS) + " as callbacks", got, fix)

    def tell(self, event: str, *about: Any) -> None:
        """Call this method of those that have it; of several ranks, the first one tells."""
        for one in self._all if writes() else ():
            try:
                getattr(one, event, lambda *_: None)(*about)
            except Exception as error:
                name = f"{type(one).__name__}.{event}"
                if event in ("on_start", "on_check", "on_step"):
                    error.add_note(f"Raised by {name}, a callback of this run, which ends here.")
                    raise
                logger.warning("The callback %s raised %s: %s", name, type(error).__name__, error)

    def during(self, seed: int, device: torch.device) -> Callable[[int, Mapping[str, float]], None] | None:
        """How a run tells what it measured; None if nobody listens.

        A callback may draw random numbers: those of the run are what they would be without it.
        """

        def tell(step: int, values: Mapping[str, float]) -> None:
            with seeded(seed, device):
                self.tell("on_check", step, values)

        return tell if self._all else None

    def each(self, seed: int, device: torch.device) -> Callable[[int, int], None] | None:
        """How a run tells of its steps; None if nobody listens to them."""
        if all(getattr(type(one), "on_step", Callback.on_step) is Callback.on_step for one in self._all):
            return None

        def tell(step: int, steps: int) -> None:
            with seeded(seed, device):
                self.tell("on_step", step, steps)

        return tell
