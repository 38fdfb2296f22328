"""What unlearning and audits return: records that print, draw and save themselves."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Iterable, Mapping
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

from purge.core.errors import FileError, MetricError, did_you_mean
from purge.core.files import atomically, file_errors, out_folder, read_json, write_json, write_text, writes
from purge.core.folders import claimed, replacing_run
from purge.core.schema import build
from purge.core.settings import as_dict
from purge.data.accept import Accepted
from purge.data.forgotten import KEY, Forgotten
from purge.data.ids import IdOf
from purge.data.items import Adapt, Form
from purge.data.samples import Data, Samples
from purge.data.split import left_after
from purge.methods.sisa_model import SisaModel
from purge.metrics.metric import Words
from purge.metrics.registry import METRICS, find_metric
from purge.metrics.value import Value
from purge.models.checkpoint import digest, save_weights
from purge.report.curves import check_curves
from purge.report.tables import as_text, audit_table
from purge.verdict.compare import broken, read_condition
from purge.verdict.findings import Finding, Verdict
from purge.verdict.judge import verdict_of
from purge.verdict.rules import Level

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Report:
    """The audit of a model: every value beside the retrained and the original model's.

    ``report["fa_test"]`` is a :class:`Value`. A metric with several values is a dict of them,
    ``report["bn_recal"]``, and each has a dotted name, ``report["bn_recal.delta"]``.

    Attributes:
        values: of the audited model, by name.
        retrained: the same of the retrained model; empty without one.
        original: the same of the original; empty without it.
        info: sizes, seed, digests, versions, and the record of the run.
        floor: what further retrained models reach against the first: mean, lowest, highest and number of
            models; empty with fewer than two.
        curves: what the figures are drawn from: model → name → lists.
        metrics: what ``Metric.describe()`` says about each.
        parts: if the request mixes whole classes with single samples, a report on the ``classes`` and one on
            the ``samples``, without attacks by shadow models.

    Example:
        >>> report = Report({"ra": Value(0.98, 0.97, 0.99, 500)}, {"ra": Value(0.99)}, {})
        >>> report
        Report(1 values beside retrained, ra 98.0 %)
        >>> report["ra"].value, report.retrained["ra"].value
        (0.98, 0.99)
    """

    values: dict[str, Value]
    retrained: dict[str, Value]
    original: dict[str, Value]
    info: dict[str, Any] = field(default_factory=dict)
    floor: dict[str, Value] = field(default_factory=dict)
    curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, Report] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add what the registry says about the metrics and the report does not, as an earlier version's."""
        kinds = dict.fromkeys(name.partition(".")[0] for name in (*self.values, *self.metrics))
        known = {kind: METRICS[kind].describe() for kind in kinds if kind in METRICS}
        own = {kind: {**known.get(kind, {}), **self.metrics.get(kind, {})} for kind in kinds}
        object.__setattr__(self, "metrics", {kind: about for kind, about in own.items() if about})

    def __getitem__(self, name: str) -> Any:
        for known in (name, name.split(".")[0]):  # a part of a missing metric is missing too
            if known in self.values:
                return self.values[known]
        parts = {k[len(name) + 1 :]: v for k, v in self.values.items() if k.startswith(name + ".")}
        if not parts:
            raise MetricError("a metric of this report", repr(name), did_you_mean(name, self.values))
        return parts

    def table(self) -> str:
        """The report as a text table, with accuracies in percent and the reasons for missing values."""
        return as_text(audit_table(self.to_dict()))

    def to_frame(self) -> DataFrame:
        """The report as a table: one row per value, in the order of the text table.

        Returns:
            A pandas DataFrame with the columns ``name``, ``section``, ``unit``, ``value``, ``low`` and
            ``high`` (the 95 % interval), ``n`` (samples), ``why`` (of a missing value), and ``retrained``,
            ``original`` and ``floor``: the same value of the other models. Shares are fractions, and what is
            missing is NaN.

        Example:
            >>> report = Report({"ra": Value(0.98, 0.97, 0.99, 500)}, {"ra": Value(0.99)}, {})
            >>> report.to_frame()[["name", "value", "low", "high", "n", "retrained"]]
              name  value   low  high    n  retrained
            0   ra   0.98  0.97  0.99  500       0.99
        """
        from purge.report.frames import as_frame

        return as_frame(self._numbers())

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        from purge.report.frames import in_one_line

        return in_one_line(self._numbers())

    @property
    def verdict(self) -> Verdict:
        """What was shown, what failed and what is not known: typed findings, and what they come to.

        Each finding has a ``rule``, a ``part`` of the request, a ``level`` and the ``evidence``: the numbers
        that were compared, what is missing and what would help. Their words are in :meth:`sentences`.
        """
        return verdict_of(self._numbers())

    @property
    def level(self) -> Level:
        """What the verdict comes to: shown, failed or unknown."""
        return self.verdict.level

    @property
    def failed(self) -> list[Finding]:
        """The findings that the numbers contradict."""
        return [*self.verdict.failed]

    @property
    def headline(self) -> str:
        """The whole verdict in one sentence, as the page has it on top."""
        from purge.report.findings import headline_of

        return str(headline_of(self.verdict))

    def sentences(self, findings: Iterable[Finding] | None = None) -> list[str]:
        """Findings in a few sentences each.

        Args:
            findings: of this report; default: all.

        Returns:
            What was shown, what failed and what is not known.
        """
        from purge.report.findings import sentence_of

        report = self._numbers()
        findings = self.verdict.findings if findings is None else findings
        return [str(sentence_of(finding, report)) for finding in findings]

    def check(self, *conditions: str) -> list[str]:
        """Those of the conditions that hold; none if the model passes.

        Args:
            *conditions: what must not be, as in ``--fail-if``: ``report.check("fa_test > 2", "ra < 99")``,
                with shares in percent, or ``"failed"`` for any failed finding. A value that is missing does
                not pass.

        Returns:
            A sentence for each; an empty list is a pass.

        Raises:
            MetricError: no condition, or one of a metric that is not known.
        """
        from purge.report.findings import broken_words

        if not conditions:
            raise MetricError("at least one condition", "none", "pass 'fa_test > 2', say")
        wanted = [
            read_condition(text, lambda n: self.metrics.get(n) or find_metric(n).describe())
            for text in conditions
        ]
        return [broken_words(one) for one in broken(wanted, self._numbers(), self.verdict)]

    def plot(self, name: str | None = None) -> Figure:
        """A Matplotlib figure of the audit; without a name, an overview.

        The overview has what was forgotten, what stays, attacks on membership and treatments of the weights,
        beside the retrained and the original model. A panel without numbers says why it has none.

        Args:
            name: one of trajectory, steps, classes, destinations, membership, roc, robustness, relearn and
                features, for that figure alone.

        Returns:
            A figure that a notebook displays; ``figure.savefig("report.png")`` writes it.

        Raises:
            MetricError: the report has nothing to draw the named figure from.

        Example:
            ```python
            report.plot()
            report.plot("classes").savefig("classes.png")
            ```
        """
        from purge.report.figures import draw
        from purge.report.overview import overview

        return overview(self.to_dict()) if name is None else draw(self.to_dict(), name)

    def html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one HTML page that needs no other file.

        Args:
            path: the file; an existing one is replaced.

        Returns:
            Its path.
        """
        from purge.report.page import page
        from purge.report.record import record_of

        run = self.info.get("run") or {}
        name, records = run.get("preset") or "audit", record_of(run, self.info) if run else {}
        with file_errors(Path(path)):
            write_text(Path(path), page({name: self.to_dict()}, records={name: records}, written=now()))
        return Path(path)

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from purge.report.page import report_table

        return report_table(self.to_dict())

    def _numbers(self) -> dict[str, Any]:
        """The report without curves, which would take long to copy."""
        return dataclasses.replace(self, curves={}).to_dict()

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return dataclasses.asdict(self)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write audit.json and report.html into a folder.

        Args:
            folder: which may be that of the run.

        Returns:
            Its path.
        """
        if not writes():
            return Path(folder)
        path = out_folder(folder, force=True)
        with file_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        self.to_json(path / "audit.json")
        self.html(path / "report.html")
        return path

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file.

        Args:
            path: the file; an existing one is replaced.
        """
        if not writes():
            return
        with file_errors(Path(path)):
            write_json(Path(path), {**self.to_dict(), "verdict": self.verdict.to_dict()})

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Report:
        """Read a report that :meth:`to_json` wrote.

        Args:
            path: the file.

        Returns:
            The report.

        Raises:
            FileError: it is something else.
        """
        content = read_json(Path(path))
        found = build(cls, content, str(path), ignore_unknown=True)
        build(AuditInfo, content.get("info"), f"info of {path}", ignore_unknown=True)
        check_curves(found.curves, str(path))
        for name, about in found.metrics.items():
            build(Described, about, f"{name} of metrics of {path}", ignore_unknown=True)
        return found


@dataclass(frozen=True)
class Described:
    """The types of what a report says about a metric: see ``Metric.describe``."""

    symbol: str = ""
    about: str = ""
    unit: str = "number"
    units: dict[str, str] = field(default_factory=dict)
    parts: list[str] | str = ""
    section: str = ""
    direction: str = ""
    slack: float = 0.0
    ideal: float | str | None = None
    cost: str = ""
    words: dict[str, Words] = field(default_factory=dict)
    curve: str = ""


@dataclass(frozen=True)
class AuditInfo:
    """The types of those keys of ``Report.info`` that people are shown."""

    classes: int | None = None
    names: list[str] | None = None
    forget_classes: list[int] | None = None
    forget_samples: int | None = None
    retain_samples: int | None = None
    copies: dict[str, int | None] | None = None  # between the sets
    forget_content: str | None = None
    augmented: str | None = None  # which data could not be read without random transforms
    retain_content: str | None = None
    digests: dict[str, str] | None = None  # of the weights of each model
    models: dict[str, str] | None = None  # which model each column is, in words
    threads: int | list[int] | None = None
    cache: list[str] | None = None


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
        from purge.report.frames import data_frame

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


def floor_of(others: list[dict[str, Value]]) -> dict[str, Value]:
    """What further retrained models reach: mean, lowest, highest, and how many there are."""
    found = {}
    for name in others[0] if others else {}:
        found_in = [other[name].value for other in others if name in other]
        numbers = [v for v in found_in if v is not None]
        if numbers:
            found[name] = Value(sum(numbers) / len(numbers), min(numbers), max(numbers), len(numbers))
    return found


def models_in_words(
    digests: Mapping[str, str], run: Result | None, taught: Mapping[str, str | None], retained: str | None
) -> dict[str, str]:
    """Which model each column of an audit is, as far as an audit in Python can know.

    ``taught``: digests of the data that the others were trained on; ``retained``: that of the retained data.
    """
    about = {} if run is None else run.info
    began = about.get("original_digest")
    if began is None:
        original = "passed as the original"
    elif began == digests.get("original"):
        original = "the model that the unlearning began with"
    else:
        original = "passed as the original, but not the model that the unlearning began with"
    made = "a model that was passed" if run is None else f"the result of “{about.get('preset') or 'train'}”"
    words = {"audited": made, "original": original}
    return {
        name: f"{words.get(name) or reference_in_words(taught.get(name), retained)} (weights {weights[:12]}…)"
        for name, weights in digests.items()
    }


def reference_in_words(taught: str | None, retained: str | None) -> str:
    """What a retrained model was trained on, if both digests are known."""
    if taught is None or retained is None:
        return "passed as retrained; what it was trained on is not recorded"
    if taught == retained:
        return "trained on exactly the retained samples"
    return "passed as retrained, but trained on other samples than the retained ones"


def columns(history: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A history by quantity instead of by step, without quantities that were never measured."""
    names = history[0] if history else {}
    found = {name: [row.get(name) for row in history] for name in names}
    return {name: column for name, column in found.items() if any(v is not None for v in column)}


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
