"""What happens in a run, told to objects of yours: trackers of experiments, or a rule that ends a run.

log = purge.callbacks.TensorBoard("logs")
result = purge.unlearn(model, forget, retain, callbacks=log)
report = purge.audit(result, forget, retain, test, callbacks=log)

Values are told at checks, and after the epochs of a training. The steps in between are told at the end, in
``result.history``: to read each of them from a GPU would make it wait.

An exception in a callback ends the run and reaches the caller as it is, with a note that names the callback;
this is also how a callback stops a run. Once there is a result, an exception becomes a warning in the log,
since it must not lose the result.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from purge.core.errors import DataError, RunError, brief
from purge.core.files import told, writes

if TYPE_CHECKING:
    from purge.result import Report, Result

__all__ = ["Callback", "TensorBoard", "WeightsAndBiases"]

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


class Told:
    """The callbacks of one call, and what becomes of their exceptions."""

    def __init__(self, given: Callback | Sequence[Callback]) -> None:
        self._all = list(given) if isinstance(given, (list, tuple)) else [given]
        for one in self._all:
            if isinstance(one, type) or not any(callable(getattr(one, event, None)) for event in EVENTS):
                got = one.__name__ if isinstance(one, type) else type(one).__name__
                fix = (
                    "pass purge.callbacks.TensorBoard('logs'), say, or an object with on_check(step, values)"
                )
                raise DataError("objects with " + " or ".join(EVENTS) + " as callbacks", got, fix)

    def __bool__(self) -> bool:
        return bool(self._all)

    def start(self, info: Mapping[str, Any]) -> None:
        """The run begins."""
        self._tell("on_start", info)

    def check(self, step: int, values: Mapping[str, float]) -> None:
        """Values were measured."""
        self._tell("on_check", step, values)

    def end(self, result: Result) -> None:
        """The result is there."""
        self._tell("on_end", result, whole=True)

    def report(self, report: Report) -> None:
        """The audit is there."""
        self._tell("on_report", report, whole=True)

    def _tell(self, event: str, *about: Any, whole: bool = False) -> None:
        for one in self._all if writes() else ():  # of several ranks, the first one tells
            try:
                getattr(one, event, lambda *_: None)(*about)
            except Exception as error:
                name = f"{type(one).__name__}.{event}"
                if not whole:
                    error.add_note(f"Raised by {name}, a callback of this run, which ends here.")
                    raise
                logger.warning("The callback %s raised %s: %s", name, type(error).__name__, error)


# -- trackers -------------------------------------------------------------------------------------


class TensorBoard(Callback):
    """Writes scalars for TensorBoard: ``unlearn/…`` and ``train/…`` by step, ``audit/…`` once.

    Needs the package tensorboard, ``pip install 'purge-unlearning[tensorboard]'``.

    Args:
        folder: where the event file is written; the folder that ``tensorboard --logdir`` is given, or one
            in it.

    Raises:
        RunError: tensorboard is not installed.
        FileError: the folder cannot be written; raised when something is told.

    Example:
        ```python
        with purge.callbacks.TensorBoard("logs") as log:
            result = purge.unlearn(model, forget, retain, callbacks=log)
            report = purge.audit(result, forget, retain, test, callbacks=log)
        ```
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not os.fspath(folder):  # TensorBoard would choose a folder by itself
            raise DataError("a folder for TensorBoard", "an empty text", "pass TensorBoard('logs'), say")
        self._folder, self._kind = os.fspath(folder), ""
        self._seen, self._writer = set[tuple[str, int]](), None
        _tensorboard()

    def on_start(self, info: Mapping[str, Any]) -> None:
        """Write the settings as text.

        Args:
            info: what the run is.
        """
        self._kind, self._seen = info["kind"], set()
        self._open().add_text(
            f"{self._kind}/settings", f"```\n{json.dumps(info, indent=1, default=str)}\n```"
        )

    def on_check(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a check at once.

        Args:
            step: the number of steps taken, or of epochs.
            values: what was measured.
        """
        self._write(step, values)
        self._open().flush()

    def on_end(self, result: Result) -> None:
        """Write all steps of the history.

        Args:
            result: what the caller gets.
        """
        for step, values in rows_of(result.history, self._seen):
            self._write(step, values)
        self._open().add_scalar(f"{self._kind}/seconds", result.seconds, result.steps)
        self._open().flush()

    def on_report(self, report: Report) -> None:
        """Write every value of an audit.

        Args:
            report: what the caller gets.
        """
        for name, value in values_of(report).items():
            self._open().add_scalar(name, value, 0)
        self._open().flush()

    def close(self) -> None:
        """Close the event file; the next event opens another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Any:
        if self._writer is None:
            with told(Path(self._folder)):
                self._writer = _tensorboard()(self._folder)
        return self._writer

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._seen.add((name, step))
            self._open().add_scalar(f"{self._kind}/{name}", value, step)


class WeightsAndBiases(Callback):
    """Writes to a run of Weights & Biases: ``unlearn/…`` and ``train/…`` by step, ``audit/…`` as its summary.

    Needs the package wandb, ``pip install 'purge-unlearning[wandb]'``. The run stays open, so that an audit
    can add to it: :meth:`close` ends it, or ``with``, or the end of the process. Settings and numbers are
    sent, samples and ids are not.

    Args:
        project: its name at Weights & Biases; the run is begun when something is told.
        name: of the run.
        folder: where wandb keeps its files; by default where it always does.
        mode: ``online``, ``offline`` or ``disabled``; by default what wandb is set to.
        run: a run that you began yourself with ``wandb.init(…)``, in place of all of these; ending it is left
            to you.

    Raises:
        RunError: wandb is not installed.

    Example:
        ```python
        with purge.callbacks.WeightsAndBiases(project="deletions", mode="offline") as log:
            result = purge.unlearn(model, forget, retain, callbacks=log)
        ```
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        name: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        mode: str | None = None,
        run: Any = None,
    ) -> None:
        if (project is None) == (run is None):
            got, fix = "both" if project else "neither", "pass project='deletions', say"
            raise DataError("either project= or run= for WeightsAndBiases", got, fix)
        place = None if folder is None else os.fspath(folder)
        self._how = {"project": project, "name": name, "dir": place, "mode": mode}
        self._run, self._own, self._kind, self._seen = run, run is None, "", set[tuple[str, int]]()
        _wandb()

    def on_start(self, info: Mapping[str, Any]) -> None:
        """Begin the run, unless there is one, and write the settings into its configuration.

        Args:
            info: what the run is.
        """
        self._kind, self._seen = info["kind"], set()
        run = self._open()
        run.config.update({self._kind: dict(info)}, allow_val_change=True)
        run.define_metric(f"{self._kind}/*", step_metric=f"{self._kind}/step")

    def on_check(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a check at once.

        Args:
            step: the number of steps taken, or of epochs.
            values: what was measured.
        """
        self._write(step, values)

    def on_end(self, result: Result) -> None:
        """Send all steps of the history.

        Args:
            result: what the caller gets.
        """
        for step, values in rows_of(result.history, self._seen):
            self._write(step, values)
        self._open().summary.update({f"{self._kind}/seconds": result.seconds})

    def on_report(self, report: Report) -> None:
        """Send every value of an audit.

        Args:
            report: what the caller gets.
        """
        self._open().summary.update(values_of(report))

    def close(self) -> None:
        """End the run, if it was begun here; the next event begins another."""
        if self._own and self._run is not None:
            self._run.finish()
            self._run = None

    def __enter__(self) -> WeightsAndBiases:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Any:
        if self._run is None:
            self._run = _wandb().init(**self._how)
        return self._run

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        self._seen |= {(name, step) for name in values}
        self._open().log({f"{self._kind}/step": step, **{f"{self._kind}/{k}": v for k, v in values.items()}})


def named(text: str) -> Callback:
    """The tracker that ``--log`` names: ``tensorboard:FOLDER`` or ``wandb:PROJECT``."""
    kind, _, where = text.partition(":")
    if kind == "tensorboard" and where:
        return TensorBoard(where)
    if kind == "wandb" and where:
        return WeightsAndBiases(project=where)
    raise DataError("tensorboard:FOLDER or wandb:PROJECT", brief(text), "write --log tensorboard:logs, say")


def rows_of(
    history: Sequence[Mapping[str, Any]], seen: set[tuple[str, int]]
) -> Iterator[tuple[int, dict[str, float]]]:
    """The steps of a history with the values that were measured there and not told before.

    >>> list(rows_of([{"step": 0, "a": None, "b": 1.0}, {"step": 1, "a": True, "b": 2.0}], {("b", 0)}))
    [(1, {'a': 1.0, 'b': 2.0})]
    """
    for i, row in enumerate(history):
        step = int(row.get("step", row.get("epoch", i)))
        named = {k: v for k, v in row.items() if k not in ("step", "epoch") and v is not None}
        if values := {k: float(v) for k, v in named.items() if (k, step) not in seen}:
            yield step, values


def values_of(report: Report) -> dict[str, float]:
    """The values of an audit that were measured, by name, those of the other models beside them."""
    parts = {"audit": report.values, "audit_retrained": report.retrained, "audit_original": report.original}
    return {
        f"{part}/{name}": float(value.value)
        for part, values in parts.items()
        for name, value in values.items()
        if value.value is not None
    }


def _tensorboard() -> Any:
    """The writer of event files, which torch has and tensorboard makes work."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        fix = "pip install 'purge-unlearning[tensorboard]'"
        raise RunError("the package tensorboard, to log for it", "none", fix) from None
    return SummaryWriter


def _wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise RunError(
            "the package wandb, to log to it", "none", "pip install 'purge-unlearning[wandb]'"
        ) from None
    return wandb
