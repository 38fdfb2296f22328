"""Result, which unlearning and training return: it prints, draws and saves itself as a run folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from torch import nn

from purge.core.errors import FileError
from purge.core.files import atomically, out_folder, write_json, writes
from purge.core.folders import claimed, replacing_run
from purge.core.settings import as_dict
from purge.data.accept import Accepted
from purge.data.forgotten import KEY, Forgotten
from purge.data.items import Adapt, Form, IdOf
from purge.data.samples import Data, Samples
from purge.data.split import left_after
from purge.methods.sisa_model import SisaModel
from purge.models.checkpoint import digest, save_weights
from purge.report.frames import data_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Result:
    """What unlearning or training returned: a new model, and how it was made.

    Attributes:
        model: the new model.
        method: the frozen dataclass with all settings.
        history: a dict per step, or per epoch of a training.
        stopped_by: ``forget_target``, ``retain_budget`` or ``schedule``.
        seconds: how long it took.
        steps: how many were taken.
        info: sizes, seed, digests, and what was asked for.
        later: gives what the record says and nobody waits for, such as digests of all samples.
        forgotten: what the model has forgotten, in this request and those before it: digests, row numbers and
            ids.
        names: of the classes in the order of the model's outputs, where they are known.
        data: what the sets became that were given, so that an audit reads nothing again.

    Example:
        >>> Result(torch.nn.Linear(2, 2), None, [{"epoch": 1, "loss": 0.5}], "schedule", 1.25, 8)
        Result(Linear by training, 8 steps in 1.2 s, stopped by schedule)
    """

    model: nn.Module
    method: Any
    history: list[dict[str, Any]]
    stopped_by: str
    seconds: float
    steps: int
    info: dict[str, Any] = field(default_factory=dict)
    later: Callable[[], dict[str, Any]] = field(default=dict, repr=False, compare=False)
    forgotten: Forgotten = field(default_factory=Forgotten, repr=False, compare=False)
    names: tuple[str, ...] = field(default=(), repr=False, compare=False)
    data: Accepted = field(default_factory=Accepted, repr=False, compare=False)

    def without(
        self, dataset: Data, *, label: str | None = None, id_of: IdOf = None, adapt: Adapt | None = None
    ) -> Samples:
        """A dataset without what the model has forgotten.

        Args:
            dataset: in any form that :func:`purge.split` takes.
            label: the column or key of the label.
            id_of: the column, key or position of the user's own ids.
            adapt: a function from one item to ``(inputs, label)`` or ``(inputs, label, id)``.

        Returns:
            The rest, of the kind that :func:`purge.split` returns.
        """
        return left_after(self, dataset, Form(label, id_of, adapt))

    def __repr__(self) -> str:
        """One line: what was made, by what, and how it ended."""
        made, by = type(self.model).__name__, self.info.get("preset") or "training"
        took = f"{self.steps} steps in {self.seconds:.1f} s"
        return f"Result({made} by {by}, {took}, stopped by {self.stopped_by})"

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: with the digests, but without the data that they are of."""
        return {**self.__dict__, "info": {**self.info, **self.later()}, "later": dict, "data": Accepted()}

    def save(self, folder: str | os.PathLike[str], *, force: bool = False, **extra: Any) -> Path:
        """Write a run folder: model.safetensors, history.parquet and, last of all, run.json.

        A model that can delete samples exactly also writes all that later deletions need.

        Of several ranks of torch.distributed the first one writes.

        Args:
            folder: where; it must be empty or not exist.
            force: replace an old run, when the new one is whole.
            **extra: added to run.json: what is needed to rebuild the model and its data.

        Returns:
            The path of the folder.

        Raises:
            FileError: it cannot be written.
        """
        if not writes():
            return Path(folder)
        path = out_folder(folder, force=force)
        sisa = self.model if isinstance(self.model, SisaModel) else None
        if sisa is not None:
            plan = sisa.plan
            extra |= {"shards": plan.shards, "slices": plan.slices, "vote": plan.vote}
            extra |= {"retrained": sisa.retrained}
        try:
            with claimed(path), replacing_run(out_folder(path, force=force)) as new:
                if sisa is not None:
                    sisa.save(new)
                atomically(new / "model.safetensors", lambda p: save_weights(self.model, p))
                if self.history:
                    atomically(new / "history.parquet", lambda p: pq.write_table(_table(self.history), p))
                known = {KEY: self.forgotten.to_dict()} if self.forgotten else {}
                write_json(new / "run.json", {"finished": now(), **self.to_dict(), **known, **extra})
        except (OSError, SafetensorError) as error:  # a full disk is either, depending on the file
            got, fix = getattr(error, "strerror", None) or str(error), "make room, or choose another place"
            raise FileError(f"a folder that can be written at {path}", got, fix) from None
        return path

    def plot(self, name: str | None = None) -> Figure:
        """A Matplotlib figure of the run; without a name, losses, forget accuracy and cosines in one.

        Args:
            name: trajectory (checks, with target and budget) or steps (projections and cosines), for that
                figure alone.

        Returns:
            A figure that a notebook displays; ``figure.savefig("run.png")`` writes it.

        Raises:
            MetricError: the history has nothing to draw the named figure from.

        Example:
            ```python
            result.plot()
            ```
        """
        from purge.report.figures import draw
        from purge.report.run_figures import whole_run

        info = {**self.info, "run": self.info}
        curves = {"audited": {"history": columns(self.history)}}
        drawn = {"values": {}, "retrained": {}, "original": {}, "info": info, "curves": curves}
        return whole_run(drawn) if name is None else draw(drawn, name)

    def history_frame(self) -> DataFrame:
        """The history as a table: one row per step of an unlearning, or per epoch of a training.

        Returns:
            A pandas DataFrame with a column per quantity. What was not measured at a step, such as a check
            that was not due, is NaN.

        Example:
            >>> result = Result(torch.nn.Linear(2, 2), None, [{"epoch": 1, "loss": 0.5}], "schedule", 1.0, 1)
            >>> result.history_frame()
               epoch  loss
            0      1   0.5
        """
        return data_frame(self.history)

    def _repr_html_(self) -> str:
        """The run in a notebook."""
        from purge.report.page import run_table

        how = {"method": type(self.method).__name__, "stopped_by": self.stopped_by, "steps": self.steps}
        return run_table({**how, "seconds": self.seconds, **self.info}, columns(self.history))

    def to_dict(self) -> dict[str, Any]:
        """Everything but weights and history, as plain JSON values."""
        return {
            "method": type(self.method).__name__,
            "settings": as_dict(self.method),
            "stopped_by": self.stopped_by,
            "steps": self.steps,
            "seconds": self.seconds,
            "digest": digest(self.model),
            **self.info,
            **self.later(),
            **environment(),
        }


def module_of(model: Any) -> Any:
    """The model of a result; a model as it is."""
    return model.model if isinstance(model, Result) else model


def columns(history: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A history by quantity instead of by step, without quantities that were never measured."""
    names = history[0] if history else {}
    by_name = {name: [row.get(name) for row in history] for name in names}
    return {name: column for name, column in by_name.items() if any(v is not None for v in column)}


def read_history(path: Path) -> list[dict[str, Any]]:
    """The history of a run folder, one dict per step."""
    try:
        table = pq.read_table(path)
        rows: list[dict[str, Any]] = table.to_pylist()
    except (pa.ArrowException, OSError, ValueError):
        raise FileError(f"a history in {path}", "something else", "unlearn again") from None
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    if odd := [f for f in table.schema if not any(is_it(f.type) for is_it in kinds)]:
        got = f"{odd[0].type} as {odd[0].name}"
        raise FileError(f"a history of numbers in {path}", got, "unlearn again")
    return rows


def _table(history: list[dict[str, Any]]) -> pa.Table:
    """One row per step; a quantity that was never measured becomes a column of empty numbers."""
    table = pa.Table.from_pylist(history)
    fields = [pa.field(f.name, pa.float64()) if pa.types.is_null(f.type) else f for f in table.schema]
    return table.cast(pa.schema(fields))


def now() -> str:
    """The current time in UTC, in the form of ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """Versions and hardware."""
    packages = ("purge-unlearning", "torchvision", "timm", "transformers", "numpy", "scipy", "scikit-learn")
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    hardware = {"machine": platform.machine(), "cpus": os.cpu_count(), "gpu": gpu}
    return {"versions": versions, "hardware": hardware}
